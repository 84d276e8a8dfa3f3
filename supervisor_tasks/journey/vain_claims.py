"""Claims that the contract refuses, while it goes on asking for them.

Those that pass the estimate and revert when they are mined are paid for. They are counted by the tracker's looks at which
claims of a kind were mined and none has succeeded. From the third in a row on the operator is called, and one is sent at a time
and ever more rarely, until one succeeds. Those that do not pass the estimate cost nothing but the jobs that wait: the operator
is called when that was so for a minute.
"""

from collections.abc import Mapping, Sequence

from supervisor_tasks.chain.book import Mined
from supervisor_tasks.chain.estimates import RevertedError
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.facts import INT, Fact
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.store import Ledger

PURPOSES = ("claim", "claim-cancelling", "claim-top-up")
REVERTED = {purpose: Fact(f"claims.reverted.{purpose.replace('-', '_')}", INT) for purpose in PURPOSES}  # in a row
MOST_REVERTED = 3  # in a row; a customer may cancel a job in the block of its claim
LONGEST_WAIT_S = 60.0
ESTIMATED_S = 60.0  # a customer may cancel between the look at the queue and the estimate
QUIET_S = 3600.0  # what was not seen again for so long is over
ADVICE = (
    "each of these transactions is paid for: look at the error, and at `supervisor transactions`; `supervisor drain on` stops"
    " the claiming of new jobs. One is tried a minute, and this is over when one succeeds"
)
ESTIMATED_ADVICE = (
    "nothing is sent, and nothing paid for, as long as the contract would refuse it: look at the error. Each poll asks again,"
    " and this is over when it would take one, or when none waits"
)


def wait_s(in_a_row: int) -> float:
    """For how long none is sent after so many in a row have reverted. Pure."""
    return 0.0 if in_a_row < MOST_REVERTED else min(2.0 ** min(in_a_row - 1, 10), LONGEST_WAIT_S)


def at_once(ledger: Ledger, purpose: str, wanted: int) -> int:
    """How many of the wanted claims may be under way now."""
    if wanted <= 0:
        return 0
    in_a_row, ago_s = _reverted(ledger, purpose)
    if in_a_row < MOST_REVERTED:
        return wanted
    return 0 if ago_s < wait_s(in_a_row) else 1


def count(ledger: Ledger, mined: Sequence[Mined], reverted: Mapping[int, RevertedError]) -> None:
    """What became of claims. Who dies before it is through has counted one look too few."""
    for purpose in PURPOSES:
        results = [entry for entry in mined if entry.sent.purpose == purpose]
        if any(entry.success for entry in results):
            _succeeded(ledger, purpose)
        elif results:
            _in_vain(ledger, purpose, str(reverted[results[-1].sent.id]))


def would_revert(ledger: Ledger, purpose: str, error: str) -> bool:
    """A claim was refused at the estimate; True when it is the first one."""
    refused = _refused(ledger, purpose)
    first = refused.subject() is None
    for_s = refused.update(True)
    if for_s >= ESTIMATED_S:
        about = {"estimated": True, "for_s": round(for_s), "error": error}
        ledger.alarms.on(AlarmName.CLAIMS_REVERT, purpose=purpose, **about, advice=ESTIMATED_ADVICE)
    return first


def would_not_revert(ledger: Ledger, purpose: str) -> None:
    """A claim has passed the estimate, or none waits."""
    refused = _refused(ledger, purpose)
    if refused.subject() is not None:
        refused.update(False)
        _calm(ledger)


def _calm(ledger: Ledger) -> None:
    """Nothing is wrong any more, unless it is with claims of another kind, or in the other way."""
    in_vain = any(_reverted(ledger, purpose)[0] >= MOST_REVERTED for purpose in PURPOSES)
    if not in_vain and all(_refused(ledger, purpose).seconds() < ESTIMATED_S for purpose in PURPOSES):
        ledger.alarms.off(AlarmName.CLAIMS_REVERT)


def _succeeded(ledger: Ledger, purpose: str) -> None:
    in_a_row, _ = _reverted(ledger, purpose)
    if in_a_row:
        ledger.facts.clear_if(REVERTED[purpose], in_a_row)
        _calm(ledger)


def _in_vain(ledger: Ledger, purpose: str, error: str) -> None:
    in_a_row = _reverted(ledger, purpose)[0] + 1
    ledger.facts.set(REVERTED[purpose], in_a_row)
    if in_a_row >= MOST_REVERTED:
        about = {"in_a_row": in_a_row, "error": error, "next_in_s": wait_s(in_a_row)}
        ledger.alarms.on(AlarmName.CLAIMS_REVERT, purpose=purpose, **about, advice=ADVICE)


def _reverted(ledger: Ledger, purpose: str) -> tuple[int, float]:
    """How many in a row, and how many seconds ago the last was."""
    known = ledger.facts.read(REVERTED[purpose])
    return (0, 0.0) if known is None or known.age_s > QUIET_S else (known.value, known.age_s)


def _refused(ledger: Ledger, purpose: str) -> Duration:
    """For how long claims of a kind have been refused at the estimate. They share an alarm with those that revert."""
    return Duration(ledger.facts, f"refused.{purpose.replace('-', '_')}")
