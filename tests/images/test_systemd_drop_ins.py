"""The drop-ins of docker/systemd/optional: each is installed as the how-to says, its
unit started with it, and what it is for is used.
"""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import requests
from ldap3 import SUBTREE, Connection, Server, Tls

from devgrid import REPOSITORY
from devgrid.cluster.ldap import ADMIN, PEOPLE, Ldap
from devgrid.cluster.sshd import Sshd
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from tests.images.machines import Machine
from tests.images.systemd_site import (
    ETC,
    SETTINGS,
    SSH_KEY,
    UNIT_OF,
    change_settings,
    reached_by,
    restarted,
    settle_job,
    shown,
    unit,
    wait_until_ready,
)

# it installs a release, on a machine that may be busy
pytestmark = pytest.mark.timeout(1800)

FOLDER = REPOSITORY / "docker" / "systemd" / "optional"
LOGIN, LDAP, CERTIFICATES, SLURMRESTD = (
    "flower.service.d/login.conf",
    "worker-chain.service.d/ldap.conf",
    "worker-slurm.service.d/20-certificates.conf",
    "worker-slurm.service.d/20-slurmrestd.conf",
)
# which the how-to's own commands install
OF_PAGE = (
    "callbacks.service.d/callback-key.conf",
    "callbacks.service.d/tls.conf",
    "worker-slurm.service.d/submit-key.conf",
)
OPERATOR = "operator:found at last"


@pytest.fixture(scope="module")
def site(machine: Machine) -> Machine:
    machine.run("systemctl start grid-supervisor.target")
    wait_until_ready(machine)
    return machine


def restart(machine: Machine) -> None:
    """As the page says after each change of settings or drop-ins."""
    before = {
        process: shown(machine, unit(process), "MainPID")
        for process in UNIT_OF.values()
    }
    machine.run("systemctl daemon-reload\nsystemctl restart grid-supervisor.target")
    for process in UNIT_OF.values():
        again = partial(restarted, machine, process, before[process])
        wait_until(again, f"{process} to be restarted", 180.0, 0.5)
    wait_until_ready(machine)


@contextmanager
def installed(
    machine: Machine,
    drop_ins: Mapping[str, str | bytes],
    settings: Mapping[str, str],
) -> Iterator[None]:
    """The site with these drop-ins, each with its secret, in place of the SSH key where
    one is another way to SLURM.
    """
    file = machine.root / SETTINGS.lstrip("/")
    before, secrets = file.read_text(), f"{ETC}/credentials"
    change_settings(machine, settings)
    for drop_in, secret in drop_ins.items():
        machine.put(f"{secrets}/{credential(drop_in)}", secret)
        machine.run(
            f"chmod 600 {secrets}/{credential(drop_in)}\n"
            f"install -D -m 644 -t /etc/systemd/system/grid-supervisor-{Path(drop_in).parent}"
            f" systemd/optional/grid-supervisor-{drop_in}"
        )
    machine.run(f"mv {SSH_KEY} /root/kept")
    try:
        restart(machine)
        yield
    finally:
        machine.run(f"mv /root/kept {SSH_KEY}")
        for drop_in in drop_ins:
            machine.run(f"rm /etc/systemd/system/grid-supervisor-{drop_in}")
        file.write_text(before)
        restart(machine)


def credential(drop_in: str) -> str:
    """The name of the secret that a drop-in is for: the last one that it loads."""
    lines = (FOLDER / f"grid-supervisor-{drop_in}").read_text().splitlines()
    loaded = [line for line in lines if line.startswith("LoadCredential=")]
    return loaded[-1].removeprefix("LoadCredential=").partition(":")[0]


def assert_loaded(machine: Machine, drop_in: str) -> None:
    """The unit was started with the drop-in, and its process has the secret's file."""
    name = f"grid-supervisor-{Path(drop_in).parent}".removesuffix(".d")
    read = shown(machine, name, "DropInPaths").split()
    assert f"/etc/systemd/system/grid-supervisor-{drop_in}" in read
    pid, secret = shown(machine, name, "MainPID"), credential(drop_in)
    environment = machine.run(f"tr '\\0' '\\n' </proc/{pid}/environ")
    assert f"=/run/credentials/{name}/{secret}\n" in environment
    machine.run(
        f"nsenter --target {pid} --mount cmp /run/credentials/{name}/{secret} {ETC}/credentials/{secret}"
    )


def accounts(ldap: Ldap, name: str) -> int:
    """How many accounts of this name the directory has."""
    server = Server(ldap.url, tls=Tls(ca_certs_file=str(ldap.certificates.ca)))
    with Connection(server, ADMIN, ldap.password) as connection:
        connection.search(PEOPLE, f"(uid={name})", SUBTREE)
        return len(connection.entries)


def status_of_flower(machine: Machine, login: str = "") -> int:
    """What Flower answers to this machine, which is not its own."""
    name, _, password = login.partition(":")
    return requests.get(
        f"http://{machine.inside}:5555/",
        auth=(name, password) if login else None,
        timeout=deadline(10),
    ).status_code


def start_sshd_with_authority(grid: Grid) -> tuple[Sshd, Path]:
    """A login node that takes certificates alone, and the authority's private key."""
    key = grid.folder / "authority"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(words, check=True)
    assert grid.slurm is not None
    environment = grid.slurm.env()
    sshd = Sshd.start(
        grid.processes, environment, [], name="sshd-authority", trusted_ca=key
    )
    return sshd, key


def test_drop_ins__in_the_folder__are_all_in_this_file_or_installed_by_the_page() -> (
    None
):
    found = {
        str(file.relative_to(FOLDER)).removeprefix("grid-supervisor-")
        for file in FOLDER.rglob("*.conf")
    }
    assert found == {LOGIN, LDAP, CERTIFICATES, SLURMRESTD, *OF_PAGE}


@pytest.mark.parametrize("drop_in", OF_PAGE)
def test_drop_in__installed_by_the_page__its_process_has_the_secret(
    site: Machine, drop_in: str
) -> None:
    assert_loaded(site, drop_in)


def test_drop_ins__of_login_directory_and_authority__each_does_what_it_is_for(
    site: Machine, site_grid: Grid
) -> None:
    with ExitStack() as after:
        ldap = Ldap.start(site_grid.processes, site_grid.cluster.certificates)
        sshd, authority = start_sshd_with_authority(site_grid)
        login = reached_by(site, after, sshd.address)
        host, _, port = login.partition(":")
        key = sshd.known_hosts.read_text().partition(" ")[2]
        with (site.root / f"{ETC}/known_hosts".lstrip("/")).open("a") as known:
            known.write(f"[{host}]:{port} {key}")
        directory = ldap.settings() | {
            "LDAP_URL": f"ldaps://{reached_by(site, after, f'127.0.0.1:{ldap.port}')}",
            "LDAP_CA_PATH": f"{ETC}/sbatch_ca.pem",
        }
        secrets: dict[str, str | bytes] = {
            LOGIN: OPERATOR,
            LDAP: directory.pop("LDAP_BIND_PASSWORD"),
            CERTIFICATES: authority.read_bytes(),
        }
        settings = directory | {
            "FLOWER_ADDRESS": site.inside,
            "SLURM_SSH_CERTIFICATES": "true",
            "SLURM_SSH_ADDRESS": login,
        }
        with installed(site, secrets, settings):
            for drop_in in (*secrets, *OF_PAGE):
                assert_loaded(site, drop_in)
            customer = settle_job(site_grid)
            # the job does not wait for the account: its user is in another file
            wait_until(lambda: accounts(ldap, customer) == 1, "the account", 60.0, 0.2)
            assert status_of_flower(site, OPERATOR) == 200
            assert status_of_flower(site) == 401
            assert status_of_flower(site, "operator:guessed") == 401


def test_drop_in__of_slurmrestd__a_job_ends_without_an_ssh_key(
    site: Machine, site_grid: Grid, jwt_key: Path, slurmrestd: dict[str, str]
) -> None:
    with installed(site, {SLURMRESTD: jwt_key.read_bytes()}, slurmrestd):
        for drop_in in (SLURMRESTD, *OF_PAGE):
            assert_loaded(site, drop_in)
        settle_job(site_grid)
