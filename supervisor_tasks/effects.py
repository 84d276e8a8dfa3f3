"""The effects that several rules of a job's life want. Pure."""

from supervisor_tasks.job import Effect, Job, Kind, State

FIRST_LOOK_S = 0.5
LONGEST_LOOK_S = 900.0
LEAST_LOOK_S = 30.0  # between looks at a job whose paid time is nearly or wholly used

IN_TIME_S = 10.0  # from the moment a submission begins until sbatch must have ended
KILLED_AFTER_S = 1  # sbatch that does not end when it is told to
MARGIN_S = 2.0  # a clock that counts whole seconds, and what it takes to kill
MESSAGE_TIMEOUT_S = 10.0  # SLURM's default


def settled_after_s(message_timeout_s: float) -> float:
    """How long after its beginning a submission can change nothing any more: sbatch was killed, and what it had sent
    slurmctld has taken or dropped.
    """
    return IN_TIME_S + KILLED_AFTER_S + message_timeout_s + MARGIN_S


BEFORE_SECOND_SEARCH_S = settled_after_s(MESSAGE_TIMEOUT_S)


def look(job: Job) -> Effect:
    """The next look at a job: half as often each time, but no later than the paid time is used. A job that was requeued right
    after this look, and of which no plugin tells, has then had nothing that was not paid for.
    """
    used_up_in_s = max(float(job.left_s), LEAST_LOOK_S)
    return Effect(Kind.WITNESS, min(FIRST_LOOK_S * 2 ** min(job.looks, 16), LONGEST_LOOK_S, used_up_in_s))


def limit_to_apply(job: Job) -> tuple[Effect, ...]:
    """What it takes for SLURM to have the job's time limit."""
    given = job.state in (State.QUEUED, State.RUNNING)
    return (Effect(Kind.TOP_UP),) if given and job.run_limit_min != job.applied_limit_min else ()


def stop_slurm(job: Job) -> tuple[Effect, ...]:
    """The contract has decided; what SLURM may still hold of the job is cancelled. After an unclear submission only
    when it can no longer arrive.
    """
    if job.state is State.SUBMITTING:
        return (Effect(Kind.CANCEL, BEFORE_SECOND_SEARCH_S),)
    return (Effect(Kind.CANCEL),) if job.slurm_id is not None and job.outcome is None else ()
