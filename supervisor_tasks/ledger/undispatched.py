"""Effects that a command opens: it sends no message, so beat must find them with
its next query.
"""

from collections.abc import Sequence

from sqlalchemy import Engine, text

from supervisor_tasks.ledger.outbox import OpenEffect

_NOT_DISPATCHED = text(
    "UPDATE effects SET notified_at = NULL WHERE id = ANY(:ids) AND done_at IS NULL AND lease IS NULL"
)


def not_dispatched(engine: Engine, effects: Sequence[OpenEffect]) -> None:
    """Store that no message could be sent for these effects: beat dispatches them at
    its next query, without delay. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    if effects:
        with engine.begin() as connection:
            connection.execute(
                _NOT_DISPATCHED, {"ids": [effect.id for effect in effects]}
            )
