"""Whether the supervisor is alive. Liveness is progress: a worker can answer pings and
consume nothing.

Periodic work records a run when it ends, also when SLURM or the chain did not answer:
their outage is an alarm, and does not make the supervisor unhealthy. Each queue has
periodic work that is due even where nothing happens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.ledger.periodic_run_names import (
    BEAT,
    CALLBACKS,
    IDLE_S,
    RECORD_BEAT_EVERY_S,
    finished_key,
    is_in_the_future,
    since_end_s,
)
from supervisor_tasks.messaging.queues import QUEUE_OF_TASK

MISSED_INTERVALS = 3  # after so many intervals without a run the fleet is unhealthy
LEAST_S = 30.0  # a restart of a process is shorter
# a due effect waits less while a worker serves its queue, and is at no other of its kind
UNTAKEN_AFTER_S = 60.0
# a worker looks at the chain at least so often (indexer/new_blocks.py)
LOOKED_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class Periodic:
    """Work that ends at least once in `every_s` in a fleet that is alive, and then
    records the periodic run `run_name`.
    """

    name: str
    every_s: float
    run_name: str
    part: str  # of the fleet that does the work

    @property
    def patience_s(self) -> float:
        """How old its last run may be."""
        return max(MISSED_INTERVALS * self.every_s, LEAST_S)


def periodic_work(chain_poll_s: float, *, accounts: bool) -> list[Periodic]:
    """Return the periodic work of a fleet that is alive; `accounts` only if the site
    has a directory.
    """
    work = [
        Periodic("beat", RECORD_BEAT_EVERY_S, BEAT, "beat"),
        _of_queue("claim", max(chain_poll_s, LOOKED_EVERY_S)),
    ]
    for name, idle_s in IDLE_S.items():
        if name != "accounts" or accounts:
            work.append(_of_queue(name, idle_s))
    return work


def _of_queue(name: str, every_s: float) -> Periodic:
    return Periodic(
        name,
        every_s,
        finished_key(name),
        f"the workers of the queue {QUEUE_OF_TASK[name].value}",
    )


def problems(
    periodic: list[Periodic],
    periodic_run_ages_s: Mapping[str, float],
    untaken_s: float,
) -> list[str]:
    """Return what is wrong, a line each: what was found, what was expected, what to do.
    Empty if all is well. For `untaken_s` an effect has been due of a kind that no
    worker is at.
    """
    stale = [
        work
        for work in periodic
        if since_end_s(periodic_run_ages_s, work.run_name) > work.patience_s
    ]
    if periodic and len(stale) == len(periodic):
        return [
            f"nothing periodic comes to an end ({_ages(stale, periodic_run_ages_s)}): see whether beat, the broker and"
            " workers run"
        ]
    lines = [
        f"{work.name}: {_age(work, periodic_run_ages_s)}, expected one every {work.every_s:g} s: see {work.part}"
        for work in stale
    ]
    if since_end_s(periodic_run_ages_s, CALLBACKS) > LEAST_S:
        lines.append(
            "the gRPC process sends no heartbeat, and so no callback is taken: see whether it runs, and its log"
        )
    if untaken_s > UNTAKEN_AFTER_S:
        lines.append(
            f"an effect has been due for {untaken_s:.0f} s, expected at most {UNTAKEN_AFTER_S:g} s: no worker takes it"
        )
    return lines


def _ages(stale: list[Periodic], periodic_run_ages_s: Mapping[str, float]) -> str:
    return "; ".join(
        f"{work.name}: {_age(work, periodic_run_ages_s)}" for work in stale
    )


def _age(work: Periodic, periodic_run_ages_s: Mapping[str, float]) -> str:
    age_s = periodic_run_ages_s.get(work.run_name)
    if age_s is None:
        return "never ended"
    if is_in_the_future(age_s):
        return (
            f"last ended {-age_s:.0f} s after now, as the database's clock was set back"
        )
    return f"last ended {age_s:.0f} s ago"
