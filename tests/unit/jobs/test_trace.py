"""The spans of a job's end, from the events of its journal."""

from dataclasses import replace

import pytest

from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    Job,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.trace import (
    AGAIN,
    ROOT,
    Recorded,
    span_id,
    spans_of,
    trace_id,
)

JOB = Job(
    job_id=JobId("0x" + "1" * 64),
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="0xabc:0",
    definition=Definition(
        gpus=0, mem_per_cpu_mb=1, cpus_per_task=1, ntasks=1, batch_location_hash="x"
    ),
    time_limit_min=1,
    state=State.SETTLED,
    chain_status=ChainStatus.FINISHED,
    slurm_id=SlurmId(7),
)
LIFE = (
    ("Claimed", State.CLAIMED),
    ("ScriptFetched", State.READY),
    ("SubmitStarted", State.SUBMITTING),
    ("Submitted", State.QUEUED),
    ("SlurmRunningObserved", State.RUNNING),
    ("SlurmRunningObserved", State.RUNNING),
    ("SlurmCompleted", State.ENDED),
    ("ChainStatusObserved", State.SETTLED),
)
REORGANISED = ("Reorganised", State.ENDED)
SETTLED = LIFE[-1]


def story(*events: tuple[str, State]) -> list[Recorded]:
    """Events that happened one second after the other, from the second 100."""
    return [
        Recorded(10 + number, 100.0 + number, name, state)
        for number, (name, state) in enumerate(events)
    ]


def test_spans_of__a_whole_life__are_a_root_and_each_state_after_the_other() -> None:
    root, *states = spans_of("here", JOB, story(*LIFE), 99.5)
    assert (root.name, root.parent_id, root.begun_s, root.ended_s) == (
        ROOT,
        None,
        99.5,
        107.0,
    )
    assert (root.trace_id, root.span_id) == (
        trace_id("here", JOB.job_id),
        span_id("here", JOB.job_id),
    )
    assert root.attributes == {
        "job_id": JOB.job_id,
        "cluster": "here",
        "customer": JOB.customer,
        "tx_hash": "0xabc",
        "state": "SETTLED",
        "status": "FINISHED",
        "slurm_id": 7,
    }
    assert [(span.name, span.begun_s, span.ended_s) for span in states] == [
        ("CLAIMED", 100.0, 101.0),
        ("READY", 101.0, 102.0),
        ("SUBMITTING", 102.0, 103.0),
        ("QUEUED", 103.0, 104.0),
        ("RUNNING", 104.0, 106.0),
        ("ENDED", 106.0, 107.0),
    ]
    assert {span.parent_id for span in states} == {root.span_id}
    assert len({span.span_id for span in (root, *states)}) == 7


def test_spans_of__claimed_by_another_ledger__begin_with_the_claims_event() -> None:
    assert spans_of("here", JOB, story(*LIFE), None)[0].begun_s == 100.0


def test_spans_of__an_end_that_was_taken_back__hang_on_the_first_root() -> None:
    first = spans_of("here", JOB, story(*LIFE), 99.5)
    again, ended = spans_of("here", JOB, story(*LIFE, REORGANISED, SETTLED), 99.5)
    assert (again.name, again.parent_id, again.begun_s, again.ended_s) == (
        AGAIN,
        first[0].span_id,
        108.0,
        109.0,
    )
    assert (ended.name, ended.parent_id) == ("ENDED", again.span_id)
    assert not {again.span_id, ended.span_id} & {span.span_id for span in first}


def test_spans_of__taken_back_before_the_history_is_read__are_of_the_end_that_was() -> (
    None
):
    assert spans_of("here", JOB, story(*LIFE, REORGANISED), 99.5) == spans_of(
        "here", JOB, story(*LIFE), 99.5
    )


def test_spans_of__the_end_is_said_again__change_nothing() -> None:
    assert spans_of("here", JOB, story(*LIFE, SETTLED, SETTLED), 99.5) == spans_of(
        "here", JOB, story(*LIFE), 99.5
    )


def test_spans_of__given_back__end_when_the_contract_takes_it() -> None:
    refused = ("SubmitRejected", State.REFUSED), ("ChainStatusObserved", State.REFUSED)
    job = replace(JOB, state=State.REFUSED, chain_status=ChainStatus.PENDING)
    root, *states = spans_of("here", job, story(*LIFE[:3], *refused), None)
    assert (root.ended_s, root.attributes["status"]) == (104.0, "PENDING")
    assert [(span.name, span.begun_s, span.ended_s) for span in states][-1] == (
        "REFUSED",
        103.0,
        104.0,
    )


@pytest.mark.parametrize("length", [0, 1, 5, len(LIFE) - 1])
def test_spans_of__no_end_yet__are_none(length: int) -> None:
    assert spans_of("here", JOB, story(*LIFE[:length]), 99.5) == []


def test_ids__other_cluster_or_job__are_others() -> None:
    pairs = [("here", "0x1"), ("here", "0x2"), ("there", "0x1"), ("here0", "x1")]
    assert (
        len({trace_id(*pair) for pair in pairs})
        == len({span_id(*pair) for pair in pairs})
        == len(pairs)
    )
    assert trace_id("here", "0x1").bit_length() <= 128
    assert span_id("here", "0x1").bit_length() <= 64
