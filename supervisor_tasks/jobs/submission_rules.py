"""Whether a job may be submitted again, from what is known of its submissions."""

from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.jobs.model import ChainStatus, Job
from supervisor_tasks.ledger.journal import CutOff
from supervisor_tasks.slurm.submit_once import may_arrive

# An answer of sbatch that the parser does not understand is no rejection: the job is
# searched for and submitted again. After this many such answers, if SLURM has nothing
# of the job, it counts as rejected.
MAX_UNPARSED_ANSWERS = 3
# A submission that is cut off is no rejection either. As long as SLURM itself may be
# the cause, the job is submitted again, without a limit (the effect counts as failing
# meanwhile, which raises an alarm). An answer of slurmctld to our questions proves
# nothing: a slow slurmctld lists jobs and takes none. The proof is that SLURM took
# other customers' jobs in the same time. This many cuts count if SLURM took jobs of
# more other customers than had a submission cut off. Then the cause is the job or its
# customer (a start-up file, a script too long for a slow link). Another try would end
# the same way.
MAX_CUT_OFF_TRIES = 5


def require_worth_trying(cut_off: CutOff) -> None:
    """Raises PermanentError when the job's submissions are cut off each time, and those
    of other customers are not. Pure. A retry helps once the operator has found why.
    """
    times = len(cut_off.reasons)
    if times >= MAX_CUT_OFF_TRIES and cut_off.others_accepted > cut_off.others_cut_off:
        raise PermanentError(
            f"its submission was cut off {times} times while SLURM took the jobs of {cut_off.others_accepted} other customers,"
            f" and SLURM has nothing of it; the last time: {cut_off.reasons[-1]}"
        )


def require_submission_window_over(
    begun_ago_s: float | None, window_s: float, circumstance: str = ""
) -> None:
    """Raises TransientError while a submission that has begun may still arrive; None
    stands for no submission. A retry helps after seconds. The error names the
    circumstance. Pure.
    """
    if begun_ago_s is not None and may_arrive(begun_ago_s, window_s):
        raise TransientError(
            f"a submission that began {begun_ago_s:.1f} s ago{circumstance} may still arrive"
        )


def require_never_ran(job: Job) -> None:
    """Raises TransientError when the contract shows that the job ran. The ledger was
    then restored from a backup, and the sweep searches for the job in SLURM. A retry
    helps after that sweep. Pure.
    """
    if job.chain_status is ChainStatus.RUNNING:
        raise TransientError(
            "the contract shows that the job ran: it is not submitted before a sweep has searched for it"
        )
