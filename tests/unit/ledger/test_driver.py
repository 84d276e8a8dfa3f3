"""What the driver's errors mean: Postgres's words as psycopg 3.3 gives them, without a
SQLSTATE, for a connection that failed.
"""

import psycopg
import pytest

from supervisor_tasks.errors import LedgerLoginRejectedError, LedgerUnavailableError
from supervisor_tasks.ledger.driver import unavailable

AT = 'connection failed: connection to server at "127.0.0.1", port 24531 failed: '


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            'FATAL:  password authentication failed for user "fleet"',
            LedgerLoginRejectedError,
        ),
        (
            'FATAL:  Peer authentication failed for user "fleet"',
            LedgerLoginRejectedError,
        ),
        (
            'FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "fleet", database "ledger"',
            LedgerLoginRejectedError,
        ),
        ('FATAL:  database "ledger" does not exist', LedgerLoginRejectedError),
        ('FATAL:  role "fleet" does not exist', LedgerLoginRejectedError),
        ("FATAL:  the database system is starting up", LedgerUnavailableError),
        ("FATAL:  sorry, too many clients already", LedgerUnavailableError),
        ("Connection refused\n\tIs the server running?", LedgerUnavailableError),
    ],
)
def test_unavailable__connection_failed__tells_a_refused_login_apart(
    words: str, kind: type[LedgerUnavailableError]
) -> None:
    error = unavailable(psycopg.OperationalError(AT + words))
    assert type(error) is kind
    assert str(error) == f"the ledger's database: {AT}{words.partition(chr(10))[0]}"


def test_unavailable__another_error__is_none() -> None:
    assert unavailable(psycopg.ProgrammingError("syntax error")) is None
