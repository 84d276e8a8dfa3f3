import json

import pytest

from supervisor_tasks.ledger.bulk import as_rows, insert_rows


def test_insert_rows__columns_and_a_clause__are_in_the_statement() -> None:
    statement = str(insert_rows("events", ("cluster", "name"), "RETURNING id"))
    assert statement.startswith(
        "INSERT INTO events (cluster, name) SELECT cluster, name FROM jsonb_populate_recordset("
    )
    assert statement.endswith("ORDER BY ordinality RETURNING id")


def test_as_rows__bytes_and_great_numbers__are_written_as_postgres_reads_them() -> None:
    rows = as_rows([{"raw": b"\x00\xff", "wei": 2**200, "text": "é\n"}])
    assert json.loads(rows["rows"]) == [
        {"raw": "\\x00ff", "wei": 2**200, "text": "é\n"}
    ]


def test_as_rows__value_of_another_type__is_an_error() -> None:
    with pytest.raises(TypeError, match="found object"):
        as_rows([{"raw": object()}])
