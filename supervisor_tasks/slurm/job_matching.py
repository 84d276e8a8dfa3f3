"""Decide which of SLURM's jobs is ours. An id alone does not identify a job. slurmctld
gives it again after MaxJobId, and also after slurmctld was killed before it had saved
its state, which may be within a second. The owner can change the name, the comment and
the time limit. Pure.

A job is known by its id and the time at which SLURM got it, which the ledger keeps from
the first look on. At the first look that time is not known, and a requeue changes it:
then the Linux user must be the customer, and the name ours. If the owner has given the
job another name, its batch script decides: it names our job, and it cannot be changed
(slurm/script_matching.py). In accounting the command line of sbatch decides. The module
reads no clock: a site's clocks may differ by more than the time in which slurmctld
restarts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.sacct import SacctRow
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.squeue import SqueueRow

# the end state of a run after which SLURM runs the job again
_RUN_AGAIN = ("REQUEUED", "NODE_FAIL", "PREEMPTED")
# the end state of a part of a run, when the owner shrank the running job
_RUNS_ON = "RESIZING"
_TOUCHES_S = 1  # SLURM's whole seconds, of an end and of the next record's time


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRequest:
    """A job of the ledger that the worker looks up in SLURM. `submit_s` is SLURM's time
    of submission, None before a look has shown it. `id_belongs_to_other`: SLURM gave the
    same id to a job that the supervisor submitted later.
    """

    job_id: JobId
    slurm_id: SlurmId
    user: Address
    submit_s: int | None
    id_belongs_to_other: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A record of SLURM's. `name` is the owner's name for the job. `is_read` is true
    when the submitter's statement (batch script or command line) was read; `ours` is
    then the job of ours that it names, if any.
    """

    seen: JobRecord
    name: str
    is_read: bool
    ours: JobId | None = None


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The result for one job: SLURM's record of it (`record`), or the reason why it is
    unclear at the moment (`unclear`). If both are empty, slurmctld and the accounting
    database (where there is one) have answered and do not know the job.
    """

    record: JobRecord | None = None
    unclear: str = ""

    @property
    def unknown(self) -> bool:
        """Whether SLURM answers and does not know the job."""
        return self.record is None and not self.unclear


def records_by_job(matches: Mapping[JobId, MatchResult]) -> dict[JobId, JobRecord]:
    """SLURM's records of the jobs that have one."""
    return {
        job_id: match.record
        for job_id, match in matches.items()
        if match.record is not None
    }


UNKNOWN = MatchResult()
UNNAMED = "the login node cannot resolve the job's user"
UNREAD = "a job with this id and user, but not of this name, whose batch script cannot be read"

Scripts = Callable[[Sequence[SlurmId]], Mapping[SlurmId, JobId | None]]


def listed_record(job: SqueueRow) -> Record:
    """Make a record from squeue's row. A job without a batch script is not ours."""
    return Record(job.record, job.name, is_read=not job.has_script)


def accounted_record(job: SacctRow) -> Record:
    """Make a record from sacct's row."""
    return Record(job.record, name="", is_read=True, ours=job.job_id)


def match_jobs(
    wanted: Sequence[MatchRequest], records: Iterable[Record], scripts: Scripts
) -> dict[JobId, MatchResult]:
    """Return the result of each job by these records. `scripts` returns for these ids
    the job of ours that the batch script names, None for no job; ids whose script
    cannot be read are left out. It is called at most once, and only if a job is in
    doubt.
    """
    records_of_id = _by_id(records)
    results = dict[JobId, MatchResult]()
    in_doubt = list[MatchRequest]()
    for job in wanted:
        result = match_job(job, records_of_id.get(job.slurm_id, ()))
        results[job.job_id] = result
        if result.unclear == UNREAD:
            in_doubt.append(job)
    if not in_doubt:
        return results
    named = scripts(sorted({job.slurm_id for job in in_doubt}))
    for job in in_doubt:
        if job.slurm_id not in named:
            continue
        ours = named[job.slurm_id]
        read = list[Record]()
        for record in records_of_id[job.slurm_id]:
            read.append(replace(record, is_read=True, ours=ours))
        results[job.job_id] = match_job(job, read)
    return results


def match_job(wanted: MatchRequest, records: Sequence[Record]) -> MatchResult:
    """Return the result for a job that was given this id. `records` are all records of
    the id, ordered by submission time.
    """
    unclear = ""
    for place, record in enumerate(records):
        reason = _why_not(wanted, record)
        if reason is None:
            first = _first_of(records, place)
            return MatchResult(_last_run(records[first:]))
        unclear = unclear or reason
    return MatchResult(unclear=unclear)


def _by_id(records: Iterable[Record]) -> dict[SlurmId, list[Record]]:
    records_of_id = dict[SlurmId, list[Record]]()
    for record in sorted(records, key=lambda record: record.seen.submit_s):
        records_of_id.setdefault(record.seen.slurm_id, []).append(record)
    return records_of_id


def _why_not(wanted: MatchRequest, record: Record) -> str | None:
    """Return None if the record is our job, an empty text if it is certainly another
    job, else why this is unclear.
    """
    seen = record.seen
    if wanted.submit_s is None:
        return _why_not_at_first_look(wanted, record)
    if seen.submit_s == wanted.submit_s:
        return None
    if seen.submit_s < wanted.submit_s:
        return ""  # an earlier job
    if seen.restarts == 0:
        return ""  # a job that another submission made
    # this job, or another one, was requeued
    return _why_not_at_first_look(wanted, record)


def _why_not_at_first_look(wanted: MatchRequest, record: Record) -> str | None:
    """Decide as `_why_not`, without the time of submission."""
    seen = record.seen
    if not seen.user:
        return UNNAMED
    if seen.user != wanted.user:
        return ""
    if record.is_read:
        if record.ours == wanted.job_id:
            return None
        return ""
    if record.name == wanted.job_id and not wanted.id_belongs_to_other:
        return None
    return UNREAD


def _last_run(records: Sequence[Record]) -> JobRecord:
    """Return the record of the last run, with the seconds and sizes of the runs before
    it. Accounting has one record for each run. A resized run has one record for each
    part, with only that part's seconds.
    """
    run = records[0].seen
    for before, after in pairwise(records):
        if not _follows(before, after):
            break
        record = replace(after.seen, earlier_sizes=_with_size(run))
        if run.state == _RUNS_ON:  # slurmctld still knows the run by its first time
            run = replace(
                record,
                elapsed_s=run.elapsed_s + record.elapsed_s,
                submit_s=run.submit_s,
                earlier_s=run.earlier_s,
                earlier_runs=run.earlier_runs,
            )
        else:
            run = replace(
                record,
                earlier_s=run.earlier_s + run.elapsed_s,
                earlier_runs=run.earlier_runs + 1,
            )
    return run


def _with_size(run: JobRecord) -> tuple[Size, ...]:
    """Return the sizes of the runs up to this one; each once."""
    if run.size is None or run.elapsed_s == 0:
        return run.earlier_sizes
    return tuple(dict.fromkeys((*run.earlier_sizes, run.size)))


def _follows(before: Record, after: Record) -> bool:
    """Whether `after`, the next record of the same id, is of the same job.

    A run ends at the moment of the requeue, but SLURM sets the time of the next run
    only when the nodes have ended the old one. KillWait, an epilog or a process that
    does not end can take any time. So the command line of sbatch decides, and not the
    time: a later job that got the same id has another one, also if it is the same
    customer's. Without a command line of ours, the records must touch, as the parts of
    a resized run do.
    """
    run, record = before.seen, after.seen
    if run.state not in (*_RUN_AGAIN, _RUNS_ON):
        return False
    if run.ended_s is None or record.submit_s < run.ended_s:
        return False
    touches = record.submit_s - run.ended_s <= _TOUCHES_S
    if _is_end_of_waiting_run(after):
        return run.state in _RUN_AGAIN and touches
    if record.user != run.user:
        return False
    if run.state in _RUN_AGAIN and (before.ours, after.ours) != (None, None):
        return after.ours == before.ours
    return touches


def _is_end_of_waiting_run(record: Record) -> bool:
    """Whether the record is only the end of a run that never began. When a requeued job
    is cancelled at once, slurmctld tells accounting of the end before it has told of the
    run: sacct shows no command line, and root as the user (SLURM 22.05).
    """
    seen = record.seen
    return (
        (seen.state, seen.user, seen.elapsed_s) == ("CANCELLED", "root", 0)
        and seen.ended_s is not None
        and record.ours is None
    )


def _first_of(records: Sequence[Record], place: int) -> int:
    """Return the place of the job's first run. The ledger may know only a later run."""
    while place > 0 and _follows(records[place - 1], records[place]):
        place -= 1
    return place
