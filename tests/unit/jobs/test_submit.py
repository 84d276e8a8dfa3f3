import pytest

from supervisor_tasks.jobs.submit import number_within


@pytest.mark.parametrize(
    ("sizes", "number"),
    [
        ([1], 1),
        ([11], 1),
        ([11, 1], 1),
        ([4, 3, 3], 3),
        ([4, 3, 4, 1], 2),
        ([0, 10, 0, 0, 1], 4),
        ([0, 11], 1),
    ],
)
def test_number_within__ten_at_most__the_first_ones_and_at_least_one(
    sizes: list[int], number: int
) -> None:
    assert number_within(sizes, 10) == number
