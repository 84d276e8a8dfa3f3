"""`supervisor tx`: the wallet's transactions."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import STYLES, Cell, Column, View, ago
from supervisor_tasks.cli.wording import coins, gas_price
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.status_queries import TransactionFilter
from supervisor_tasks.ledger.transaction_names import OPEN_STATES
from supervisor_tasks.wallet.pending_policy import TransactionRequest

TRANSACTIONS = View(
    "transactions",
    "hash",
    (
        Column("TX", "id", "number"),
        Column("NONCE", "nonce", "number"),
        Column("STATE", "state", "state"),
        Column("PURPOSE", "purpose"),
        Column("JOB", "job_id", "id"),
        Column("HASH", "hash", "id"),
        Column("AGE", "created_at", "age"),
        Column("BLOCK", "block_number", "number", wide=True),
        Column("MAX_FEE_WEI", "max_fee_wei", "number", wide=True),
        Column("ERROR", "error", flexible=True),
    ),
)
SIGNATURES = View(
    "signatures",
    "hash",
    (
        Column("HASH", "hash", "id"),
        Column("SIGNED", "signed_at", "age"),
        Column("HIGHEST_FEE", "fee", "number"),
        Column("TIP", "tip", "number", wide=True),
        Column("AT_BLOCK", "head", "number"),
    ),
)
STATES = {
    "SIGNED": "no node has taken it yet",
    "SENT": "a node has it, and it is not mined",
    "MINED": "done",
    "REVERTED": "mined, and rejected by the contract",
    "FOREIGN": "another program's, at a nonce of this wallet",
}


class TransactionState(StrEnum):
    """What is known of a transaction."""

    SIGNED = "SIGNED"
    SENT = "SENT"
    MINED = "MINED"
    REVERTED = "REVERTED"
    FOREIGN = "FOREIGN"  # another program's, at a nonce of ours


class TransactionSort(StrEnum):
    """The orders of a list of transactions."""

    AGE = "age"
    NONCE = "nonce"
    STATE = "state"
    PURPOSE = "purpose"
    FEE = "fee"


Name = Annotated[
    str, typer.Argument(metavar="TX", help="Its number, or the beginning of a hash.")
]
app = options.noun(
    "See the wallet's transactions, and have those that wait bumped or cancelled.",
    example="tx list",
)


@app.command("list")
def list_(
    context: typer.Context,
    only_open: Annotated[
        bool, typer.Option("--open", help="Only those that are not known to be mined.")
    ] = False,
    state: Annotated[
        TransactionState | None,
        typer.Option(case_sensitive=False, help="Only in this state."),
    ] = None,
    customer: Annotated[
        str | None,
        typer.Option(
            help="Only for jobs of the customer whose address begins like this; without claims."
        ),
    ] = None,
    since: options.Since = None,
    sort: Annotated[TransactionSort | None, typer.Option(help="The order.")] = None,
    limit: options.Limit = 50,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the wallet's transactions, the latest first; with --open in the order of
    their nonces.

    Example: supervisor tx list --open
    """
    cli = cli_context(context)
    wanted = TransactionFilter(
        only_open,
        state and state.value,
        options.age(since),
        options.hex_beginning(customer),
        sort.value if sort else "",
        limit,
    )
    cli.present(
        TRANSACTIONS, lambda: cli.overview.transactions(wanted), output, watch, no_color
    )


@app.command()
def show(
    context: typer.Context,
    transaction: Name,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show a transaction with all its signatures: each replacement has a hash of its
    own, and any of them may be mined.

    Example: supervisor tx show 0x4be1
    """
    cli = cli_context(context)
    cli.present_by(lambda: _show(cli, transaction, output), watch, no_color)


def _show(cli: CliContext, transaction: str, output: Format) -> None:
    row = _found(cli, transaction)
    url = cli.settings.explorer_url
    cli.shown.one(
        row,
        row["hash"],
        output,
        lambda wide: show_transaction(cli.shown, row, cli.now(), url, wide=wide),
    )


def show_transaction(
    shown: Output,
    row: Mapping[str, Any],
    now: datetime,
    explorer_url: str,
    *,
    wide: bool,
) -> None:
    """Print a transaction and its signatures."""
    url = explorer_url.replace("{hash}", row["hash"])
    shown.facts(facts_of(row, now) | {"explorer": Cell(url, link=url)})
    shown.title("signatures")
    shown.table(
        SIGNATURES,
        [_with_gas_prices(signature) for signature in row["signatures"]],
        now,
        wide=wide,
    )


def _with_gas_prices(signature: dict[str, Any]) -> dict[str, Any]:
    fee, tip = int(signature["max_fee_wei"]), int(signature["priority_fee_wei"])
    return signature | {"fee": gas_price(fee), "tip": gas_price(tip)}


def facts_of(row: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """Return the lines about a transaction. JSON and YAML have all that is stored."""
    state, doubted = row["state"], ""
    sent = ago(row["sent_at"], now)
    if not sent and state in OPEN_STATES:
        sent = "not yet"
    if row["nonce_conflict_at"]:
        doubted = (
            f"{ago(row['nonce_conflict_at'], now)}: its nonce was mined without it"
        )
    return {
        "transaction": str(row["id"]),
        "state": Cell(f"{state}: {STATES[state]}", STYLES.get(state, "")),
        "for": row["purpose"],
        "job": row["job_id"],
        "hash": row["hash"],
        "nonce": str(row["nonce"]),
        "wallet": f"{row['address']} on chain {row['chain_id']}",
        "highest fee": gas_price(int(row["max_fee_wei"])),
        "tip": gas_price(int(row["priority_fee_wei"])),
        "gas limit": f"{row['gas']}, so at most {coins(int(row['gas']) * int(row['max_fee_wei']))}",
        "cost": _cost(row),
        "block": row["block_number"],
        "signed": ago(row["created_at"], now),
        "sent": sent,
        "done": ago(row["done_at"], now),
        "doubted": doubted,
        "error": Cell(row["error"] or "", "red"),
    }


def _cost(row: Mapping[str, Any]) -> str:
    """Return what a mined transaction has cost; empty before that."""
    if row["gas_used"] is None or row["gas_price_wei"] is None:
        return ""
    return f"{coins(row['gas_used'] * int(row['gas_price_wei']))} for {row['gas_used']} gas"


@app.command()
def bump(
    context: typer.Context,
    transaction: Name,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Have a transaction that waits signed again for a higher fee, within
    WALLET_MAX_WEI_PER_GAS and WALLET_MAX_WEI_PER_TX.

    Example: supervisor tx bump 42 --reason "the gas price has doubled"
    """
    cli = cli_context(context)
    row = _open(cli, transaction)
    will = f"{_named(row)} will be signed again for a higher fee than {gas_price(int(row['max_fee_wei']))}"
    _request(cli, row, TransactionRequest.BUMP, will, yes, reason)


@app.command()
def cancel(
    context: typer.Context,
    transaction: Name,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Have a transaction that waits replaced by one that does nothing; its purpose gets
    a new one with a later nonce.

    Example: supervisor tx cancel 42 --reason "it holds up all later ones"
    """
    cli = cli_context(context)
    row = _open(cli, transaction)
    later = cli.overview.open_transactions_after(row["nonce"])
    will = f"{_named(row)} will be replaced by one that does nothing, for a higher fee; {later} later ones wait behind it"
    _request(cli, row, TransactionRequest.CANCEL, will, yes, reason)


def _request(
    cli: CliContext,
    row: Mapping[str, Any],
    what: TransactionRequest,
    will: str,
    yes: bool,
    reason: str,
) -> None:
    with cli.change(
        f"tx {what}", f"transaction {row['id']}", will, yes=yes, reason=reason
    ):
        operator_actions.request_of_transaction(cli.ledger, row["id"], what.value)
    typer.echo(
        f"asked; `supervisor tx show {row['id']}` has one signature more when a worker has done it"
    )


def _open(cli: CliContext, name: str) -> dict[str, Any]:
    row = _found(cli, name)
    if row["state"] not in OPEN_STATES:
        raise CommandError(
            f"found {row['state']}; expected {' or '.join(OPEN_STATES)}: only what is not mined can be changed"
        )
    return row


def _named(row: Mapping[str, Any]) -> str:
    return f"transaction {row['id']} ({row['purpose']}, nonce {row['nonce']})"


def _found(cli: CliContext, name: str) -> dict[str, Any]:
    found = cli.overview.transaction(name)
    if len(found) != 1:
        number = "no transaction" if not found else "several transactions"
        raise CommandError(
            f"found {number} that {name!r} names; expected one: see `supervisor tx list`"
        )
    return found[0]


COMMANDS = {"tx": app}
