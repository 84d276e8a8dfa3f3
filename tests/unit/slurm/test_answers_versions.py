"""What SLURM 22.05.8 and 24.11.5 answer to orders and keep in accounting is read alike:
recorded by tests/support/record_slurm_answers.py.
"""

import json

import pytest

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    SlurmRejectedError,
    SlurmUnavailableError,
    has_accounting,
    not_cancelled,
    require_success,
    submitted_id,
)
from supervisor_tasks.slurm.sacct import accounted_jobs
from supervisor_tasks.slurm.squeue import listed_jobs
from tests.support.slurm_samples import DATA, DELIMITER, with_size_fields

DONE, UNKNOWN = SlurmId(1), SlurmId(999_999)
REFUSED = (
    "partition",
    "cpus",
    "many-cpus",
    "memory",
    "gpus",
    "tasks",
    "time",
    "feature",
    "reservation",
)
NOT_A_SCRIPT = ("empty", "no-interpreter")


@pytest.fixture(params=["22.05.8", "24.11.5"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answer(version: str, name: str) -> CommandAnswer:
    told = json.loads((DATA / version / "answers.json").read_text())[name]
    return CommandAnswer(told["status"], told["stdout"], told["stderr"])


def test_submitted_id__of_each_version__is_the_id_with_and_without_a_warning(
    version: str,
) -> None:
    assert submitted_id(answer(version, "sbatch")) == 6
    warned = answer(version, "sbatch-nodes")
    assert "warning" in warned.stderr.lower()
    assert submitted_id(warned) > 6


@pytest.mark.parametrize("what", [*REFUSED, *NOT_A_SCRIPT])
def test_submitted_id__refused_by_each_version__is_rejected(
    version: str, what: str
) -> None:
    with pytest.raises(SlurmRejectedError):
        submitted_id(answer(version, f"sbatch-{what}"))


def test_orders__about_unknown_and_ended_jobs__are_no_error(version: str) -> None:
    assert not_cancelled(answer(version, "scancel-ended"), [DONE]) == {}
    assert not_cancelled(answer(version, "scancel-unknown"), [UNKNOWN]) == {}
    assert require_success(answer(version, "update"), "update")
    assert not require_success(answer(version, "update-ended"), "update")
    assert not require_success(answer(version, "update-unknown"), "update")


def test_lists__of_unknown_jobs__are_empty(version: str) -> None:
    assert listed_jobs(answer(version, "squeue-unknown"), DELIMITER) == {}
    assert answer(version, "squeue-one-unknown") == CommandAnswer(0, "1\n", "")
    assert accounted_jobs(answer(version, "sacct-unknown"), DELIMITER) == []
    with pytest.raises(SlurmUnavailableError):
        listed_jobs(answer(version, "squeue-user-unknown"), DELIMITER)


def test_answers__slurmctld_and_slurmdbd_are_down__nothing_is_concluded(
    version: str,
) -> None:
    with pytest.raises(OutcomeUnknownError):
        submitted_id(answer(version, "sbatch-down"))
    with pytest.raises(SlurmUnavailableError):
        not_cancelled(answer(version, "scancel-down"), [SlurmId(4)])
    with pytest.raises(SlurmUnavailableError):
        require_success(answer(version, "update-down"), "update")
    with pytest.raises(SlurmUnavailableError):
        has_accounting(answer(version, "show-config-down"))
    with pytest.raises(SlurmUnavailableError):
        listed_jobs(answer(version, "squeue-down"), DELIMITER)
    with pytest.raises(SlurmUnavailableError):
        accounted_jobs(answer(version, "sacct-down"), DELIMITER)


def test_accounted_jobs__of_each_version__have_states_ends_and_the_line_of_sbatch(
    version: str,
) -> None:
    printed = CommandAnswer(
        0, with_size_fields((DATA / version / "sacct.txt").read_text()), ""
    )
    rows = accounted_jobs(printed, DELIMITER)
    assert [row.record.state for row in rows] == [
        "COMPLETED",
        "FAILED",
        "FAILED",
        "RUNNING",
        "PENDING",
    ]
    assert [row.record.exit_status for row in rows] == [0, 3 * 256, 9, 0, 0]
    assert [row.record.user for row in rows] == ["root"] * 5
    assert [row.record.ended_s is not None for row in rows] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [row.job_id for row in rows] == [
        JobId(f"0x{number:064x}") for number in range(1, 6)
    ]


def test_hooks__of_each_version__are_told_what_the_plugins_read(version: str) -> None:
    told = json.loads((DATA / version / "hooks.json").read_text())
    for name in ("started-4", "node-4"):
        assert (told[name]["SLURM_JOB_ID"], told[name]["SLURM_JOB_COMMENT"]) == (
            "4",
            "supervisor h:1",
        )
    assert told["started-4"]["SLURM_JOB_STDOUT"].endswith(
        f"/{told['started-4']['SLURM_JOB_NAME']}.log"
    )
    # which is why the SPANK plugin asks slurmctld
    assert "SLURM_JOB_NAME" not in told["node-4"]
    for number in (1, 2, 3):
        ended = told[f"ended-{number}"]
        assert (ended["JOBID"], ended["JOBNAME"]) == (str(number), f"0x{number:064x}")
        assert 1_700_000_000 < int(ended["START"]) <= int(ended["END"])
        assert "COMMENT" not in ended
