"""A site as the part of docs/how-to/deploy.md about systemd makes it: a Debian whose
first process is systemd, and the grid that it works for.
"""

import base64
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from devgrid import REPOSITORY
from devgrid.faults.network_proxy import Proxy
from devgrid.grid import Grid
from devgrid.processes import wait_until
from devgrid.tls import HOST_OF_CONTAINERS
from supervisor_tasks.config import ssh_keys
from supervisor_tasks.jobs.model import ChainStatus
from tests.images.machines import RELEASE, Machine
from tests.images.stacks import PLAIN

PAGE = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
INSTALL, SERVERS, UNITS, KEYS, TLS, UP, LOOK, SLURMS_KEYS, REPORTER, *_ = COMMANDS
SMALL_SITE, UPGRADE = COMMANDS[-2:]
HELLO = REPOSITORY / "devgrid" / "workflows" / "hello-world.yaml"
ETC = "/etc/grid-supervisor"
SETTINGS = f"{ETC}/settings.env"
SSH_KEY = f"{ETC}/credentials/slurm_ssh_private_key"
UNIT_OF = {
    9465: "worker-chain",
    9469: "worker-slurm",
    9466: "beat",
    9467: "callbacks",
    9468: "flower",
    9464: "metrics",
}
JOBS = 20
NEW_RELEASE = RELEASE.with_name("new-release")  # the empty folder of an upgrade
NEW_VERSION = "99.0"
FORMER = "# of the former release\n"
SHELL = "\n".join(UP.splitlines()[:2])  # which the page has in each shell


def follow_page(grid: Grid, after: ExitStack) -> Machine:
    """A new machine on which the page was followed up to step 7, for a grid. `after`
    ends it.
    """
    made = Machine()
    after.callback(made.stop)
    release(made)
    made.install(INSTALL)
    made.start()
    made.run(SERVERS)
    made.run(UNITS)
    serve(grid, made, after)
    made.run(UP)
    made.run(SLURMS_KEYS)
    return made


def release(machine: Machine, folder: Path = RELEASE) -> None:
    """As the page copies it."""
    subprocess.run(["make", "wheel"], cwd=REPOSITORY, check=True, capture_output=True)
    shutil.copytree(
        REPOSITORY / "build" / "wheel", machine.root / folder.relative_to("/")
    )


def give_version(folder: Path, version: str) -> None:
    """Give the wheel in a folder another version: pip replaces no package by one of the
    same version.
    """
    (wheel,) = folder.glob("*.whl")
    name, former, rest = wheel.name.split("-", 2)
    about, about_new = f"{name}-{former}.dist-info/", f"{name}-{version}.dist-info/"
    with (
        ZipFile(wheel) as given,
        ZipFile(folder / f"{name}-{version}-{rest}", "w", ZIP_DEFLATED) as made,
    ):
        for entry in given.infolist():
            content = given.read(entry)
            if entry.filename == f"{about}METADATA":
                content = content.replace(
                    f"Version: {former}\n".encode(), f"Version: {version}\n".encode()
                )
            if entry.filename == f"{about}RECORD":
                content = content.replace(about.encode(), about_new.encode())
            entry.filename = entry.filename.replace(about, about_new)
            made.writestr(entry, content)
    wheel.unlink()


def serve(grid: Grid, machine: Machine, after: ExitStack) -> None:
    """Do what the page has the operator do with keys and settings. The grid's servers
    are reached by proxies.
    """
    given, reached = grid.environment, partial(reached_by, machine, after)
    machine.run(f"echo '{machine.outside} {HOST_OF_CONTAINERS}' >>/etc/hosts")
    chain = reached(
        given["METASCHEDULER_ENDPOINT_RPC"].removeprefix("http://").rstrip("/")
    )
    login = reached(given["SLURM_SSH_ADDRESS"])
    public = Proxy.start(
        f"{machine.inside}:3000", port=int(given["PUBLIC_ADDRESS"].rpartition(":")[2])
    )
    after.callback(public.stop)
    files = {
        "wallet.key": given["ETH_PRIVATE_KEY"],
        "id_ed25519": base64.b64decode(given["SLURM_SSH_PRIVATE_KEY"]).decode(),
        "id_ed25519.pub": ssh_keys.public_half(given["SLURM_SSH_PRIVATE_KEY"]),
        "tls.crt": Path(given["TLS_CERT"]).read_text(),
        "tls.key": Path(given["TLS_KEY"]).read_text(),
        "ca.pem": (grid.folder / "tls" / "ca.pem").read_text(),
        "supervisor.key": given["SLURM_SUBMIT_KEY"],
        "callback.key": given["CALLBACK_KEY"],
    }
    for name, text in files.items():
        machine.put(RELEASE / name, text)
    machine.put(f"{ETC}/sbatch_ca.pem", Path(given["SBATCH_CA"]).read_bytes())
    host, _, port = login.partition(":")
    machine.run(KEYS.replace("-p 22 login.example.com", f"-p {port} {host}"))
    machine.run(TLS)
    settings = {name: given[name] for name in PLAIN} | {
        "CLUSTER_NAME": given["CLUSTER_NAME"],
        "SLURM_SSH_ADDRESS": login,
        "SLURM_SSH_ADMIN_USER": given["SLURM_SSH_ADMIN_USER"],
        "SBATCH_ENDPOINT": reached(given["SBATCH_ENDPOINT"]),
        "SBATCH_CA": f"{ETC}/sbatch_ca.pem",
        "METASCHEDULER_ENDPOINT_RPC": f"http://{chain}",
        "METASCHEDULER_ENDPOINT_WS": f"ws://{chain}",
    }
    change_settings(machine, settings)


def reached_by(machine: Machine, after: ExitStack, address: str) -> str:
    """Where the machine reaches a server of this one: host:port."""
    proxy = Proxy.start(address, host=machine.outside)
    after.callback(proxy.stop)
    return f"{HOST_OF_CONTAINERS}:{proxy.address.rpartition(':')[2]}"


def change_settings(machine: Machine, settings: Mapping[str, str]) -> None:
    """Edit settings.env as the operator does."""
    edited = machine.root / SETTINGS.lstrip("/")
    kept = [
        line
        for line in edited.read_text().splitlines()
        if line.partition("=")[0] not in settings
    ]
    edited.write_text(
        "\n".join(
            [*kept, *(f'{name}="{value}"' for name, value in settings.items()), ""]
        )
    )


def settle_job(grid: Grid) -> str:
    """Take a job of a new customer to its end, and return the customer's address."""
    customer = grid.new_customer()
    job_id = grid.submit(customer, HELLO.read_text())
    wait_until(
        lambda: grid.chain.job(job_id).status.is_final, "the job to be settled", 180.0
    )
    assert grid.chain.job(job_id).status is ChainStatus.FINISHED
    assert f"hello world, from {customer.address}" in grid.output(
        customer.address, job_id
    )
    return customer.address


def ready(machine: Machine, port: int) -> bool:
    return machine.succeeds(f"curl --silent --fail http://127.0.0.1:{port}/readyz")


def wait_until_ready(machine: Machine, processes: Mapping[int, str] = UNIT_OF) -> None:
    """Wait for processes, by the ports at which they answer."""
    for port, process in processes.items():
        wait_until(partial(ready, machine, port), f"{process} to be ready", 180.0, 0.5)


def shown(machine: Machine, unit: str, name: str) -> str:
    return machine.run(f"systemctl show --property={name} --value {unit}").strip()


def restarted(machine: Machine, process: str, before: str) -> bool:
    return shown(machine, unit(process), "MainPID") not in ("0", before)


def has_ended(machine: Machine, process: str) -> bool:
    return shown(machine, unit(process), "ActiveState") not in (
        "active",
        "deactivating",
    )


def unit(process: str) -> str:
    return f"grid-supervisor-{process}.service"
