"""How long to wait before the next try."""

import random

MAX_WAIT_S = 4.0  # short, so that all work goes on within seconds after an outage
# where a customer's own login decides how often it is tried
MAX_WAIT_FOR_LOGIN_S = 60.0


def retry_delay_s(attempts: int, max_wait_s: float = MAX_WAIT_S) -> float:
    """Seconds before the next try. They are random, so that a hundred jobs do not come
    back at the same moment.
    """
    wait_s: float = min(0.25 * 2 ** min(attempts, 10), max_wait_s)
    return wait_s * random.uniform(0.8, 1.2)  # noqa: S311
