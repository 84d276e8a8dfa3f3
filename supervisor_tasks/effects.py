"""The effects that several rules of a job's life want. Pure."""

from supervisor_tasks.job import Effect, Job, Kind, State

FIRST_LOOK_S = 0.5
LONGEST_LOOK_S = 900.0
# When a submission can change nothing any more, with SLURM's default MessageTimeout of 10 s.
BEFORE_SECOND_SEARCH_S = 23.0


def look(job: Job) -> Effect:
    """The next look at a job: half as often each time."""
    return Effect(Kind.WITNESS, min(FIRST_LOOK_S * 2 ** min(job.looks, 16), LONGEST_LOOK_S))


def limit_to_apply(job: Job) -> tuple[Effect, ...]:
    """What it takes for SLURM to have the job's time limit."""
    given = job.state in (State.QUEUED, State.RUNNING)
    return (Effect(Kind.TOP_UP),) if given and job.limit_min != job.applied_limit_min else ()


def stop_slurm(job: Job) -> tuple[Effect, ...]:
    """The contract has decided; what SLURM may still hold of the job is cancelled. After an unclear submission only
    when it can no longer arrive.
    """
    if job.state is State.SUBMITTING:
        return (Effect(Kind.CANCEL, BEFORE_SECOND_SEARCH_S),)
    return (Effect(Kind.CANCEL),) if job.slurm_id is not None and job.outcome is None else ()
