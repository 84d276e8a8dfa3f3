"""How long to wait before the next try."""

import random

from supervisor_tasks.execution.doubled_delay import doubled_delay_s

FIRST_WAIT_S = 0.25
MAX_WAIT_S = 4.0  # short, so that all work goes on within seconds after an outage
# where a customer's own login decides how often it is tried
MAX_WAIT_FOR_LOGIN_S = 60.0


def retry_delay_s(
    attempts: int, max_wait_s: float = MAX_WAIT_S, first_wait_s: float = FIRST_WAIT_S
) -> float:
    """Seconds before the next try. They are random by a fifth, so that a hundred jobs do
    not come back at the same moment.
    """
    wait_s = doubled_delay_s(attempts, first_wait_s, max_wait_s)
    return wait_s * random.uniform(0.8, 1.2)  # noqa: S311
