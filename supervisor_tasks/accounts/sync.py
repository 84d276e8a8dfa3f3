"""Accounts: every customer who asks the grid for a job gets an account in the site's directory, for any provider."""

from functools import partial
from typing import TYPE_CHECKING

import structlog

from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import DirectoryRefusedError, TransientError
from supervisor_tasks.jobs.backoff import retry_delay_s
from supervisor_tasks.jobs.exclusive_run import run_exclusive
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.ledger.accounts import Accounts
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.lock_names import directory_lock
from supervisor_tasks.ledger.worker_sessions import try_advisory_lock

if TYPE_CHECKING:
    from supervisor_tasks.accounts.directory import Directory

log = structlog.get_logger()

STREAM = "customers"
REFUSED = "refused: "  # an account's last error begins so when the directory refused it
AWAY_S = 180.0  # a directory may be unavailable for so long before the alarm
REFUSED_AGAIN_S = 30.0  # the operator must change the settings of the worker or the directory


def make_accounts(context: WorkerContext) -> None:
    """Read which customers have asked for a job since the last time, and make the accounts that are due. One worker of
    the cluster at a time does this. Of all clusters with this database, only one worker at a time writes to a
    directory, so that no uid number is given twice.
    """
    if context.directory is not None:
        run_exclusive(context.ledger, "accounts", lambda: _make_accounts(context))


def _make_accounts(context: WorkerContext) -> bool:
    assert context.directory is not None  # noqa: S101  make_accounts checks it
    accounts = Accounts(context.ledger.engine, context.ledger.cluster)
    more = _listen(context, accounts)
    with try_advisory_lock(context.ledger.engine, directory_lock(context.directory.name)) as mine:
        if mine:
            try:
                _make(accounts, context.directory)
            finally:
                watch_accounts(context, accounts)
    return more


def _listen(context: WorkerContext, accounts: Accounts) -> bool:
    """Commit which customers have asked, and up to which block they were read. Blocks that a reorganisation may drop
    are read again; an unneeded account does no harm. A new ledger begins at the present block, as the scan does.
    """
    chain, ledger = context.chain, context.ledger
    head, cursor = blocks.head(chain.contract.rpc), ledger.cursors.of(STREAM)
    known = head - 1 if cursor is None else cursor[0]
    if head <= known:
        return False
    last = known if cursor is None else min(known, max(head - chain.confirmations, -1))
    customers = set[Address]()
    while last <= known:
        last, some = chain.reach.ask(partial(_customers, chain.contract, last + 1, head))
        customers.update(some)
    with ledger.engine.begin() as connection:
        accounts.want(connection, sorted(customers))
        ledger.cursors.set(connection, STREAM, last, "")
    return last < head


def _customers(contract: Contract, first: int, head: int, most_blocks: int) -> tuple[int, list[Address]]:
    """Return the last of so many blocks, and the customers who have asked in them."""
    last = min(head, first + most_blocks - 1)
    return last, contract.customers(first, last)


def _make(accounts: Accounts, directory: "Directory") -> None:
    """Make the accounts that are due. The first one that fails ends the batch and waits; the next tick tries the others
    again.
    """
    due = accounts.due()
    if not due:
        return
    try:
        with directory.open() as session:
            while due:
                session.ensure(due[0].customer)
                accounts.made(due[0].customer)
                log.info("account_created", customer=due.pop(0).customer)
    except DirectoryRefusedError as error:
        accounts.postpone(due[0], REFUSED_AGAIN_S, f"{REFUSED}{error}")
        log.warning("account_refused", customer=due[0].customer, error=str(error))
    except TransientError as error:
        accounts.postpone(due[0], retry_delay_s(due[0].attempts), str(error))
        raise


def watch_accounts(context: WorkerContext, accounts: Accounts) -> None:
    """Keep both alarms up to date. LDAP_REQUEST_REJECTED is on while the directory has refused an account.
    LDAP_UNAVAILABLE is on while accounts have waited more than AWAY_S for a directory. Each goes off when no such
    account is left.
    """
    trouble = accounts.trouble(REFUSED, AWAY_S)
    if trouble.refused:
        context.ledger.alarms.on(
            AlarmName.LDAP_REQUEST_REJECTED, accounts=trouble.refused, customer=trouble.customer, error=trouble.error
        )
    else:
        context.ledger.alarms.off(AlarmName.LDAP_REQUEST_REJECTED)
    if trouble.late:
        context.ledger.alarms.on(
            AlarmName.LDAP_UNAVAILABLE, accounts=trouble.late, for_s=round(trouble.late_s), error=trouble.late_error
        )
    else:
        context.ledger.alarms.off(AlarmName.LDAP_UNAVAILABLE)
