"""Accounts: each customer who requests a job from the grid, of any provider, gets an
account in the site's directory. So does the customer of a job that was requested before
the first look at the chain, when it is claimed.

A customer who needs an account is an effect of the outbox, with the address as its
subject. The effect stays in the ledger when it is done, so a second request of the
customer adds no second effect.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.contract import Contract, Unreadable
from supervisor_tasks.chain_events.event_logs import raise_unreadable_log_alarm
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import (
    DirectoryBusyError,
    DirectoryRejectedError,
    DirectoryUnavailableError,
    TransientError,
)
from supervisor_tasks.execution.effect_failures import (
    DIRECTORY_REJECTS,
    DIRECTORY_UNAVAILABLE,
    give_back_unexpected,
    given_back_on_failure,
)
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.jobs.model import Address, EffectKind
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.cursor_names import CUSTOMERS_STREAM
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.lock_names import directory_lock
from supervisor_tasks.ledger.outbox import (
    OpenEffect,
    request,
    request_accounts_of_waiting_jobs,
)

if TYPE_CHECKING:
    from supervisor_tasks.site_services.directory import Directory, Session

log = structlog.get_logger()

# accounts that are made under one lease, which lasts 21 s for each
MAX_ACCOUNTS = 20
# the operator must change the settings of the worker or the directory
REJECTED_AGAIN_S = 30.0
# longer than the wait of a batch that is broken off, so that its other accounts come
# before those for which the directory was busy
BUSY_AGAIN_S = 10.0
# then the directory seems to be busy for all: the others are tried later
MAX_BUSY_IN_A_ROW = 5
NO_DIRECTORY_AGAIN_S = 86400.0


def make_accounts(context: WorkerContext) -> None:
    """Read which customers have requested a job since the last time, and make the
    accounts that are due. One worker of the cluster at a time does this. Of all
    clusters with this database, only one worker at a time writes to a directory, so
    that no uid number is given twice. Accounts that the directory did not make are due
    again later. Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint
    or the database does not answer; a retry helps.
    """
    if context.directory is None:  # the site makes its accounts itself by now
        effects = context.ledger.effects
        effects.postpone(effects.lease([EffectKind.ACCOUNT]), NO_DIRECTORY_AGAIN_S)
        return
    run_exclusive(
        context.ledger, "accounts", partial(_make_accounts, context, context.directory)
    )


def _make_accounts(context: WorkerContext, directory: "Directory") -> bool:
    """Do one step; returns whether there is more to do."""
    with context.ledger.engine.begin() as connection:
        request_accounts_of_waiting_jobs(connection, context.ledger.cluster)
    try:
        more_blocks = _read_requests(context)
    finally:
        # also while no endpoint answers: this needs the directory only
        made_accounts = _make_due_alone(context, directory)
    return made_accounts or more_blocks


def _make_due_alone(context: WorkerContext, directory: "Directory") -> bool:
    with try_advisory_lock(
        context.ledger.engine, directory_lock(directory.name)
    ) as has_lock:
        return has_lock and make_due(context.ledger, directory)


def _read_requests(context: WorkerContext) -> bool:
    """Commit which customers have requested a job, and up to which block the requests
    were read. Returns whether there are more blocks. Blocks that a reorganisation may
    drop are read again; an unneeded account does no harm. A new ledger begins at the
    present block, as the scan does: requests before it count when their jobs are
    claimed.
    """
    chain, ledger = context.chain, context.ledger
    head, cursor = blocks.head(chain.contract.rpc), ledger.cursors.of(CUSTOMERS_STREAM)
    if cursor is None:
        read_up_to = last = head - 1
    else:
        read_up_to = cursor[0]
        last = min(read_up_to, max(head - chain.confirmations, -1))
    if head <= read_up_to:
        return False
    customers = set[Address]()
    while last <= read_up_to:
        last, requesters, unreadable = chain.log_range.ask(
            partial(_customers, chain.contract, last + 1, head)
        )
        raise_unreadable_log_alarm(ledger, unreadable)
        customers.update(requesters)
    with ledger.engine.begin() as connection:
        request(connection, ledger.cluster, EffectKind.ACCOUNT, sorted(customers))
        ledger.cursors.set(connection, CUSTOMERS_STREAM, last, "")
    return last < head


def _customers(
    contract: Contract, first: int, head: int, most_blocks: int
) -> tuple[int, list[Address], list[Unreadable]]:
    """Return the last of these blocks, at most `most_blocks`, the customers who
    requested a job in them, and the logs that cannot be read.
    """
    last = min(head, first + most_blocks - 1)
    return last, *contract.customers(first, last)


def make_due(ledger: Ledger, directory: "Directory") -> bool:
    """Make the accounts that are due. Returns whether there were any. Those that the
    directory did not make are due again later. Raises LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """
    effects = ledger.effects.lease([EffectKind.ACCOUNT], MAX_ACCOUNTS)
    if not effects:
        return False
    # a lease has no order: those that have failed most often come last
    effects.sort(key=lambda effect: (effect.attempts, effect.id))
    with given_back_on_failure(ledger, effects):
        try:
            with directory.open() as session:
                _make_each(ledger, session, effects)
        except DirectoryRejectedError as error:
            # those that are left: the directory does not let us in
            _postpone_rejected(ledger, effects, error)
        except DirectoryUnavailableError as error:
            raise TransientError(f"{DIRECTORY_UNAVAILABLE}{error}") from error
    return True


def _make_each(
    ledger: Ledger, session: "Session", effects: Sequence[OpenEffect]
) -> None:
    """Make these accounts. One for which the directory is busy is postponed, because
    its entry may be the cause. Raises DirectoryUnavailableError if the connection is
    lost, or if the directory was busy for MAX_BUSY_IN_A_ROW accounts in a row.
    """
    busy_in_a_row = 0
    for effect in effects:
        try:
            _make_one(ledger, session, effect)
        except DirectoryBusyError as error:
            log.warning("account_postponed", customer=effect.subject, error=str(error))
            ledger.effects.postpone(
                [effect], BUSY_AGAIN_S, f"{DIRECTORY_UNAVAILABLE}{error}"
            )
            busy_in_a_row += 1
            if busy_in_a_row == MAX_BUSY_IN_A_ROW:
                raise
        else:
            busy_in_a_row = 0


def _make_one(ledger: Ledger, session: "Session", effect: OpenEffect) -> None:
    """Make an account, or give its effect back. Raises DirectoryUnavailableError."""
    customer = Address(effect.subject)
    try:
        session.ensure(customer)
    except DirectoryRejectedError as error:
        _postpone_rejected(ledger, [effect], error)
    except DirectoryUnavailableError:
        raise
    except Exception as error:
        log.exception("account_failed_unexpectedly", customer=customer)
        give_back_unexpected(ledger, [effect], error)
    else:
        ledger.effects.finish(effect)
        log.info("account_created", customer=customer)


def _postpone_rejected(
    ledger: Ledger, effects: Sequence[OpenEffect], error: DirectoryRejectedError
) -> None:
    """Postpone the accounts that the directory rejects. They are never parked: the
    operator must change settings of the worker or the directory.
    """
    log.warning(
        "accounts_rejected",
        customers=[effect.subject for effect in effects[:5]],
        error=str(error),
    )
    ledger.effects.postpone(effects, REJECTED_AGAIN_S, f"{DIRECTORY_REJECTS}{error}")
