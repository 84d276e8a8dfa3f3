"""What migrations may do: those that change tables of a fleet do it without long locks, and each says what may run beside."""

import ast
from pathlib import Path

import pytest

from supervisor_tasks.ledger import migrations
from supervisor_tasks.ledger.migrations import stops_old_processes

VERSIONS = sorted((Path(migrations.__file__).parent / "versions").glob("*.py"))
HOT = {"jobs", "events", "effects", "callbacks", "transactions", "signatures"}
CHANGES = {
    "add_column",
    "drop_column",
    "alter_column",
    "create_index",
    "drop_index",
    "create_foreign_key",
    "drop_table",
}
FIRST = "0001_initial.py"  # makes the tables
OWN_TABLES = {"0003_the_wallet.py": {"signatures"}}  # dropped by the downgrade of what made it


def hot_changes(file: Path) -> list[str]:
    """The changes of hot tables that hold their locks until the migration's end."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        name = call.func
        if isinstance(name, ast.Attribute) and ast.unparse(name.value) == "op" and name.attr in CHANGES:
            words = {
                node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            if words & (HOT - OWN_TABLES.get(file.name, set())):
                found.append(ast.unparse(call))
    return found


@pytest.mark.parametrize("file", [file for file in VERSIONS if file.name != FIRST], ids=lambda file: file.stem)
def test_migration__of_a_table_that_a_fleet_uses__is_made_online(file: Path) -> None:
    assert hot_changes(file) == []


def test_migration__that_is_not_made_online__is_found(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("op.create_index('jobs_by_size', 'jobs', ['size'])\nop.drop_table('switches')\n")
    assert hot_changes(file) == ["op.create_index('jobs_by_size', 'jobs', ['size'])"]


def test_migrations__those_that_stop_old_processes__are_on_the_upgrade_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "upgrade.md").read_text()
    assert [revision for revision in stops_old_processes() if revision not in page] == []
