"""What slurmctld's own log says of jobs that ended and that it forgot.

It saves its memory every few seconds, and was killed before. After its restart such a job runs once more in its books, though
no node has it (and its finder cancels it), or its id is given to the next one that comes. Both words are SLURM's,
the one before the kill and the one after. Lines of SLURM 22.05.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

_LINE = re.compile(
    r"\[(?P<time>[^]]+)\] (?:"
    r"(?P<life>slurmctld version )"
    r"|(?P<saved>Saving all slurm state)"
    r"|_slurm_rpc_submit_batch_job: JobId=(?P<submitted>\d+) InitPrio"
    r"|(?:sched: Allocate|sched/backfill: _start_job: Started) JobId=(?P<started>\d+) "
    r"|_job_complete: JobId=(?P<completed>\d+) (?P<how>WEXITSTATUS|WTERMSIG) (?P<number>\d+)"
    r"|_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=(?P<killed>\d+) "
    r"|Time limit exhausted for JobId=(?P<exhausted>\d+)"
    r"|Recovered JobId=(?P<ghost>\d+) StepId=batch"
    r"|Purged files for defunct batch JobId=(?P<purged>\d+)"
    r")"
)


@dataclass(frozen=True)
class UnsavedEnd:
    """An end that slurmctld wrote into its log and not into its memory. `lost` says that it knew nothing of the job
    afterwards; else it took it for one that still ran, or still waited.
    """

    slurm_id: int
    state: str
    elapsed_s: int
    exit_status: int
    lost: bool


@dataclass
class _Run:
    """What the log said of an id since it was given."""

    started_s: float | None = None
    end: tuple[str, int, int] | None = None  # state, elapsed seconds, exit status


@dataclass
class _Reader:
    runs: dict[int, _Run] = field(default_factory=lambda: defaultdict(_Run))
    before: dict[int, _Run] = field(default_factory=dict)  # what had ended when slurmctld was killed

    def read(self, found: re.Match[str]) -> Iterator[UnsavedEnd]:
        kind = found.lastgroup if found.lastgroup != "number" else "completed"
        time_s = datetime.fromisoformat(found["time"]).timestamp()
        if kind in ("saved", "life"):
            ended = {slurm_id: run for slurm_id, run in self.runs.items() if run.end}
            self.runs = defaultdict(_Run, {slurm_id: run for slurm_id, run in self.runs.items() if not run.end})
            self.before |= ended if kind == "life" else {}
        elif kind is not None:
            slurm_id = int(found[kind])
            yield from self._forgotten(slurm_id, lost=kind in ("purged", "submitted"))
            self._follow(kind, slurm_id, time_s, found)

    def _forgotten(self, slurm_id: int, *, lost: bool) -> Iterator[UnsavedEnd]:
        run = self.before.pop(slurm_id, None)
        if run and run.end:
            yield UnsavedEnd(slurm_id, *run.end, lost=lost)

    def _follow(self, kind: str, slurm_id: int, time_s: float, found: re.Match[str]) -> None:
        run = self.runs[slurm_id]
        if kind in ("submitted", "purged"):
            self.runs[slurm_id] = _Run()
        elif kind == "started":
            run.started_s = time_s
        elif run.end is None:
            # SLURM counts in whole seconds of its clock.
            elapsed_s = int(time_s) - int(run.started_s) if run.started_s is not None else 0
            run.end = _end(kind, elapsed_s, found)


def _end(kind: str, elapsed_s: int, found: re.Match[str]) -> tuple[str, int, int] | None:
    if kind == "completed":
        number = int(found["number"])
        status = number * 256 if found["how"] == "WEXITSTATUS" else number
        return ("FAILED" if status else "COMPLETED"), elapsed_s, status
    return {"killed": ("CANCELLED", elapsed_s, 0), "exhausted": ("TIMEOUT", elapsed_s, 0)}.get(kind)


def unsaved_ends(log: Iterable[str]) -> list[UnsavedEnd]:
    """The ends that slurmctld announced and did not remember after it was killed, in the order in which that showed."""
    reader = _Reader()
    return [end for line in log if (found := _LINE.match(line)) for end in reader.read(found)]
