"""How long jobs were claimable, by the clocks of the chain's blocks."""

from supervisor_tasks.chain.claim_waits import ClaimWaits
from supervisor_tasks.jobs.events import ChainStatusObserved, Claimed, Event
from supervisor_tasks.jobs.model import Address, ChainStatus, Definition, JobId

TIMES_S = {1: 1000, 2: 1002, 3: 1030}
ONE, TWO = JobId("0x" + "1" * 64), JobId("0x" + "2" * 64)
DEFINITION = Definition(
    gpus=0, mem_per_cpu_mb=1, cpus_per_task=1, ntasks=1, batch_location_hash=""
)


def claimable(block: int, index: int = 0) -> Event:
    return ChainStatusObserved(ChainStatus.META_SCHEDULED, (block, index))


def claimed(job_id: JobId, block: int) -> Claimed:
    address = Address("0x" + "3" * 40)
    return Claimed(
        job_id=job_id,
        customer=address,
        provider=address,
        claim_key="",
        definition=DEFINITION,
        time_limit_min=1,
        at=(block, 0),
    )


def test_read__claim_in_a_later_block__has_waited_by_the_blocks_clocks() -> None:
    waits = ClaimWaits()
    assert waits.read([(ONE, claimable(1)), (TWO, claimable(2))], TIMES_S) == []
    assert waits.read([(ONE, claimed(ONE, 3)), (TWO, claimed(TWO, 3))], TIMES_S) == [
        30,
        28,
    ]


def test_read__same_claim_again__is_not_counted_again() -> None:
    waits = ClaimWaits()
    waits.read([(ONE, claimable(1)), (ONE, claimed(ONE, 2))], TIMES_S)
    assert waits.read([(ONE, claimed(ONE, 2))], TIMES_S) == []


def test_read__claim_whose_begin_was_not_seen__is_left_out() -> None:
    assert ClaimWaits().read([(ONE, claimed(ONE, 3))], TIMES_S) == []


def test_read__job_that_is_cancelled_before_its_claim__is_forgotten() -> None:
    waits = ClaimWaits()
    waits.read(
        [
            (ONE, claimable(1)),
            (ONE, ChainStatusObserved(ChainStatus.CANCELLED, (2, 0))),
        ],
        TIMES_S,
    )
    assert waits.read([(ONE, claimed(ONE, 3))], TIMES_S) == []


def test_read__more_jobs_than_are_remembered__forgets_the_first() -> None:
    waits = ClaimWaits(most=1)
    waits.read([(ONE, claimable(1)), (TWO, claimable(2))], TIMES_S)
    assert waits.read([(ONE, claimed(ONE, 3)), (TWO, claimed(TWO, 3))], TIMES_S) == [28]
