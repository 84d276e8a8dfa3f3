"""The spool's reading side: events that SLURM's hooks (plugins/hook, plugins/spank) wrote, one file each.

0001795242441000000000-7-end          an event: sequence number, SLURM's id, kind
.0001795242441000000000-7-end.4711    a draft of the process 4711
lost                                  a line for each event that could not be written
ends                                  empty; there once an end was delivered, by which a reporter knows that it is waited for
rejected/                             what nobody will ever take
"""

import ctypes
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plugins.crashing import around

NAME = re.compile(r"(?P<sequence>\d{1,20})-(?P<slurm_id>\d{1,10})-(start|end)")
DRAFT = re.compile(rf"\.(?P<name>{NAME.pattern})\.(?P<pid>\d+)")
LOST_LINE = re.compile(r"\d+ (start|end) (?P<job_id>0x[0-9a-f]{64}) (?P<slurm_id>\d{1,10}) .*")
GREATEST_FILE_BYTES = 4096
KEPT_REJECTED = 1000
RESERVE_BYTES = 64 * 1024  # of `lost`, as hook/spool.c takes it
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of fallocate(2)

# A draft that old is nobody's any more: a hook that hangs ends after a minute. Process ids are used again, so that a
# living process is respected for an hour and not for ever.
ABANDONED_AFTER_S = 90.0
ABANDONED_FOR_SURE_S = 3600.0

# JobStatus of supervisor.v1alpha1, and what SLURM's end states are by docs/architecture.md; every other word is FAILED, never
# success. Where SLURM ended the job by itself, the exit status is not the script's own, whatever SLURM shows.
RUNNING, CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS = 4, 6, 7, 8, 9
STATUS = {"COMPLETED": FINISHED, "TIMEOUT": OUT_OF_CREDITS, "CANCELLED": CANCELLED}
ENDED_BY_SLURM = {
    **dict.fromkeys(("TIMEOUT", "CANCELLED", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED"), 0),
    "OUT_OF_MEMORY": 253,
}


class MalformedEventError(ValueError):
    """A file that no hook of ours wrote, or that the disk has spoiled."""


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """What the supervisor is told; `exit_code` is a raw wait(2) status."""

    job_id: str
    slurm_id: int
    status: int
    duration_s: int = 0
    exit_code: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for what the message to the supervisor has no room for."""
        fits = max(self.slurm_id, self.duration_s) < 2**64 and min(self.slurm_id, self.duration_s) >= 0
        if not fits or not -(2**63) <= self.exit_code < 2**63:
            raise ValueError("a number does not fit in 64 bits")


def pending(folder: Path) -> list[Path]:
    """The events to be delivered, in the order of their sequence numbers; a start before an end of the same number."""
    named = [file for file in folder.iterdir() if NAME.fullmatch(file.name)]
    return sorted(named, key=lambda file: (sequence_of(file), file.name.endswith("-end")))


def sequence_of(file: Path) -> int:
    """The number that orders the events."""
    return int(file.name.split("-")[0])


def slurm_id_of(file: Path) -> int:
    """The job that an event is about, by its name."""
    return int(file.name.split("-")[1])


def told_by_us(state: str, exit_status: int) -> tuple[int, int]:
    """The status and the exit status that the supervisor is told of an end state and of the raw status that SLURM shows."""
    return STATUS.get(state, FAILED), ENDED_BY_SLURM.get(state, exit_status)


Told = Callable[[str, int], tuple[int, int]]


def read(file: Path, told: Told = told_by_us) -> SpooledEvent:
    """An event. Raises MalformedEventError, and OSError when the file cannot be read."""
    text = _read_regular(file)
    try:
        fields = dict(line.split("=", 1) for line in text.decode().splitlines())
        if fields["complete"] != "1":
            raise ValueError("the last line is missing")
        if fields["event"] == "started":
            return SpooledEvent(fields["job_id"], int(fields["slurm_id"]), RUNNING)
        exit_code, _, signal = fields["exit"].partition(":")
        status, exit_status = told(fields["state"], int(exit_code) * 256 + int(signal or 0))
        lasted_s = _lasted_s(int(fields["start_s"]), int(fields["end_s"]))
        return SpooledEvent(fields["job_id"], int(fields["slurm_id"]), status, lasted_s, exit_status)
    except (ValueError, KeyError) as error:
        raise MalformedEventError(f"{file}: {error!r}; expected the lines that plugins/hook writes") from error


def _lasted_s(start_s: int, end_s: int) -> int:
    """A job that never began has the end for its start, or a later time, or 0 (jobcomp/script's word for a start that still
    lay ahead): it ran for no time.
    """
    return max(end_s - start_s, 0) if start_s else 0


def _read_regular(file: Path) -> bytes:
    if not stat.S_ISREG(file.lstat().st_mode):
        raise MalformedEventError(f"{file}: expected a file")
    with file.open("rb") as opened:
        text = opened.read(GREATEST_FILE_BYTES + 1)
    if len(text) > GREATEST_FILE_BYTES:
        raise MalformedEventError(f"{file}: longer than {GREATEST_FILE_BYTES} bytes")
    return text


def reject(file: Path) -> list[str]:
    """Put a file aside, and drop the oldest of those when there are too many; returns the names of the dropped."""
    folder = file.parent / "rejected"
    folder.mkdir(exist_ok=True)  # somebody may have cleared it away
    file.rename(folder / file.name)
    kept = sorted(folder.iterdir(), key=lambda other: (other.lstat().st_ctime_ns, other.name))
    dropped = kept[:-KEPT_REJECTED]
    for other in dropped:
        other.unlink()
    return [other.name for other in dropped]


# --- what hooks left behind -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A draft whose writer was killed: `adopted` when it was whole, and removed otherwise."""

    name: str
    adopted: bool


def take_abandoned(folder: Path) -> list[Abandoned]:
    """Turn the drafts of hooks that were killed into events where they are whole, and remove the others."""
    found = [(file, DRAFT.fullmatch(file.name)) for file in folder.iterdir()]
    return [_take(file, draft["name"]) for file, draft in found if draft and _is_abandoned(file, int(draft["pid"]))]


def _is_abandoned(draft: Path, pid: int) -> bool:
    try:
        age_s = time.time() - draft.lstat().st_mtime
    except FileNotFoundError:
        return False
    return age_s > ABANDONED_FOR_SURE_S or (age_s > ABANDONED_AFTER_S and not _lives(pid))


def _lives(pid: int) -> bool:
    """Whether there is such a process; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _take(draft: Path, name: str) -> Abandoned:
    try:
        read(draft)
    except MalformedEventError:
        draft.unlink(missing_ok=True)
        return Abandoned(name, adopted=False)
    with around("event-spooled"):
        draft.rename(draft.with_name(name))
    return Abandoned(name, adopted=True)


# --- what could not be written --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LostRecord:
    """What `lost` says: its lines, and so many bytes. A crash or a full disk may have cut a line."""

    lines: tuple[str, ...] = ()
    length: int = 0

    @property
    def hints(self) -> list[SpooledEvent]:
        """One a job: RUNNING makes the supervisor ask SLURM, and is never believed to be an end."""
        found = filter(None, map(LOST_LINE.fullmatch, self.lines))
        return list(dict.fromkeys(SpooledEvent(line["job_id"], int(line["slurm_id"]), RUNNING) for line in found))


def read_lost(folder: Path) -> LostRecord:
    """The events that hooks could not write."""
    try:
        text = (folder / "lost").read_bytes()
    except FileNotFoundError:
        return LostRecord()
    return LostRecord(tuple(line for line in text.decode(errors="replace").split("\n") if line), len(text))


def clear_lost(folder: Path, length: int) -> bool:
    """Forget the record, unless it has grown past `length` in the meantime: then False, and it is to be read again."""
    with (folder / "lost").open("r+b") as lost:
        fcntl.flock(lost, fcntl.LOCK_EX)
        if os.fstat(lost.fileno()).st_size != length:
            return False
        lost.truncate(0)
        _reserve(lost.fileno())
        return True


def keep_reserve(folder: Path) -> None:
    """Take room for `lost` while there is some, as the hooks do: the disk may be full before the first of them comes, and what
    is cleared gives its room back. Without a reserve they try all the same.
    """
    lost = os.open(folder / "lost", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(lost).st_blocks * 512 < RESERVE_BYTES:
            _reserve(lost)
    finally:
        os.close(lost)


def _reserve(lost: int) -> None:
    """Python's own posix_fallocate would make the file longer."""
    ctypes.CDLL(None).fallocate(lost, KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(RESERVE_BYTES))
