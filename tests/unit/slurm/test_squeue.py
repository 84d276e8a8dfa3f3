"""All jobs in one question: what owners write forges nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from supervisor_tasks.slurm.squeue import (
    FIELDS,
    listed_jobs,
    requested_sizes,
    squeue_all,
    squeue_by_id,
    squeue_format,
)
from tests.support.slurm_samples import DELIMITER, printed, squeue_sample

RECORD = (
    "7",
    "0xc",
    "RUNNING",
    "1:01",
    "0",
    "None",
    "1700000000",
    "0",
    "1",
    "1:00:00",
    "a name",
    "supervisor h:1",
    "/home/0xc/a.log",
    "1700000001",
    "main",
    "normal",
    "(null)",
    "(null)",
    "N/A",
    "1",
    "cpu=3,mem=300M,node=1,billing=3,gres/gpu=1",
    "gres:gpu:1",
    *("N/A", "N/A", "N/A"),
    *("0", "*", "100M"),
    *("3", "3"),
)

# of start-up files, and of squeue about slurm.conf (22.05 and later)
REMARKS = (
    "bash: warning: setlocale: LC_ALL: cannot change locale (de_DE.UTF-8)",
    "stty: 'standard input': Inappropriate ioctl for device",
    "/etc/profile.d/modules.sh: line 3: module: command not found",
    'squeue: error: The option "SchedulerAuth" is defunct, see man slurm.conf.',
    'squeue: error: The option "X" is defunct, please remove it from slurm.conf.',
    "squeue: error: Ignoring obsolete FastSchedule=1 option. Please remove from your configuration.",
    "squeue: error: Ignoring ControlMachine since SlurmctldHost is set.",
    "squeue: warning: Ignoring obsolete X option. Please remove from your configuration.",
    "a remark\nbash: warning: another",
)
# of a squeue that could not ask, with any status
NO_ANSWERS = (
    "squeue: error: Invalid user: nobody",
    "Invalid user: nobody",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
    "slurm_load_node error: Socket timed out on send/recv operation",
    "squeue: error: slurm_receive_msg: Zero Bytes were transmitted or received",
    "squeue: error: If munged is up, restart with --num-threads=10",
    "squeue: error: Munge encode failed: Failed to access /run/munge/munge.socket.2",
    "squeue: error: authentication: Invalid credential",
    "squeue: error: Couldn't find the specified plugin name for auth/munge",
    "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",
    "squeue: fatal: Could not establish a configuration source",
    "squeue: error: 'here' can't be reached now, or it is an invalid entry for --cluster",
    "squeue: error: x: the option is obsolete: Connection refused",
    "squeue: error: _parse_next_key: Parsing error at unrecognized key: CacheGroups",
    "squeue: fatal: The AccountingStorageLoc option has been removed. It is obsolete.",
    "squeue: a text of another version",
    "Unexpected message received",
    "connect: Connection refused",
)


def recorded() -> str:
    return squeue_sample("squeue-listing")


def test_listed_jobs__recorded__names_with_line_feeds_are_names() -> None:
    jobs = listed_jobs(CommandAnswer(0, recorded(), ""), DELIMITER)
    assert sorted(jobs) == list(range(1, 11))
    assert jobs[SlurmId(4)].name == "evil\n5MARK0x1MARKRUNNINGMARK0:00MARK"
    assert jobs[SlurmId(4)].comment == "é\n\x01\t|"
    assert jobs[SlurmId(5)].name == "n" * 1000
    assert jobs[SlurmId(5)].stdout.endswith("/0xaa5.log")
    assert jobs[SlurmId(6)].comment == "supervisor h:1"
    assert {job.user for job in jobs.values()} == {"0x" + "ab" * 20}
    assert jobs[SlurmId(9)].record.exit_status == 768
    assert jobs[SlurmId(6)].record.phase is Phase.RUNNING
    # salloc's
    assert [slurm_id for slurm_id, job in jobs.items() if not job.has_script] == [8]
    assert 1_795_000_000 < jobs[SlurmId(7)].submit_s < 1_796_000_000


def test_listed_jobs__recorded__time_limits_are_minutes_where_there_are_any() -> None:
    jobs = listed_jobs(CommandAnswer(0, recorded(), ""), DELIMITER)
    limits = {
        1: 5,
        2: 1440,
        3: 90,
        4: 5,
        5: 2 * 1440 + 3 * 60 + 4,
        6: None,
        7: None,
        8: 5,
        9: 5,
        10: 5,
    }
    assert {slurm_id: job.limit_min for slurm_id, job in jobs.items()} == limits


@pytest.mark.parametrize(
    ("state", "per_task", "per_node", "wanted", "cpus"),
    [
        ("RUNNING", "3", "3", 6, 3),
        ("RUNNING", "8", "3", 16, 3),  # two tasks
        ("RUNNING", "3", "8", 8, 3),
        ("PENDING", "8", "3", 16, 16),
        ("PENDING", "1", "1", 2, 3),
        ("PENDING", "N/A", "", 0, 3),
    ],
)
def test_listed_jobs__cpus_for_tasks_and_nodes__count_before_the_job_begins(
    state: str, per_task: str, per_node: str, wanted: int, cpus: int
) -> None:
    record = [*RECORD[:-2], per_task, per_node]
    record[FIELDS.index("State")], record[FIELDS.index("NumTasks")] = state, "2"
    (row,) = listed_jobs(
        CommandAnswer(0, printed(tuple(record)), ""), DELIMITER
    ).values()
    assert row.record.size is not None
    assert (row.record.size.wanted_cpus, row.record.size.cpus) == (wanted, cpus)


@pytest.mark.parametrize(("shown", "memory_mb"), [("100M", 300), ("1.50G", 4608)])
def test_listed_jobs__more_memory_per_cpu_than_in_the_tres__counts(
    shown: str, memory_mb: int
) -> None:
    answer = CommandAnswer(0, printed((*RECORD[:-3], shown, *RECORD[-2:])), "")
    (row,) = listed_jobs(answer, DELIMITER).values()
    assert row.record.size is not None
    assert row.record.size.memory_mb == memory_mb


def test_listed_jobs__no_user_has_a_job__is_empty() -> None:
    assert listed_jobs(CommandAnswer(0, "", ""), DELIMITER) == {}


@pytest.mark.parametrize("remark", REMARKS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_listed_jobs__empty_list_and_a_harmless_text__is_empty(
    remark: str, end: str
) -> None:
    assert listed_jobs(CommandAnswer(0, "", remark + end), DELIMITER) == {}


@pytest.mark.parametrize(
    "answer",
    [
        CommandAnswer(1, "", "squeue: error: Unable to contact slurm controller"),
        CommandAnswer(1, printed(RECORD), ""),
        CommandAnswer(127, "", "sh: 1: squeue: not found"),
        *(CommandAnswer(0, "", text) for text in NO_ANSWERS),
        *(CommandAnswer(0, "", f"{REMARKS[0]}\n{text}\n") for text in NO_ANSWERS),
        *(CommandAnswer(1, "", text) for text in REMARKS),
    ],
)
def test_listed_jobs__could_not_ask__is_not_an_empty_list(
    answer: CommandAnswer,
) -> None:
    with pytest.raises(SlurmUnavailableError, match="status"):
        listed_jobs(answer, DELIMITER)


@pytest.mark.parametrize("shown", ["nobody", "300123"])
def test_listed_jobs__user_is_not_resolved__is_not_another_user(shown: str) -> None:
    """22.05 and 24.11 show it like this; the job may be ours still."""
    unresolved = (RECORD[0], shown, *RECORD[2:])
    jobs = listed_jobs(CommandAnswer(0, printed(unresolved), ""), DELIMITER)
    assert jobs[SlurmId(7)].record.user == ""


@pytest.mark.parametrize("kept", range(1, len(printed(RECORD)) - 1))
def test_listed_jobs__cut_anywhere__is_an_error_and_not_a_shorter_list(
    kept: int,
) -> None:
    whole = printed(RECORD)
    with pytest.raises(SlurmUnavailableError):
        listed_jobs(CommandAnswer(0, whole + whole[:kept], ""), DELIMITER)


@pytest.mark.parametrize("place", [0, 3, 4, 6, 7])
def test_listed_jobs__record_that_cannot_be_read__is_named(place: int) -> None:
    wrong = (*RECORD[:place], "what", *RECORD[place + 1 :])
    with pytest.raises(SlurmUnavailableError, match="what"):
        listed_jobs(CommandAnswer(0, printed(RECORD, wrong), ""), DELIMITER)


@pytest.mark.parametrize(("flag", "batch"), [("0", False), ("1", True), ("2", True)])
def test_listed_jobs__batch_flag_counts_launches__has_a_script_unless_it_is_zero(
    flag: str, batch: bool
) -> None:
    record = (*RECORD[:8], flag, *RECORD[9:])
    assert (
        listed_jobs(CommandAnswer(0, printed(record), ""), DELIMITER)[
            SlurmId(7)
        ].has_script
        is batch
    )


OWNERS_WORDS = st.text(max_size=300) | st.just(
    printed(RECORD).replace(DELIMITER, "0" * len(DELIMITER))
)


@given(OWNERS_WORDS, OWNERS_WORDS, OWNERS_WORDS)
def test_listed_jobs__any_text_of_an_owner__is_one_record_and_comes_back(
    name: str, comment: str, path: str
) -> None:
    hostile = (*RECORD[:10], name, comment, path, *RECORD[13:])
    other = ("8", *RECORD[1:])
    jobs = listed_jobs(CommandAnswer(0, printed(hostile, other), ""), DELIMITER)
    assert sorted(jobs) == [7, 8]
    assert (
        jobs[SlurmId(7)].name,
        jobs[SlurmId(7)].comment,
        jobs[SlurmId(7)].stdout,
    ) == (name, comment, path)


@given(st.text(max_size=300), st.text(max_size=100), st.integers(0, 255))
def test_listed_jobs__any_output__gives_a_result_or_an_error_of_ours(
    stdout: str, stderr: str, status: int
) -> None:
    try:
        listed_jobs(CommandAnswer(status, stdout, stderr), DELIMITER)
    except SlurmUnavailableError:
        return


def test_squeue_all__delimiter_between_fields__is_not_in_the_command_line() -> None:
    words = squeue_all("/usr/bin/squeue", "0xc")
    assert words[-4:] == ["--noheader", "--all", "--states=all", "--user=0xc"]
    assert not [word for word in words if DELIMITER in word]
    assert squeue_format(DELIMITER).decode().count(DELIMITER) == len(FIELDS)
    assert squeue_by_id("/usr/bin/squeue", "1,2")[-4:] == [
        "--noheader",
        "--all",
        "--states=all",
        "--jobs=1,2",
    ]


@pytest.mark.parametrize("tres", [None, 7, []])
def test_requests__tres_is_no_text__is_no_answer(tres: object) -> None:
    shown = json.dumps({"jobs": [{"job_id": 7, "tres_req_str": tres}]})
    with pytest.raises(SlurmUnavailableError, match="requested TRES"):
        requested_sizes(CommandAnswer(0, shown, ""), [SlurmId(7)])
