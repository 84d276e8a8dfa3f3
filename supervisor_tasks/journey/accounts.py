"""Accounts: whoever asks the grid for a job gets an account in the site's directory, whichever provider will run it."""

from functools import partial
from typing import TYPE_CHECKING

import structlog

from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.errors import DirectoryRefusedError, TransientError
from supervisor_tasks.job import Address
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.accounts import Accounts
from supervisor_tasks.ledger.leases import single_flight
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.site import Site

if TYPE_CHECKING:
    from supervisor_tasks.identity import Directory

log = structlog.get_logger()

STREAM = "customers"
REFUSED = "refused: "  # what an account's last error begins with when the directory said no
AWAY_S = 180.0  # so long a directory may be away without a call to the operator
REFUSED_AGAIN_S = 30.0  # the settings are to be changed, here or there


def make_accounts(site: Site) -> None:
    """Read who has asked for a job since the last time, and make the accounts that are due. One worker at a time does it, and
    of all clusters with this database one in a directory, so that no uid number is given twice.
    """
    if site.directory is not None:
        drain(site.ledger, "accounts", lambda: _make_accounts(site))


def _make_accounts(site: Site) -> bool:
    assert site.directory is not None  # noqa: S101  whoever has none does not come here
    accounts = Accounts(site.ledger.engine, site.ledger.cluster)
    more = _listen(site, accounts)
    with single_flight(site.ledger.engine, site.directory.name) as mine:
        if mine:
            try:
                _make(accounts, site.directory)
            finally:
                watch_accounts(site, accounts)
    return more


def _listen(site: Site, accounts: Accounts) -> bool:
    """Commit who has asked, and how far that was read. Blocks that may yet be lost are read again; an account too many does
    no harm. A new ledger begins at the present block, as the scan does.
    """
    chain, ledger = site.chain, site.ledger
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
    """The last of so many blocks, and who has asked in them."""
    last = min(head, first + most_blocks - 1)
    return last, contract.customers(first, last)


def _make(accounts: Accounts, directory: "Directory") -> None:
    """The first one that does not work ends the batch and waits; the others are tried again at the next tick."""
    due = accounts.due()
    if not due:
        return
    try:
        with directory.open() as session:
            while due:
                session.ensure(due[0].customer)
                accounts.made(due[0].customer)
                log.info("account_made", customer=due.pop(0).customer)
    except DirectoryRefusedError as error:
        accounts.postpone(due[0], REFUSED_AGAIN_S, f"{REFUSED}{error}")
        log.warning("account_refused", customer=due[0].customer, error=str(error))
    except TransientError as error:
        accounts.postpone(due[0], wait_s(due[0].attempts), str(error))
        raise


def watch_accounts(site: Site, accounts: Accounts) -> None:
    """The operator is called while the table holds an account that the directory has refused, and for those that wait for a
    directory which has been away for minutes; not any more once there are none.
    """
    trouble = accounts.trouble(REFUSED, AWAY_S)
    if trouble.refused:
        site.ledger.alarms.on(
            AlarmName.DIRECTORY_REFUSES, accounts=trouble.refused, customer=trouble.customer, error=trouble.error
        )
    else:
        site.ledger.alarms.off(AlarmName.DIRECTORY_REFUSES)
    if trouble.late:
        site.ledger.alarms.on(
            AlarmName.DIRECTORY_AWAY, accounts=trouble.late, for_s=round(trouble.late_s), error=trouble.late_error
        )
    else:
        site.ledger.alarms.off(AlarmName.DIRECTORY_AWAY)
