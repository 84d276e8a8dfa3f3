"""The points where the world changes, each with a name, so that a test can kill the process there. Pure but for one
file.

`CRASH_AT` names a file with `<place> <count>`: the process that passes the place for the count-th time ends by SIGKILL.
Without the variable, a point costs one comparison.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path


class CrashPoint(StrEnum):
    """A place in the program that changes the world."""

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
def crash_point(point: CrashPoint) -> Iterator[None]:
    """Mark the code in which the world changes: a test can crash the process just before or just after it."""
    before(point)
    yield
    after(point)


def before(point: CrashPoint) -> None:
    """Mark the moment before the world changes."""
    hit(f"before-{point}")


def after(point: CrashPoint) -> None:
    """Mark the moment after the world has changed."""
    hit(f"after-{point}")


def hit(place: str) -> None:
    """Kill this process with SIGKILL if the order names this place and this time."""
    if ARMED is None:
        return
    if _is_turn(Path(ARMED), place):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_turn(order: Path, place: str) -> bool:
    """Return whether the order names this place and this time; if the time comes later, count down.

    The process that takes the order removes the file, so that each order causes one crash.
    """
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
