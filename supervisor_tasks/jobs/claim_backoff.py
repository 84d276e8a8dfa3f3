"""Claims that the contract refuses, although its queue shows work for us.

Some claims pass the estimate and revert when they are mined: they cost gas. The tracker counts its looks at which
claims of a kind were mined and none succeeded. From the third such look in a row, an alarm is raised. Then only one
claim is sent at a time, and the wait between two grows until one succeeds.

Other claims fail at the estimate. They cost nothing, but the jobs wait: an alarm is raised after a minute.
"""

from collections.abc import Mapping, Sequence

from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.facts import INT, Fact
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.transactions import Mined
from supervisor_tasks.wallet.gas import RevertedError

PURPOSES = ("claim", "claim-cancelling", "claim-top-up")
REVERTED = {purpose: Fact(f"claims.revert_streak.{purpose.replace('-', '_')}", INT) for purpose in PURPOSES}  # in a row
MAX_REVERTED = 3  # in a row; a customer may cancel a job in the block of its claim
MAX_WAIT_S = 60.0
ESTIMATED_S = 60.0  # a customer may cancel between the look at the queue and the estimate
QUIET_S = 3600.0  # a count that has not changed for this long is void
ADVICE = (
    "each of these transactions is paid for: look at the error, and at `supervisor tx list`; `supervisor claims pause` stops"
    " the claiming of new jobs. One is tried a minute, and this is over when one succeeds"
)
ESTIMATED_ADVICE = (
    "nothing is sent, and nothing paid for, as long as the contract would refuse it: look at the error. Each poll asks again,"
    " and this is over when it would take one, or when none waits"
)


def revert_delay_s(in_a_row: int) -> float:
    """Seconds for which no claim is sent after `in_a_row` reverts. Pure."""
    return 0.0 if in_a_row < MAX_REVERTED else min(2.0 ** min(in_a_row - 1, 10), MAX_WAIT_S)


def allowed_in_flight(ledger: Ledger, purpose: str, wanted: int) -> int:
    """How many of the wanted claims may be under way now."""
    if wanted <= 0:
        return 0
    in_a_row, ago_s = _reverted(ledger, purpose)
    if in_a_row < MAX_REVERTED:
        return wanted
    return 0 if ago_s < revert_delay_s(in_a_row) else 1


def record_results(ledger: Ledger, mined: Sequence[Mined], reverted: Mapping[int, RevertedError]) -> None:
    """Count the results of mined claims. A worker that dies before the end counts one look too few."""
    for purpose in PURPOSES:
        results = [entry for entry in mined if entry.sent.purpose == purpose]
        if any(entry.success for entry in results):
            _succeeded(ledger, purpose)
        elif results:
            _record_failure(ledger, purpose, str(reverted[results[-1].sent.id]))


def record_estimate_rejected(ledger: Ledger, purpose: str, error: str) -> bool:
    """Store that a claim failed at the estimate. True when it is the first such claim."""
    refused = _refused(ledger, purpose)
    first = refused.subject() is None
    for_s = refused.update(True)
    if for_s >= ESTIMATED_S:
        about = {"estimated": True, "for_s": round(for_s), "error": error}
        ledger.alarms.on(AlarmName.CLAIMS_REVERTING, purpose=purpose, **about, advice=ESTIMATED_ADVICE)
    return first


def record_estimate_ok(ledger: Ledger, purpose: str) -> None:
    """Store that a claim passed the estimate, or that none waits."""
    refused = _refused(ledger, purpose)
    if refused.subject() is not None:
        refused.update(False)
        _clear_alarm_if_recovered(ledger)


def _clear_alarm_if_recovered(ledger: Ledger) -> None:
    """End the alarm, unless claims of any kind still revert, or still fail at the estimate."""
    in_vain = any(_reverted(ledger, purpose)[0] >= MAX_REVERTED for purpose in PURPOSES)
    if not in_vain and all(_refused(ledger, purpose).seconds() < ESTIMATED_S for purpose in PURPOSES):
        ledger.alarms.off(AlarmName.CLAIMS_REVERTING)


def _succeeded(ledger: Ledger, purpose: str) -> None:
    in_a_row, _ = _reverted(ledger, purpose)
    if in_a_row:
        ledger.facts.clear_if(REVERTED[purpose], in_a_row)
        _clear_alarm_if_recovered(ledger)


def _record_failure(ledger: Ledger, purpose: str, error: str) -> None:
    in_a_row = _reverted(ledger, purpose)[0] + 1
    ledger.facts.set(REVERTED[purpose], in_a_row)
    if in_a_row >= MAX_REVERTED:
        about = {"in_a_row": in_a_row, "error": error, "next_in_s": revert_delay_s(in_a_row)}
        ledger.alarms.on(AlarmName.CLAIMS_REVERTING, purpose=purpose, **about, advice=ADVICE)


def _reverted(ledger: Ledger, purpose: str) -> tuple[int, float]:
    """The number of reverts in a row, and the age of the last one in seconds."""
    known = ledger.facts.read(REVERTED[purpose])
    return (0, 0.0) if known is None or known.age_s > QUIET_S else (known.value, known.age_s)


def _refused(ledger: Ledger, purpose: str) -> Duration:
    """How long claims of a kind have failed at the estimate. They share an alarm with claims that revert."""
    return Duration(ledger.facts, f"estimate_rejected.{purpose.replace('-', '_')}")
