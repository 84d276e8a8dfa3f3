"""What migrations may do: those that change tables of a fleet do it without long locks,
and each says what may run beside.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from supervisor_tasks.ledger import migrations
from supervisor_tasks.ledger.migrations import pending, stops_old_processes
from tests.support.fleet_statements import STATEMENTS
from tests.support.reference.source import parsed

VERSIONS = sorted((Path(migrations.__file__).parent / "versions").glob("*.py"))
FLEET_TABLES = {"jobs", "events", "effects", "callbacks", "transactions", "signatures"}
CHANGE_NONE = {"create_table", "get_bind", "get_context"}  # of alembic's operations
# a statement that locks all of a table, with the table
LOCKING = re.compile(
    r"\b(?:ALTER TABLE|TRUNCATE(?: TABLE)?|LOCK(?: TABLE)?|DROP TABLE|CREATE (?:UNIQUE )?INDEX [^;]*? ON)"
    r"\s+(?:IF EXISTS\s+)?(?:ONLY\s+)?(?:public\.)?\"?(\w+)",
    re.IGNORECASE,
)
AFTER_A_NAME = (
    "create_",
    "drop_index",
    "drop_constraint",
)  # whose second word is the table, after the new thing's name
FIRST = "0001_initial.py"  # makes the tables
# dropped by the downgrade of what made it
OWN_TABLES = {"0003_the_wallet.py": {"signatures"}}
# migrations that may change tables of a fleet, or tables that the source does not name,
# with the reason
STOPPED = {
    "0022_names.py": "renames only, each an instant's lock, while the fleet is stopped",
    "0030_plain_names.py": "the same",
}


def locking_changes(file: Path) -> list[str]:
    """The changes that hold their locks on a table of a fleet until the migration's end,
    or on a table that is not named.
    """
    module = parsed(file)
    tables = FLEET_TABLES - OWN_TABLES.get(file.name, set())
    constants = {
        ast.unparse(node.targets[0]): node.value
        for node in module.body
        if isinstance(node, ast.Assign)
    }
    changes = [
        call for call in _operations(module) if _may_lock(call, tables, constants)
    ]
    for call in _calls(module):
        if _operation(call) == "execute" and _locks_any(call, tables, constants):
            changes.append(call)
    return list(dict.fromkeys(map(ast.unparse, changes)))


def _locks_any(
    call: ast.Call, tables: set[str], constants: Mapping[str, ast.expr]
) -> bool:
    """Whether the SQL of a statement, also of a constant, holds a lock on all rows."""
    texts = list[str]()
    for argument in call.args[:1]:
        for node in (argument, constants.get(ast.unparse(argument), argument)):
            texts += [text for text in _texts(node) if text]
    return any(
        table.lower() in tables for text in texts for table in LOCKING.findall(text)
    )


def _texts(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _calls(module: ast.Module) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def _operations(module: ast.Module) -> list[ast.Call]:
    """The calls of alembic's operations that change something."""
    return [
        call
        for call in _calls(module)
        if _owner(call) == "op" and _operation(call) not in CHANGE_NONE
    ]


def _owner(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[0]


def _operation(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _may_lock(call: ast.Call, tables: set[str], constants: Collection[str]) -> bool:
    # SQL: rows, or what a constant of the module says
    if _operation(call) == "execute":
        return (
            not isinstance(call.args[0], ast.Constant)
            and ast.unparse(call.args[0]) not in constants
        )
    words = {
        node.value
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return bool(words & tables) or not isinstance(_table(call), ast.Constant)


def _table(call: ast.Call) -> ast.expr | None:
    """The argument that names the table."""
    named = [
        word.value
        for word in call.keywords
        if word.arg in ("table_name", "source_table")
    ]
    place = 1 if _operation(call).startswith(AFTER_A_NAME) else 0
    return next(iter([*named, *call.args[place : place + 1]]), None)


@pytest.mark.parametrize(
    "file",
    [file for file in VERSIONS if file.name != FIRST],
    ids=lambda file: file.stem,
)
def test_migration__of_a_table_that_a_fleet_uses__is_made_online(file: Path) -> None:
    assert (locking_changes(file) == []) is (file.name not in STOPPED)


@pytest.mark.parametrize("name", STOPPED)
def test_migration__that_is_not_made_online__is_for_a_stopped_fleet(name: str) -> None:
    assert name.partition("_")[0] in stops_old_processes()


def test_load_beside_migrations__its_statements__write_to_each_table_a_fleet_uses() -> (
    None
):
    assert set(STATEMENTS) == FLEET_TABLES


def test_upgrade_page__tables_with_which_a_fleet_works_on__are_named() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "upgrade.md").read_text()
    stopping = stops_old_processes()
    assert f"| tables at {stopping[-1]} or later | works on |" in page
    assert f"{stopping[-1]} is the\nlast one with `old_processes_work = False`" in page
    assert all(revision in page for revision in stopping)
    later = pending(stopping[-1])
    untried = re.findall(r"was run beside ([\d to]+)\.", page)
    first_and_last = dict.fromkeys([*later[:1], *later[-1:]])
    assert untried == [" to ".join(first_and_last)] * bool(later)


@pytest.mark.parametrize(
    "change",
    [
        "op.create_index('jobs_by_size', 'jobs', ['size'])",
        "op.alter_column(table, old, new_column_name=new)",
        "op.rename_table(old, 'sizes')",
        "op.drop_index('by_size', table_name=table)",
        "op.create_check_constraint('size', table, 'size > 0')",
        "op.execute(f'ALTER INDEX {old} RENAME TO {new}')",
        "op.execute(statement)",
        "op.execute('ALTER TABLE jobs ALTER COLUMN size SET NOT NULL')",
        "op.get_bind().execute(text('alter table only jobs ADD size int'))",
        "op.execute(LOCKS)",
        "op.execute('CREATE INDEX by_size ON jobs (size)')",
    ],
)
def test_migration__that_is_not_made_online__is_found(
    change: str, tmp_path: Path
) -> None:
    file = tmp_path / "bad.py"
    safe = (
        "SQL = 'SELECT 1'",
        "LOCKS = text('LOCK TABLE jobs IN EXCLUSIVE MODE')",
        "op.drop_table('switches')",
        "op.drop_index('a', table_name='facts')",
        "op.execute(SQL)",
    )
    file.write_text("\n".join([*safe, change]))
    assert locking_changes(file) == [change]


def test_migrations__those_that_stop_old_processes__are_on_the_upgrade_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "upgrade.md").read_text()
    stops = stops_old_processes()
    assert [revision for revision in stops if revision not in page] == []
    assert f"| tables at {max(stops)} or later |" in page
