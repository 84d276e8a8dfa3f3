"""Reading the spool: what the supervisor is told of an event."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plugins import spool
from protos.supervisor.v1alpha1.supervisor_pb2 import JobStatus
from supervisor_tasks.jobs.callback_fallback import (
    CallbackRecord,
    outcome_from_callbacks,
)
from supervisor_tasks.jobs.model import Address, Definition, Job, JobId, Outcome
from supervisor_tasks.slurm.job_states import end

JOB_ID = "0x" + "ab" * 32
BY_SLURM = (
    "OUT_OF_MEMORY",
    "TIMEOUT",
    "CANCELLED",
    "BOOT_FAIL",
    "DEADLINE",
    "NODE_FAIL",
    "PREEMPTED",
)
ENDS = [("COMPLETED", 0, 0), ("FAILED", 3, 0), ("FAILED", 0, 9)]
ENDS += [
    (state, *shown)
    for state in BY_SLURM
    for shown in ((0, 0), (3, 0), (0, 15), (0, 125))
]
JOB = Job(
    job_id=JobId(JOB_ID),
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="claim:0",
    definition=Definition(
        gpus=0,
        mem_per_cpu_mb=100,
        cpus_per_task=1,
        ntasks=1,
        batch_location_hash="hash",
    ),
    time_limit_min=10,
)


def _ended(
    folder: Path,
    state: str,
    *,
    exit_code: str = "0:0",
    start_s: int = 100,
    end_s: int = 160,
) -> spool.SpooledEvent:
    file = folder / "1-7-end"
    lines = [
        "event=ended",
        f"job_id={JOB_ID}",
        "slurm_id=7",
        f"state={state}",
        f"exit={exit_code}",
    ]
    file.write_text(
        "\n".join([*lines, f"start_s={start_s}", f"end_s={end_s}", "complete=1", ""])
    )
    return spool.read(file)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("COMPLETED", "FINISHED"),
        ("FAILED", "FAILED"),
        ("TIMEOUT", "OUT_OF_CREDITS"),
        ("CANCELLED", "CANCELLED"),
        ("NODE_FAIL", "FAILED"),
        ("PREEMPTED", "FAILED"),
        ("BOOT_FAIL", "FAILED"),
        ("OUT_OF_MEMORY", "FAILED"),
        ("DEADLINE", "FAILED"),
        ("A_WORD_OF_TOMORROW", "FAILED"),
        ("", "FAILED"),
    ],
)
def test_read__end_state__is_told_and_an_unknown_one_is_no_success(
    tmp_path: Path, state: str, status: str
) -> None:
    assert _ended(tmp_path, state).status == JobStatus.Value(f"JOB_STATUS_{status}")


def test_read__job_was_resized__runs_on_and_its_last_end_tells_only_a_part(
    tmp_path: Path,
) -> None:
    event = _ended(tmp_path, "RESIZING", exit_code="0:0", start_s=70, end_s=70)
    running = JobStatus.Value("JOB_STATUS_RUNNING")
    assert event == spool.SpooledEvent(JOB_ID, 7, running, 0, spool.RESIZED)


@pytest.mark.parametrize(("state", "exit_code", "signal"), ENDS)
def test_read__end_state__is_believed_to_be_what_the_table_says(
    tmp_path: Path, state: str, exit_code: int, signal: int
) -> None:
    """Where SLURM has forgotten the job, the hook's words have to come to the same as
    SLURM's own would have.
    """
    event = _ended(tmp_path, state, exit_code=f"{exit_code}:{signal}")
    outcome = outcome_from_callbacks(
        JOB,
        100.0,
        [
            CallbackRecord(
                event.status, event.duration_s, event.exit_code, received_s=200.0
            )
        ],
    )
    meant = end(state)
    exit_status = exit_code * 256 + signal if meant.by_itself else meant.exit_status
    assert isinstance(outcome, Outcome)
    assert (outcome.status, outcome.elapsed_s, outcome.exit_status) == (
        meant.status,
        60,
        exit_status,
    )


@pytest.mark.parametrize(
    ("shown", "raw"),
    [("0:0", 0), ("3:0", 768), ("0:9", 9), ("255:0", 65280), ("1:15", 271)],
)
def test_read__exit_code__becomes_the_raw_wait_status(
    tmp_path: Path, shown: str, raw: int
) -> None:
    assert _ended(tmp_path, "FAILED", exit_code=shown).exit_code == raw


@pytest.mark.parametrize(
    ("state", "start_s", "end_s", "duration_s"),
    [
        ("COMPLETED", 1795242441, 1795242528, 87),
        ("COMPLETED", 10, 5, 0),
        ("CANCELLED", 0, 1795242528, 0),
        ("CANCELLED", 1795242528 + 3600, 1795242528, 0),
    ],
    ids=["it ran", "clock set back", "cancelled unplanned", "cancelled as planned"],
)
def test_read__ended__lasted_from_start_to_end_or_no_time(
    tmp_path: Path, state: str, start_s: int, end_s: int, duration_s: int
) -> None:
    event = _ended(tmp_path, state, start_s=start_s, end_s=end_s)
    found = event.job_id, event.slurm_id, event.duration_s
    assert found == (JOB_ID, 7, duration_s)


def test_read__started__is_running_for_no_time(tmp_path: Path) -> None:
    file = tmp_path / "1-7-start"
    file.write_text(f"event=started\njob_id={JOB_ID}\nslurm_id=7\ncomplete=1\n")
    event = spool.read(file)
    assert event == spool.SpooledEvent(JOB_ID, 7, JobStatus.Value("JOB_STATUS_RUNNING"))
    assert (event.duration_s, event.exit_code) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "event=ended\njob_id=0x1\n",
        "event=started\njob_id=0x1\nslurm_id=x\ncomplete=1\n",
        "event=started\njob_id=0x1\nslurm_id=7\n",
        "event=ended\njob_id=0x1\nslurm_id=7\nstate=FAILED\nexit=3:0\nstart_s=1\nend_s=17952",
        b"\xff\xfe".decode("latin-1"),
        # numbers that the message to the supervisor has no room for
        f"event=started\njob_id=0x1\nslurm_id={2**64}\ncomplete=1\n",
        "event=started\njob_id=0x1\nslurm_id=-7\ncomplete=1\n",
        f"event=ended\njob_id=0x1\nslurm_id=7\nstate=FAILED\nexit=3:0\nstart_s=1\nend_s={2**65}\ncomplete=1\n",
        f"event=ended\njob_id=0x1\nslurm_id=7\nstate=FAILED\nexit={2**55}:0\nstart_s=1\nend_s=2\ncomplete=1\n",
        f"event=ended\njob_id=0x1\nslurm_id=7\nstate=FAILED\nexit=0:{-(2**64)}\nstart_s=1\nend_s=2\ncomplete=1\n",
    ],
)
def test_read__not_what_a_hook_writes__is_malformed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "1-7-end"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(spool.MalformedEventError, match="expected the lines"):
        spool.read(file)


@pytest.mark.parametrize(
    "make",
    [lambda file: file.mkdir(), lambda file: file.symlink_to("/etc/passwd"), os.mkfifo],
)
def test_read__not_a_file__is_malformed_and_does_not_hang(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "1-7-end")
    with pytest.raises(spool.MalformedEventError, match="expected a file"):
        spool.read(tmp_path / "1-7-end")


def test_read__endless__is_malformed(tmp_path: Path) -> None:
    (tmp_path / "1-7-end").write_text("event=ended\n" * 1000)
    with pytest.raises(spool.MalformedEventError, match="more than 4096 bytes"):
        spool.read(tmp_path / "1-7-end")


def test_pending__drafts_and_strange_files__are_left_out_and_the_oldest_is_first(
    tmp_path: Path,
) -> None:
    for name in (
        "100-2-end",
        "99-10-start",
        "100-1-start",
        ".98-1-end",
        "rejected",
        "98-1-end.swp",
        spool.LOST_LOG,
        spool.HAS_END_EVENTS,
    ):
        (tmp_path / name).touch()
    names = [file.name for file in spool.pending(tmp_path)]
    assert names == ["99-10-start", "100-1-start", "100-2-end"]


def test_pending__same_number__start_comes_before_end(tmp_path: Path) -> None:
    for name in ("7-1-end", "7-1-start"):
        (tmp_path / name).touch()
    assert [file.name for file in spool.pending(tmp_path)] == ["7-1-start", "7-1-end"]


# --- drafts of hooks that were killed -------------------------------------------------

STARTED = f"event=started\njob_id={JOB_ID}\nslurm_id=7\ncomplete=1\n"


def _draft(folder: Path, text: str, *, age_s: float, pid: int) -> Path:
    draft = folder / f".5-7-start.{pid}"
    draft.write_text(text)
    os.utime(draft, (time.time() - age_s,) * 2)
    return draft


def test_take_abandoned__whole__becomes_an_event(tmp_path: Path, dead_pid: int) -> None:
    draft = _draft(tmp_path, STARTED, age_s=100, pid=dead_pid)
    assert spool.take_abandoned(tmp_path) == [
        spool.Abandoned("5-7-start", adopted=True)
    ]
    assert not draft.exists()
    assert spool.read(tmp_path / "5-7-start").slurm_id == 7


@pytest.mark.parametrize("text", ["", STARTED[:-3]])
def test_take_abandoned__cut__is_removed(
    tmp_path: Path, dead_pid: int, text: str
) -> None:
    _draft(tmp_path, text, age_s=100, pid=dead_pid)
    assert spool.take_abandoned(tmp_path) == [
        spool.Abandoned("5-7-start", adopted=False)
    ]
    assert list(tmp_path.iterdir()) == []


def test_take_abandoned__one_cannot_be_read__the_others_are_taken(
    tmp_path: Path, dead_pid: int
) -> None:
    folder = tmp_path / f".4-7-start.{dead_pid}"
    folder.mkdir()
    os.utime(folder, (time.time() - 100,) * 2)
    _draft(tmp_path, STARTED, age_s=100, pid=dead_pid)
    taken = spool.take_abandoned(tmp_path)
    assert spool.Abandoned("5-7-start", adopted=True) in taken
    (unread,) = (abandoned for abandoned in taken if abandoned.error)
    assert (unread.name, unread.adopted) == ("4-7-start", False)


def test_take_abandoned__its_writer_lives_or_it_is_young__is_left_alone(
    tmp_path: Path, dead_pid: int
) -> None:
    _draft(tmp_path, STARTED, age_s=100, pid=os.getpid())
    _draft(tmp_path, STARTED, age_s=10, pid=dead_pid)
    assert spool.take_abandoned(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_take_abandoned__an_hour_old__its_number_is_another_process_by_now(
    tmp_path: Path,
) -> None:
    _draft(tmp_path, STARTED, age_s=3700, pid=os.getpid())
    assert spool.take_abandoned(tmp_path) == [
        spool.Abandoned("5-7-start", adopted=True)
    ]


@pytest.fixture(scope="session")
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as ended:
        return ended.pid


# --- what could not be written --------------------------------------------------------


def test_read_lost__lines_of_hooks__are_one_hint_a_job(tmp_path: Path) -> None:
    lines = [
        f"1 start {JOB_ID} 7 the spool is full",
        f"2 end {JOB_ID} 7 the spool is full",
        "3 end 0xab",
    ]
    (tmp_path / "lost.log").write_text("\n".join(lines))
    record = spool.read_lost(tmp_path)
    assert record.lines == tuple(lines)
    assert record.hints == [spool.SpooledEvent(JOB_ID, 7, spool.RUNNING)]


def test_keep_reserve__before_the_first_event__takes_room_that_clearing_keeps(
    tmp_path: Path,
) -> None:
    lost = tmp_path / "lost.log"
    spool.keep_reserve(tmp_path)
    assert (lost.stat().st_size, lost.stat().st_mode & 0o777) == (0, 0o600)
    assert lost.stat().st_blocks * 512 >= spool.RESERVE_BYTES
    with lost.open("a") as file:
        file.write("a line\n")
    assert spool.clear_lost(tmp_path, 7)
    assert lost.stat().st_size == 0
    assert lost.stat().st_blocks * 512 >= spool.RESERVE_BYTES


def test_clear_lost__grown_in_the_meantime__is_kept(tmp_path: Path) -> None:
    (tmp_path / "lost.log").write_text("a line\n")
    assert not spool.clear_lost(tmp_path, 3)
    assert (tmp_path / "lost.log").read_text() == "a line\n"
    assert spool.clear_lost(tmp_path, 7)
    assert (tmp_path / "lost.log").read_text() == ""


# --- what no reporter takes -----------------------------------------------------------


def test_reject__too_many__the_oldest_go_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "KEPT_REJECTED_FILES", 2)
    dropped = []
    for number in range(4):
        (tmp_path / f"{number}-7-end").touch()
        dropped.append(spool.reject(tmp_path / f"{number}-7-end"))
    assert dropped == [[], [], ["0-7-end"], ["1-7-end"]]
