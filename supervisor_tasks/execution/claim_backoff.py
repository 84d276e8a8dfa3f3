"""Claims that the contract rejects, although its queue shows work for us.

Some claims pass the estimate and revert when they are mined: they cost gas. The task
collect_receipts counts its looks at which claims of a kind were mined and none
succeeded. From the third such look in a row, an alarm is raised. Then only one claim is
sent at a time, and the wait between two grows until one succeeds.

A claim that runs out of gas met a job with a longer definition than the first of the
queue, and each claim sent behind it meets that job, too. From then on one claim is sent
at a time, and twice as many after each look at which claims succeeded.

Other claims fail at the estimate. They cost nothing, but the jobs wait: an alarm is
raised after a minute.
"""

from collections.abc import Mapping, Sequence

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.execution.doubled_delay import doubled_delay_s
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.facts import INT, Fact
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.transaction_names import Purpose
from supervisor_tasks.ledger.transactions import Mined
from supervisor_tasks.wallet.gas import RevertedError

PURPOSES: Sequence[str] = (
    Purpose.CLAIM,
    Purpose.CLAIM_CANCELLING,
    Purpose.CLAIM_TOP_UP,
)
REVERT_STREAKS = {
    purpose: Fact(f"claims.revert_streak.{purpose.replace('-', '_')}", INT)
    for purpose in PURPOSES
}  # in a row
AT_MOST = {
    purpose: Fact(f"claims.at_most.{purpose.replace('-', '_')}", INT)
    for purpose in PURPOSES
}  # claims in flight, after one ran out of gas
UNLIMITED_CLAIMS = 1000  # a limit that has grown to this is over
# The call of another contract can use all gas but a 64th of it.
OUT_OF_GAS_SHARE = 0.9
# in a row; a customer may cancel a job in the block of its claim
MAX_REVERTED_CLAIMS = 3
FIRST_REVERT_WAIT_S = 1.0  # doubled with each further revert
MAX_REVERT_WAIT_S = 60.0
# a customer may cancel between the look at the queue and the estimate
ESTIMATE_ALARM_AFTER_S = 60.0
COUNTS_VALID_S = 3600.0  # a count that has not changed for this long is void
ADVICE = (
    "each of these transactions costs gas: read the error, and `supervisor tx list`; `supervisor claims pause` stops the"
    " claiming of new jobs. The worker sends one claim at a time, at least once a minute, and the alarm ends when one succeeds"
)
ESTIMATED_ADVICE = (
    "the worker sends no claim, and pays nothing, as long as the contract would reject it: read the error. Each poll"
    " estimates again, and the alarm ends when the contract would accept a claim, or when none waits"
)


def revert_delay_s(in_a_row: int) -> float:
    """Seconds for which no claim is sent after `in_a_row` reverts. Pure."""
    if in_a_row < MAX_REVERTED_CLAIMS:
        return 0.0
    return doubled_delay_s(in_a_row - 1, FIRST_REVERT_WAIT_S, MAX_REVERT_WAIT_S)


def allowed_in_flight(ledger: Ledger, purpose: str, wanted: int) -> int:
    """How many of the wanted claims may be under way now. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    in_a_row, ago_s = _reverts_in_a_row(ledger, purpose)
    if in_a_row < MAX_REVERTED_CLAIMS:
        return min(wanted, _at_most(ledger, purpose) or wanted)
    if ago_s < revert_delay_s(in_a_row):
        return 0
    return 1


def record_results(
    ledger: Ledger, mined: Sequence[Mined], reverted: Mapping[int, RevertedError]
) -> None:
    """Count the results of mined claims. A worker that dies before the end counts one
    look too few. Raises LedgerUnavailableError, when the database does not answer; a
    retry helps.
    """
    for purpose in PURPOSES:
        results = [entry for entry in mined if entry.sent.purpose == purpose]
        _limit(ledger, purpose, results)
        if any(entry.success for entry in results):
            _record_success(ledger, purpose)
        elif results:
            last = results[-1].sent
            _record_failure(ledger, purpose, str(reverted[last.id]))


def _limit(ledger: Ledger, purpose: str, results: Sequence[Mined]) -> None:
    """Set how many claims may be in flight, by the gas that these claims used."""
    at_most = _at_most(ledger, purpose)
    if any(map(_ran_out_of_gas, results)):
        ledger.facts.set(AT_MOST[purpose], 1)
    elif at_most is not None and any(entry.success for entry in results):
        if 2 * at_most < UNLIMITED_CLAIMS:
            ledger.facts.set(AT_MOST[purpose], 2 * at_most)
        else:
            ledger.facts.clear_if(AT_MOST[purpose], at_most)


def _ran_out_of_gas(result: Mined) -> bool:
    if result.success or result.given_up:
        return False
    return result.gas_used >= OUT_OF_GAS_SHARE * result.sent.gas


def _at_most(ledger: Ledger, purpose: str) -> int | None:
    """How many claims may be in flight; None if no claim has run out of gas lately."""
    stored = ledger.facts.read(AT_MOST[purpose])
    if stored is None or stored.age_s > COUNTS_VALID_S:
        return None
    return stored.value


def record_estimate_rejected(ledger: Ledger, purpose: str, error: str) -> bool:
    """Store that a claim failed at the estimate. True when it is the first such claim.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    rejected = _estimate_rejected(ledger, purpose)
    is_first = rejected.subject() is None
    for_s = rejected.update(True)
    if for_s >= ESTIMATE_ALARM_AFTER_S:
        ledger.alarms.on(
            AlarmName.CLAIMS_REVERTING,
            purpose=purpose,
            estimated=True,
            for_s=round(for_s),
            error=error,
            advice=ESTIMATED_ADVICE,
        )
    return is_first


def record_estimate_ok(ledger: Ledger, purpose: str) -> None:
    """Store that a claim passed the estimate, or that none waits. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    rejected = _estimate_rejected(ledger, purpose)
    if rejected.subject() is not None:
        rejected.update(False)
        _clear_alarm_if_recovered(ledger)


def _clear_alarm_if_recovered(ledger: Ledger) -> None:
    """End the alarm, unless claims of any kind still revert, or still fail at the
    estimate.
    """
    for purpose in PURPOSES:
        in_a_row, _ = _reverts_in_a_row(ledger, purpose)
        if in_a_row >= MAX_REVERTED_CLAIMS:
            return
        if _estimate_rejected(ledger, purpose).seconds() >= ESTIMATE_ALARM_AFTER_S:
            return
    ledger.alarms.off(AlarmName.CLAIMS_REVERTING)


def _record_success(ledger: Ledger, purpose: str) -> None:
    in_a_row, _ = _reverts_in_a_row(ledger, purpose)
    if in_a_row:
        ledger.facts.clear_if(REVERT_STREAKS[purpose], in_a_row)
        _clear_alarm_if_recovered(ledger)


def _record_failure(ledger: Ledger, purpose: str, error: str) -> None:
    earlier, _ = _reverts_in_a_row(ledger, purpose)
    in_a_row = earlier + 1
    ledger.facts.set(REVERT_STREAKS[purpose], in_a_row)
    if in_a_row >= MAX_REVERTED_CLAIMS:
        ledger.alarms.on(
            AlarmName.CLAIMS_REVERTING,
            purpose=purpose,
            in_a_row=in_a_row,
            error=error,
            next_in_s=revert_delay_s(in_a_row),
            advice=ADVICE,
        )


def _reverts_in_a_row(ledger: Ledger, purpose: str) -> tuple[int, float]:
    """The number of reverts in a row, and the age of the last one in seconds."""
    stored = ledger.facts.read(REVERT_STREAKS[purpose])
    if stored is None or stored.age_s > COUNTS_VALID_S:
        return 0, 0.0
    return stored.value, stored.age_s


def _estimate_rejected(ledger: Ledger, purpose: str) -> Duration:
    """How long claims of a kind have failed at the estimate. They share an alarm with
    claims that revert.
    """
    return Duration(ledger.facts, f"estimate_rejected.{purpose.replace('-', '_')}")
