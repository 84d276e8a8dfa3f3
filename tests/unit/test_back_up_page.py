"""docs/how-to/back-up.md: its commands in a shell with programs in place of psql and
systemctl. tests/e2e/test_backup.py runs them on a fleet.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from devgrid import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "back-up.md").read_text()
KEEP_THE_LOG, _, RESTORE, *_ = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
ARCHIVE_COMMAND = re.compile(r"SET archive_command = '([^']*)'")
SEGMENT = "000000010000000000000007"
RECORDS = '#!/bin/sh\necho "$(basename "$0") $*" >>{told}\n'


class Site:
    """The folders of the page, and what the programs were told."""

    def __init__(self, folder: Path) -> None:
        self.data, self.backups = folder / "data", folder / "backups"
        self.log = self.backups / "wal"
        (self.data / "pg_wal").mkdir(parents=True)
        (self.backups / "20261123T020000Z.base").mkdir(parents=True)
        self.log.mkdir()
        self.programs, self.told = folder / "bin", folder / "told"
        self.programs.mkdir()
        self.told.touch()
        for name in ("psql", "systemctl", "sync"):
            self.put(name, RECORDS.format(told=self.told))

    def put(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def follow(self, commands: str, **variables: str) -> int:
        """Run commands in a shell that goes on after one that fails, as an operator's
        does.
        """
        given = {
            **os.environ,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "ADMIN": "postgresql://",
            "LEDGER": "postgresql://",
            "PGDATA": str(self.data),
            "BACKUPS": str(self.backups),
            "UNIT": "grid-supervisor.target",
            **variables,
        }
        return subprocess.run(["sh", "-c", commands], env=given, check=False).returncode

    def archive(self, text: str) -> int:
        """Have the segment archived, with the command that the page gives Postgres."""
        (self.data / "pg_wal" / SEGMENT).write_text(text)
        (command,) = ARCHIVE_COMMAND.findall(self.told.read_text())
        words = command.replace("%p", f"pg_wal/{SEGMENT}").replace("%f", SEGMENT)
        return self.follow(f"cd {self.data} && {{ {words}; }}")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def archiving(site: Site) -> Site:
    assert site.follow(KEEP_THE_LOG) == 0
    return site


def test_archive_command__of_a_new_segment__stores_it_on_disk(archiving: Site) -> None:
    assert archiving.archive("written once") == 0
    assert (archiving.log / SEGMENT).read_text() == "written once"
    assert [file.name for file in archiving.log.iterdir()] == [SEGMENT]
    last = archiving.told.read_text().splitlines()[-1].split()
    assert last == ["sync", f"{archiving.log}/{SEGMENT}", str(archiving.log)]


def test_archive_command__of_the_same_segment_again__succeeds(archiving: Site) -> None:
    """Postgres archives a segment again if it crashed before it had noted it."""
    assert archiving.archive("written once") == 0
    before = archiving.told.read_text().count("sync")
    assert archiving.archive("written once") == 0
    # the crash can have been that of the machine
    assert archiving.told.read_text().count("sync") > before


def test_archive_command__after_a_cut_copy__stores_all_of_it(archiving: Site) -> None:
    (archiving.log / f".{SEGMENT}").write_text("writ")
    assert archiving.archive("written once") == 0
    assert (archiving.log / SEGMENT).read_text() == "written once"


def test_archive_command__of_another_servers_name__refuses(archiving: Site) -> None:
    assert archiving.archive("written once") == 0
    assert archiving.archive("by another server") != 0
    assert (archiving.log / SEGMENT).read_text() == "written once"


def test_restore__beside_the_state_before_another_one__changes_nothing(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = Path(f"{site.data}.before")
    kept.mkdir()
    assert site.follow(RESTORE, UNTIL="2026-11-23 07:40:00+00") != 0
    assert site.told.read_text() == ""  # neither the fleet nor Postgres was stopped
    assert list(kept.iterdir()) == []
    assert list(site.data.iterdir()) == [site.data / "pg_wal"]
    assert f"found {kept}" in capfd.readouterr().err


def test_restore__if_postgres_does_not_stop__touches_no_file(site: Site) -> None:
    site.put("systemctl", '#!/bin/sh\n[ "$*" != "stop postgresql" ]\n')
    assert site.follow(RESTORE, UNTIL="2026-11-23 07:40:00+00") != 0
    assert list(site.data.iterdir()) == [site.data / "pg_wal"]
    assert not Path(f"{site.data}.before").exists()
