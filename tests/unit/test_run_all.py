"""tests/run_all.sh, which `make test` and its like run: which tests run side by side and
which one at a time, and what its status says. Its pytest writes down its words.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "run_all.sh"
PYTEST = """#!/bin/bash
echo "$*" >>"$WORDS"
echo "red: test_of_$2"
case "$*" in
*"not quiet_machine"*) echo "=== several ==="; exit "$BESIDE" ;;
*) echo "=== one ==="; exit "$ALONE" ;;
esac
"""
NO_TEST = 5


def run_all(
    folder: Path, beside: int = 0, alone: int = 0
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it on a folder with a quiet test and another one. Returns the words of each
    call of pytest, too.
    """
    words, program = folder / "words", folder / "pytest"
    program.write_text(PYTEST)
    program.chmod(0o755)
    (folder / "test_quiet.py").write_text("@pytest.mark.quiet_machine")
    (folder / "test_other.py").write_text("")
    environment = {
        **os.environ,
        "DEVGRID_LEDGER_TEMPLATE": "there is one",
        "WORDS": str(words),
        "BESIDE": str(beside),
        "ALONE": str(alone),
    }
    done = subprocess.run(
        [SCRIPT, program, "3", folder, "--extended=only"],
        env=environment,
        capture_output=True,
        text=True,
    )
    return done, words.read_text().splitlines()


def test_run_all__quiet_tests_and_others__run_apart_with_the_slowest_files(
    tmp_path: Path,
) -> None:
    _, (beside, alone) = run_all(tmp_path)
    both = "--slowest-files 10 -m"
    assert beside == (
        f"{both} not quiet_machine -n 3 --dist loadfile --no-loadscope-reorder {tmp_path} --extended=only"
    )
    quiet = tmp_path / "test_quiet.py"
    assert alone == f"{both} quiet_machine {quiet} --extended=only"


@pytest.mark.parametrize(
    ("beside", "alone", "status"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, 1),
        (2, 1, 2),
        (NO_TEST, 0, 0),
        (0, NO_TEST, 0),
        (NO_TEST, NO_TEST, NO_TEST),
        (NO_TEST, 1, 5),
        (1, NO_TEST, 1),
    ],
)
def test_run_all__either_half_is_red__says_so_by_its_status(
    tmp_path: Path, beside: int, alone: int, status: int
) -> None:
    done, calls = run_all(tmp_path, beside, alone)
    assert done.returncode == status
    assert len(calls) == 2


def test_run_all__its_end__repeats_what_is_red_and_sums_up_both(tmp_path: Path) -> None:
    done, _ = run_all(tmp_path, beside=1)
    assert done.stdout.splitlines()[-4:] == [
        "red: test_of_10",
        "red: test_of_10",
        "side by side:  several ",
        "one at a time:  one ",
    ]
