import pytest

from supervisor_tasks.jobs.claim_limits import WaitingJobsLimit, Waits
from supervisor_tasks.jobs.stalled import is_held

LIMIT = WaitingJobsLimit(max_jobs=100, customer_share=0.25)


@pytest.mark.parametrize(
    ("waiting", "left"),
    [
        ({}, 100),
        ({"a": Waits(turn=10)}, 90),
        ({"a": Waits(turn=300)}, 75),
        ({"a": Waits(held=300)}, 100),
        ({"a": Waits(turn=90, held=90), "b": Waits(turn=5)}, 70),
        (dict.fromkeys("abcd", Waits(turn=25)), 0),
        ({"a": Waits(held=4000)}, 100),
        ({"a": Waits(turn=4000)}, 75),
        ({"a": Waits(turn=4000, held=4000), "b": Waits(held=4000)}, 75),
    ],
)
def test_left__jobs_that_wait__take_places_up_to_each_customers_share(
    waiting: dict[str, Waits], left: int
) -> None:
    assert LIMIT.left(waiting) == left


def test_left__share_of_less_than_one_job__counts_as_one() -> None:
    assert (
        WaitingJobsLimit(max_jobs=2, customer_share=0.1).left({"a": Waits(turn=2)}) == 1
    )


def test_largest_customers__two__the_one_with_most_jobs_comes_first() -> None:
    largest = LIMIT.largest_customers({"a": Waits(turn=1), "b": Waits(turn=2, held=3)})
    assert list(largest.items()) == [
        ("b", "2 wait, 3 are held"),
        ("a", "1 wait, 0 are held"),
    ]


def test_largest_customers__others_hold_many__those_that_take_places_come_first() -> (
    None
):
    holding = {f"holds {number}": Waits(held=1000) for number in range(5)}
    filling = {f"fills {number}": Waits(turn=25) for number in range(4)}
    assert LIMIT.left(holding | filling) == 0
    assert list(LIMIT.largest_customers(holding | filling))[:4] == list(filling)


@pytest.mark.parametrize(
    ("shown", "held"),
    [
        ("PENDING (JobHeldUser)", True),
        ("PENDING (BeginTime)", True),
        ("PENDING (Dependency)", True),
        ("PENDING (DependencyNeverSatisfied)", True),
        ("PENDING (Resources)", False),
        ("PENDING (Priority)", False),
        ("PENDING", False),
        ("COMPLETING", False),
        ("not listed", False),
    ],
)
def test_is_held__state_as_slurm_shows_it__is_true_for_hold_begin_and_dependency(
    shown: str, held: bool
) -> None:
    assert is_held(shown) is held
