import pytest

from supervisor_tasks.jobs.submit import parts_within


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([1], [[1]]),
        ([4, 3, 3], [[4, 3, 3]]),
        ([4, 3, 4, 10, 1], [[4, 3], [4], [10], [1]]),
        ([11, 1, 9, 1], [[11], [1, 9], [1]]),
        ([1, 11, 12], [[1], [11], [12]]),
        ([0, 10, 0, 0, 1], [[0, 10, 0, 0], [1]]),
    ],
)
def test_parts_within__ten_at_most__in_their_order_and_none_is_left_out(
    sizes: list[int], parts: list[list[int]]
) -> None:
    assert parts_within(sizes, lambda size: size, 10) == parts
