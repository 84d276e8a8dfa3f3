"""The wheel, as a provider installs it: in an empty environment, away from the
clone.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from devgrid import REPOSITORY
from devgrid.processes import Processes, wait_until
from devgrid.services.start import start_server
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns

PACKAGES = ("supervisor_tasks", "grpc_callbacks", "benchmarks", "plugins", "protos")
NEWEST = max(
    (REPOSITORY / "supervisor_tasks/ledger/migrations/versions").glob("*.py")
).name.partition("_")[0]
WITHIN_S = 60.0

# a first installation downloads 100 MB
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.extended,
]


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files of the clone that git knows, and those that it does not ignore."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(
        argv, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    return [
        name for name in listed.split("\0") if name and (REPOSITORY / name).exists()
    ]


@pytest.fixture(scope="module")
def wheel(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy that holds nothing generated."""
    clone, built = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    for name in tracked:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, clone / name)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(built),
    ]
    subprocess.run([*argv, str(clone)], check=True, capture_output=True)
    (wheel,) = built.iterdir()
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, processes: Processes) -> Path:
    """The bin folder of an environment that holds the wheel, and what the lock names
    for it.
    """
    environment = processes.folder / "venv"
    uv = [str(Path(sys.executable).with_name("uv"))]
    install = [*uv, "pip", "install", "--quiet", "--python", str(environment)]
    for argv in (
        [*uv, "venv", "--quiet", "--python", sys.executable, str(environment)],
        [
            *install,
            "--require-hashes",
            "--requirement",
            str(REPOSITORY / "requirements.txt"),
        ],
        [*install, "--no-deps", str(wheel)],
        [*uv, "pip", "check", "--quiet", "--python", str(environment)],
    ):
        done = subprocess.run(
            argv, cwd=processes.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return environment / "bin"


@pytest.fixture(scope="module")
def environment(processes: Processes) -> dict[str, str]:
    """A site's: an empty database, a broker, and nothing that leads to the clone."""
    servers = []
    for name, describe in (
        ("postgres", embedded_servers.postgres),
        ("redis", embedded_servers.redis),
    ):
        folder = processes.folder / name
        folder.mkdir()
        servers.append(describe(folder))
        start_server(processes, name, servers[-1])
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(processes.folder),
        "STATE_DIR": str(processes.folder),
        "DATABASE_URL": servers[0].url,
        "BROKER_URL": servers[1].url,
    }


def run(
    installed: Path, folder: Path, environment: Mapping[str, str], *words: str
) -> str:
    argv = [str(installed / words[0]), *words[1:]]
    done = subprocess.run(
        argv, cwd=folder, env=dict(environment), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel__built__holds_every_file_of_its_packages_and_no_other(
    wheel: Path, tracked: list[str]
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = [
            archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith("/METADATA")
        ]
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    folders = tuple(f"{package}/" for package in PACKAGES)
    sources = {name for name in tracked if name.startswith(folders)}
    stems = {name.removesuffix(".proto") for name in sources if name.endswith(".proto")}
    generated = {f"{stem}_pb2{kind}.py" for stem in stems for kind in ("", "_grpc")}
    assert stems
    assert held == sources | generated | {"celeryconfig.py", "flowerconfig.py"}
    assert "Name: grid-supervisor\n" in metadata
    needed = [
        line
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert not [line for line in needed if "pytest" in line or "mypy" in line]


def test_installed_wheel__asked_for_its_version__tells_it(
    installed: Path, wheel: Path, processes: Processes
) -> None:
    said = run(
        installed,
        processes.folder,
        {"PATH": "/usr/bin:/bin"},
        "supervisor",
        "--version",
    )
    assert said == f"supervisor {wheel.name.split('-')[1]}\n"


def test_installed_wheel__empty_database__upgrades_it_and_starts_a_worker(
    installed: Path, processes: Processes, environment: dict[str, str]
) -> None:
    first = run(
        installed, processes.folder, environment, "supervisor", "db", "upgrade", "--yes"
    )
    second = run(
        installed, processes.folder, environment, "supervisor", "db", "upgrade", "--yes"
    )
    assert first == f"the ledger's tables are at {NEWEST}, and were at none\n"
    assert second == f"the ledger's tables are at {NEWEST}\n"
    celery = [str(installed / "celery"), "-A", "supervisor_tasks"]
    for name, words in (
        ("worker", ["worker", "-Q", "main.default"]),
        ("beat", ["beat", "--pidfile="]),
    ):
        processes.start(name, [*celery, *words], env=environment, cwd=processes.folder)
    engine = create_engine(environment["DATABASE_URL"])
    try:
        wait_until(
            lambda: (
                PeriodicRuns(engine, "main").age_s("dispatch_due_effects") is not None
            ),
            "the worker to do a task",
            WITHIN_S,
        )
    finally:
        engine.dispose()
        for name in ("worker", "beat"):
            processes.kill(processes.find(name))


def test_db_upgrade__table_locked_by_a_long_transaction__fails_soon_with_advice(
    installed: Path, processes: Processes, environment: dict[str, str]
) -> None:
    engine = create_engine(environment["DATABASE_URL"])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE held"))
    url = environment["DATABASE_URL"].replace("/postgres?", "/held?")
    held = create_engine(url)
    argv = [str(installed / "supervisor"), "db", "upgrade", "--yes"]
    with held.connect() as connection:
        # uncommitted: the first migration wants that name
        connection.execute(text("CREATE TABLE jobs (a int)"))
        done = subprocess.run(
            argv,
            cwd=processes.folder,
            env=environment | {"DATABASE_URL": url},
            capture_output=True,
            text=True,
        )
    held.dispose()
    engine.dispose()
    assert done.returncode == 3
    assert "lock timeout" in done.stderr
    assert "try again" in done.stderr
    assert "Traceback" not in done.stderr
