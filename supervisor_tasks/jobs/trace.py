"""What a job's trace consists of. Pure.

The ids follow from the cluster and the job's id. So each process derives them by
itself, and no process passes anything on to another one. All spans of a job hang on one
root. The process that records the job's end on chain sends the root.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from supervisor_tasks.jobs.events import ChainStatusObserved, Reorganised, stored_name
from supervisor_tasks.jobs.model import Job, JobId, State

ROOT = "job"
# after an end that a reorganisation took back, or after the job was given back and
# claimed again
AGAIN = "job again"
TRACE_BYTES = 16
SPAN_BYTES = 8
# the events by which a refused job becomes another provider's
GIVEN_BACK = (stored_name(ChainStatusObserved), stored_name(Reorganised))

Value = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span. Times are Unix times. Without a parent it is the root."""

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    begun_s: float
    ended_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of a job in the journal: its place, when it happened (Unix time), and
    the job's state after it.
    """

    place: int
    at_s: float
    name: str
    state: State

    @property
    def is_end(self) -> bool:
        """Whether nothing is left to decide about the job after it."""
        if self.state is State.REFUSED:
            return self.name in GIVEN_BACK
        return self.state is State.SETTLED


class Tracer(Protocol):
    """Where spans go. No method waits for anything or raises."""

    def span(
        self,
        job_id: JobId,
        name: str,
        begun_s: float,
        ended_s: float,
        **attributes: Value,
    ) -> None:
        """Send a span of something that this process did or received for a job. Times
        are Unix times.
        """

    def ended(self, jobs: Sequence[Job]) -> None:
        """Send the spans of these jobs: this process has recorded their end on
        chain.
        """

    def close(self) -> None:
        """Send what is left, within a few seconds."""


class NoTraces:
    """Traces are off."""

    def span(
        self,
        job_id: JobId,
        name: str,
        begun_s: float,
        ended_s: float,
        **attributes: Value,
    ) -> None:
        """Do nothing."""

    def ended(self, jobs: Sequence[Job]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def trace_id(cluster: str, job_id: str) -> int:
    """Return the id of a job's trace: 128 bits."""
    return int.from_bytes(_digest(cluster, job_id)[:TRACE_BYTES])


def span_id(cluster: str, job_id: str, *parts: object) -> int:
    """Return the id of a span of a job: 64 bits. Without parts it is the root's."""
    return int.from_bytes(_digest(cluster, job_id, "span", *parts)[:SPAN_BYTES])


def _digest(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


def spans_of(
    cluster: str, job: Job, history: Sequence[Recorded], signed_s: float | None
) -> list[Span]:
    """Return the spans of a job's last end: the root, and one for each state. Without
    an end there are none.

    `history` are all its events in order. `signed_s` is when its claim was signed; None
    if another ledger did that. A later end of the job has no root of its own: its span
    AGAIN hangs on the root.
    """
    lives = _lives(history)
    ended = [life for life in lives if life[-1].is_end]
    if not ended:
        return []
    life = ended[-1]
    begun_s = life[0].at_s
    root_id = span_id(cluster, job.job_id)
    if life is lives[0]:
        life_id, parent_id, name = root_id, None, ROOT
        if signed_s is not None:
            begun_s = min(begun_s, signed_s)
    else:
        life_id = span_id(cluster, job.job_id, "again", life[0].place)
        parent_id, name = root_id, AGAIN
    about = {"job_id": job.job_id, "cluster": cluster, "customer": job.customer}

    def made(
        number: int,
        parent: int | None,
        name: str,
        since_s: float,
        until_s: float,
        **more: Value,
    ) -> Span:
        return Span(
            trace_id=trace_id(cluster, job.job_id),
            span_id=number,
            parent_id=parent,
            name=name,
            begun_s=since_s,
            ended_s=max(since_s, until_s),
            attributes=about | more,
        )

    result = _result(job)
    tx_hash = job.claim_key.rpartition(":")[0]
    spans = [
        made(
            life_id, parent_id, name, begun_s, life[-1].at_s, tx_hash=tx_hash, **result
        )
    ]
    for first, after in _states(life):
        number = span_id(cluster, job.job_id, "state", first.place)
        spans.append(made(number, life_id, first.state.value, first.at_s, after.at_s))
    return spans


def _result(job: Job) -> dict[str, Value]:
    result: dict[str, Value] = {
        "state": job.state.value,
        "status": job.chain_status.name,
    }
    if job.slurm_id is not None:
        result["slurm_id"] = int(job.slurm_id)
    return result


def _lives(history: Sequence[Recorded]) -> list[list[Recorded]]:
    """Return the events of each life: from the beginning, or from the first event after
    an end, to the next end.
    """
    lives: list[list[Recorded]] = []
    for event in history:
        if not lives:
            lives.append([event])
        elif not lives[-1][-1].is_end:
            lives[-1].append(event)
        elif not event.is_end:  # an end after an end only repeats it
            lives.append([event])
    return lives


def _states(life: Sequence[Recorded]) -> list[tuple[Recorded, Recorded]]:
    """Return for each state of a life the event that began it, and the one that ended
    it. If the last event is an end that begins a state, that state has no pair.
    """
    begun = [life[0]]
    for before, event in pairwise(life):
        if event.state != before.state:
            begun.append(event)
    last = life[-1]
    states = list(pairwise(begun))
    if begun[-1] is not last or not last.is_end:
        states.append((begun[-1], last))
    return states
