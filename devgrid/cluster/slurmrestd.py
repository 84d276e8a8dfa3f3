"""A private slurmrestd, for access to SLURM without a login node."""

import base64
import os
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devgrid.cluster.linux_users import Users, admin
from devgrid.cluster.slurm import slurm_version
from devgrid.processes import Processes, Running, unix_socket_answers

# neither root nor SlurmUser: slurmrestd does not run as one of them
USER = "slurmrestd"
NAME = "slurmrestd"
KEY = "jwt_hs256.key"


def new_jwt_key(folder: Path) -> Path:
    """A new key for slurmctld, in a folder that exists."""
    key = folder / KEY
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    return key


def jwt_conf(key: Path) -> tuple[str, str]:
    """The lines of slurm.conf by which slurmctld accepts tokens that are signed with
    this key.
    """
    return ("AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={key}")


def _api() -> tuple[str, ...]:
    """The options that choose the API. From SLURM 23.02 on, its version is a separate
    option.
    """
    if slurm_version().startswith("22.05"):
        return ("-s", "openapi/v0.0.38")
    return ("-s", "openapi/slurmctld", "-d", "v0.0.42")


@dataclass(frozen=True, slots=True)
class Slurmrestd:
    """A running slurmrestd on a Unix socket, and on `address` (host:port) if that is
    not empty.
    """

    processes: Processes
    url: str
    key: Path
    address: str = ""

    @classmethod
    def start(
        cls,
        processes: Processes,
        users: Users,
        environment: Mapping[str, str],
        key: Path,
        address: str = "",
    ) -> "Slurmrestd":
        """Start slurmrestd as a user of its own. It needs SLURM_CONF in `environment`,
        and gets no key.
        """
        folder, uid = processes.folder / NAME, users.add(USER)
        folder.mkdir(mode=0o755)
        os.chown(folder, uid, uid)
        socket = folder / "socket"
        argv = [
            "/usr/sbin/slurmrestd",
            "-u",
            str(uid),
            "-g",
            str(uid),
            *_api(),
            "-a",
            "rest_auth/jwt",
        ]
        env = {"PATH": os.environ["PATH"], **environment, "SLURM_JWT": "daemon"}
        listens = [f"unix:{socket}", *([address] if address else [])]
        processes.start(
            NAME, [*argv, *listens], env=env, ready=lambda: unix_socket_answers(socket)
        )
        return cls(processes, f"unix://{socket}", key, address)

    @property
    def running(self) -> Running:
        """Its process."""
        return self.processes.find(NAME)

    def settings(self, users: Users, environment: Mapping[str, str]) -> dict[str, str]:
        """The supervisor's settings for it. Jobs inherit `environment` without
        SLURM_CONF.
        """
        words = [
            f"{name}={shlex.quote(value)}"
            for name, value in environment.items()
            if name != "SLURM_CONF"
        ]
        return {
            "SLURM_TRANSPORT": "rest",
            "SLURMRESTD_URL": self.url,
            "SLURM_JWT_KEY": base64.b64encode(self.key.read_bytes()).decode(),
            "SLURM_JWT_ADMIN_USER": admin(),
            "SLURM_JOB_ENVIRONMENT": " ".join(words),
            "SLURM_JOB_HOME": f"{users.homes}/{{address}}",
        }
