"""A submission to SLURM is made once. Customers' jobs (jobs/submit.py) and benchmarks
(benchmarking/submit_benchmark.py) use it. Pure. slurm/submission_order.py carries out
steps 1 to 3 for both.

1. The login node's clock is read. Nothing begins before the login node lets the user
   in.
2. The caller commits that the submission has begun. From now on SLURM may have the job.
3. The guard runs sbatch within SUBMIT_TIMEOUT_S of step 1, or not at all
   (guarded_command.py).
4. Each answer has one of the meanings of `SubmissionOutcome`. After UNKNOWN, and after a
   death since step 2, the caller searches SLURM. The job is submitted again only if SLURM has
   nothing of it when `may_arrive` is False.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.parsers import JobRecord, SlurmRejectedError
from supervisor_tasks.slurm.script_matching import was_rejected


class SubmissionOutcome(Enum):
    """What an answer of sbatch, or an error, shows about a submission."""

    ACCEPTED = auto()  # SLURM has the job, under an id
    REJECTED = auto()  # SLURM will never take it
    NOT_RUN = auto()  # sbatch did not run: another try helps
    UNKNOWN = auto()  # SLURM has the job or not
    FAILED = auto()  # an error that shows nothing about SLURM


def submission_outcome(answer: SlurmId | Exception) -> SubmissionOutcome:
    """Return what an answer to a submission means."""
    match answer:
        case SlurmRejectedError():
            return SubmissionOutcome.REJECTED
        case OutcomeUnknownError():
            return SubmissionOutcome.UNKNOWN
        case TransientError():
            return SubmissionOutcome.NOT_RUN
        case Exception():
            return SubmissionOutcome.FAILED
    return SubmissionOutcome.ACCEPTED


def may_arrive(begun_ago_s: float, submission_window_s: float) -> bool:
    """Whether a submission that began so long ago can still reach SLURM."""
    return begun_ago_s < submission_window_s


@dataclass(frozen=True, slots=True)
class SlurmRecords:
    """SLURM's records of a job, the oldest first. `listed` is false for records that
    only accounting has.
    """

    seen: Sequence[JobRecord]
    listed: bool

    @property
    def accepted(self) -> list[JobRecord]:
        """The records of what SLURM did not reject. There is one at most; if there ever
        are more, the first one counts, and the others must be cancelled.
        """
        accepted = list[JobRecord]()
        for record in self.seen:
            if not was_rejected(record):
                accepted.append(record)
        return accepted

    def without(self, over: Collection[SlurmId], *, rejections: bool) -> "SlurmRecords":
        """Return the records without those of SLURM jobs that are over, and, if the
        ledger has recorded a rejection of the job, without what may be its record.
        """
        left = list[JobRecord]()
        for record in self.seen:
            is_rejection = rejections and self._may_be_rejection(record)
            if record.slurm_id not in over and not is_rejection:
                left.append(record)
        return SlurmRecords(left, self.listed and bool(left))

    def _may_be_rejection(self, record: JobRecord) -> bool:
        """Whether this may be the record of a job that slurmctld rejected. Accounting
        does not show why a job failed.
        """
        if self.listed:
            return was_rejected(record)
        return (record.state, record.elapsed_s) == ("FAILED", 0)
