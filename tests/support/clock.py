"""A clock that a test sets, for rules about time."""


class Clock:
    """Shows `now_s` until the test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
