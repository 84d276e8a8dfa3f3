"""Accounts: every customer who asks the grid for a job gets an account in the site's directory, for any provider.

A customer who needs an account is an effect of the outbox, with the address as its subject. The effect stays in the ledger
when it is done, so a customer who asks again opens no second one.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import DirectoryRefusedError, DirectoryUnavailableError, TransientError
from supervisor_tasks.jobs.exclusive_run import (
    DIRECTORY_AWAY,
    DIRECTORY_REFUSES,
    give_back_unforeseen,
    given_back_on_failure,
    run_exclusive,
)
from supervisor_tasks.jobs.model import Address, EffectKind
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.lock_names import directory_lock
from supervisor_tasks.ledger.outbox import OpenEffect, request
from supervisor_tasks.ledger.worker_sessions import try_advisory_lock

if TYPE_CHECKING:
    from supervisor_tasks.accounts.directory import Directory, Session

log = structlog.get_logger()

STREAM = "customers"
MAX_ACCOUNTS = 200  # accounts that are made at a time
REFUSED_AGAIN_S = 30.0  # the operator must change the settings of the worker or the directory
NO_DIRECTORY_AGAIN_S = 86400.0


def make_accounts(context: WorkerContext) -> None:
    """Read which customers have asked for a job since the last time, and make the accounts that are due. One worker of
    the cluster at a time does this. Of all clusters with this database, only one worker at a time writes to a
    directory, so that no uid number is given twice.
    """
    if context.directory is None:  # the site makes its accounts itself by now
        effects = context.ledger.effects
        effects.postpone(effects.lease([EffectKind.ACCOUNT]), NO_DIRECTORY_AGAIN_S)
        return
    run_exclusive(context.ledger, "accounts", partial(_make_accounts, context, context.directory))


def _make_accounts(context: WorkerContext, directory: "Directory") -> bool:
    more = _listen(context)
    with try_advisory_lock(context.ledger.engine, directory_lock(directory.name)) as mine:
        return (mine and _make(context.ledger, directory)) or more


def _listen(context: WorkerContext) -> bool:
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
        request(connection, ledger.cluster, EffectKind.ACCOUNT, sorted(customers))
        ledger.cursors.set(connection, STREAM, last, "")
    return last < head


def _customers(contract: Contract, first: int, head: int, most_blocks: int) -> tuple[int, list[Address]]:
    """Return the last of so many blocks, and the customers who have asked in them."""
    last = min(head, first + most_blocks - 1)
    return last, contract.customers(first, last)


def _make(ledger: Ledger, directory: "Directory") -> bool:
    """Make the accounts that are due. Returns whether there were any."""
    effects = ledger.effects.lease([EffectKind.ACCOUNT], MAX_ACCOUNTS)
    if not effects:
        return False
    with given_back_on_failure(ledger, effects):
        try:
            with directory.open() as session:
                for effect in effects:
                    _make_one(ledger, session, effect)
        except DirectoryRefusedError as error:
            _refused(ledger, effects, error)  # those that are left: the directory does not let us in
        except DirectoryUnavailableError as error:
            raise TransientError(f"{DIRECTORY_AWAY}{error}") from error
    return True


def _make_one(ledger: Ledger, session: "Session", effect: OpenEffect) -> None:
    customer = Address(effect.subject)
    try:
        session.ensure(customer)
    except DirectoryRefusedError as error:
        _refused(ledger, [effect], error)
    except DirectoryUnavailableError:
        raise
    except Exception as error:
        log.exception("account_failed_unexpectedly", customer=customer)
        give_back_unforeseen(ledger, [effect], error)
    else:
        ledger.effects.finish(effect)
        log.info("account_created", customer=customer)


def _refused(ledger: Ledger, effects: Sequence[OpenEffect], error: DirectoryRefusedError) -> None:
    """Give accounts back that the directory refuses. They are never parked: the operator changes settings there."""
    log.warning("accounts_refused", customers=[effect.subject for effect in effects[:5]], error=str(error))
    ledger.effects.postpone(effects, REFUSED_AGAIN_S, f"{DIRECTORY_REFUSES}{error}")
