"""Which of SLURM's jobs is ours. An id alone is not a job: slurmctld gives it again after MaxJobId, and after it was killed
before it had saved its state, which may be within a second. Name, comment and time limit are the owner's to change. Pure.

A job is known by its id and the time at which SLURM got it, which the ledger keeps from the first look on. At the first look
that time is not known, and a requeue changes it: then the Linux user must be the customer, and the name ours. Where the owner
has given it another one, the batch script decides, which names our job and which nobody can change (slurm/recognise.py); in
accounting the line that sbatch was called with. No clock is asked: a site's clocks may be apart by more than slurmctld needs to
begin anew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor_tasks.job import Address, JobId, SlurmId
from supervisor_tasks.slurm.accounting import Accounted
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Seen

_RUN_AGAIN = ("REQUEUED", "NODE_FAIL", "PREEMPTED")  # how the record of a run ends after which SLURM runs the job again
_RUNS_ON = "RESIZING"  # how the record of a part of a run ends, of a job that its owner shrank while it ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A job of the ledger that SLURM is asked about. `submit_s` is SLURM's time of submission, where a look has shown it.
    `id_is_anothers`: a job that we submitted later was given the same id.
    """

    job_id: JobId
    slurm_id: SlurmId
    user: Address
    submit_s: int | None
    id_is_anothers: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A record of SLURM's. `name` is what its owner calls it; `ours` the job of ours that its submitter said it is, if any,
    where that `is_read`.
    """

    seen: Seen
    name: str
    is_read: bool
    ours: JobId | None = None


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
UNREAD = "a job with this id and user, but not of this name, whose batch script cannot be read"

Scripts = Callable[[Sequence[SlurmId]], Mapping[SlurmId, JobId | None]]


def listed_record(job: Listed) -> Record:
    """What squeue shows. What has no batch script is none of ours."""
    return Record(job.seen, job.name, is_read=not job.batch)


def accounted_record(job: Accounted) -> Record:
    """What sacct shows."""
    return Record(job.seen, name="", is_read=True, ours=job.job_id)


def recognise_all(wanted: Sequence[Wanted], records: Iterable[Record], scripts: Scripts) -> dict[JobId, Sight]:
    """What the records say of each job. `scripts` tells which job of ours the batch scripts of these ids name, None for no
    job; those that cannot be read are left out. It is asked once, and only where it matters.
    """
    records_of = _by_id(records)
    sights = {job.job_id: recognise(job, records_of.get(job.slurm_id, ())) for job in wanted}
    in_doubt = [job for job in wanted if sights[job.job_id].unclear == UNREAD]
    if in_doubt:
        names = scripts(sorted({job.slurm_id for job in in_doubt}))
        read = {
            number: [replace(one, is_read=True, ours=name) for one in records_of[number]]
            for number, name in names.items()
        }
        sights |= {job.job_id: recognise(job, read[job.slurm_id]) for job in in_doubt if job.slurm_id in read}
    return sights


def recognise(wanted: Wanted, records: Sequence[Record]) -> Sight:
    """What the records of one id, by time of submission, say of a job that was given that id."""
    unclear = ""
    for place, record in enumerate(records):
        problem = _why_not(wanted, record)
        if problem is None:
            return Sight(_last_run([later.seen for later in records[_first_of(records, place) :]]))
        unclear = unclear or problem
    return Sight(unclear=unclear)


def _by_id(records: Iterable[Record]) -> dict[SlurmId, list[Record]]:
    found: dict[SlurmId, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seen.submit_s):
        found.setdefault(record.seen.slurm_id, []).append(record)
    return found


def _why_not(wanted: Wanted, record: Record) -> str | None:
    """None for our job, an empty text for certainly another one, else why it cannot be told."""
    seen = record.seen
    if wanted.submit_s is not None:
        if seen.submit_s == wanted.submit_s:
            return None
        if seen.restarts == 0 or seen.submit_s < wanted.submit_s:
            return ""  # else it was requeued, or is another one that was: as if it were seen for the first time
    if not seen.user:
        return UNNAMED
    if seen.user != wanted.user:
        return ""
    if record.is_read:
        return None if record.ours == wanted.job_id else ""
    return None if record.name == wanted.job_id and not wanted.id_is_anothers else UNREAD


def _last_run(records: Sequence[Seen]) -> Seen:
    """The record of the last run, with the seconds of those before it: accounting has one for each run, and the next begins
    when the one before has ended. A run that was resized has one for each of its parts, with the seconds of that part alone.
    """
    run, *later = records
    for record in later:
        if not _follows(run, record):
            break
        if run.state == _RUNS_ON:  # slurmctld still knows it by its first time
            whole = replace(record, elapsed_s=run.elapsed_s + record.elapsed_s, submit_s=run.submit_s)
            run = replace(whole, earlier_s=run.earlier_s, earlier_runs=run.earlier_runs)
        else:
            run = replace(record, earlier_s=run.earlier_s + run.elapsed_s, earlier_runs=run.earlier_runs + 1)
    return run


def _follows(run: Seen, record: Seen) -> bool:
    """Whether the record is the next one of the same job."""
    at_once = run.ended_s is not None and 0 <= record.submit_s - run.ended_s <= 1
    return at_once and run.state in (*_RUN_AGAIN, _RUNS_ON) and record.user == run.user


def _first_of(records: Sequence[Record], place: int) -> int:
    """The place of the job's first run, of which the ledger may know only a later one."""
    while place > 0 and _follows(records[place - 1].seen, records[place].seen):
        place -= 1
    return place
