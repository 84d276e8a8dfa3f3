"""A private OpenSSH: the login node. It gets the keys that may log in from the
supervisor's gRPC process.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devgrid import REPOSITORY
from devgrid.cluster.linux_users import BENCHMARK_USER, admin
from devgrid.ports import free_port
from devgrid.processes import Processes, answers


@dataclass(frozen=True, slots=True)
class Sshd:
    """A running sshd. `known_hosts` holds its host key under `address`."""

    address: str
    known_hosts: Path

    @classmethod
    def start(
        cls,
        processes: Processes,
        environment: Mapping[str, str],
        authorized_keys: Sequence[str],
        *,
        name: str = "sshd",
        options: Sequence[str] = (),
        trusted_ca: Path | None = None,
        admin_key: Path | None = None,
    ) -> "Sshd":
        """Start sshd on a free port of 127.0.0.1. Sessions get `environment`;
        `authorized_keys` is the program that prints the keys which may log in (`%u`
        stands for the user); `options` are lines of sshd_config in place of ours.
        `trusted_ca` is the file of a private key, with the public one beside it: then
        only certificates of that authority can log in, and no keys. `admin_key` is the
        file of a private key with which the admin user can log in even while
        `authorized_keys` does not answer.
        """
        if trusted_ca is not None:
            public = trusted_ca.with_suffix(".pub")
            options = (
                *options,
                f"TrustedUserCAKeys {public}",
                "AuthorizedKeysCommand none",
            )
        folder, port = processes.folder / name, free_port()
        folder.mkdir(mode=0o755)
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd separates its privileges
        host_key = folder / "host_key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)],
            check=True,
        )
        command = folder / "authorized-keys"
        words = [
            '"$1"' if word == "%u" else shlex.quote(word) for word in authorized_keys
        ]
        command.write_text(f"exec {' '.join(words)}\n")
        config = _with(options, _config(folder, port, environment))
        if admin_key is not None:
            config += f"Match User {admin()}\nAuthorizedKeysFile {admin_key.with_suffix('.pub')}\n"
        (folder / "sshd_config").write_text(config)
        argv = ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
        preload = {
            name: value for name, value in environment.items() if name != "SLURM_CONF"
        }
        processes.start(
            name,
            argv,
            env={"PATH": os.environ["PATH"], **preload},
            ready=lambda: answers(port),
        )
        known_hosts = folder / "known_hosts"
        kind, key, *_ = (folder / "host_key.pub").read_text().split()
        known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
        return cls(f"127.0.0.1:{port}", known_hosts)

    def also_at(self, address: str) -> None:
        """Let clients expect our host key at another address too, such as a proxy's."""
        _, kind, key = self.known_hosts.read_text().splitlines()[0].split()
        host, _, port = address.rpartition(":")
        with self.known_hosts.open("a") as file:
            file.write(f"[{host}]:{port} {kind} {key}\n")


def authorized_keys_command(
    supervisor: str, authority: Path, key: Path | None = None
) -> list[str]:
    """The project's own AuthorizedKeysCommand, for a supervisor at host:port with a
    certificate of that authority.
    """
    program = [
        sys.executable,
        "-I",
        "-S",
        str(REPOSITORY / "plugins" / "authorized_keys.py"),
    ]
    key_option = [] if key is None else ["--key", str(key)]
    allowed = [word for user in (admin(), BENCHMARK_USER) for word in ("--allow", user)]
    return [
        *program,
        "--supervisor",
        supervisor,
        "--ca",
        str(authority),
        *key_option,
        *allowed,
        "%u",
    ]


def _with(options: Sequence[str], config: str) -> str:
    """Replace lines of the configuration. If a line came twice, sshd would take the
    first one, but the last MaxStartups (OpenSSH 9.2).
    """
    given = {line.split()[0] for line in options}
    kept = [
        line for line in config.splitlines() if line and line.split()[0] not in given
    ]
    return "\n".join([*options, *kept, ""])


def _config(folder: Path, port: int, environment: Mapping[str, str]) -> str:
    # sshd rejects a command in a folder that all users can write to, such as /var/tmp.
    # So the command is bash.
    set_env = " ".join(f'{name}="{value}"' for name, value in environment.items())
    return "\n".join(
        [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host_key",
            f"PidFile {folder}/sshd.pid",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            # a customer's ~/.ssh/rc would run before each command, with any login shell
            "PermitUserRC no",
            # ~/.ssh/environment could name a file for the shell to read
            "PermitUserEnvironment no",
            "AuthorizedKeysFile none",
            f"AuthorizedKeysCommand /bin/bash {folder}/authorized-keys %u",
            "AuthorizedKeysCommandUser root",
            "MaxSessions 64",
            "MaxStartups 200:30:400",
            f"SetEnv {set_env}",
            "",
        ]
    )
