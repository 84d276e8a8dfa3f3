"""`supervisor doctor` where nothing answers: it is done within 10 s, names each thing
and what mends it.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from devgrid import REPOSITORY
from devgrid.machine import deadline
from supervisor_tasks.doctor.check_results import Level
from tests.support.commands import supervisor

MAX_WAIT_S = 10.0
EVERYWHERE = "0.0.0.0"  # noqa: S104  only an address to refuse
PASSWORD = "not-to-be-shown"
SILENT = "silent"  # takes connections and says nothing; the other one refuses them
SERVERS = {
    "database",
    "broker",
    "contract",
    "SSH host key",
    "SSH login of the admin",
    "job definition service",
    "LDAP",
    "callbacks",
    "TLS of the job definition service",
    "TLS of the directory",
    "TLS of the broker",
    "TLS of the callbacks",
}


@pytest.fixture(params=[SILENT, "refusing"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port of this machine behind which nothing answers."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        if request.param == SILENT:
            server.listen(128)
        yield server.getsockname()[1]


@pytest.fixture
def environment(port: int, tmp_path: Path) -> Mapping[str, str]:
    """The settings of a whole fleet, all of whose servers are behind that port."""
    key = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    for name in ("cert.pem", "key.pem", "known_hosts"):
        (tmp_path / name).touch()
    here = f"127.0.0.1:{port}"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "STATE_DIR": str(tmp_path / "state"),
        "CLUSTER_NAME": "here",
        "DATABASE_URL": f"postgresql://someone:{PASSWORD}@{here}/ledger",
        "BROKER_URL": f"rediss://:{PASSWORD}@{here}/0",
        "ETH_PRIVATE_KEY": "0x" + "1" * 64,
        "METASCHEDULER_ENDPOINT_RPC": f"https://{here}/one,https://{here}/two",
        "METASCHEDULER_ENDPOINT_WS": f"wss://{here}",
        "SBATCH_ENDPOINT": here,
        "SLURM_SSH_ADDRESS": here,
        "SLURM_SSH_ADMIN_USER": "root",
        "SLURM_SSH_PRIVATE_KEY": base64.b64encode(key).decode(),
        "SLURM_SSH_KNOWN_HOSTS": str(tmp_path / "known_hosts"),
        "SLURM_SUBMIT_KEY": "a" * 64,
        "LDAP_URL": f"ldaps://{here}",
        "LDAP_BIND_DN": "cn=admin",
        "LDAP_BIND_PASSWORD": PASSWORD,
        "PUBLIC_ADDRESS": here,
        "FLOWER_URL": f"http://{here}",
        "TLS_ENABLE": "true",
        "TLS_CERT": str(tmp_path / "cert.pem"),
        "TLS_KEY": str(tmp_path / "key.pem"),
    }


def run(
    environment: Mapping[str, str], *words: str
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run `supervisor` in a process of its own; how long that took, with its start.

    It gives up waiting for a silent server, and what waits there ends later. If the
    server ends in between, Python leaves a socket open: wrap_socket of 3.11 does not
    close it where the connection was reset before the handshake.
    """
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
    begun_s = time.monotonic()
    done = subprocess.run(
        argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    return time.monotonic() - begun_s, done


@pytest.mark.quiet_machine
def test_doctor__everything_is_away__names_each_within_10_s(
    environment: Mapping[str, str],
) -> None:
    took_s, done = run(environment, "doctor", "--json")
    assert took_s < deadline(MAX_WAIT_S)
    assert done.returncode == 1, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)}
    red = {name for name, row in found.items() if row["level"] == Level.RED}
    assert red >= SERVERS
    assert {name for name in red if name.startswith("RPC endpoint ")} == {
        name for name in found if "endpoint http" in name
    }
    assert found["Flower"]["level"] == Level.YELLOW
    assert [
        row["level"]
        for name, row in found.items()
        if name.startswith("WebSocket endpoint ")
    ] == [Level.YELLOW]
    assert {name for name in red if name.startswith("TLS of the RPC endpoints")}
    no_certificate = (
        "start the service, or correct its address: no certificate was seen"
    )
    assert {
        row["mend"] for name, row in found.items() if name.startswith("TLS of")
    } == {no_certificate}
    assert found["SSH key pair"]["level"] == Level.SKIPPED
    assert all(found[name]["mend"] for name in red)
    assert (
        found["migrations"]["level"]
        == found["sbatch"]["level"]
        == found["wallet"]["level"]
        == Level.SKIPPED
    )
    assert not [
        row
        for row in found.values()
        if row["level"] == Level.GREEN and not row["name"].startswith("settings")
    ]
    assert PASSWORD not in done.stdout + done.stderr


def test_doctor__as_a_table__prints_only_the_ledger_beside_it(
    environment: Mapping[str, str],
) -> None:
    _, done = run(environment, "doctor")
    assert done.returncode == 1
    assert done.stderr.startswith("here@")
    assert done.stderr.count("\n") == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("red ")
    assert any(line.strip().startswith("mend: ") for line in lines)
    assert " red" in lines[-1]


DATABASE = {"database": "red", "migrations": "not tried"}
BROKER = {"broker": "red"}
TRIED = {
    "beat": DATABASE | BROKER,
    "flower": DATABASE | BROKER,
    "metrics": DATABASE,
    "reporter": {"callbacks": "red", "TLS of the callbacks": "red"},
}


@pytest.mark.parametrize("process", TRIED)
def test_config_check__of_each_process__tries_what_it_works_with(
    environment: Mapping[str, str], process: str
) -> None:
    _, tried = run(environment, "config", "check", process, "-o", "json")
    assert tried.returncode == 1, tried.stderr
    found = {row["name"]: row["level"] for row in json.loads(tried.stdout)}
    assert found == TRIED[process]


def test_config_check__flower_would_be_open_to_all__is_status_2(
    environment: Mapping[str, str],
) -> None:
    everywhere = {**environment, "FLOWER_ADDRESS": EVERYWHERE}
    refused = supervisor("config", "check", "flower", env=everywhere)
    assert refused.exit_code == 2
    assert f"FLOWER_ADDRESS: found '{EVERYWHERE}' and no password" in refused.stderr
    login = {**everywhere, "FLOWER_BASIC_AUTH": f"operator:{PASSWORD}"}
    good = supervisor("config", "check", "flower", "--form-only", env=login)
    assert good.exit_code == 0, good.output


def test_config_check__address_of_the_metrics_is_none__is_status_2(
    environment: Mapping[str, str],
) -> None:
    wrong = {**environment, "METRICS_ADDRESS": "9464"}
    refused = supervisor("config", "check", "metrics", env=wrong)
    assert refused.exit_code == 2
    assert "METRICS_ADDRESS: found '9464'" in refused.stderr


def test_config_check__servers_are_away__is_status_1_and_wrong_form_2(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    good = supervisor("config", "check", "beat", "--form-only", env=environment)
    assert good.exit_code == 0, good.output
    _, tried = run(environment, "config", "check", "beat", "-o", "json")
    assert tried.returncode == 1, tried.stderr
    assert {row["name"]: row["level"] for row in json.loads(tried.stdout)} == {
        "database": "red",
        "migrations": "not tried",
        "broker": "red",
    }
    bad = supervisor("config", "check", "beat", env={**environment, "CHAIN_ID": "x"})
    assert bad.exit_code == 2
    assert "CHAIN_ID: found 'x'" in bad.stderr
