"""Which of SLURM's jobs is ours. An id alone is not a job: slurmctld gives it again after MaxJobId, and after it was killed
before it had saved its state. Name, comment and time limit are the owner's to change. Pure.

A job is known by its id and the time at which SLURM got it, which the ledger keeps from the first look on. At the first look
that time is not known: then the Linux user must be the customer, and the time must lie between our call of sbatch and its
answer. Where clocks disagree about that, a name that nobody has changed decides; where it does not, nothing is decided.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from supervisor_tasks.job import Address, JobId, SlurmId
from supervisor_tasks.slurm.output import Seen

_DAY_S = 86_400  # no two clocks of a site are that far apart
CLOCKS_APART_S = 5.0  # between slurmctld's clock and the database's, at most; else names are asked for
_RUN_AGAIN = ("REQUEUED", "NODE_FAIL", "PREEMPTED")  # how the record of a run ends after which SLURM runs the job again


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A job of the ledger that SLURM is asked about. `called_s` and `answered_s` are the Unix times, by the database's clock,
    of our last call of sbatch and of its answer. `id_is_anothers`: a job that we submitted later was given the same id.
    """

    job_id: JobId
    slurm_id: SlurmId
    user: Address
    submit_s: int | None
    called_s: float
    answered_s: float
    id_is_anothers: bool = False

    @property
    def known(self) -> bool:
        """Whether SLURM's time of submission is in the ledger."""
        return self.submit_s is not None


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be said of a job: SLURM's record of it; or why that cannot be told at the moment; or neither of the two: then
    slurmctld and the accounting database, if there is one, have both answered, and do not know it.
    """

    seen: Seen | None = None
    unclear: str = ""

    @property
    def unknown(self) -> bool:
        """Whether SLURM answers and does not know the job."""
        return self.seen is None and not self.unclear


UNKNOWN = Sight()
UNNAMED = "the login node cannot resolve the job's user"
UNLIKE = "a job with this id and user, but neither of the time nor of the name of our submission"

Named = Callable[[Wanted, Seen], bool]  # whether a record still has the name that we gave to a job


def by_id(records: Iterable[Seen]) -> dict[SlurmId, list[Seen]]:
    """The records of each id, by time of submission."""
    found: dict[SlurmId, list[Seen]] = {}
    for record in sorted(records, key=lambda record: record.submit_s):
        found.setdefault(record.slurm_id, []).append(record)
    return found


def recognise_all(
    wanted: Sequence[Wanted], records: Iterable[Seen], ask: Callable[[Sequence[JobId]], Iterable[Seen]]
) -> dict[JobId, Sight]:
    """What the records say of each job. `ask` finds SLURM's records under the names of these jobs: for all at once, and only
    where that matters.
    """
    records_of = by_id(records)
    in_doubt: dict[JobId, Wanted] = {}

    def doubted(job: Wanted, _: Seen) -> bool:
        in_doubt[job.job_id] = job
        return False

    sights = {job.job_id: recognise(job, records_of.get(job.slurm_id, ()), doubted) for job in wanted}
    if in_doubt:
        named = {(record.slurm_id, record.submit_s) for record in ask(list(in_doubt))}
        for job in in_doubt.values():
            found = records_of.get(job.slurm_id, ())
            sights[job.job_id] = recognise(job, found, lambda _, record: (record.slurm_id, record.submit_s) in named)
    return sights


def recognise(wanted: Wanted, records: Sequence[Seen], named: Named) -> Sight:
    """What the records of one id, by time of submission, say of a job that was given that id."""
    unclear = ""
    for place, record in enumerate(records):
        problem = _why_not(wanted, record, named)
        if problem is None:
            return Sight(_last_run(records[place:]))
        unclear = unclear or problem
    return Sight(unclear=unclear)


def _why_not(wanted: Wanted, record: Seen, named: Named) -> str | None:
    """None for our job, an empty text for certainly another one, else why it cannot be told."""
    if wanted.submit_s is not None:
        same = record.submit_s == wanted.submit_s
        requeued = record.restarts > 0 and record.submit_s > wanted.submit_s and record.user in (wanted.user, "")
        return None if same or (requeued and not wanted.id_is_anothers) else ""
    if wanted.id_is_anothers:
        return ""
    if not record.user:
        return UNNAMED
    if record.user != wanted.user:
        return ""
    if record.restarts == 0 and _timely(wanted, record, CLOCKS_APART_S):
        return None
    if named(wanted, record):
        return None
    return UNLIKE if record.restarts or _timely(wanted, record, _DAY_S) else ""


def _timely(wanted: Wanted, record: Seen, apart_s: float) -> bool:
    # SLURM's times are whole seconds.
    return wanted.called_s - apart_s - 1 <= record.submit_s <= wanted.answered_s + apart_s


def _last_run(records: Sequence[Seen]) -> Seen:
    """The record of the last run: accounting has one for each, and the next begins when the one before has ended."""
    run, *later = records
    for record in later:
        follows = run.ended_s is not None and 0 <= record.submit_s - run.ended_s <= 1
        if run.state not in _RUN_AGAIN or record.user != run.user or not follows:
            break
        run = record
    return run
