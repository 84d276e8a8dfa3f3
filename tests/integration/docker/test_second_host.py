"""docs/how-to/several-clusters.md: Postgres and Redis of the first host for a fleet on a
second one. Its commands run in a folder in place of /etc, then the servers are asked at
an address that is not 127.0.0.1.
"""

import dataclasses
import os
import re
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import psycopg
import pytest
import redis

from devgrid import REPOSITORY
from devgrid.ports import free_port
from devgrid.processes import Processes
from devgrid.services.start import start_server
from devgrid.tls import Certificates, make_certificates
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.settings import load
from supervisor_tasks.messaging.queues import Queue

PAGE = (REPOSITORY / "docs" / "how-to" / "several-clusters.md").read_text()
HOSTS = re.search(
    r"^## A second host.*?^```sh\n(.*?)^```.*?^```sh\n(.*?)^```", PAGE, re.M | re.S
)
CA = "servers_ca.pem"
ADDRESS = "127.0.0.2"  # of this machine, as is each of 127.0.0.0/8
CREDENTIALS = {
    "database_url": "postgresql://supervisor:ledger-password@127.0.0.1/supervisor\n",
    "broker_url": "redis://:broker-password@127.0.0.1:6379/0\n",
}


class FirstHost:
    """The first host after step 3 of deploy.md, and after the commands of the page."""

    def __init__(self, folder: Path) -> None:
        self.etc = folder / "etc"
        for each in (
            "redis",
            "postgresql/15/main/conf.d",
            "grid-supervisor/credentials",
            "sysctl.d",
        ):
            (self.etc / each).mkdir(parents=True)
        for name, url in CREDENTIALS.items():
            (self.etc / "grid-supervisor" / "credentials" / name).write_text(url)
        self.redis_conf = self.etc / "redis" / "redis.conf"
        # as Debian has it, and as step 3 adds
        self.redis_conf.write_text(
            'bind 127.0.0.1 -::1\nport 6379\nrequirepass broker-password\nsave ""\n'
        )
        self.certificates: Certificates = make_certificates(folder / "tls")
        for name, file in zip(
            ("ca.pem", "tls.crt", "tls.key"),
            dataclasses.astuple(self.certificates),
            strict=True,
        ):
            shutil.copy(file, folder / name)
        for name in ("systemctl", "sysctl"):
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
        self.folder = folder

    def follow(self) -> None:
        assert HOSTS is not None
        commands = re.sub(r" -g (postgres|redis)\b", "", HOSTS[1])
        commands = commands.replace("/etc/", f"{self.etc}/")
        commands = commands.replace("10.0.0.1", ADDRESS)
        # where a call to an address of this machine comes from
        commands = commands.replace("10.0.0.2", "127.0.0.1")
        path = f"{self.folder}:{os.environ['PATH']}"
        subprocess.run(
            ["sh", "-euc", commands],
            cwd=self.folder,
            env=os.environ | {"PATH": path},
            check=True,
        )

    def url(self, name: str) -> str:
        """A credential of both fleets."""
        return (self.etc / "grid-supervisor" / "credentials" / name).read_text().strip()


@pytest.fixture(scope="module")
def first_host(tmp_path_factory: pytest.TempPathFactory) -> FirstHost:
    made = FirstHost(tmp_path_factory.mktemp("host"))
    made.follow()
    return made


def test_page__urls_of_both_hosts__name_the_first_and_want_its_certificate(
    first_host: FirstHost,
) -> None:
    settings = (first_host.etc / "grid-supervisor" / "settings.env").read_text()
    given = dict(line.split("=", 1) for line in settings.splitlines())
    urls = {name.upper(): first_host.url(name) for name in CREDENTIALS}
    assert all("@first.example.com" in url for url in urls.values())
    assert "sslmode=verify-full" in urls["DATABASE_URL"]
    read = load(environment=urls | given)
    tls = embedded_servers.broker_tls(read)
    assert tls is not None
    assert tls["ssl_cert_reqs"] is ssl.CERT_REQUIRED
    for file in (tls["ssl_ca_certs"], urls["DATABASE_URL"].rpartition("=")[2]):
        assert Path(file).read_text() == first_host.certificates.ca.read_text()


def test_page__files_of_the_second_host__only_root_reads_the_credentials(
    first_host: FirstHost, tmp_path: Path
) -> None:
    assert HOSTS is not None
    ours = first_host.etc / "grid-supervisor"
    files = [*(ours / "credentials" / name for name in CREDENTIALS), ours / CA]
    for file in files:
        shutil.copy(file, tmp_path)
    etc = tmp_path / "etc"
    etc.mkdir()
    subprocess.run(
        ["sh", "-euc", f"umask 022; {HOSTS[2].replace('/etc/', f'{etc}/')}"],
        cwd=tmp_path,
        check=True,
    )
    credentials = etc / "grid-supervisor" / "credentials"
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o700
    for file in files[:-1]:
        made = credentials / file.name
        assert made.read_text() == file.read_text()
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert (etc / "grid-supervisor" / CA).read_text() == files[-1].read_text()
    assert [path.name for path in tmp_path.iterdir() if path != etc] == [CA]


def test_redis__of_the_page__serves_the_second_host_over_tls_alone(
    first_host: FirstHost, processes: Processes, tmp_path: Path
) -> None:
    port = free_port()
    conf = tmp_path / "redis.conf"
    conf.write_text(
        first_host.redis_conf.read_text().replace("6379", str(port))
        + f"dir {tmp_path}\n"
    )

    def client(**more: object) -> redis.Redis:
        options = {
            "host": ADDRESS,
            "port": port,
            "ssl": True,
            "ssl_ca_certs": str(first_host.certificates.ca),
            "ssl_check_hostname": False,  # the certificate is for another name
        }
        return redis.Redis(**(options | more))  # type: ignore[arg-type]

    user = {"username": "supervisor", "password": "broker-password"}

    def answers() -> bool:
        try:
            return bool(client(**user).ping())
        except redis.RedisError:
            return False

    processes.start("redis-of-the-page", ["redis-server", str(conf)], ready=answers)
    ours = client(**user)
    assert ours.lpush(Queue.CHAIN.of("second"), "message") == 1
    with pytest.raises(redis.RedisError, match="permissions"):
        ours.config_get("*")
    with pytest.raises(redis.RedisError):  # the user of step 3's URL
        client(password="broker-password").ping()
    with pytest.raises(redis.RedisError):
        client(**user, ssl=False).ping()


def test_postgres__of_the_page__lets_the_second_host_in_by_password(
    first_host: FirstHost, processes: Processes
) -> None:
    """The embedded Postgres has no TLS, so the lines about that are left out."""
    main = first_host.etc / "postgresql" / "15" / "main"
    lines = (main / "conf.d" / "clusters.conf").read_text().splitlines()
    assert [line for line in lines if line == "ssl = on"] == ["ssl = on"]
    rules = (main / "pg_hba.conf").read_text()
    assert {line.split()[0] for line in rules.splitlines()} == {"hostssl"}
    folder = processes.folder / "postgres"
    folder.mkdir()
    server = embedded_servers.postgres(folder)
    port = free_port()
    argv = [
        word
        for option, value in zip(server.argv[3::2], server.argv[4::2], strict=True)
        if value.partition("=")[0] not in ("listen_addresses", "max_connections")
        for word in (option, value)
    ]
    with (folder / "data" / "postgresql.conf").open("a") as file:
        file.write("\n".join(line for line in lines if not line.startswith("ssl")))
        file.write(f"\nport = {port}\n")
    with (folder / "pg_hba.conf").open("a") as file:
        file.write(rules.replace("hostssl", "host"))
    socket = server.socket.with_name(f".s.PGSQL.{port}")
    server = dataclasses.replace(
        server,
        argv=[*server.argv[:3], *argv],
        socket=socket,
        url=f"{server.url}&port={port}",
    )
    start_server(processes, "postgres", server)
    with psycopg.connect(
        server.url.replace("+psycopg", ""), autocommit=True
    ) as operator:
        operator.execute("CREATE ROLE supervisor LOGIN PASSWORD 'ledger-password'")
        operator.execute("CREATE DATABASE supervisor OWNER supervisor")
        operator.execute("CREATE ROLE stranger LOGIN PASSWORD 'ledger-password'")
    url = f"postgresql://supervisor:ledger-password@{ADDRESS}:{port}/supervisor"
    with psycopg.connect(url) as ours:
        assert ours.execute("SHOW max_connections").fetchone() == ("200",)
    for other in (url.replace("supervisor:", "stranger:"), f"{url[:-10]}postgres"):
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf"):
            psycopg.connect(other)
