"""A private SLURM: Debian's own slurmctld and slurmd, several nodes on one machine."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devgrid.cluster import slurm_hooks
from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm_conf import (
    SlurmLayout,
    cgroup_conf,
    gres_conf,
    plugstack_conf,
    slurm_conf,
    slurmdbd_conf,
)
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import (
    Processes,
    StartError,
    answers,
    unix_socket_answers,
    wait_until,
)

OTHER_CLUSTERS = "clusters"  # the folder of a grid's clusters but the first

# SLURM's own figures of each job that has ended, for tests that compare them later:
# slurmctld forgets them. The line goes to `completed` before our hook is called, and to
# `reported_ends` after the hook has ended, with any status: a hook may die with a
# slurmctld that is killed.
COMPLETED = r"""#!/bin/sh
line="$JOBID|$JOBSTATE|$EXITCODE|$START|$END|$STDOUT|$JOBNAME"
printf '%s\n' "$line" >>{folder}/completed
{folder}/plugins/supervisor-ended
status=$?
printf '%s\n' "$line" >>{folder}/reported_ends
exit $status
"""


def cluster_folders(folder: Path) -> list[Path]:
    """The folders of a grid's clusters. The files of the first one are in the grid's
    own folder.
    """
    return [folder, *sorted((folder / OTHER_CLUSTERS).glob("*"))]


def end_jobs(folder: Path, users: Users) -> None:
    """Cancel all jobs of the SLURM in a state folder and wait until none is left, so
    that no process of a job stays. A fleet that still works may submit more jobs
    meanwhile; these are cancelled, too. Jobs that SLURM does not end in time are told
    of on stderr: their processes are killed like all others of the folder.
    """
    environment = {
        **os.environ,
        "SLURM_CONF": str(folder / "slurm" / "slurm.conf"),
        **users.environment(),
    }
    cancelled: set[str] = set()

    def run(*argv: str) -> str:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=deadline(60)
        )
        return done.stdout

    def none_left() -> bool:
        jobs = run("squeue", "--noheader", "--format=%A").split()
        if new := [job for job in jobs if job not in cancelled]:
            run("scancel", "--signal=KILL", "--full", *new)
            run("scancel", *new)
            cancelled.update(new)
        return not jobs

    try:
        wait_until(none_left, "all jobs to end", 20.0, every_s=0.1)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"devgrid: jobs of {folder} did not end: {error!r}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Slurm:
    """A running cluster."""

    processes: Processes
    users: Users
    layout: SlurmLayout

    @classmethod
    def start(
        cls,
        processes: Processes,
        users: Users,
        *,
        spool: Path,
        cluster_name: str = "devgrid",
        nodes: int = 4,
        cpus_per_node: int = 8,
        memory_mb: int = 16_000,
        gpus_per_node: int = 2,
        partition: str = "main",
        accounting: bool = False,
        min_job_age_s: int = 300,
        node_spool: Path | None = None,
        job_submit: bool = False,
        threads_per_core: int = 1,
        also: Sequence[str] = (),
    ) -> "Slurm":
        """Start munge, the controller and the nodes. Returns when all nodes are idle.
        The hooks write to `spool`. With a `node_spool`, the nodes load the SPANK
        plugin, which writes to that one. With `job_submit`, slurmctld accepts
        customers' jobs from the supervisor only. `also` are more lines of slurm.conf.
        """
        layout = SlurmLayout(
            folder=processes.folder / "slurm",
            cluster_name=cluster_name,
            controller_port=free_port(),
            node_ports=tuple(free_port() for _ in range(nodes)),
            cpus_per_node=cpus_per_node,
            memory_mb=memory_mb,
            gpus_per_node=gpus_per_node,
            partition=partition,
            min_job_age_s=min_job_age_s,
            accounting_port=free_port() if accounting else None,
            spank=node_spool is not None,
            job_submit=job_submit,
            threads_per_core=threads_per_core,
            also=tuple(also),
        )
        slurm = cls(processes, users, layout)
        slurm._write_files(spool, node_spool)
        slurm._start_munge()
        if accounting:
            slurm._start_accounting()
        slurm.start_controller()
        for number in range(1, nodes + 1):
            slurm.start_node(number)
        wait_until(slurm._all_idle, "all nodes to be idle", 30.0, every_s=0.1)
        return slurm

    def env(self) -> dict[str, str]:
        """The environment of SLURM's commands. A job inherits it, with DEVGRID_STATE:
        by this variable `Processes` finds a job's processes that SLURM no longer tracks
        (proctrack/linuxproc follows parents only).
        """
        conf = str(self.layout.folder / "slurm.conf")
        return {
            "SLURM_CONF": conf,
            "DEVGRID_STATE": str(self.processes.folder),
            **self.users.environment(),
        }

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of SLURM's commands as the admin."""
        return subprocess.run(
            argv,
            env={**os.environ, **self.env()},
            capture_output=True,
            text=True,
            timeout=deadline(60),
        )

    @property
    def submit_key(self) -> str:
        """The key of the supervisor's submission tokens; empty without
        job_submit.lua.
        """
        return (
            (self.layout.folder / slurm_hooks.SUBMIT_KEY).read_text().strip()
            if self.layout.job_submit
            else ""
        )

    def start_controller(self, *options: str) -> None:
        """Start slurmctld and wait until it answers."""
        argv = [*self._daemon("slurmctld"), *options]
        self.processes.start(
            "slurmctld", argv, env=self._environment(), ready=self._pings
        )

    def start_node(self, number: int) -> None:
        """Start the slurmd of a node."""
        argv = [*self._daemon("slurmd"), "-N", f"node{number}"]
        self.processes.start(f"slurmd-node{number}", argv, env=self._environment())

    def stop(self) -> None:
        """End all jobs."""
        end_jobs(self.processes.folder, self.users)

    def _daemon(self, name: str) -> list[str]:
        return [f"/usr/sbin/{name}", "-D", "-f", str(self.layout.folder / "slurm.conf")]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **self.env()}

    def _pings(self) -> bool:
        return "is UP" in self.run("scontrol", "ping").stdout

    def _all_idle(self) -> bool:
        main = f"--partition={self.layout.partition}"
        shown = self.run(
            "sinfo", "--noheader", "--Node", main, "--format=%t"
        ).stdout.split()
        return shown == ["idle"] * len(self.layout.node_ports)

    def _write_files(self, spool: Path, node_spool: Path | None) -> None:
        folder = self.layout.folder
        for name in ("munge", "state", "spool", "dev"):
            (folder / name).mkdir(parents=True)
        for number in range(self.layout.gpus_per_node):
            (folder / "dev" / f"gpu{number}").symlink_to("/dev/null")
        slurm_hooks.install(folder / "plugins", spool)
        if node_spool is not None:
            (folder / "plugstack.conf").write_text(
                plugstack_conf(self.layout, node_spool)
            )
        if self.layout.job_submit:
            slurm_hooks.install_job_submit(folder)
        (folder / "completed.sh").write_text(COMPLETED.format(folder=folder))
        (folder / "completed.sh").chmod(0o755)
        (folder / "slurm.conf").write_text(slurm_conf(self.layout))
        (folder / "gres.conf").write_text(gres_conf(self.layout))
        (folder / "cgroup.conf").write_text(
            cgroup_conf(self.layout, _numbers(slurm_version()))
        )

    def _start_munge(self) -> None:
        munge = self.layout.munge_socket.parent
        munge.chmod(0o755)
        key = munge / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {
            "socket": "munge.socket",
            "key-file": "munge.key",
            "log-file": "munged.log",
            "pid-file": "munged.pid",
        }
        options = [f"--{name}={munge / file}" for name, file in files.items()]
        argv = [
            "/usr/sbin/munged",
            "--foreground",
            "--force",
            *options,
            f"--seed-file={munge / 'munged.seed'}",
        ]
        self.processes.start(
            "munged",
            argv,
            env=self._environment(),
            ready=self.layout.munge_socket.exists,
        )

    def _start_accounting(self) -> None:
        folder, port = self.layout.folder / "mariadb", free_port()
        self._install_mariadb(folder)
        socket = folder / "mysqld.sock"
        argv = [
            "/usr/sbin/mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={folder / 'data'}",
            f"--socket={socket}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--pid-file={folder / 'mariadbd.pid'}",
            _own_tmpdir(folder),
        ]
        self.processes.start(
            "mariadbd", argv, ready=lambda: unix_socket_answers(socket)
        )
        # slurmdbd would create a missing database itself. With libmariadb3 11.8.9 it
        # then ends with error 5027: that library refuses every result on a connection
        # whose first attempt failed.
        grant = "CREATE DATABASE slurm_acct_db;"
        grant += "CREATE USER slurm@'127.0.0.1'; CREATE USER slurm@localhost; GRANT ALL ON *.* TO slurm@'127.0.0.1';"
        grant += "GRANT ALL ON *.* TO slurm@localhost;"
        subprocess.run(
            ["mariadb", "--no-defaults", f"--socket={socket}", "-e", grant], check=True
        )
        conf = self.layout.folder / "slurmdbd.conf"
        conf.write_text(slurmdbd_conf(self.layout, port))
        conf.chmod(0o600)
        accounting_port = self.layout.accounting_port or 0
        environment = self._environment() | {
            "SLURM_CONF": str(self.layout.folder / "slurm.conf")
        }
        self.processes.start(
            "slurmdbd",
            ["/usr/sbin/slurmdbd", "-D"],
            env=environment,
            ready=lambda: answers(accounting_port),
        )
        added = self.run("sacctmgr", "-i", "add", "cluster", self.layout.cluster_name)
        if added.returncode != 0 and "Nothing new added" not in added.stdout:
            raise StartError(f"sacctmgr add cluster: {added.stdout}{added.stderr}")

    def _install_mariadb(self, folder: Path) -> None:
        (folder / "tmp").mkdir(parents=True)
        install = shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db"
        argv: Sequence[str] = [
            install,
            "--no-defaults",
            "--user=root",
            f"--datadir={folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            _own_tmpdir(folder),
        ]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise StartError(
                f"mariadb-install-db: {done.stdout[-500:]}{done.stderr[-500:]}"
            )


def slurm_version() -> str:
    """Return the version of the SLURM that is installed, such as 22.05.8."""
    shown = subprocess.run(
        ["/usr/sbin/slurmctld", "-V"], check=True, capture_output=True, text=True
    ).stdout
    return shown.split()[-1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _own_tmpdir(folder: Path) -> str:
    """The option for a tmpdir of its own: at its start, MariaDB deletes all temporary
    tables there, in /tmp also others'.
    """
    return f"--tmpdir={folder / 'tmp'}"
