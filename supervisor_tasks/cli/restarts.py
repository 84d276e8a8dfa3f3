"""Longer waits before a process that ends again and again soon after its start.

systemd before 254 (Debian 12) starts a unit again after RestartSec, the same each time.
So a process of a unit waits itself, before it begins: with RestartSec=2 a start follows
an end after 2, 4, 8, 16, 32 and then 60 s. A file in RUNTIME_DIRECTORY has the count;
systemd keeps that folder over restarts, and `systemctl stop` removes it. Without that
variable no process waits: containers have a backoff of their own.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

LASTED_S = 60.0  # a process that ran for so long was started well
RESTART_S = 2.0  # RestartSec of the units
MAX_WAIT_S = 60.0  # from an end to the next start
FILE = "starts.json"


def pause_s(soon_ended: int) -> float:
    """Return how long a start waits after so many runs in a row that ended soon."""
    if not soon_ended:
        return 0.0
    from_end_s = min(RESTART_S * 2.0 ** (min(soon_ended, 10) - 1), MAX_WAIT_S)
    return from_end_s - RESTART_S  # systemd has waited for RESTART_S


def wait_before_start(
    process: str,
    environment: Mapping[str, str],
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait if the last runs of this unit ended soon, and store that the process begins.
    The process also starts if the folder cannot be written.
    """
    folder = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if not folder:
        return
    file = Path(folder) / FILE
    soon_ended = _soon_ended(file, clock_s())
    if wait_s := pause_s(soon_ended):
        _log_delay(process, environment, soon_ended, wait_s)
        sleep(wait_s)
    with suppress(OSError):
        file.write_text(json.dumps({"soon_ended": soon_ended, "begun_s": clock_s()}))


def _soon_ended(file: Path, now_s: float) -> int:
    """Return how many runs in a row have ended soon; 0 if there was none, or the file
    is damaged.
    """
    try:
        last = json.loads(file.read_text())
        soon_ended, begun_s = int(last["soon_ended"]), float(last["begun_s"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0
    if now_s - begun_s >= LASTED_S:
        return 0
    return soon_ended + 1


def _log_delay(
    process: str, environment: Mapping[str, str], soon_ended: int, wait_s: float
) -> None:
    import structlog  # only here: most starts do not wait

    from supervisor_tasks.config.logging import configure

    configure(cluster=environment.get("CLUSTER_NAME", ""))
    structlog.get_logger().warning(
        "start_delayed", process=process, soon_ended=soon_ended, wait_s=wait_s
    )
