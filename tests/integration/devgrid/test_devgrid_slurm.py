"""The private SLURM, its users and its sshd, as a grid has them."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import grpc
import pytest

from devgrid.cluster.linux_users import FIRST_UID, Users
from devgrid.cluster.slurm import Slurm
from devgrid.cluster.sshd import Sshd, authorized_keys_command
from devgrid.machine import deadline
from devgrid.processes import Processes, open_files, wait_until
from devgrid.state_folder import private_processes
from devgrid.tls import Certificates, make_certificates
from protos.supervisor.v1alpha1.supervisor_pb2 import (
    FetchAuthorizedKeysRequest,
    FetchAuthorizedKeysResponse,
)
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import (
    SshAPIServicer,
    add_SshAPIServicer_to_server,
)
from tests.support.sbatch import submit_as
from tests.support.submission_env import new_key

CUSTOMER = "0x" + "ab" * 20
NODES = 4


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with _running(nodes=NODES) as running:
        yield running


def test_start__four_nodes__are_idle_and_have_gpus(slurm: Slurm) -> None:
    shown = slurm.run(
        "sinfo", "--noheader", "--Node", "--format=%N %c %m %G %P"
    ).stdout.splitlines()
    assert shown == [
        f"node{number} 8 16000 gpu:2 main*" for number in range(1, NODES + 1)
    ]


def test_job__of_a_customer__runs_with_the_customers_real_uid(slurm: Slurm) -> None:
    assert len(CUSTOMER) == 42
    job = _submit(slurm, CUSTOMER, "id -u; id -un; pwd")
    assert _output(slurm, CUSTOMER, job).split() == [
        str(_uid(slurm, CUSTOMER)),
        CUSTOMER,
        str(slurm.users.home(CUSTOMER)),
    ]


def test_user__added_while_slurm_runs__submits_at_once(slurm: Slurm) -> None:
    newcomer = "0x" + "cd" * 20
    uid = slurm.users.add(newcomer)
    assert _output(slurm, newcomer, _submit(slurm, newcomer, "id -u")).split() == [
        str(uid)
    ]


ADD_ALL = """
import sys
from pathlib import Path
from devgrid.cluster.linux_users import Users
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
for name in sys.argv[2:]:
    Users(Path(sys.argv[1])).add(name)
"""


def test_users__added_by_several_programs_at_once__have_a_uid_of_their_own_each(
    tmp_path: Path,
) -> None:
    names = ["0x" + f"{number:040x}" for number in range(120)]
    users = Users(tmp_path)
    shares = [
        [sys.executable, "-c", ADD_ALL, str(tmp_path), *names[first::4]]
        for first in range(4)
    ]
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(share, stdin=PIPE, stdout=PIPE, text=True)
            )
            for share in shares
        ]
        assert [
            program.stdout and program.stdout.readline() for program in programs
        ] == ["ready\n"] * 4
        for program in programs:
            assert program.stdin is not None
            program.stdin.close()  # which lets it go
    assert [program.returncode for program in programs] == [0] * 4
    assert sorted(users.add(name) for name in names) == list(
        range(FIRST_UID, FIRST_UID + len(names))
    )


def test_users__of_the_machine_itself__stay_as_they_are(slurm: Slurm) -> None:
    assert CUSTOMER not in Path("/etc/passwd").read_text()
    assert slurm.run("id", "-un", "root").stdout.strip() == "root"


def test_gpus__job_asks_for_two__are_given_to_it(slurm: Slurm) -> None:
    job = _submit(
        slurm, CUSTOMER, "echo $SLURM_GPUS; echo $CUDA_VISIBLE_DEVICES", "--gpus=2"
    )
    assert _output(slurm, CUSTOMER, job).split() == ["2", "0,1"]


def test_controller__stopped_and_started_again__still_knows_the_running_job(
    slurm: Slurm,
) -> None:
    job = _submit(slurm, CUSTOMER, "sleep 600", "--time=30")
    wait_until(lambda: _state(slurm, job) == "RUNNING", "the job to run", 20.0)
    # kill -9 loses what it has not written yet, up to 5 s
    slurm.processes.stop(slurm.processes.find("slurmctld"))
    assert "DOWN" in slurm.run("scontrol", "ping").stdout
    slurm.start_controller()
    assert _state(slurm, job) == "RUNNING"
    assert slurm.run("scancel", job).returncode == 0
    wait_until(
        lambda: _state(slurm, job) == "CANCELLED", "the job to be cancelled", 20.0
    )


def test_stop__job_that_hides_and_ignores_sigterm__nothing_remains() -> None:
    with _running(nodes=1) as slurm:
        folder = slurm.processes.folder
        job = _submit(
            slurm,
            CUSTOMER,
            "trap '' TERM; setsid -f sleep 611; sleep 612; sleep 613",
            "--time=30",
        )
        started = {"sleep 611", "sleep 612", f"slurmstepd: [{job}.batch]"}
        wait_until(lambda: started <= _commands(folder), "the job's processes", 20.0)
        slurm.stop()
        assert _state(slurm, job) == "CANCELLED"
    wait_until(lambda: _commands(folder) == set(), "what was killed to end", 20.0)


def test_strays__slurmstepd_whose_slurmd_was_killed__ends_too() -> None:
    with private_processes() as processes:
        users, spool = Users(processes.folder), processes.folder / "spool"
        users.add(CUSTOMER)
        spool.mkdir(mode=0o755)
        slurm = Slurm.start(processes, users, spool=spool, nodes=1)
        job = _submit(slurm, CUSTOMER, "sleep 614", "--time=30")
        title = f"slurmstepd: [{job}.batch]"
        wait_until(
            lambda: {"sleep 614", title} <= _commands(processes.folder),
            "the job's processes",
            20.0,
        )
        processes.kill(processes.find("slurmd-node1"))
        assert title in _commands(processes.folder)
        processes.kill_strays()
        wait_until(lambda: _commands(processes.folder) == set(), "all to end", 20.0)


def test_spool__customers_job_tries_to_write_there__refuses_it(slurm: Slurm) -> None:
    job = _submit(
        slurm,
        CUSTOMER,
        f"touch {slurm.processes.folder}/spool/forged && echo written || echo refused",
    )
    assert _output(slurm, CUSTOMER, job).split()[-1] == "refused"


def test_accounting__finished_job_and_gpus__are_known() -> None:
    with _running(nodes=1, accounting=True) as slurm:
        mariadb = [
            "mariadb",
            "--no-defaults",
            f"--socket={slurm.layout.folder / 'mariadb' / 'mysqld.sock'}",
            "-Ne",
        ]
        tmpdir = subprocess.run(
            [*mariadb, "SELECT @@tmpdir"], capture_output=True, text=True, check=True
        ).stdout
        assert tmpdir.startswith(str(slurm.layout.folder)), (
            "a MariaDB that starts empties the tmpdir of all others"
        )
        job = _submit(slurm, CUSTOMER, "exit 3")
        ask = (
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--jobs={job}",
            "--format=JobIDRaw,State,ExitCode",
        )
        wait_until(
            lambda: slurm.run(*ask).stdout.strip() == f"{job}|FAILED|3:0",
            "sacct to know the job",
            30.0,
            0.2,
        )
        assert (
            "gres/gpu=2"
            in slurm.run("scontrol", "show", "nodes", "--oneliner").stdout.split(
                "CfgTRES="
            )[1]
        )


# --- sshd -----------------------------------------------------------------------------


class _SshAPI(SshAPIServicer):
    def __init__(self) -> None:
        self.line = ""

    def FetchAuthorizedKeys(  # noqa: N802  the method of a gRPC service is named by its protocol
        self,
        request: FetchAuthorizedKeysRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> FetchAuthorizedKeysResponse:
        return FetchAuthorizedKeysResponse(authorized_keys=self.line)


class _Login:
    """A login node, the key that it lets in, and one that it does not know."""

    def __init__(
        self, processes: Processes, slurm: Slurm, port: int, certificates: Certificates
    ) -> None:
        command = authorized_keys_command(f"127.0.0.1:{port}", certificates.ca)
        self.sshd = Sshd.start(processes, slurm.env(), command)
        self.key, self.other_key = (
            new_key(processes.folder / "key"),
            new_key(processes.folder / "other-key"),
        )

    def run(
        self, key: Path, user: str, command: str
    ) -> subprocess.CompletedProcess[str]:
        host, port = self.sshd.address.split(":")
        options = [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.sshd.known_hosts}",
        ]
        options += ["StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"]
        argv = [
            "ssh",
            "-F",
            "none",
            "-i",
            str(key),
            "-p",
            port,
            "-l",
            user,
            *(w for o in options for w in ("-o", o)),
        ]
        return subprocess.run(
            [*argv, host, command], capture_output=True, text=True, timeout=deadline(60)
        )


@pytest.fixture(scope="module")
def login(slurm: Slurm) -> Iterator[_Login]:
    certificates = make_certificates(slurm.processes.folder / "tls")
    with _serving(certificates) as (service, port):
        login = _Login(slurm.processes, slurm, port, certificates)
        service.line = login.key.with_suffix(".pub").read_text()
        yield login


def test_login__with_the_supervisors_key__is_the_customer_and_may_submit(
    slurm: Slurm, login: _Login
) -> None:
    script = "cd; id -un; printf '#!/bin/sh\\nid -u\\n' | sbatch --parsable --partition=main --output=over-ssh.log"
    done = login.run(login.key, CUSTOMER, script)
    assert done.returncode == 0, done.stderr
    name, job = done.stdout.split()
    assert name == CUSTOMER
    wait_until(lambda: _state(slurm, job) == "COMPLETED", "the job to end", 20.0)
    assert (slurm.users.home(CUSTOMER) / "over-ssh.log").read_text().split() == [
        str(_uid(slurm, CUSTOMER))
    ]


def test_login__as_the_admin__may_raise_a_time_limit(
    slurm: Slurm, login: _Login
) -> None:
    job = _submit(slurm, CUSTOMER, "true", "--hold", "--time=10")
    done = login.run(
        login.key, "root", f"scontrol update JobId={job} TimeLimit=20 && scancel {job}"
    )
    assert done.returncode == 0, done.stderr


def test_login__with_another_key__is_refused(login: _Login) -> None:
    done = login.run(login.other_key, CUSTOMER, "true")
    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_login__user_is_not_of_the_cluster__is_refused(login: _Login) -> None:
    assert login.run(login.key, "0x" + "ee" * 20, "true").returncode == 255


# --- asking ---------------------------------------------------------------------------


@contextmanager
def _serving(certificates: Certificates) -> Iterator[tuple[_SshAPI, int]]:
    server, service = grpc.server(ThreadPoolExecutor(2)), _SshAPI()
    add_SshAPIServicer_to_server(service, server)
    pair = (certificates.key.read_bytes(), certificates.cert.read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        yield service, port
    finally:
        server.stop(None).wait()


@contextmanager
def _running(nodes: int, accounting: bool = False) -> Iterator[Slurm]:
    with private_processes() as processes:
        users, spool = Users(processes.folder), processes.folder / "spool"
        users.add(CUSTOMER)
        spool.mkdir(mode=0o755)
        slurm = Slurm.start(
            processes, users, spool=spool, nodes=nodes, accounting=accounting
        )
        try:
            yield slurm
        finally:
            slurm.stop()


def _uid(slurm: Slurm, user: str) -> int:
    return slurm.users.add(user)


def _submit(slurm: Slurm, user: str, script: str, *options: str) -> str:
    return str(submit_as(slurm, user, script, "--output=%j.log", *options))


def _state(slurm: Slurm, job: str) -> str:
    return slurm.run(
        "squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=State:40"
    ).stdout.strip()


def _output(slurm: Slurm, user: str, job: str) -> str:
    wait_until(
        lambda: _state(slurm, job) == "COMPLETED", f"job {job} to be completed", 20.0
    )
    return (slurm.users.home(user) / f"{job}.log").read_text()


def _commands(folder: Path) -> set[str]:
    """The command lines of all processes that belong to the cluster in a state folder.
    (slurmstepd writes its title over its environment: 22.05's over the beginning,
    24.11's over all. psutil then shows none.)
    """
    found, mark = set(), f"DEVGRID_STATE={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (
                (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            )
            ours = mark in (process / "environ").read_bytes().split(b"\0")
            if ours or (
                command.startswith("slurmstepd") and _opens(int(process.name), folder)
            ):
                found.add(command)
    return found


def _opens(pid: int, folder: Path) -> bool:
    return any(file.startswith(f"{folder}/") for file in open_files(pid))
