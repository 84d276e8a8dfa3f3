"""The points where the program changes something outside of the process, each with a
name, so that a test can kill the process there. Pure except for the file that CRASH_AT
names.

That file contains `<place> <count>`: the process that passes the place for the count-th
time ends by SIGKILL. Without the variable, a point costs one comparison.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path


class CrashPoint(StrEnum):
    """A place in the program that changes something outside of the process."""

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


ORDER_FILE = os.environ.get("CRASH_AT")


@contextmanager
def crash_point(point: CrashPoint) -> Iterator[None]:
    """Surround the code that makes the change: a test can crash the process just before
    or just after it.
    """
    before(point)
    yield
    after(point)


def before(point: CrashPoint) -> None:
    """Pass the crash point before the change."""
    hit(f"before-{point}")


def after(point: CrashPoint) -> None:
    """Pass the crash point after the change."""
    hit(f"after-{point}")


def hit(place: str) -> None:
    """Kill this process with SIGKILL if the file of CRASH_AT names this place, and its
    count is used up.
    """
    if ORDER_FILE is None:
        return
    if _is_turn(Path(ORDER_FILE), place):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_turn(order: Path, place: str) -> bool:
    """Return whether the file with the order names this place, and its count is used
    up; otherwise count down.

    The process that must crash removes the file first, so that each order causes one
    crash.
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
