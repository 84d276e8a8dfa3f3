"""Waits that double with each try, up to a longest one. Pure."""

MAX_DOUBLINGS = 20  # a float has no room for 2 ** 2000


def doubled_delay_s(doublings: int, first_s: float, max_s: float) -> float:
    """`first_s` after so many doublings, and at most `max_s`."""
    return min(first_s * 2.0 ** min(doublings, MAX_DOUBLINGS), max_s)
