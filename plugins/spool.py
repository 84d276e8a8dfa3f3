"""The spool's reading side: events that SLURM's hooks (plugins/hook, plugins/spank)
wrote, one file each.

0001795242441000000000-7-end          an event: sequence number, SLURM's id, kind
.0001795242441000000000-7-end.4711    a draft of the process 4711
lost.log        a line for each event that a hook could not write
has_end_events  empty; exists once an end was delivered: then heartbeats are expected
rejected/       events that the supervisor will never accept

At most 50,000 events wait; later ones become lines of `lost.log` (hook/spool.c).
"""

import ctypes
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plugins.hook_crash_points import crash_point

LOST_LOG, HAS_END_EVENTS = "lost.log", "has_end_events"
NAME = re.compile(r"(?P<sequence>\d{1,20})-(?P<slurm_id>\d{1,10})-(start|end)")
DRAFT = re.compile(rf"\.(?P<name>{NAME.pattern})\.(?P<pid>\d+)")
LOST_LINE = re.compile(
    r"\d+ (start|end) (?P<job_id>0x[0-9a-f]{64}) (?P<slurm_id>\d{1,10}) .*"
)
MAX_FILE_BYTES = 4096
KEPT_REJECTED_FILES = 1000
RESERVE_BYTES = 64 * 1024  # of `lost.log`, as hook/spool.c takes it
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of fallocate(2)

# The writer of an older draft has ended: a hook that hangs ends after a minute. The
# kernel reuses process ids, so a process that lives with the writer's id protects the
# draft for an hour and not for ever.
ABANDONED_AFTER_S = 90.0
ABANDONED_FOR_SURE_S = 3600.0

# JobStatus of supervisor.v1alpha1, and SLURM's end states as in
# docs/explanation/slurm-end-states.md. Every other state is FAILED, never success.
# Where SLURM itself ended the job, the exit status that SLURM shows is not the
# script's.
# A job that its owner has resized runs on; at its end, SLURM shows the hook only the
# seconds since then. RUNNING with an exit code reports that.
RUNNING, CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS = 4, 6, 7, 8, 9
RESIZED = 1
STATUS = {
    "COMPLETED": FINISHED,
    "TIMEOUT": OUT_OF_CREDITS,
    "CANCELLED": CANCELLED,
    "RESIZING": RUNNING,
}
ENDED_BY_SLURM = {
    **dict.fromkeys(
        ("TIMEOUT", "CANCELLED", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED"), 0
    ),
    "OUT_OF_MEMORY": 253,
    "RESIZING": RESIZED,
}


class MalformedEventError(ValueError):
    """The file is not from our hooks, or the disk has damaged it."""


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """An event as the reporter sends it to the supervisor; `exit_code` is a raw wait(2)
    status.
    """

    job_id: str
    slurm_id: int
    status: int
    duration_s: int = 0
    exit_code: int = 0

    def __post_init__(self) -> None:
        """Check that the numbers fit in the message to the supervisor. Raises
        ValueError.
        """
        unsigned_fit = 0 <= self.slurm_id < 2**64 and 0 <= self.duration_s < 2**64
        signed_fits = -(2**63) <= self.exit_code < 2**63
        if not unsigned_fit or not signed_fits:
            raise ValueError(
                f"found SLURM id {self.slurm_id}, {self.duration_s} s, exit code {self.exit_code}; expected 64 bits each"
            )


def pending(folder: Path) -> list[Path]:
    """Return the events to deliver, by sequence number; a start comes before an end
    with the same number.
    """
    named = [file for file in folder.iterdir() if NAME.fullmatch(file.name)]
    return sorted(
        named, key=lambda file: (sequence_of(file), file.name.endswith("-end"))
    )


def sequence_of(file: Path) -> int:
    """Return the sequence number in an event's name."""
    return int(file.name.split("-")[0])


def slurm_id_of(file: Path) -> int:
    """Return the SLURM id in an event's name."""
    return int(file.name.split("-")[1])


def reported_outcome(state: str, exit_status: int) -> tuple[int, int]:
    """Return the status and the exit status for the supervisor, from SLURM's end state
    and SLURM's raw exit status.
    """
    return STATUS.get(state, FAILED), ENDED_BY_SLURM.get(state, exit_status)


OutcomeOf = Callable[[str, int], tuple[int, int]]


def read(file: Path, outcome_of: OutcomeOf = reported_outcome) -> SpooledEvent:
    """Read an event. Raises MalformedEventError, for which no retry helps, and OSError
    when the file is unreadable.
    """
    text = _read_regular(file)
    try:
        fields = dict(line.split("=", 1) for line in text.decode().splitlines())
        if fields["complete"] != "1":
            raise ValueError(
                f"found complete={fields['complete']} in the last line; expected 1"
            )
        if fields["event"] == "started":
            return SpooledEvent(fields["job_id"], int(fields["slurm_id"]), RUNNING)
        exit_code, _, signal = fields["exit"].partition(":")
        status, exit_status = outcome_of(
            fields["state"], int(exit_code) * 256 + int(signal or 0)
        )
        lasted_s = _lasted_s(int(fields["start_s"]), int(fields["end_s"]))
        return SpooledEvent(
            fields["job_id"], int(fields["slurm_id"]), status, lasted_s, exit_status
        )
    except (ValueError, KeyError) as error:
        raise MalformedEventError(
            f"{file}: {error!r}; expected the lines that plugins/hook writes"
        ) from error


def _lasted_s(start_s: int, end_s: int) -> int:
    """Return a job's run time; 0 for a job that never began.

    The start of such a job is its end, or a later time, or 0 (which jobcomp/script
    writes for a start in the future).
    """
    return max(end_s - start_s, 0) if start_s else 0


def _read_regular(file: Path) -> bytes:
    if not stat.S_ISREG(file.lstat().st_mode):
        raise MalformedEventError(
            f"{file}: found no regular file; expected a file that plugins/hook has written"
        )
    with file.open("rb") as opened:
        text = opened.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise MalformedEventError(
            f"{file}: found more than {MAX_FILE_BYTES} bytes; expected an event of plugins/hook"
        )
    return text


def reject(file: Path) -> list[str]:
    """Move a file to `rejected/`, and delete the oldest there when there are too many;
    returns the deleted names.
    """
    folder = file.parent / "rejected"
    folder.mkdir(exist_ok=True)  # an operator may have removed it
    file.rename(folder / file.name)
    rejected = list[tuple[int, str]]()
    for other in folder.iterdir():
        with suppress(FileNotFoundError):  # another thread drops files, too
            rejected.append((other.lstat().st_ctime_ns, other.name))
    dropped_names = list[str]()
    for _, name in sorted(rejected)[:-KEPT_REJECTED_FILES]:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
            dropped_names.append(name)
    return dropped_names


# --- drafts of killed hooks -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A draft whose writer was killed: `adopted` if it was complete; otherwise it is
    removed. With an `error` it stays, and is tried again.
    """

    name: str
    adopted: bool
    error: str = ""


def take_abandoned(folder: Path) -> list[Abandoned]:
    """Turn the complete drafts of killed hooks into events, and remove the incomplete
    ones.
    """
    taken = list[Abandoned]()
    # as a list, because the loop renames and removes files
    for file in list(folder.iterdir()):
        draft = DRAFT.fullmatch(file.name)
        if draft is None:
            continue
        if not _is_abandoned(file, int(draft["pid"])):
            continue
        try:
            taken.append(_take(file, draft["name"]))
        except OSError as error:  # one that cannot be read holds up no other
            taken.append(Abandoned(draft["name"], adopted=False, error=str(error)))
    return taken


def _is_abandoned(draft: Path, pid: int) -> bool:
    try:
        age_s = time.time() - draft.lstat().st_mtime
    except FileNotFoundError:
        return False
    return age_s > ABANDONED_FOR_SURE_S or (
        age_s > ABANDONED_AFTER_S and not _lives(pid)
    )


def _lives(pid: int) -> bool:
    """Return whether the process lives; a zombie has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _take(draft: Path, name: str) -> Abandoned:
    try:
        read(draft)
    except MalformedEventError:
        draft.unlink(missing_ok=True)
        return Abandoned(name, adopted=False)
    with crash_point("event-spooled"):
        draft.rename(draft.with_name(name))
    return Abandoned(name, adopted=True)


# --- events that a hook could not write -----------------------------------------------


@dataclass(frozen=True, slots=True)
class LostRecord:
    """The content of `lost.log`: its lines, and its length in bytes. A crash or a full disk
    may have cut a line.
    """

    lines: tuple[str, ...] = ()
    length: int = 0

    @property
    def hints(self) -> list[SpooledEvent]:
        """One event for each job. RUNNING makes the supervisor ask SLURM; the
        supervisor never takes it for an end.
        """
        events = dict[SpooledEvent, None]()
        for line in self.lines:
            whole = LOST_LINE.fullmatch(line)
            if whole is not None:
                events[
                    SpooledEvent(whole["job_id"], int(whole["slurm_id"]), RUNNING)
                ] = None
        return list(events)


def read_lost(folder: Path) -> LostRecord:
    """Read the record of the events that hooks could not write."""
    try:
        text = (folder / LOST_LOG).read_bytes()
    except FileNotFoundError:
        return LostRecord()
    lines = text.decode(errors="replace").split("\n")
    return LostRecord(tuple(filter(None, lines)), len(text))


def clear_lost(folder: Path, length: int) -> bool:
    """Clear the record; if it has grown past `length`, keep it and return False: the
    caller must read it again.
    """
    with (folder / LOST_LOG).open("r+b") as lost:
        fcntl.flock(lost, fcntl.LOCK_EX)
        if os.fstat(lost.fileno()).st_size != length:
            return False
        lost.truncate(0)
        _reserve(lost.fileno())
        return True


def keep_reserve(folder: Path) -> None:
    """Reserve disk space for `lost.log` while the disk has space, as the hooks do.

    The disk can be full before the first hook runs, and clearing `lost.log` frees its
    space. Without the reserve the hooks still try to write.
    """
    lost = os.open(
        folder / LOST_LOG,
        os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    try:
        if os.fstat(lost).st_blocks * 512 < RESERVE_BYTES:
            _reserve(lost)
    finally:
        os.close(lost)


def _reserve(lost: int) -> None:
    """Call fallocate(2), because Python's posix_fallocate would make the file
    longer.
    """
    ctypes.CDLL(None).fallocate(
        lost, KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(RESERVE_BYTES)
    )
