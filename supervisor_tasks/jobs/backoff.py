"""How long to wait before the next try."""

import random

MAX_WAIT_S = 4.0  # short, so that all work goes on within seconds after an outage


def retry_delay_s(attempts: int) -> float:
    """Seconds before the next try. They are random, so that a hundred jobs do not come
    back at the same moment.
    """
    wait_s: float = min(0.25 * 2 ** min(attempts, 10), MAX_WAIT_S)
    return wait_s * random.uniform(0.8, 1.2)  # noqa: S311
