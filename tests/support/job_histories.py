"""A job as its events make it: its claim, the events up to each state, and what applies
them.
"""

from supervisor_tasks.jobs.events import (
    Claimed,
    Event,
    ScriptFetched,
    SlurmRunningObserved,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import Address, Definition, Effect, Job, JobId, SlurmId
from supervisor_tasks.jobs.state_machine import advance

DEFINITION = Definition(
    gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash="hash"
)
CLAIM = Claimed(
    job_id=JobId("0x" + "1" * 64),
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="claim:0",
    definition=DEFINITION,
    time_limit_min=10,
)


def lived(*events: Event) -> tuple[Job, tuple[Effect, ...]]:
    """The job after its claim and these events, and the effects of the last one."""
    job, effects = advance(None, CLAIM)
    for event in events:
        job, effects = advance(job, event)
    assert job is not None
    return job, effects


def step(job: Job, event: Event) -> tuple[Job, tuple[Effect, ...]]:
    """The job after the event, and the effects of the event."""
    after, effects = advance(job, event)
    assert after is not None
    return after, effects


def then(job: Job, event: Event) -> Job:
    """The job after the event."""
    return step(job, event)[0]


TO_READY = (ScriptFetched("echo", "logger:1"),)
TO_SUBMITTING = (*TO_READY, SubmitStarted(10))
TO_QUEUED = (*TO_SUBMITTING, Submitted(SlurmId(7)))
TO_RUNNING = (*TO_QUEUED, SlurmRunningObserved())
