"""Reading the spool: what the supervisor is told of an event."""

from pathlib import Path

import pytest

from plugins import spool
from protos.supervisor.v1alpha1.supervisor_pb2 import JobStatus

JOB_ID = "0x" + "ab" * 32


def _ended(
    folder: Path, state: str, *, exit_code: str = "0:0", start_s: int = 100, end_s: int = 160
) -> spool.SpooledEvent:
    file = folder / "1-7-end"
    lines = ["event=ended", f"job_id={JOB_ID}", "slurm_id=7", f"state={state}", f"exit={exit_code}"]
    file.write_text("\n".join([*lines, f"start_s={start_s}", f"end_s={end_s}", ""]))
    return spool.read(file)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("COMPLETED", "FINISHED"),
        ("FAILED", "FAILED"),
        ("TIMEOUT", "OUT_OF_CREDITS"),
        ("CANCELLED", "CANCELLED"),
        ("NODE_FAIL", "FINISHED"),
        ("PREEMPTED", "FINISHED"),
        ("BOOT_FAIL", "FINISHED"),
        ("OUT_OF_MEMORY", "FINISHED"),
        ("DEADLINE", "FINISHED"),
    ],
)
def test_read__end_state__is_mapped_as_the_plugin_of_the_field_does(tmp_path: Path, state: str, status: str) -> None:
    assert _ended(tmp_path, state).status == JobStatus.Value(f"JOB_STATUS_{status}")


@pytest.mark.parametrize(("shown", "raw"), [("0:0", 0), ("3:0", 768), ("0:9", 9), ("255:0", 65280), ("1:15", 271)])
def test_read__exit_code__becomes_the_raw_wait_status(tmp_path: Path, shown: str, raw: int) -> None:
    assert _ended(tmp_path, "FAILED", exit_code=shown).exit_code == raw


def test_read__ended__lasted_from_start_to_end(tmp_path: Path) -> None:
    event = _ended(tmp_path, "COMPLETED", start_s=1795242441, end_s=1795242528)
    assert (event.job_id, event.slurm_id, event.duration_s) == (JOB_ID, 7, 87)


def test_read__clock_set_back__lasted_no_time(tmp_path: Path) -> None:
    assert _ended(tmp_path, "COMPLETED", start_s=10, end_s=5).duration_s == 0


def test_read__started__is_running_for_no_time(tmp_path: Path) -> None:
    file = tmp_path / "1-7-start"
    file.write_text(f"event=started\njob_id={JOB_ID}\nslurm_id=7\n")
    event = spool.read(file)
    assert event == spool.SpooledEvent(file, JOB_ID, 7, JobStatus.Value("JOB_STATUS_RUNNING"))
    assert (event.duration_s, event.exit_code) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "event=ended\njob_id=0x1\n",
        "event=started\njob_id=0x1\nslurm_id=x\n",
        b"\xff\xfe".decode("latin-1"),
    ],
)
def test_read__not_what_a_hook_writes__is_malformed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "1-7-end"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(spool.MalformedEventError, match="expected the lines"):
        spool.read(file)


def test_pending__drafts_and_others_files_between_events__are_left_out_and_the_oldest_is_first(tmp_path: Path) -> None:
    for name in ("100-2-end", "99-10-start", "100-1-start", ".98-1-end", "rejected", "98-1-end.swp"):
        (tmp_path / name).touch()
    names = [file.name for file in spool.pending(tmp_path)]
    assert names[0] == "99-10-start"
    assert sorted(names) == ["100-1-start", "100-2-end", "99-10-start"]
