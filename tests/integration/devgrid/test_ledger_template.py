"""A Postgres that begins with a copy of a migrated ledger."""

from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from devgrid.copied_ledger import TEMPLATE, copy_ledger, has_copied_ledger
from devgrid.ledger_template import make
from devgrid.services.start import start_servers
from devgrid.state_folder import private_processes
from supervisor_tasks.ledger import migrations


def test_make__servers_copy_it__begin_with_a_migrated_and_empty_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TEMPLATE, raising=False)
    make(tmp_path / "ledger")
    monkeypatch.setenv(TEMPLATE, str(tmp_path / "ledger"))
    with private_processes() as processes:
        url = start_servers(processes, None)["DATABASE_URL"]
        assert has_copied_ledger(processes)
        engine = create_engine(url, poolclass=NullPool)
        assert migrations.revision(url) == migrations.newest_revision()
        with engine.connect() as connection:
            jobs = connection.scalar(text("SELECT count(*) FROM jobs"))
        assert jobs == 0


def test_copy_ledger__data_and_binaries__are_copied_and_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, table = Path("pgserver", "bin", "postgres"), Path("data", "table")
    template, folder = tmp_path / "template", tmp_path / "postgres"
    for path in (template / program, template / table):
        path.parent.mkdir(parents=True)
        path.touch()
    folder.mkdir()
    monkeypatch.setenv(TEMPLATE, str(template))
    copy_ledger(folder)
    assert (folder / program).samefile(template / program)
    assert (folder / table).exists()
    assert not (folder / table).samefile(template / table)


def test_start_servers__without_a_template__begin_with_a_ledger_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TEMPLATE, raising=False)
    with private_processes() as processes:
        start_servers(processes, None)
        assert not has_copied_ledger(processes)
