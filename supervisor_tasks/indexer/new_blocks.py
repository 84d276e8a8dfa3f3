"""New blocks: a thread in each worker of the chain queue looks whether the contract has
something for the provider.

A look is not a task: it is made each second, and hardly one look in a thousand finds
something. A look that finds something dispatches the task. While a subscription announces
each new block at once, the looks in between are a heartbeat. A subscription only makes
this faster: with wrong or missing announcements, the looks find the same.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.announcements import AHEAD_BLOCKS, NOT_BEGUN, Announcements
from supervisor_tasks.chain.contract import ChainEvent
from supervisor_tasks.chain.subscription import Subscription
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.execution.doubled_delay import doubled_delay_s
from supervisor_tasks.jobs.claim_limits import ClaimLook
from supervisor_tasks.jobs.events import ChainStatusObserved

log = structlog.get_logger()

# the most between two looks at the contract, also without a new head
MAX_LOOK_GAP_S = 15.0
# the same with new heads, while the subscription announces no log of the contracts for
# them
QUIET_S = 3.0
# the least between two looks, and so between two messages for one task
PAUSE_S = 0.1
# how long after an announcement the RPC endpoint may not show its block yet
LAG_S = 2.0
AGAIN_S = 0.2  # between two looks during that time
# announced logs that are kept for the next look; the periodic scan finds the others
MAX_LOGS = 200
# in one question for customers; more than pass between two looks, and less than nodes
# reject
MAX_CUSTOMER_BLOCKS = 100
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 10.0

# takes the head, if it is known
LookAtContract = Callable[[WorkerContext, int | None], ClaimLook]


@dataclass(slots=True)
class Failures:
    """Looks in a row that failed. The log gets one line for the first failure, and one
    for the next success.
    """

    number: int = 0

    def record_failure(self, error: SupervisorError) -> None:
        """A look failed."""
        self.number += 1
        if self.number == 1:
            log.warning("chain_poll_failed", error=str(error))

    def record_success(self) -> None:
        """A look succeeded."""
        if self.number:
            log.info("chain_poll_recovered", failed=self.number)
        self.number = 0

    def wait_s(self, poll_s: float) -> float:
        """Seconds until the next look after a failure; `poll_s` without one."""
        if not self.number:
            return poll_s
        return max(
            poll_s,
            doubled_delay_s(self.number - 1, FIRST_BACKOFF_S, MAX_BACKOFF_S),
        )


class NewBlocks:
    """Looks at the chain every `poll_s`, and at once when a head is announced; `dispatch`
    sends a task's message. It listens to a subscription, if the site has one; the
    thread that looks handles what is announced. `look_at_contract` looks at the
    contract (jobs/claim.py).
    """

    def __init__(
        self,
        context: WorkerContext,
        poll_s: float,
        look_at_contract: LookAtContract,
        dispatch: Callable[[str], None],
        subscription_url: str | None = None,
    ) -> None:
        self._context = context
        self._poll_s = poll_s
        self._look_at_contract = look_at_contract
        self._dispatch = dispatch
        self._heads = context.chain.heads
        self._failures = Failures()
        self._head = -1  # the last head that the endpoint showed
        self._looked_at = -1  # the head at the last look
        self._log_block = -1  # the highest block of an announced log
        self._customers_read_to = -1
        self._looked_s = float("-inf")
        self._found = False
        self._why_not_claiming = ""  # as it was logged last
        self._lock = threading.Lock()
        self._announcements = Announcements()
        self._logs: deque[dict[str, Any]] = deque(maxlen=MAX_LOGS)
        # whether the last log line on this was that the thread polls
        self._logged_polling: bool | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="new blocks", daemon=True
        )
        contract, chain_id = context.chain.contract, context.chain.contract.chain_id
        self._subscription = (
            None
            if subscription_url is None
            else Subscription(
                subscription_url, chain_id, contract.logs_of_interest, self
            )
        )

    def start(self) -> None:
        """Start the thread, and the subscription if there is one."""
        self._thread.start()
        if self._subscription is not None:
            self._subscription.start()

    def close(self) -> None:
        """Stop after the look that is under way."""
        self._closed.set()
        if self._subscription is not None:
            self._subscription.close()
        self._heads.announce()

    # --- what the subscription reports, on its own thread -----------------------------

    def subscribed(self) -> None:
        """The node will announce heads; the next look finds what was mined before."""
        with self._lock:
            self._announcements.subscribed()
        self._heads.announce()

    def head(self, number: int) -> None:
        """The node announced a block."""
        with self._lock:
            self._announcements.head(number, time.monotonic())
        self._heads.announce()

    def log(self, entry: dict[str, Any]) -> None:
        """The node announced a log of the contracts."""
        block = int(entry["blockNumber"], 16)
        # a block that is not there yet would count as news at each look until it is
        if block <= max(self._head, self._announcements.number) + AHEAD_BLOCKS:
            self._log_block = max(self._log_block, block)
        self._logs.append(entry)
        self._heads.announce()

    def disconnected(self, why: str, *, foreign: bool) -> None:
        """The node announces nothing any more."""
        if foreign:
            log.error(
                "subscription_serves_another_chain",
                why=why,
                advice="look at METASCHEDULER_ENDPOINT_WS",
            )
        with self._lock:
            self._announcements.disconnected(why)
        self._heads.announce()

    # --- the thread that looks --------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.is_set():
            announced = self._heads.count()
            begun_s = time.monotonic()
            self._poll()
            self._closed.wait(max(PAUSE_S - (time.monotonic() - begun_s), 0.0))
            self._heads.wait(
                announced, begun_s + self._wait_s(begun_s) - time.monotonic()
            )

    def _wait_s(self, begun_s: float) -> float:
        """Seconds from the beginning of a look until the next one, if nothing is
        announced before.
        """
        now_s = time.monotonic()
        with self._lock:
            is_ahead = self._announcements.number > self._head
            announced_ago_s = now_s - self._announcements.announced_s
            silent_in_s = self._announcements.silent_in_s(now_s)
        endpoint_lags = is_ahead and announced_ago_s < LAG_S
        if endpoint_lags and not self._failures.number:
            return AGAIN_S  # the endpoint does not show the announced block yet
        announces_heads = self._heads.live and silent_in_s > 0
        if self._found or not announces_heads:
            return self._failures.wait_s(self._poll_s)
        every_s = MAX_LOOK_GAP_S if self._head == self._looked_at else QUIET_S
        next_look_s = max(self._looked_s + every_s - begun_s, PAUSE_S)
        return self._failures.wait_s(min(next_look_s, max(silent_in_s, self._poll_s)))

    def _poll(self) -> None:
        try:
            self.poll()
            self.look_at_logs()
        except SupervisorError as error:
            self._failures.record_failure(error)
        except Exception:
            # the edge of a thread: if the thread ended, no job would be claimed
            log.exception("chain_poll_crashed")
        else:
            self._failures.record_success()

    def poll(self) -> None:
        """Look at the contract if there may be something new. Raises
        RpcUnavailableError or LedgerUnavailableError (a retry helps), or
        WrongChainError (a retry does not help here).
        """
        head: int | None = None
        if not self._failures.number:
            head = blocks.head(self._context.chain.contract.rpc)
            self._compare(head)
            self._head = head
        if not self._may_be_new(head):
            return
        look = self._look_at_contract(self._context, head)
        self._found = look.waiting
        self._looked_s = time.monotonic()
        if look.why_not not in ("", self._why_not_claiming):
            log.info("not_claiming", because=look.why_not)
        self._why_not_claiming = look.why_not
        if look.claimable:
            self._dispatch("claim")
        if head is not None and head != self._looked_at:
            self._find_new_customers(head)
            self._looked_at = head

    def _may_be_new(self, head: int | None) -> bool:
        """Whether a look may find something that the last one did not. Nearly all that
        concerns a provider is in a log; what is in none (a deposit, a top-up) waits for
        QUIET_S at most.
        """
        if head is None:
            # the last look failed: this one shows whether the endpoint answers again
            return True
        since_s = time.monotonic() - self._looked_s
        if head == self._looked_at:
            least_s = self._poll_s - PAUSE_S if self._found else MAX_LOOK_GAP_S
            return since_s >= least_s
        has_new_log = self._log_block > self._looked_at
        if self._found or has_new_log or not self._heads.live:
            return True
        return since_s >= QUIET_S - PAUSE_S

    def _compare(self, head: int) -> None:
        """Rely on the announcements, or poll; each change between the two is logged."""
        now_s = time.monotonic()
        with self._lock:
            self._announcements.endpoint_head(head, now_s)
            why_not = self._announcements.why_not(now_s)
            number = self._announcements.number
            self._heads.live = (
                not why_not and self._announcements.silent_in_s(now_s) > 0
            )
        if self._subscription is None or why_not in NOT_BEGUN:
            return
        polls = bool(why_not)
        if polls is self._logged_polling:
            return
        self._logged_polling = polls
        if polls:
            log.warning("new_blocks_polled", why=why_not, head=head, announced=number)
        else:
            log.info("new_blocks_announced", head=head)

    def look_at_logs(self) -> None:
        """Dispatch the scan when an announced log concerns a job of ours, and no
        transaction of ours wrote it: the receipts of our transactions show what these
        wrote. Raises LedgerUnavailableError; a retry helps.
        """
        entries = [self._logs.popleft() for _ in range(len(self._logs))]
        events, _ = self._context.chain.contract.decode_events(entries)
        if not events:
            return
        own = self._context.chain.account.transactions.ours(
            {entry.tx_hash for entry in events}
        )
        others = [entry for entry in events if entry.tx_hash not in own]
        if others and self._concern_us(others):
            self._dispatch("scan")

    def _concern_us(self, events: Sequence[ChainEvent]) -> bool:
        """Whether one of these events concerns a job of ours. A transition may be of
        another provider's job.
        """
        if any(not isinstance(entry.event, ChainStatusObserved) for entry in events):
            return True
        return bool(self._context.ledger.jobs({entry.job_id for entry in events}))

    def _find_new_customers(self, head: int) -> None:
        """Dispatch the task that makes accounts when a customer has requested a job; only
        on a site that makes accounts.
        """
        if self._context.directory is None:
            return
        is_first_look = self._customers_read_to < 0
        first = head
        if 0 <= self._customers_read_to < head:
            first = self._customers_read_to + 1
        # also if the question fails, or the next one would be longer and be rejected
        self._customers_read_to = head
        if is_first_look:
            # a customer may have requested a job while no worker looked
            self._dispatch("accounts")
        elif head - first >= MAX_CUSTOMER_BLOCKS:
            self._dispatch("accounts")  # reads them all, in ranges that the node takes
        elif any(self._context.chain.contract.customers(first, head)):
            self._dispatch(
                "accounts"
            )  # also for a request that cannot be read: an alarm
