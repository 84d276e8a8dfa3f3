"""The points where the world changes, each with a name, so that a test can kill the process there. Pure but for one file.

`CRASH_AT` names a file that says `<place> <count>`: the process that passes the place for the count-th time ends as by SIGKILL.
Without the variable, a point costs one comparison.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path


class Point(StrEnum):
    """A place in the program before and after which the world differs."""

    COMMIT = "commit"
    LEASE = "lease"
    POSTPONE = "postpone"
    SBATCH = "sbatch"
    ID_STORED = "id-stored"
    SIGN = "sign"
    TRANSACTION_COMMIT = "transaction-commit"
    BROADCAST = "broadcast"
    RECEIPT_READ = "receipt-read"
    CALLBACK_STORED = "callback-stored"
    CALLBACK_ACKNOWLEDGED = "callback-acknowledged"
    SCANCEL = "scancel"
    TIME_LIMIT = "time-limit"
    LDAP_ADD = "ldap-add"
    LDAP_MEMBER = "ldap-member"
    REORGANISED = "reorganised"
    EVENT_READ = "event-read"
    EVENT_SPOOLED = "event-spooled"
    EVENT_DELIVERED = "event-delivered"


ARMED = os.environ.get("CRASH_AT")


@contextmanager
def around(point: Point) -> Iterator[None]:
    """The world changes in here: a crash may come just before it or just after it."""
    before(point)
    yield
    after(point)


def before(point: Point) -> None:
    """The world is about to change."""
    reached(f"before-{point}")


def after(point: Point) -> None:
    """The world has just changed."""
    reached(f"after-{point}")


def reached(place: str) -> None:
    """End the process as by SIGKILL when it is this place's turn."""
    if ARMED is None:
        return
    if _is_turn(Path(ARMED), place):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_turn(order: Path, place: str) -> bool:
    """Whether the order names this place for this time. Whoever takes the order removes it: one crash an order."""
    try:
        wanted, _, count = order.read_text().partition(" ")
    except FileNotFoundError:
        return False
    if wanted != place:
        return False
    if int(count or 1) > 1:
        order.write_text(f"{wanted} {int(count) - 1}")
        return False
    try:
        order.unlink()
    except FileNotFoundError:
        return False
    return True
