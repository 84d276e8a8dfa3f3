"""How long to wait before something is tried again."""

import random

LONGEST_WAIT_S = 4.0  # after an outage everything moves again within seconds


def wait_s(attempts: int) -> float:
    """Seconds before the next try; spread, so that a hundred jobs do not come back in one moment."""
    longer: float = min(0.25 * 2 ** min(attempts, 10), LONGEST_WAIT_S)
    return longer * random.uniform(0.8, 1.2)  # noqa: S311
