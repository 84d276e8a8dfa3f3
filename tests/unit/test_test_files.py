"""Where test files stand: a reader finds a module's tests by its package, and the
helpers of all tests in tests/support. And which of them `make test` runs.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
MIRRORS = ("unit", "integration")
OF_NO_PACKAGE = {"benchmarks", "devgrid", "docker", "grpc_callbacks", "plugins"}
# these have helpers, too, which only tests of the same folder import
HELPERS_OF_THEIR_OWN = {"support", "chaos", "load", "images"}
OF_NO_MODULE = {  # why: these files have the name of no module of their package
    "several modules at work on real parts": {
        "integration/benchmarking/test_benchmark_jobs.py",
        "integration/benchmarking/test_benchmark_limits.py",
        "integration/benchmarking/test_benchmark_runs.py",
        "integration/cli/test_changes.py",
        "integration/config/test_starting.py",
        "integration/indexer/test_reading_logs.py",
        "integration/jobs/test_hostile_jobs.py",
        "integration/jobs/test_parking.py",
        "integration/jobs/test_rest_submission.py",
        "integration/jobs/test_sizes_untold.py",
        "integration/jobs/test_submission_batches.py",
        "integration/messaging/test_worker_start.py",
        "integration/reconciliation/test_sweep_cost.py",
        "integration/reconciliation/test_sweeps.py",
        "integration/slurm/test_whose_job.py",
    },
    "several modules by one rule": {
        "unit/benchmarks/test_fuzz.py",
        "unit/chain/test_unknown_provider.py",
        "unit/cli/test_commands.py",
        "unit/cli/test_golden.py",
        "unit/config/test_notify_settings.py",
        "unit/config/test_rest_settings.py",
        "unit/grpc_callbacks/test_calls.py",
        "unit/reconciliation/test_slurm_state_loss.py",
        "unit/slurm/test_answers_versions.py",
    },
    "a part of a module": {
        "integration/config/test_embedded.py",
        "integration/grpc_callbacks/test_callback_sockets.py",
        "integration/plugins/test_probe_server.py",
        "unit/config/test_benchmark_settings.py",
        "unit/devgrid/test_end_jobs.py",
        "unit/grpc_callbacks/test_poll_message.py",
    },
    "SQL and scripts, which are no modules": {
        "integration/devgrid/test_setup_scripts.py",
        "integration/ledger/test_flat.py",
        "integration/ledger/test_plans.py",
        "unit/ledger/test_sql.py",
    },
    "a page of the documentation or a file of a site": {
        "integration/plugins/test_sshd_config_of_the_docs.py",
        "unit/config/test_env_example.py",
        "unit/ledger/test_connections_of_the_docs.py",
        "unit/messaging/test_scaling_of_the_chart.py",
        "unit/plugins/test_installation.py",
    },
}
MAX_CHARACTERS = 80  # of a test's name
TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
_PART = "[a-z0-9]+(?:_[a-z0-9]+)*"
THREE_PARTS = re.compile(f"test_{_PART}__{_PART}__{_PART}")


def _python_files(folder: Path) -> list[Path]:
    return [
        path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts
    ]


def test_folders__of_unit_and_integration_tests__are_named_after_packages() -> None:
    packages = {
        path.parent.name
        for path in (REPOSITORY / "supervisor_tasks").glob("*/__init__.py")
    }
    parents = {
        path
        for mirror in MIRRORS
        for path in (TESTS / mirror).iterdir()
        if (path / "__init__.py").exists()
    }
    strange = [
        str(path.relative_to(REPOSITORY))
        for path in parents
        if path.name not in packages | OF_NO_PACKAGE
    ]
    assert not strange, f"named after no package of the product: {strange}"


def test_folders__of_integration_tests__have_all_tests_in_a_package() -> None:
    loose = [path.name for path in (TESTS / "integration").glob("test_*.py")]
    assert not loose, f"in no package's folder: {loose}"


def _modules_of(folder: str) -> set[str]:
    """The names in a package, its own included; devgrid's tests share one folder."""
    of_product = REPOSITORY / "supervisor_tasks" / folder
    package = of_product if of_product.is_dir() else REPOSITORY / folder
    below = package.rglob("*") if folder == "devgrid" else package.iterdir()
    paths = [package, *below]
    return {path.stem for path in paths if path.is_dir() or path.suffix == ".py"}


def _is_of_a_module(path: Path) -> bool:
    """Whether a file is named as a module of its package, or as one and a subject."""
    subject = path.stem.removeprefix("test_")
    modules = _modules_of("/".join(path.relative_to(TESTS).parts[1:-1]))
    return subject in modules or any(
        subject.startswith(f"{module}_") for module in modules
    )


def test_files__of_a_package__are_named_as_its_modules_or_listed_with_a_reason() -> (
    None
):
    files = [
        path
        for mirror in MIRRORS
        for path in (TESTS / mirror).glob("*/**/test_*.py")
        if path.parent.name != "docker"  # no package: what deploys the product
    ]
    strange = {
        str(path.relative_to(TESTS)) for path in files if not _is_of_a_module(path)
    }
    listed = set[str]().union(*OF_NO_MODULE.values())
    assert strange == listed, (
        f"named as no module: {strange - listed}; listed without need: {listed - strange}"
    )


def test_helpers__of_all_tests__are_in_support() -> None:
    own = ("test_", "__init__", "conftest")
    files = [path.relative_to(TESTS) for path in _python_files(TESTS)]
    helpers = [
        path
        for path in files
        if not path.name.startswith(own) and path.parts[0] not in HELPERS_OF_THEIR_OWN
    ]
    assert not helpers, (
        f"to be moved to tests/support: {[str(path) for path in helpers]}"
    )


def _imports(path: Path) -> Iterator[Path]:
    """The files and folders of tests/ that a file imports, by their paths in tests/."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            folder, *parts = name.split(".")
            if folder == TESTS.name and parts:
                yield _module(Path(*parts))


def _module(path: Path) -> Path:
    """The module of a name, or the module in which the name is defined."""
    for found in (path.with_suffix(".py"), path):
        if (TESTS / found).exists():
            return found
    return path.parent.with_suffix(".py")


def test_helpers__imported_from_another_folder__are_in_support() -> None:
    elsewhere = {
        f"{path.relative_to(TESTS)} imports {imported}"
        for path in _python_files(TESTS)
        for imported in _imports(path)
        if imported.parts[0] not in {"support", path.relative_to(TESTS).parts[0]}
    }
    assert not elsewhere, f"to be moved to tests/support: {sorted(elsewhere)}"


def test_test_files__as_modules__are_imported_by_no_file() -> None:
    imports = {
        f"{path.relative_to(TESTS)} imports {imported}"
        for path in _python_files(TESTS)
        for imported in _imports(path)
        if imported.name.startswith("test_")
    }
    assert not imports, f"what they share belongs in tests/support: {sorted(imports)}"


def test_names__of_all_tests__have_three_parts_and_at_most_80_characters() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in _python_files(TESTS)
        for name in TEST.findall(path.read_text())
        if len(name) > MAX_CHARACTERS or not THREE_PARTS.fullmatch(name)
    ]
    assert not wrong, (
        f"expected test_<function>__<situation>__<outcome>, {MAX_CHARACTERS} characters at most: {wrong}"
    )


@pytest.mark.parametrize("choice", ["without", "only"])
def test_extended__of_the_command__chooses_rest_chaos_and_what_is_marked(
    choice: str,
) -> None:
    files = {
        "tests/chaos/test_audit.py": {"only"},
        "tests/chaos/test_forged_callbacks.py": {"without"},
        "tests/e2e/test_demo.py": {"only"},  # marked
        "tests/integration/slurm/test_whose_job.py": {"only", "without"},
        "tests/unit/doctor/test_verdicts.py": {"without"},
    }
    argv = [sys.executable, "-m", "pytest", "--collect-only", "--quiet"]
    done = subprocess.run(
        [*argv, f"--extended={choice}", *files],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    chosen = [line for line in done.stdout.splitlines() if "::" in line]
    assert {line.partition("::")[0] for line in chosen} == {
        file for file, choices in files.items() if choice in choices
    }
    over_rest = [line for line in chosen if line.endswith("[rest]")]
    whose_job = [line for line in chosen if "test_whose_job" in line]
    assert over_rest == (whose_job if choice == "only" else [])
