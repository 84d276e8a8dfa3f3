"""Finds in slurmctld's log the jobs that ended and whose end slurmctld then forgot.

slurmctld saves its state every few seconds, and was killed before that. After its
restart it has such a job as running again, though no node has it (slurmctld cancels it
when it notices), or it gives the job's id to the next submission. Both ends are SLURM's
own: the one before the kill, and the one after it. The lines are those of SLURM 22.05.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

_LINE = re.compile(
    r"\[(?P<time>[^]]+)\] (?:"
    r"(?P<start>slurmctld version )"
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
    """An end that slurmctld logged and did not save. If `lost`, slurmctld did not know
    the job afterwards; otherwise it had the job as still running, or still waiting.
    """

    slurm_id: int
    state: str
    elapsed_s: int
    exit_status: int
    lost: bool


@dataclass
class _Run:
    """The job that has a SLURM id, as far as the log was read."""

    started_s: float | None = None
    end: tuple[str, int, int] | None = None  # state, elapsed seconds, exit status


@dataclass
class _Reader:
    runs: dict[int, _Run] = field(default_factory=lambda: defaultdict(_Run))
    # jobs that had ended when slurmctld was killed
    ended_unsaved: dict[int, _Run] = field(default_factory=dict)

    def read(self, found: re.Match[str]) -> Iterator[UnsavedEnd]:
        kind = found.lastgroup if found.lastgroup != "number" else "completed"
        time_s = datetime.fromisoformat(found["time"]).timestamp()
        if kind in ("saved", "start"):
            ended = {slurm_id: run for slurm_id, run in self.runs.items() if run.end}
            self.runs = defaultdict(
                _Run,
                {slurm_id: run for slurm_id, run in self.runs.items() if not run.end},
            )
            self.ended_unsaved |= ended if kind == "start" else {}
        elif kind is not None:
            slurm_id = int(found[kind])
            yield from self._forgotten(slurm_id, lost=kind in ("purged", "submitted"))
            self._follow(kind, slurm_id, time_s, found)

    def _forgotten(self, slurm_id: int, *, lost: bool) -> Iterator[UnsavedEnd]:
        run = self.ended_unsaved.pop(slurm_id, None)
        if run and run.end:
            yield UnsavedEnd(slurm_id, *run.end, lost=lost)

    def _follow(
        self, kind: str, slurm_id: int, time_s: float, found: re.Match[str]
    ) -> None:
        run = self.runs[slurm_id]
        if kind in ("submitted", "purged"):
            self.runs[slurm_id] = _Run()
        elif kind == "started":
            run.started_s = time_s
        elif run.end is None:
            # SLURM counts in whole seconds of its clock.
            elapsed_s = (
                int(time_s) - int(run.started_s) if run.started_s is not None else 0
            )
            run.end = _end(kind, elapsed_s, found)


def _end(
    kind: str, elapsed_s: int, found: re.Match[str]
) -> tuple[str, int, int] | None:
    if kind == "completed":
        number = int(found["number"])
        status = number * 256 if found["how"] == "WEXITSTATUS" else number
        return ("FAILED" if status else "COMPLETED"), elapsed_s, status
    return {
        "killed": ("CANCELLED", elapsed_s, 0),
        "exhausted": ("TIMEOUT", elapsed_s, 0),
    }.get(kind)


def unsaved_ends(log: Iterable[str]) -> list[UnsavedEnd]:
    """The ends that slurmctld logged and did not remember after it was killed, in the
    order in which the log shows this.
    """
    reader = _Reader()
    return [
        end
        for line in log
        if (found := _LINE.match(line))
        for end in reader.read(found)
    ]
