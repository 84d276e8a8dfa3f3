"""The units of docker/systemd, as systemd itself reads them; systemd need not run."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from devgrid import REPOSITORY
from supervisor_tasks.cli.restarts import RESTART_S
from supervisor_tasks.cli.run_command import PROCESSES
from supervisor_tasks.config.needs import NOTIFY_KEYS, Need, SlurmAccess, kept
from supervisor_tasks.config.settings import IN_FILES, SECRETS, Settings

UNITS = REPOSITORY / "docker" / "systemd"
COMMON = "grid-supervisor-.service.d/10-common.conf"
SERVICES = sorted(file.relative_to(UNITS) for file in UNITS.rglob("*.service"))
FLEET = [name for name in SERVICES if name.name.startswith("grid-supervisor-")]
SMALL_SITE = Path("small-site/grid-supervisor.service")  # needs no other file
REPORTER = Path("reporter/supervisor-reporter.service")
OPTIONAL = sorted(
    file.relative_to(UNITS / "optional")
    for file in (UNITS / "optional").rglob("*.conf")
)
# a secret whose setting is the path of its file
FILES_OF_SETTINGS = {"tls_key": "TLS_KEY"}
EXPOSURE = 20  # tenths; systemd calls what is below 2.0 OK
OF_NO_SETTING = {"HOME", "PYTHONUNBUFFERED"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units as an operator copies them, with the command where this clone has
    it.
    """
    folder = tmp_path_factory.mktemp("systemd")
    shutil.copytree(UNITS, folder, dirs_exist_ok=True)
    for unit in folder.rglob("*.service"):
        unit.write_text(
            unit.read_text().replace(
                "/usr/local/bin/supervisor", str(REPOSITORY / ".venv/bin/supervisor")
            )
        )
        shutil.move(unit, folder / unit.name)
    return folder


def assignments(unit: Path, name: str) -> list[str]:
    text = (UNITS / unit).read_text()
    if unit in FLEET:
        text += (UNITS / COMMON).read_text()
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def credentials(unit: Path) -> set[str]:
    """The names of the credentials that a unit is given."""
    return {line.partition(":")[0] for line in assignments(unit, "LoadCredential")}


def faults(stderr: str, *words: str) -> list[str]:
    """The lines of systemd that are about us."""
    about_us = re.compile("|".join(map(re.escape, words)))
    return [line for line in stderr.splitlines() if about_us.search(line)]


def test_units__verified_by_systemd__have_no_fault(installed: Path) -> None:
    units = [
        str(file)
        for pattern in ("*.service", "*.target")
        for file in sorted(installed.glob(pattern))
    ]
    assert len(units) == len(SERVICES) + 1
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True
    )
    assert (done.returncode, faults(done.stderr, str(installed), "supervisor")) == (
        0,
        [],
    )


def test_units__with_the_drop_in_of_the_how_to__have_no_fault_and_a_file_of_a_secret(
    installed: Path,
) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
    (drop_in,) = re.findall(
        r"```\n# systemctl edit ([^\n]*)\n(.*?)```", page, re.DOTALL
    )
    units = re.findall(r"grid-supervisor-[a-z-]+\.service", drop_in[0])
    assert units
    for unit in units:
        folder = installed / f"{unit}.d"
        folder.mkdir()
        (folder / "override.conf").write_text(drop_in[1])
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(installed / unit) for unit in units)],
        capture_output=True,
        text=True,
    )
    assert faults(done.stderr, "override", "supervisor") == []
    (credential,) = re.findall(
        r"^LoadCredential=(\w+):/etc/grid-supervisor/credentials/\1$",
        drop_in[1],
        re.MULTILINE,
    )
    assert credential in IN_FILES
    assert f"Environment={credential.upper()}_FILE=%d/{credential}\n" in drop_in[1]


@pytest.mark.parametrize("drop_in", OPTIONAL, ids=str)
def test_drop_in__for_a_secret__has_no_fault_and_names_its_file(
    installed: Path, drop_in: Path, tmp_path: Path
) -> None:
    shutil.copytree(installed, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "optional")
    source = UNITS / "optional" / drop_in
    (tmp_path / drop_in).parent.mkdir(exist_ok=True)
    shutil.copy(source, tmp_path / drop_in)
    unit = drop_in.parent.name.removesuffix(".d")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, faults(done.stderr, str(tmp_path), "supervisor")) == (
        0,
        [],
    )
    text = source.read_text()
    given = [
        pair
        for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
        for pair in line.split()
    ]
    for name, file in re.findall(r"^LoadCredential=(\w+):(\S+)$", text, re.MULTILINE):
        assert file == f"/etc/grid-supervisor/credentials/{name}"
        assert name in (*IN_FILES, *FILES_OF_SETTINGS)
        if name not in ("database_url", "broker_url"):
            assert (
                f"{FILES_OF_SETTINGS.get(name, f'{name.upper()}_FILE')}=%d/{name}"
                in given
            )


def test_units__of_the_fleet__have_the_servers_that_each_works_with() -> None:
    held = {
        str(unit).removeprefix("grid-supervisor-").removesuffix(".service"): (
            credentials(unit)
        )
        for unit in FLEET
    }
    assert all("database_url" in names for names in held.values())
    without = {name for name, names in held.items() if "broker_url" not in names}
    assert without == {"metrics", "migrate"}


def test_drop_ins__each_secret_of_one_process__has_one_for_that_process() -> None:
    of_all = {"database_url", "broker_url", *NOTIFY_KEYS}
    in_units = {
        line.partition(":")[0]
        for unit in FLEET
        for line in assignments(unit, "LoadCredential")
    }
    found = {
        (
            name,
            drop_in.parent.name.removesuffix(".service.d").removeprefix(
                "grid-supervisor-"
            ),
        )
        for drop_in in OPTIONAL
        for name in re.findall(
            r"^LoadCredential=(\w+):",
            (UNITS / "optional" / drop_in).read_text(),
            re.MULTILINE,
        )
        if name in IN_FILES and name not in of_all
    }
    assert found == {
        (name, process_of(name)) for name in {*SECRETS} - of_all - in_units
    }


def process_of(secret: str) -> str:
    """The process that alone keeps the secret."""
    needs = {
        Need.WALLET: "worker-chain",
        Need.SLURM: "worker-slurm",
        Need.SSH_PUBLIC: "callbacks",
    }
    keeping = {
        name
        for need, name in needs.items()
        for access in SlurmAccess
        if secret in kept([need], access)
    }
    (process,) = keeping or {"flower"}
    return process


@pytest.mark.parametrize("name", ["20-slurmrestd.conf", "20-certificates.conf"])
def test_drop_in__for_another_way_to_slurm__takes_the_ssh_key_away(name: str) -> None:
    text = (
        UNITS / "optional/grid-supervisor-worker-slurm.service.d" / name
    ).read_text()
    assert "\nLoadCredential=\n" in text  # the list begins again
    assert "slurm_ssh_private_key" not in text
    assert "SLURM_SSH_PRIVATE_KEY_FILE=\n" in text


@pytest.mark.parametrize("drop_in", OPTIONAL, ids=str)
def test_drop_in__that_begins_the_credentials_again__is_read_before_others(
    drop_in: Path,
) -> None:
    """systemd reads drop-ins in the order of their names; `systemctl edit` writes
    override.conf.
    """
    begins_again = "\nLoadCredential=\n" in (UNITS / "optional" / drop_in).read_text()
    others = {
        other.name
        for other in OPTIONAL
        if other.parent == drop_in.parent and not other.name.startswith("20-")
    }
    assert not begins_again or Path(COMMON).name < drop_in.name < min(
        others | {"override.conf"}
    )


@pytest.mark.parametrize("unit", SERVICES, ids=str)
def test_unit__its_sandbox__leaves_little_open(installed: Path, unit: Path) -> None:
    argv = [
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE}",
        str(installed / unit.name),
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", SERVICES, ids=str)
def test_unit__starts__a_process_that_supervisor_run_knows(unit: Path) -> None:
    (started,) = assignments(unit, "ExecStart")
    program, command, *words = started.split()
    assert (program, command) == ("/usr/local/bin/supervisor", "run")
    if unit == SMALL_SITE:
        assert words == []  # the whole fleet
    else:
        assert words[0] in PROCESSES


def test_units__of_the_fleet__are_all_wanted_by_the_target() -> None:
    wanted = re.findall(
        r"grid-supervisor-[a-z-]+\.service",
        (UNITS / "grid-supervisor.target").read_text(),
    )
    assert sorted(wanted) == sorted(unit.name for unit in FLEET)


def sandbox(file: Path) -> set[str]:
    """The lines of a file's sandbox."""
    text = (UNITS / file).read_text()
    lines = text[text.index("NoNewPrivileges=") :].partition("\n\n")[0].splitlines()
    assert len(lines) > 20
    return set(lines)


def test_units__of_one_file__have_the_sandbox_of_the_others() -> None:
    common = sandbox(Path(COMMON))
    assert sandbox(SMALL_SITE) == common
    # the reporter's user is SLURM's, and owns the spool
    assert common - sandbox(REPORTER) == {"PrivateUsers=yes", "RemoveIPC=yes"}


def test_unit_of_a_small_site__its_credentials__are_those_of_all_other_units() -> None:
    of_others = {line for unit in FLEET for line in assignments(unit, "LoadCredential")}
    assert set(assignments(SMALL_SITE, "LoadCredential")) == of_others


def test_unit_of_a_small_site__excludes__the_target_and_all_its_processes() -> None:
    others = {unit.name for unit in FLEET} - {"grid-supervisor-migrate.service"}
    for name in ("Conflicts", "After"):
        given = set(" ".join(assignments(SMALL_SITE, name)).split())
        assert given >= {"grid-supervisor.target", *others}, name


@pytest.mark.parametrize("unit", [*FLEET, SMALL_SITE], ids=str)
def test_unit__its_variables__are_settings_and_its_credentials_files_of_secrets(
    unit: Path,
) -> None:
    given = [pair for line in assignments(unit, "Environment") for pair in line.split()]
    names = {pair.partition("=")[0] for pair in given} - OF_NO_SETTING
    credentials = {
        line.partition(":")[0] for line in assignments(unit, "LoadCredential")
    }
    files = {name for name in names if name.endswith("_FILE")}
    assert {name.lower() for name in names - files} <= set(Settings.model_fields)
    assert (
        {name.removesuffix("_FILE").lower() for name in files}
        == credentials
        <= set(IN_FILES)
    )
    assert all(f"{name.upper()}_FILE=%d/{name}" in given for name in credentials)


@pytest.mark.parametrize("unit", SERVICES, ids=str)
def test_unit__that_ends__is_started_again_and_counts_its_starts(unit: Path) -> None:
    assert assignments(unit, "Restart")[0] in ("always", "on-failure")
    # for as long as it takes
    assert assignments(unit, "StartLimitIntervalSec") == ["0"]
    assert [float(pause) for pause in assignments(unit, "RestartSec")] == [RESTART_S]
    assert assignments(unit, "RuntimeDirectory") == ["%N"]  # each unit has its own
    assert assignments(unit, "RuntimeDirectoryPreserve") == ["restart"]


def test_units__on_one_machine__answer_probes_at_ports_of_their_own() -> None:
    given = [line for unit in FLEET for line in assignments(unit, "Environment")]
    ports = re.findall(r"HEALTH_ADDRESS=127\.0\.0\.1:(\d+)", " ".join(given))
    assert len(ports) == len(set(ports)) == 5


def test_keys__of_the_wallet_and_of_ssh__are_split_between_the_workers() -> None:
    keys = {unit.stem: credentials(unit) for unit in FLEET}
    with_wallet = {name for name, held in keys.items() if "eth_private_key" in held}
    with_ssh = {name for name, held in keys.items() if "slurm_ssh_private_key" in held}
    assert (with_wallet, with_ssh) == (
        {"grid-supervisor-worker-chain"},
        {"grid-supervisor-worker-slurm"},
    )


def test_settings_file__each_assignment__names_a_setting() -> None:
    lines = [
        line
        for line in (UNITS / "settings.env").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert {line.partition("=")[0].lower() for line in lines} <= set(
        Settings.model_fields
    )
