"""Inserts any number of rows by one statement. They travel as one JSON value.

With a parameter for each column of each row, SQLAlchemy, the driver and Postgres would
handle each of these alone. That was a large part of the CPU of a burst.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, text


def insert_rows(table: str, columns: Sequence[str], then: str = "") -> TextClause:
    """A statement that inserts the rows of the parameter `rows` in their order. `then`
    follows it: ON CONFLICT or RETURNING. The columns that are not named get their
    defaults.
    """
    names = ", ".join(columns)
    return text(
        f"INSERT INTO {table} ({names}) SELECT {names}"  # noqa: S608  no part comes from outside
        f" FROM jsonb_populate_recordset(CAST(NULL AS {table}), CAST(:rows AS jsonb)) WITH ORDINALITY"
        f" ORDER BY ordinality {then}"
    )


def as_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The parameter of such a statement. Bytes are written as Postgres reads them."""
    return {"rows": json.dumps(rows, default=_bytes)}


def _bytes(value: Any) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError(
        f"found {type(value).__name__}; expected a value that JSON has, or bytes"
    )
