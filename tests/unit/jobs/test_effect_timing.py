"""When the effects are due that several rules open, and which of them a job needs."""

from typing import Any

import pytest

from supervisor_tasks.jobs.effect_timing import (
    limit_to_apply,
    next_poll,
    stop_slurm,
    stop_without_id,
    submission_window_s,
)
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    Effect,
    EffectKind,
    Job,
    JobId,
    Outcome,
    SlurmId,
    State,
    TopUp,
)
from supervisor_tasks.jobs.runs import JobRun

ID = SlurmId(7)
TOP_UP, CANCEL = Effect(EffectKind.TOP_UP), Effect(EffectKind.CANCEL)
LATER = Effect(EffectKind.CANCEL, 23.0)
CANCELLED = Outcome(status=ChainStatus.CANCELLED)


def job(state: State = State.RUNNING, **about: Any) -> Job:
    given: dict[str, Any] = {
        "job_id": JobId("0x" + "1" * 64),
        "customer": Address("0x" + "2" * 40),
        "provider": Address("0x" + "3" * 40),
        "claim_key": "claim:0",
        "definition": Definition(
            gpus=0,
            mem_per_cpu_mb=100,
            cpus_per_task=1,
            ntasks=1,
            batch_location_hash="hash",
        ),
        "time_limit_min": 60,
    }
    return Job(state=state, **given | about)


def run(elapsed_s: int, submit_s: int = 1000) -> JobRun:
    return JobRun(submit_s=submit_s, elapsed_s=elapsed_s)


@pytest.mark.parametrize(
    ("message_timeout_s", "window_s"), [(0.0, 13.0), (10.0, 23.0), (100.0, 113.0)]
)
def test_submission_window_s__each_message_timeout__adds_the_time_of_sbatch(
    message_timeout_s: float, window_s: float
) -> None:
    assert submission_window_s(message_timeout_s) == window_s


@pytest.mark.parametrize(
    ("poll_count", "due_in_s"),
    [
        (0, 0.5),
        (1, 1.0),
        (2, 2.0),
        (10, 512.0),
        (11, 900.0),
        (16, 900.0),
        (100_000, 900.0),
    ],
)
def test_next_poll__each_look_without_news__doubles_the_wait_up_to_15_minutes(
    poll_count: int, due_in_s: float
) -> None:
    assert next_poll(job(poll_count=poll_count)) == Effect(
        EffectKind.POLL_SLURM, due_in_s
    )


@pytest.mark.parametrize(
    ("time_limit_min", "runs", "poll_count", "due_in_s"),
    [
        (10, (), 20, 600.0),
        (10, (run(100),), 20, 500.0),
        (10, (run(100), run(200, 2000)), 20, 300.0),
        (15, (), 20, 900.0),
        (10, (run(569),), 20, 31.0),
        (10, (run(570),), 20, 30.0),
        (10, (run(571),), 20, 30.0),
        (10, (run(600),), 20, 30.0),
        (10, (run(700),), 20, 30.0),
        (10, (run(700),), 5, 16.0),
    ],
    ids=[
        "not begun",
        "runs",
        "requeued",
        "as long as the longest wait",
        "31 s left",
        "30 s left",
        "29 s left",
        "used up",
        "runs over",
        "runs over, just heard of",
    ],
)
def test_next_poll__paid_time_ends_before__is_due_then_but_after_30_s_at_least(
    time_limit_min: int, runs: tuple[JobRun, ...], poll_count: int, due_in_s: float
) -> None:
    polled = job(time_limit_min=time_limit_min, runs=runs, poll_count=poll_count)
    assert next_poll(polled).due_in_s == due_in_s


def test_next_poll__topped_up__may_be_due_later() -> None:
    topped_up = job(time_limit_min=5, top_ups=(TopUp("tx:1", 5),), poll_count=20)
    assert next_poll(topped_up).due_in_s == 600.0


@pytest.mark.parametrize(
    ("about", "effects"),
    [
        ({"applied_limit_min": 60}, ()),
        ({"applied_limit_min": 59}, (TOP_UP,)),
        ({"applied_limit_min": 61}, (TOP_UP,)),
        ({"applied_limit_min": None}, (TOP_UP,)),
        ({"applied_limit_min": 60, "top_ups": (TopUp("tx:1", 5),)}, (TOP_UP,)),
        ({"applied_limit_min": 65, "top_ups": (TopUp("tx:1", 5),)}, ()),
        ({"applied_limit_min": 60, "runs": (run(600), run(5, 2000))}, (TOP_UP,)),
        ({"applied_limit_min": 50, "runs": (run(600), run(5, 2000))}, ()),
    ],
    ids=[
        "the same",
        "less",
        "more",
        "not known",
        "topped up",
        "topped up and applied",
        "requeued",
        "requeued and applied",
    ],
)
@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_limit_to_apply__slurm_has_the_job__is_open_if_the_limits_differ(
    state: State, about: dict[str, Any], effects: tuple[Effect, ...]
) -> None:
    assert limit_to_apply(job(state, **about)) == effects


@pytest.mark.parametrize(
    "state",
    [
        State.CLAIMED,
        State.READY,
        State.SUBMITTING,
        State.ENDED,
        State.REFUSED,
        State.SETTLED,
    ],
)
def test_limit_to_apply__slurm_does_not_have_the_job__is_none(state: State) -> None:
    assert limit_to_apply(job(state, applied_limit_min=5)) == ()


@pytest.mark.parametrize(
    ("state", "about", "effects"),
    [
        (State.CLAIMED, {}, (CANCEL,)),
        (State.READY, {}, (CANCEL,)),
        (State.SUBMITTING, {}, (LATER,)),
        (State.REFUSED, {}, ()),
        (State.SETTLED, {}, (CANCEL,)),
        (State.SUBMITTING, {"slurm_id": ID}, (CANCEL,)),
        (State.QUEUED, {"slurm_id": ID}, (CANCEL,)),
        (State.RUNNING, {"slurm_id": ID}, (CANCEL,)),
        (State.REFUSED, {"slurm_id": ID}, (CANCEL,)),
        (State.ENDED, {"outcome": CANCELLED}, ()),
        (State.ENDED, {"outcome": CANCELLED, "slurm_id": ID}, ()),
    ],
)
def test_stop_slurm__each_state__cancels_what_slurm_may_still_have(
    state: State, about: dict[str, Any], effects: tuple[Effect, ...]
) -> None:
    assert stop_slurm(job(state, **about)) == effects


@pytest.mark.parametrize(
    ("state", "about", "effects"),
    [
        (State.READY, {}, (CANCEL,)),
        (State.SUBMITTING, {}, (LATER,)),
        (State.REFUSED, {}, ()),
        (State.ENDED, {"outcome": CANCELLED}, (CANCEL,)),
        (State.SUBMITTING, {"outcome": CANCELLED}, (LATER,)),
        (State.SUBMITTING, {"slurm_id": ID}, ()),
        (State.RUNNING, {"slurm_id": ID}, ()),
        (State.ENDED, {"slurm_id": ID, "outcome": CANCELLED}, ()),
    ],
)
def test_stop_without_id__each_state__cancels_only_jobs_without_an_id(
    state: State, about: dict[str, Any], effects: tuple[Effect, ...]
) -> None:
    assert stop_without_id(job(state, **about)) == effects
