"""Claim: take the jobs, cancellations and top-ups that the contract has for this
provider.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from supervisor_tasks.alarms.alarm_meanings import STOPS_CLAIMS
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.abi_codec import Function
from supervisor_tasks.chain.contract import (
    CLAIM,
    CLAIM_CANCELLING,
    CLAIM_TOP_UP,
    ClaimPermission,
    Demand,
)
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution import claim_backoff
from supervisor_tasks.execution.exclusive_run import exclusive, record_run
from supervisor_tasks.in_memory.read_once import reading_once
from supervisor_tasks.jobs.claim_limits import ClaimLook, WaitingJobsLimit, Waits
from supervisor_tasks.jobs.model import State
from supervisor_tasks.jobs.stalled import is_held
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import CHAIN_HEAD, CLAIMABLE
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.ledger.transaction_names import Purpose
from supervisor_tasks.monitoring.chain_alarms import (
    chain_watched,
    store_balance,
    update_wallet_alarms,
)
from supervisor_tasks.monitoring.slurm_health import slurm_is_healthy
from supervisor_tasks.wallet.gas import NoEstimateError
from supervisor_tasks.wallet.transaction_writer import Write

log = structlog.get_logger()

WAITING = (State.CLAIMED, State.READY, State.SUBMITTING, State.QUEUED)
CALLS: Mapping[str, Function] = {
    Purpose.CLAIM: CLAIM,
    Purpose.CLAIM_CANCELLING: CLAIM_CANCELLING,
    Purpose.CLAIM_TOP_UP: CLAIM_TOP_UP,
}
# more than the next claim needs: the claims behind it may have longer definitions
MORE_GAS = 20_000


@dataclass(frozen=True, slots=True)
class _ClaimAllowance:
    """How many jobs may be claimed now; or why none may, though some wait."""

    jobs: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class _Queues:
    """How many claims of each purpose the contract would accept, and how many jobs may
    be claimed now.
    """

    numbers: Mapping[str, int]
    allowance: _ClaimAllowance

    @property
    def wanted(self) -> dict[str, int]:
        """How many claims of each purpose may be written."""
        jobs = min(self.numbers[Purpose.CLAIM], self.allowance.jobs)
        return {**self.numbers, Purpose.CLAIM: jobs}


def look_at_queues(context: WorkerContext, head: int | None = None) -> ClaimLook:
    """See whether the contract has anything for us, and whether it may be claimed now.
    Stores our permissions, how many jobs wait to be claimed, and the chain's head if it
    is known. Raises an alarm when the chain or the wallet has a problem, or when there
    is no room.

    Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint or the
    database does not answer; a retry helps. Raises WrongChainError, when an endpoint is
    of another chain; a retry does not help: the operator corrects its URL.
    """
    readings = dict[str, int]()
    if head is not None:
        readings[CHAIN_HEAD] = head
    together = context.ledger.periodic_runs.together()
    with (
        reading_once(),
        together,
        record_run(context.ledger, "claim", lambda: readings),
        chain_watched(context),
    ):
        queues = _read_queues(context)
        readings[CLAIMABLE] = queues.numbers[Purpose.CLAIM]
    wanted, why_not = queues.wanted, queues.allowance.why_not
    return ClaimLook(any(queues.numbers.values()), any(wanted.values()), why_not)


def _look_at_wallet(context: WorkerContext, demand: Demand) -> set[str]:
    """Store the balance and update the alarms about the wallet. Returns the names of
    all alarms that are on.
    """
    update_wallet_alarms(context, demand)
    store_balance(context, demand.balance_wei)
    return {alarm.name for alarm in context.ledger.alarms.all()}


def _read_queues(context: WorkerContext) -> _Queues:
    """Read the queues and our permission, and update the alarms that follow. Clears the
    rejected estimates of purposes without anything to claim: no estimate is made, so
    none is rejected.
    """
    demand = context.chain.contract.demand()
    alarms = _look_at_wallet(context, demand)
    _record_registration(context, demand.permission)
    numbers: dict[str, int] = {
        Purpose.CLAIM: demand.claimable,
        Purpose.CLAIM_CANCELLING: demand.cancelling,
        Purpose.CLAIM_TOP_UP: demand.topped_up,
    }
    for purpose, number in numbers.items():
        if not number:
            claim_backoff.record_estimate_ok(context.ledger, purpose)
    return _Queues(numbers, _allowance(context, demand, alarms))


@exclusive("claim")
def claim(context: WorkerContext) -> bool:
    """Look at the queues, and write one claim for each job, cancellation and top-up for
    us. At most CLAIM_BATCH of each are under way, and of jobs as many as there is room
    for. Their receipts show what each claim gave.

    Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint or the
    database does not answer; a retry helps. Raises NoEstimateError, when the node has
    no estimate; a retry helps. Raises WalletEmptyError, when the balance is too low; a
    retry helps after a deposit. Raises TooDearError, when the write costs more than
    WALLET_MAX_WEI_PER_TX; a retry helps when the price falls. Raises WrongChainError,
    when an endpoint is of another chain; a retry does not help: the operator corrects
    its URL.
    """
    chain = context.chain
    with reading_once(), chain_watched(context):
        queues = _read_queues(context)
        if queues.allowance.why_not:
            log.info("not_claiming", because=queues.allowance.why_not)
        asked = {purpose: number for purpose, number in queues.wanted.items() if number}
        allowed = {
            purpose: claim_backoff.allowed_in_flight(
                context.ledger, purpose, min(number, chain.claim_batch)
            )
            for purpose, number in asked.items()
        }
        writes, no_estimate = _new_claims(context, allowed)
        if writes and chain.transaction_writer.send(writes, most_open=allowed):
            log.info("claims_sent", **asked)
            context.dispatch("collect_receipts")
        if no_estimate is not None:
            raise no_estimate
    return False


def _record_registration(context: WorkerContext, permission: ClaimPermission) -> None:
    """Store our permission, and dispatch the registration at once when the grid has
    approved, removed or banned us.
    """
    facts = Registrations(context.ledger.facts)
    is_news = facts.store_permission(
        permission.valid, permission.waiting, permission.banned
    )
    if is_news and context.offer_config is not None:
        context.dispatch("register")


def _new_claims(
    context: WorkerContext, allowed: Mapping[str, int]
) -> tuple[list[Write], NoEstimateError | None]:
    """The claims to write: `allowed` of each purpose, without those that are under way.
    If the node has no estimate for a purpose, its error is returned beside the claims
    of the other purposes.
    """
    if not allowed:
        return [], None
    under_way = context.chain.transaction_writer.open_by_purpose()
    writes = list[Write]()
    no_estimate: NoEstimateError | None = None
    for purpose, number in allowed.items():
        try:
            writes += _writes(context, purpose, number - under_way[purpose])
        except NoEstimateError as error:
            no_estimate = error
    return writes, no_estimate


def _writes(context: WorkerContext, purpose: str, number: int) -> list[Write]:
    """So many claims of one purpose; none if the contract would reject one now. Raises
    NoEstimateError.
    """
    if number <= 0:
        return []
    data = CALLS[purpose].encode()
    gas = context.chain.transaction_writer.estimate([Write("", purpose, data)])[0]
    if isinstance(gas, NoEstimateError):
        raise gas
    if not isinstance(gas, int):
        if claim_backoff.record_estimate_rejected(context.ledger, purpose, str(gas)):
            log.warning("claim_would_revert", purpose=purpose, error=str(gas))
        return []
    claim_backoff.record_estimate_ok(context.ledger, purpose)
    # All claims are alike: a random idempotency key tells them apart.
    return [
        Write(f"{purpose}:{secrets.token_hex(8)}", purpose, data, gas=gas + MORE_GAS)
        for _ in range(number)
    ]


def _allowance(
    context: WorkerContext, demand: Demand, alarms: set[str]
) -> _ClaimAllowance:
    """How many jobs may be claimed now. Claims that are under way go on in any case."""
    ledger = context.ledger
    if not demand.claimable:
        ledger.alarms.off(AlarmName.CLAIMS_FULL)  # no job waits for a place
        return _ClaimAllowance()
    reasons: list[str] = [*sorted(alarms & STOPS_CLAIMS)]
    for switch in (Switch.CLAIMING_PAUSED, Switch.SUBMISSIONS_PAUSED):
        if ledger.switches.is_set(switch):
            reasons.append(switch)
    if reasons:
        return _ClaimAllowance(why_not=", ".join(reasons))
    if not demand.permission.valid:
        return _ClaimAllowance(
            why_not="the grid has not approved this provider, or banned it"
        )
    if not slurm_is_healthy(ledger):
        return _ClaimAllowance(why_not="SLURM does not answer")
    return _allowance_by_waiting_jobs(context)


def _allowance_by_waiting_jobs(context: WorkerContext) -> _ClaimAllowance:
    """How many more jobs have room. The ledger is asked for each customer's share only
    when the room may be full.
    """
    chain, ledger = context.chain, context.ledger
    jobs = ledger.count_in_states(WAITING)
    if jobs < chain.claim_max_waiting:
        ledger.alarms.off(AlarmName.CLAIMS_FULL)
        return _ClaimAllowance(chain.claim_max_waiting - jobs)
    waiting = _waiting_by_customer(ledger)
    limit = WaitingJobsLimit(chain.claim_max_waiting, chain.claim_customer_share)
    left = limit.left(waiting)
    if left:
        ledger.alarms.off(AlarmName.CLAIMS_FULL)
        return _ClaimAllowance(left)
    ledger.alarms.on(
        AlarmName.CLAIMS_FULL,
        waiting=jobs,
        customers=limit.largest_customers(waiting),
        advice="wait until some begin, or raise CLAIM_MAX_WAITING",
    )
    return _ClaimAllowance(
        why_not=f"at most {chain.claim_max_waiting} jobs may wait (CLAIM_MAX_WAITING)"
    )


def _waiting_by_customer(ledger: Ledger) -> dict[str, Waits]:
    found = dict[str, Waits]()
    for customer, seen, jobs in ledger.journal.waiting(WAITING):
        waits = found.get(customer, Waits())
        if seen is not None and is_held(seen):
            found[customer] = replace(waits, held=waits.held + jobs)
        else:
            found[customer] = replace(waits, turn=waits.turn + jobs)
    return found
