"""What SLURM 22.05.8 printed, read again; and any text gives a result or an error of
ours.
"""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError
from supervisor_tasks.jobs.model import ChainStatus, SlurmId
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import (
    MAX_SLURM_ID,
    AnswerNotUnderstoodError,
    CommandAnswer,
    JobRecord,
    SlurmRejectedError,
    SlurmUnavailableError,
    UnknownAccountError,
    boot_time,
    controller_time_s,
    describe_exit,
    elapsed_s,
    has_accounting,
    max_job_id,
    min_job_age_s,
    next_id,
    not_cancelled,
    require_success,
    submitted_id,
    wait_status,
)
from supervisor_tasks.slurm.sacct import accounted_jobs
from tests.support.slurm_samples import DATA, DELIMITER, recorded, seen_jobs

A_JOB = "7|0xabab|{state}|{used}|125|None|1795285686|0|1|5:00|a|b|c|1795285687|main|normal|||N/A|1|cpu=1|||||0|||||"


def accounted(name: str, status: int = 0) -> list[JobRecord]:
    """What sacct shows."""
    return [row.record for row in accounted_jobs(recorded(name, status), DELIMITER)]


def listed_as(state: str, used: str) -> str:
    """What squeue prints of a job."""
    return A_JOB.format(state=state, used=used).replace("|", f"|{DELIMITER}") + "\n"


def test_seen_jobs__all_states__are_told_apart() -> None:
    jobs = seen_jobs(recorded("squeue-jobs"))
    user, submit_s = "0x" + "ab" * 20, jobs[SlurmId(3)].submit_s
    assert submit_s > 1_700_000_000
    told = replace(jobs[SlurmId(3)], size=None)
    assert told == JobRecord(
        SlurmId(3), "FAILED", 0, 768, "NonZeroExitCode", user, submit_s
    )
    assert (
        jobs[SlurmId(1)].state,
        jobs[SlurmId(1)].exit_status,
        jobs[SlurmId(1)].reason,
    ) == (
        "TIMEOUT",
        15,
        "TimeLimit",
    )
    assert 60 <= jobs[SlurmId(1)].elapsed_s < 120
    phases = {slurm_id: job.phase for slurm_id, job in jobs.items()}
    assert [
        slurm_id for slurm_id, found in phases.items() if found is Phase.RUNNING
    ] == [5, 11]
    assert [
        slurm_id for slurm_id, found in phases.items() if found is Phase.WAITING
    ] == [9]
    ends = {
        slurm_id: job.outcome().status
        for slurm_id, job in jobs.items()
        if job.phase is Phase.ENDED
    }
    assert ends == {
        6: ChainStatus.CANCELLED,
        7: ChainStatus.CANCELLED,
        10: ChainStatus.CANCELLED,
        2: ChainStatus.FINISHED,
        3: ChainStatus.FAILED,
        4: ChainStatus.FAILED,
        8: ChainStatus.FAILED,
        1: ChainStatus.OUT_OF_CREDITS,
    }
    assert jobs[SlurmId(8)].outcome().reason == "SLURM: NODE_FAIL"
    assert jobs[SlurmId(4)].outcome().reason == "killed by signal 9"


def test_seen_jobs__completing__has_no_end_state_yet() -> None:
    assert seen_jobs(recorded("squeue-jobs-live"))[SlurmId(7)].phase is Phase.UNKNOWN


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("squeue-jobs-unknown", 1),
        ("squeue-jobs-purged", 1),
        ("squeue-jobs-all-unknown", 0),
        ("squeue-name-user-none", 0),
    ],
)
def test_seen_jobs__unknown_to_slurm__is_empty(name: str, status: int) -> None:
    assert seen_jobs(recorded(name, status)) == {}


@pytest.mark.parametrize(
    ("name", "status"), [("squeue-down", 1), ("squeue-name-user-unknown", 0)]
)
def test_seen_jobs__could_not_ask__is_not_empty_but_unavailable(
    name: str, status: int
) -> None:
    with pytest.raises(SlurmUnavailableError):
        seen_jobs(recorded(name, status))


def test_accounted_jobs__recorded__agree_with_squeue_on_state_and_time() -> None:
    told = {job.slurm_id: job for job in accounted("sacct-jobs")}
    seen = seen_jobs(recorded("squeue-jobs"))
    assert told.keys() == seen.keys()
    for slurm_id, job in told.items():
        assert job.state == seen[slurm_id].state
        assert (job.user, job.submit_s) == (
            seen[slurm_id].user,
            seen[slurm_id].submit_s,
        )
        if job.phase is Phase.ENDED:
            assert job.outcome() == seen[slurm_id].outcome()
    assert told[SlurmId(3)].exit_status == 768


def test_seen_jobs__one_of_several_unknown__gives_the_others() -> None:
    assert seen_jobs(recorded("squeue-jobs-one-unknown")).keys() == {2, 3}
    assert seen_jobs(recorded("squeue-jobs-all-unknown")) == {}


def test_accounted_jobs__unknown_to_slurmdbd__are_left_out() -> None:
    assert accounted("sacct-jobs-unknown") == []
    assert [job.slurm_id for job in accounted("sacct-jobs-one-unknown")] == [2]


def test_accounted_jobs__cancelled__names_no_user() -> None:
    assert "CANCELLED by " in recorded("sacct-jobs").stdout
    told = {job.slurm_id: job for job in accounted("sacct-jobs")}
    assert told[SlurmId(6)].outcome().status is ChainStatus.CANCELLED


def test_outcome__ended_by_slurm__has_no_exit_status_even_if_squeue_shows_one() -> None:
    shown = seen_jobs(recorded("squeue-jobs"))
    assert {shown[SlurmId(number)].exit_status for number in (1, 6, 7)} == {15, 9}
    assert {shown[SlurmId(number)].outcome().exit_status for number in (1, 6, 7)} == {0}


@pytest.mark.parametrize(
    "state", ["OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "NODE_FAIL"]
)
def test_outcome__ended_by_slurm__is_failed_with_slurms_state_and_the_minutes_used(
    state: str,
) -> None:
    outcome = seen_jobs(CommandAnswer(0, listed_as(state, "2:59"), ""))[
        SlurmId(7)
    ].outcome()
    assert (outcome.status, outcome.minutes, outcome.reason) == (
        ChainStatus.FAILED,
        2,
        f"SLURM: {state}",
    )
    assert outcome.exit_status == (253 if state == "OUT_OF_MEMORY" else 0)


def test_seen_jobs__unreadable_time__leaves_only_that_job_unclear() -> None:
    lines = listed_as("COMPLETED", "INVALID") + listed_as("COMPLETED", "0:05").replace(
        "7", "8", 1
    )
    jobs = seen_jobs(CommandAnswer(0, lines, ""))
    assert (jobs[SlurmId(7)].phase, jobs[SlurmId(8)].phase) == (
        Phase.UNKNOWN,
        Phase.ENDED,
    )


def several(name: str, status: int) -> CommandAnswer:
    return CommandAnswer(
        status,
        "",
        (DATA / f"scancel-several-{name}-slurm-22.05.8.stderr.txt").read_text(),
    )


def test_not_cancelled__of_several__only_what_was_refused() -> None:
    ids = [SlurmId(number) for number in (1, 3, 999, 4, 2)]
    assert not_cancelled(CommandAnswer(0, "", ""), ids) == {}
    assert not_cancelled(several("ended", 1), ids) == {}
    refused = not_cancelled(several("one-refused", 210), [SlurmId(4), SlurmId(5)])
    assert refused == {5: "scancel said: Access/permission denied"}


def test_not_cancelled__nothing_is_said_of_any_of_them__is_an_error() -> None:
    with pytest.raises(SlurmRejectedError):
        not_cancelled(several("one-refused", 210), [SlurmId(4)])
    with pytest.raises(SlurmUnavailableError):
        not_cancelled(
            CommandAnswer(
                1,
                "",
                "scancel: error: Unable to contact slurm controller (connect failure)",
            ),
            [SlurmId(4)],
        )


def test_requeued__recorded__has_a_record_a_run_and_the_last_runs_time() -> None:
    live, runs = (
        seen_jobs(recorded("squeue-requeued")),
        accounted("sacct-requeued-ended"),
    )
    assert (live[SlurmId(12)].phase, live[SlurmId(12)].restarts) == (Phase.RUNNING, 1)
    assert live[SlurmId(13)].phase is Phase.RUNNING
    assert [run.phase for run in accounted("sacct-requeued")] == [
        Phase.WAITING,
        Phase.WAITING,
        Phase.RUNNING,
    ]
    first, second, suspended = runs
    assert [first.state, second.state, suspended.state] == [
        "REQUEUED",
        "COMPLETED",
        "COMPLETED",
    ]
    assert first.phase is Phase.WAITING
    assert second.submit_s == live[SlurmId(12)].submit_s
    ended = seen_jobs(recorded("squeue-requeued-ended"))
    assert ended[SlurmId(12)].outcome() == second.outcome()
    assert ended[SlurmId(13)].outcome() == suspended.outcome()
    assert suspended.ended_s is not None
    assert suspended.elapsed_s < suspended.ended_s - suspended.submit_s


def test_unnamed_user__recorded_line__has_no_user() -> None:
    assert {
        job.user for job in seen_jobs(recorded("squeue-jobs-unnamed")).values()
    } == {""}
    assert {job.user for job in accounted("sacct-jobs-unnamed")} == {""}


def test_accounted_jobs__slurmdbd_down__is_unavailable() -> None:
    with pytest.raises(SlurmUnavailableError):
        accounted("sacct-down", 1)


def test_submitted_id__recorded__is_the_id() -> None:
    assert submitted_id(recorded("sbatch-ok")) > 0


@pytest.mark.parametrize("stdout", ["12\n", "12;cluster\n", "warning: something\n12\n"])
def test_submitted_id__with_cluster_or_warnings__is_the_id(stdout: str) -> None:
    assert (
        submitted_id(CommandAnswer(0, stdout, "sbatch: warning: can't honor it")) == 12
    )


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("sbatch-bad-partition", 1),
        ("sbatch-bad-time", 255),
        ("sbatch-empty-script", 1),
        ("sbatch-impossible-cpus", 1),
        ("sbatch-impossible-gpus", 1),
        ("sbatch-impossible-memory", 1),
        ("sbatch-no-interpreter", 1),
    ],
)
def test_submitted_id__rejections__are_final_with_slurms_own_words(
    name: str, status: int
) -> None:
    with pytest.raises(SlurmRejectedError, match="sbatch: error"):
        submitted_id(recorded(name, status))


@pytest.mark.parametrize(
    "stderr",
    [
        recorded("sbatch-down").stderr,
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    ],
)
def test_submitted_id__slurmctld_did_not_answer__is_unknown_and_never_a_refusal(
    stderr: str,
) -> None:
    with pytest.raises(OutcomeUnknownError):
        submitted_id(CommandAnswer(1, "", stderr))


FAILED = "sbatch: error: Batch job submission failed: "

# What sbatch 22.05.8 can end with. Status, standard error, and what follows from it.
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
# all reasons in libslurmfull.so of 22.05.8 that are about how many jobs are submitted
FULL = (
    *(
        "AssocMaxSubmitJobLimit",
        "AssocGrpSubmitJobsLimit",
        "QOSMaxSubmitJobPerUserLimit",
        "QOSGrpSubmitJobsLimit",
    ),
    "MaxSubmitJobsPerAccount",
)
ENDS_OF_SBATCH = [
    # slurmctld may have the job
    (0, "", OutcomeUnknownError),
    (1, FAILED + "Socket timed out on send/recv operation", OutcomeUnknownError),
    (
        1,
        FAILED + "Unable to contact slurm controller (connect failure)",
        OutcomeUnknownError,
    ),
    (1, FAILED + "Zero Bytes were transmitted or received", OutcomeUnknownError),
    (1, FAILED + "Slurm backup controller in standby mode", OutcomeUnknownError),
    (
        1,
        FAILED + "Controller is in standby mode, try a different controller",
        OutcomeUnknownError,
    ),
    (1, FAILED + "Protocol authentication error", OutcomeUnknownError),
    (
        1,
        FAILED + "Incompatible versions of client and server code",
        OutcomeUnknownError,
    ),
    (1, FAILED + "Insane message length", OutcomeUnknownError),
    (1, FAILED + "Header lengths are longer than data received", OutcomeUnknownError),
    (1, FAILED + "Received message length < 0", OutcomeUnknownError),
    (1, FAILED + "Received zero length message", OutcomeUnknownError),
    (1, FAILED + "Failed to send entire message", OutcomeUnknownError),
    (1, FAILED + "Message receive failure", OutcomeUnknownError),
    (
        1,
        FAILED + "Protocol version has changed, re-link your code",
        OutcomeUnknownError,
    ),
    (
        1,
        FAILED + "Unable to contact slurm controller (receive failure)",
        OutcomeUnknownError,
    ),
    (1, FAILED + "Broken pipe", OutcomeUnknownError),
    (
        1,
        f"sbatch: error: Message receive failure\n{FAILED}Unspecified error",
        OutcomeUnknownError,
    ),
    (1, "sbatch: fatal: no memory", OutcomeUnknownError),
    (1, "slurm_submit: segfault is near", OutcomeUnknownError),
    (1, "", OutcomeUnknownError),
    (124, "", OutcomeUnknownError),  # its time was over
    (130, "", OutcomeUnknownError),  # SIGINT
    (137, "", OutcomeUnknownError),  # SIGKILL
    (139, "sbatch: error: something", OutcomeUnknownError),  # SIGSEGV
    (143, "", OutcomeUnknownError),  # SIGTERM
    # their meaning is not known: SLURM's internal error, a job_submit plugin's ERROR,
    # what a later SLURM may say
    (1, FAILED + "Unspecified error", AnswerNotUnderstoodError),
    (
        1,
        FAILED + "Slurm internal error, contact system administrator",
        AnswerNotUnderstoodError,
    ),
    (
        1,
        f"sbatch: error: Batch script is empty!\n{FAILED}Something new",
        AnswerNotUnderstoodError,
    ),
    (1, "sbatch: error: Something new", AnswerNotUnderstoodError),
    # it has not, for a reason that is not the job's
    (127, "sh: 1: /usr/bin/sbatch: not found", SlurmUnavailableError),
    (126, "sh: 1: /usr/bin/sbatch: Permission denied", SlurmUnavailableError),
    *(
        (1, f"sbatch: error: {limit}\n{FAILED}{POLICY}", SlurmUnavailableError)
        for limit in FULL
    ),
    (
        1,
        FAILED + "Required partition not available (inactive or drain)",
        SlurmUnavailableError,
    ),
    (1, FAILED + "Invalid user id", SlurmUnavailableError),
    (
        1,
        FAILED + "Invalid account or account/partition combination specified",
        UnknownAccountError,
    ),
    (1, FAILED + "I/O error writing script/environment to file", SlurmUnavailableError),
    (1, FAILED + "Unable to create job record, try again", SlurmUnavailableError),
    (1, FAILED + "System submissions disabled", SlurmUnavailableError),
    (
        1,
        FAILED + "User's group not permitted to use this partition",
        SlurmUnavailableError,
    ),
    (
        1,
        "sbatch: fatal: Could not establish a configuration source",
        SlurmUnavailableError,
    ),
    # it never will
    (
        1,
        f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{FAILED}Job violates accounting/QOS policy",
        SlurmRejectedError,
    ),
    (
        1,
        f"sbatch: error: munge was slow\n{FAILED}Invalid qos specification",
        SlurmRejectedError,
    ),
    (
        1,
        "sbatch: error: Batch script contains DOS line breaks (\\r\\n)",
        SlurmRejectedError,
    ),
    (1, "sbatch: error: cli_filter plugin terminated with error", SlurmRejectedError),
]


@pytest.mark.parametrize(("status", "stderr", "error"), ENDS_OF_SBATCH)
def test_submitted_id__each_failure_of_sbatch__raises_its_error(
    status: int, stderr: str, error: type[SupervisorError]
) -> None:
    with pytest.raises(SupervisorError) as raised:
        submitted_id(CommandAnswer(status, "", stderr))
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("exit_status", "described"),
    [
        (0x300, "exit code 3"),
        (9, "killed by signal 9"),
        (0x80 + 11, "killed by signal 11"),  # with a core dump
        (4021, "SLURM could not open the output file"),
        (53, "SLURM could not open the output file"),
    ],
)
def test_describe_exit__code_signal_or_slurms_own__is_in_words(
    exit_status: int, described: str
) -> None:
    assert describe_exit(exit_status).startswith(described)


def test_require_success__recorded_answers__are_true_false_or_an_error() -> None:
    assert require_success(recorded("scontrol-update-ok"), "update")
    assert not require_success(recorded("scontrol-update-unknown", 1), "update")
    assert not require_success(recorded("scontrol-update-finished", 1), "update")
    with pytest.raises(SlurmUnavailableError):
        require_success(recorded("scontrol-update-down", 1), "update")
    with pytest.raises(SlurmUnavailableError):
        require_success(recorded("scancel-down", 1), "scancel")
    for name in ("running", "finished", "purged", "unknown", "owner"):
        assert require_success(recorded(f"scancel-{name}"), "scancel")
    with pytest.raises(SlurmRejectedError, match="permission denied"):
        require_success(recorded("scontrol-update-as-owner", 1), "update")


@pytest.mark.parametrize(
    "error_text",
    [
        "scancel: error: Invalid user name: 0xabc",
        "slurm_update error: Job can not be altered now, try again later",
        "slurm_update error: Job update not available right now, the DB index is being"
        " set, try again in a bit",
    ],
)
def test_require_success__reason_that_passes__is_tried_again(error_text: str) -> None:
    """Each was taken for SLURM's decision, and the cancellation or top-up parked."""
    with pytest.raises(SlurmUnavailableError, match=error_text[-20:]):
        require_success(CommandAnswer(1, "", f"{error_text}\n"), "update")


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [("0:00", 0), ("1:28", 88), ("2:03:04", 7384), ("1-02:03:04", 93784)],
)
def test_elapsed_s__each_form_of_squeue__is_in_seconds(
    shown: str, seconds: int
) -> None:
    assert elapsed_s(shown) == seconds


@pytest.mark.parametrize(
    ("shown", "raw"), [("768", 768), ("3:0", 768), ("0:9", 9), ("0:0", 0)]
)
def test_wait_status__either_form__is_the_raw_status(shown: str, raw: int) -> None:
    assert wait_status(shown) == raw


@pytest.mark.parametrize(
    ("state", "pending"),
    [
        ("PENDING", True),
        ("REQUEUE_HOLD", True),
        ("CONFIGURING", False),
        ("RUNNING", False),
        ("COMPLETED", False),
    ],
)
def test_is_pending__of_a_job_that_has_its_nodes__is_false(
    state: str, pending: bool
) -> None:
    assert JobRecord(SlurmId(3), state, 0, 0).is_pending is pending


TEXT = st.text(max_size=200) | st.from_regex(
    r"(\d+ *\| *[A-Z_]+ *\| *[0-9:-]+ *\| *[0-9:]+ *\| *\w* *\|\n?){1,3}"
)


@given(TEXT, TEXT, st.integers(0, 255))
@example("9" * 5000, "", 0)  # more digits than int() reads
@example("9" * 5000 + "|RUNNING|0:00|0|None|", "", 0)
@example("1|RUNNING|" + "9" * 5000, "", 0)
def test_parsers__any_output__give_a_result_or_an_error_of_ours(
    stdout: str, stderr: str, status: int
) -> None:
    for read in (
        submitted_id,
        lambda answer: require_success(answer, "it"),
        has_accounting,
        next_id,
        boot_time,
    ):
        try:
            read(CommandAnswer(status, stdout, stderr))
        except SupervisorError:
            continue


@pytest.mark.parametrize(
    ("kept_in", "expected"),
    [
        ("accounting_storage/slurmdbd", True),
        ("accounting_storage/none", False),
        ("(null)", False),
    ],
)
def test_has_accounting__configuration_of_slurmctld__says_whether(
    kept_in: str, expected: bool
) -> None:
    shown = (
        "Configuration data as of 2026-01-01T00:00:00\n"
        "AccountingStorageEnforce = none\n"
        "AccountingStorageTRES    = cpu,mem,energy,node,billing,fs/disk,vmem,pages\n"
        f"AccountingStorageType   = {kept_in}\n"
        "AccountingStorageUser    = N/A\n"
    )
    assert has_accounting(CommandAnswer(0, shown, "")) is expected


def test_has_accounting__slurmctld_does_not_answer__is_unavailable() -> None:
    with pytest.raises(SlurmUnavailableError, match="Unable to contact"):
        has_accounting(
            CommandAnswer(
                1,
                "",
                "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)",
            )
        )


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("1795482694", 1_795_482_694),
        ("2026-01-01T00:00:00", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_controller_time_s__head_of_the_configuration__is_unix_time_or_none(
    shown: str, expected: int | None
) -> None:
    config = f"Configuration data as of {shown}\nBOOT_TIME               = 1795482690\n"
    assert controller_time_s(CommandAnswer(0, config, "")) == expected


@pytest.mark.parametrize(
    "what", ["missing", "unloadable", "init-fails", "post-opt-fails"]
)
def test_sbatch__spank_stack_that_cannot_be_loaded__is_the_sites_trouble(
    what: str,
) -> None:
    said = (DATA / f"sbatch-spank-{what}-slurm-22.05.8.stderr.txt").read_text()
    with pytest.raises(SlurmUnavailableError):
        submitted_id(CommandAnswer(1, "", said))


@pytest.mark.parametrize("number", [0, 0x0400_0000, 4294967295])
def test_submitted_id__that_no_job_can_have__is_not_understood(number: int) -> None:
    with pytest.raises(AnswerNotUnderstoodError, match=f"named the job id {number}"):
        submitted_id(CommandAnswer(0, f"{number}\n", ""))


def test_submitted_id__above_the_sites_own_bound__is_not_understood() -> None:
    assert submitted_id(CommandAnswer(0, "1000\n", ""), 1000) == 1000
    with pytest.raises(AnswerNotUnderstoodError, match="expected 1 to 1000"):
        submitted_id(CommandAnswer(0, "1001\n", ""), 1000)


@pytest.mark.parametrize(
    ("shown", "bound"),
    [
        ("MaxJobId                = 1000\n", 1000),
        ("", MAX_SLURM_ID),
        ("MaxJobId = 4294967295\n", MAX_SLURM_ID),
    ],
)
def test_max_job_id__set_or_not__is_the_sites_bound_or_slurms_maximum(
    shown: str, bound: int
) -> None:
    assert max_job_id(CommandAnswer(0, shown, "")) == bound


def test_max_job_id__recorded_configuration__is_its_bound() -> None:
    assert max_job_id(recorded("scontrol-show-config")) == 67043328


def test_min_job_age_s__recorded__is_that_of_slurm_conf() -> None:
    config = recorded("scontrol-show-config")
    assert min_job_age_s(config) == 300
    shorter = re.sub(r"(MinJobAge\s*=) 300 sec", r"\1 2 sec", config.stdout)
    assert min_job_age_s(replace(config, stdout=shorter)) == 2
