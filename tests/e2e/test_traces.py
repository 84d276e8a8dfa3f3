"""One trace a job, from the worker and the gRPC process of a real fleet, by OTLP to a
real receiver.
"""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.jobs.trace import trace_id
from tests.support.grid_assertions import rows, wait_for, wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.traces import ReceivedSpan, TraceReceiver, trace_receiver

# the database and the worker have one clock here, which each reads at another moment
OFF_S = 0.01
STATES = ["CLAIMED", "READY", "SUBMITTING", "QUEUED", "RUNNING", "ENDED"]


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    with trace_receiver() as server:
        yield server


@pytest.fixture(scope="module")
def traced(receiver: TraceReceiver) -> Iterator[Grid]:
    overrides = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    grid = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, overrides=overrides))
    try:
        grid.fleet.start(flower=False)
        yield grid
    finally:
        grid.stop()


def test_trace__of_a_job__is_one_from_its_claim_to_its_mined_end(
    traced: Grid, receiver: TraceReceiver
) -> None:
    customer = traced.new_customer()
    job_id = traced.submit_script(
        customer, "#!/bin/sh\nuntil [ -e ~/seen ]; do sleep 0.1; done\n"
    )
    wait_for(traced, job_id, {ChainStatus.RUNNING})  # a look has seen it run
    (traced.users.home(customer.address) / "seen").touch()
    assert wait_for_end(traced, job_id).status is ChainStatus.FINISHED

    def is_whole() -> bool:
        found = [(span.name, span.service) for span in receiver.of(job_id)]
        return (
            found.count(("callback", "supervisor-callbacks")) >= 2
            and ("job", "supervisor-worker") in found
        )

    wait_until(is_whole, "the spans of both processes", 30.0, 0.1)
    spans = receiver.of(job_id)
    (root,) = (span for span in spans if not span.parent)
    assert receiver.paths == {"/v1/traces"}
    assert {span.trace for span in spans} == {
        f"{trace_id(traced.environment['CLUSTER_NAME'], job_id):032x}"
    }
    assert len({span.id for span in spans}) == len(spans)
    assert {span.parent for span in spans} == {"", root.id}
    _is_from_claim_to_end(traced, job_id, root)
    of_state = sorted(
        (span for span in spans if span.name in STATES),
        key=lambda span: (span.begun_s, span.ended_s),
    )
    assert [span.name for span in of_state] == STATES
    assert {span.service for span in of_state} == {"supervisor-worker"}
    for span in spans:
        assert root.begun_s - OFF_S <= span.begun_s <= span.ended_s, span
        # a look may find the end first: the callback then comes when it comes
        if span.name != "callback":
            assert span.ended_s <= root.ended_s + OFF_S, span
    for before, after in pairwise(of_state):
        assert before.ended_s == after.begun_s
    assert root.attributes["customer"] == customer.address.lower()
    assert root.attributes["cluster"] == traced.environment["CLUSTER_NAME"]
    assert root.attributes["status"] == "FINISHED"
    _has_what_was_done(traced, job_id, spans)


def _is_from_claim_to_end(grid: Grid, job_id: str, root: ReceivedSpan) -> None:
    query = """
        SELECT extract(epoch FROM t.created_at)::float8 AS signed_s, t.hash,
            (SELECT extract(epoch FROM at)::float8 FROM events WHERE job_id = :id AND state = 'SETTLED' ORDER BY id LIMIT 1)
            AS ended_s
        FROM transactions t JOIN jobs j ON j.claim_key LIKE t.hash || ':%' WHERE j.job_id = :id
    """
    (claim,) = rows(grid, query, id=job_id)
    assert root.begun_s == pytest.approx(claim.signed_s, abs=1e-5)
    assert root.ended_s == pytest.approx(claim.ended_s, abs=1e-5)
    assert root.attributes["tx_hash"] == claim.hash


def _has_what_was_done(grid: Grid, job_id: str, spans: list[ReceivedSpan]) -> None:
    (slurm_id,) = (
        row.slurm_id
        for row in rows(grid, "SELECT slurm_id FROM jobs WHERE job_id = :id", id=job_id)
    )
    (sbatch,) = (span for span in spans if span.name == "ssh sbatch")
    assert (sbatch.service, sbatch.attributes["slurm_id"]) == (
        "supervisor-worker",
        slurm_id,
    )
    callbacks = [span for span in spans if span.name == "callback"]
    assert {span.attributes["slurm_id"] for span in callbacks} == {slurm_id}
    claim = "SELECT split_part(claim_key, ':', 1) FROM jobs WHERE job_id = :id"
    mined = f"SELECT hash FROM transactions WHERE job_id = :id OR hash = ({claim})"  # noqa: S608  no text of others
    hashes = {row.hash for row in rows(grid, mined, id=job_id)}
    sent = [span for span in spans if span.name.startswith("transaction ")]
    assert {span.attributes["tx_hash"] for span in sent} == hashes
    assert len(sent) == len(hashes) >= 2
