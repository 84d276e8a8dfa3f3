"""Whether a node's announcements are reliable, judged by what it announces and what the
RPC endpoints show. Pure.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

KEPT_GAPS = 9  # between the last heads; their median is the usual gap
LATE_S = 2.0  # a head that comes so much later than usual is late: silence
MAX_SILENT_S = 15.0
BEHIND_S = 1.0  # how long the endpoints may show a higher head than was announced
# the endpoints show a block soon after it is announced; further ahead is another chain
AHEAD_BLOCKS = 5

NOT_CONNECTED, NO_BLOCK = "not connected yet", "no block was announced yet"
NOT_BEGUN = (NOT_CONNECTED, NO_BLOCK)  # nothing is wrong


def silent_after_s(gaps_s: Iterable[float]) -> float:
    """For how many seconds it is normal that no head comes; `gaps_s` are the seconds
    between the last heads.
    """
    gaps_s = list(gaps_s)
    usual_s = median(gaps_s) if gaps_s else 0.0
    return min(usual_s + LATE_S, MAX_SILENT_S)


class Announcements:
    """The announcements of consecutive connections. Times are of a clock that only goes
    forward.
    """

    def __init__(self) -> None:
        self.number = -1  # the highest block that was announced
        self.announced_s = float("-inf")
        self._gaps_s: deque[float] = deque(maxlen=KEPT_GAPS)
        # since when the endpoints have shown other heads than were announced
        self._behind_since_s = float("inf")
        self._why_not = NOT_CONNECTED

    def subscribed(self) -> None:
        """The node announces heads from now on."""
        if self.number < 0:
            self._why_not = NO_BLOCK

    def disconnected(self, why: str) -> None:
        """The node announces nothing any more."""
        self._why_not = why
        self.number, self.announced_s = -1, float("-inf")
        self._behind_since_s = float("inf")

    def head(self, number: int, now_s: float) -> None:
        """A block was announced."""
        if self.number >= 0:
            self._gaps_s.append(now_s - self.announced_s)
        self.number, self.announced_s = max(number, self.number), now_s
        self._why_not = ""

    def endpoint_head(self, head: int, now_s: float) -> None:
        """The RPC endpoints show a head."""
        is_level = self.number - AHEAD_BLOCKS <= head <= self.number
        if self.number < 0 or is_level:
            self._behind_since_s = float("inf")
        else:
            self._behind_since_s = min(self._behind_since_s, now_s)

    def why_not(self, now_s: float) -> str:
        """Why the announcements are not reliable; empty when they are."""
        if self._why_not:
            return self._why_not
        if now_s - self._behind_since_s >= BEHIND_S:
            return "it is silent, or behind the RPC endpoints"
        return ""

    def silent_in_s(self, now_s: float) -> float:
        """Seconds until the node is silent for longer than usual; 0 when it is. The
        chain itself may be silent.
        """
        return max(self.announced_s + silent_after_s(self._gaps_s) - now_s, 0.0)
