"""The suite: nothing that can be measured is left out of it."""

import importlib
import pkgutil

import benchmarks
from benchmarks.registry import SUITE


def test_suite__modules_with_a_script_and_a_parser__are_all_in_it() -> None:
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    modules = [importlib.import_module(f"benchmarks.{name}") for name in names]
    measuring = {
        module.__name__
        for module in modules
        if hasattr(module, "render") and hasattr(module, "parse")
    }
    assert measuring
    assert {benchmark.render.__module__ for benchmark in SUITE.values()} == measuring
