"""A credential of the worker's is stolen: with certificates it opens one account for
five minutes, and no other.
"""

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import paramiko
import pytest

from devgrid.cluster.linux_users import admin
from devgrid.cluster.sshd import Sshd
from devgrid.machine import deadline
from supervisor_tasks.bootstrap import slurm_services
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.jobs.model import Address, State
from supervisor_tasks.slurm.certificates import (
    CERTIFICATE_CLOCKS_APART_S,
    LIFE_S,
    CertificateAuthority,
    NoSuchPrincipalError,
    authority_key,
)
from supervisor_tasks.slurm.cluster import over_ssh
from supervisor_tasks.slurm.ssh import Keys, Ssh, SshUnavailableError, load_key
from tests.support.submission_env import CUSTOMER, SubmissionEnv, new_key

OTHER = Address("0x" + "7" * 40)
TRIES = 5


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as submission_env:
        submission_env.slurm.users.add(OTHER)
        yield submission_env


@pytest.fixture(scope="module")
def ca(submission_env: SubmissionEnv) -> Path:
    return new_key(submission_env.processes.folder / "ca")


@pytest.fixture(scope="module")
def sshd(submission_env: SubmissionEnv, ca: Path) -> Sshd:
    """An sshd that trusts the authority and no key. It would run ~/.ssh/rc, and
    forward, if a certificate permitted it.
    """
    options = ("PermitUserRC yes",)
    return Sshd.start(
        submission_env.processes,
        submission_env.slurm.env(),
        (),
        name="trusting",
        options=options,
        trusted_ca=ca,
    )


@pytest.fixture(scope="module")
def authority(ca: Path) -> CertificateAuthority:
    return CertificateAuthority(
        authority_key(ca.read_text()), {admin()}, "supervisor here"
    )


def ssh_with(sshd: Sshd, keys: Keys) -> Ssh:
    return Ssh(sshd.address, keys, sshd.known_hosts, connect_timeout_s=deadline(5.0))


def opens(sshd: Sshd, keys: Keys, user: str) -> bool:
    """Whether sshd lets that user in. Raises errors that are no refusal of the key."""
    ssh = ssh_with(sshd, keys)
    try:
        return ssh.run(user, ["id", "-un"]).stdout == f"{user}\n"
    except SshUnavailableError as error:
        if "Authentication failed" not in str(error):
            raise
        return False
    finally:
        ssh.close()


def test_key__without_certificates__opens_every_account(
    submission_env: SubmissionEnv,
) -> None:
    """The reason for certificates: without them, a stolen key opens every account for
    ever.
    """
    key = load_key(submission_env.key.read_text())
    assert opens(submission_env.sshd, lambda _: key, CUSTOMER)
    assert opens(submission_env.sshd, lambda _: key, OTHER)


def test_certificate__stolen__opens_the_account_that_it_names_and_no_other(
    sshd: Sshd, authority: CertificateAuthority
) -> None:
    stolen = authority.key_for(CUSTOMER)
    assert opens(sshd, lambda _: stolen, CUSTOMER)
    assert not opens(sshd, lambda _: stolen, OTHER)
    assert not opens(sshd, lambda _: stolen, admin())
    assert opens(sshd, authority.key_for, admin())


def test_certificate__signed_at_several_times__is_good_for_five_minutes(
    sshd: Sshd, authority: CertificateAuthority
) -> None:
    assert (LIFE_S, CERTIFICATE_CLOCKS_APART_S) == (300, 300)
    now_s = time.time()
    for signed_ago_s, good in (
        (LIFE_S - 60, True),
        (LIFE_S + 5, False),
        (-CERTIFICATE_CLOCKS_APART_S + 60, True),
        (-600, False),
    ):
        signer = replace(authority, clock=partial(float, now_s - signed_ago_s))
        assert opens(sshd, signer.key_for, CUSTOMER) is good, signed_ago_s


def test_key__without_its_certificate__opens_nothing(
    sshd: Sshd, authority: CertificateAuthority, ca: Path
) -> None:
    bare = authority.key_for(CUSTOMER)
    bare.public_blob = None
    assert not opens(sshd, lambda _: bare, CUSTOMER)
    # nor does the authority's
    assert not opens(sshd, lambda _: load_key(ca.read_text()), CUSTOMER)


def test_certificate__of_another_authority__opens_nothing(
    submission_env: SubmissionEnv, sshd: Sshd
) -> None:
    forged = CertificateAuthority(
        authority_key(new_key(submission_env.processes.folder / "forged").read_text()),
        {admin()},
        "supervisor here",
    )
    assert not opens(sshd, forged.key_for, CUSTOMER)
    assert not opens(sshd, forged.key_for, admin())


def test_authority__asked_for_any_other_user_of_the_system__signs_nothing(
    authority: CertificateAuthority,
) -> None:
    for user in ("daemon", "stranger", "0x12", "root,daemon"):
        with pytest.raises(NoSuchPrincipalError):
            authority.key_for(user)


def test_session__of_a_certificate__has_no_terminal_no_forwarding_and_no_rc_file(
    submission_env: SubmissionEnv, sshd: Sshd, authority: CertificateAuthority
) -> None:
    home = submission_env.slurm.users.home(CUSTOMER)
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "rc").write_text(f"touch {home}/was-read\n")
    host, _, port = sshd.address.rpartition(":")
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(sshd.known_hosts))
        client.connect(
            host,
            int(port),
            CUSTOMER,
            pkey=authority.key_for(CUSTOMER),
            look_for_keys=False,
            allow_agent=False,
        )
        transport = client.get_transport()
        assert transport is not None
        with pytest.raises(paramiko.ChannelException):
            transport.open_channel(
                "direct-tcpip", (host, int(port)), (host, 1), timeout=deadline(10)
            )
        with pytest.raises(paramiko.SSHException):
            transport.open_session().get_pty()
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(sshd.known_hosts))
        client.connect(
            host,
            int(port),
            CUSTOMER,
            pkey=authority.key_for(CUSTOMER),
            look_for_keys=False,
            allow_agent=False,
        )
        assert client.exec_command("echo here")[1].read() == b"here\n"
    (home / ".ssh" / "rc").unlink()
    assert not (home / "was-read").exists()


def test_connection__outlives_its_certificate__and_the_next_one_is_signed_for_again(
    sshd: Sshd, authority: CertificateAuthority
) -> None:
    ends_s, left_s = list[float](), int(deadline(3.0))
    ages_s = iter([LIFE_S - left_s] * TRIES)

    def sign(user: str) -> paramiko.PKey:
        """A certificate that ends soon, until there is a connection."""
        now_s, ago_s = time.time(), next(ages_s, 0)
        ends_s.append(now_s - ago_s + LIFE_S)
        return replace(authority, clock=lambda: now_s - ago_s).key_for(user)

    def logs_in() -> bool:
        try:
            return ssh.run(CUSTOMER, ["true"]).status == 0
        except SshUnavailableError:
            return False  # a busy machine needed all the time that was left

    ssh = ssh_with(sshd, sign)
    assert any(logs_in() for _ in range(TRIES))
    ages_s, tries = iter([]), len(ends_s)
    wait = "while [ $(date +%s) -le $1 ]; do sleep 0.2; done; echo still here"
    assert (
        ssh.run(
            CUSTOMER, ["/bin/sh", "-c", wait, "wait", str(int(ends_s[-1]) + 1)]
        ).stdout
        == "still here\n"
    )
    assert ssh.run(CUSTOMER, ["true"]).status == 0
    assert len(ends_s) == tries
    ssh.close()
    assert ssh.run(CUSTOMER, ["true"]).status == 0
    assert len(ends_s) == tries + 1
    ssh.close()


def test_submission__site_with_certificates__queues_the_job(
    submission_env: SubmissionEnv, sshd: Sshd, ca: Path
) -> None:
    """With the settings of a site: the worker has the authority's key, and no other."""
    settings = load(
        Need.SLURM,
        environment={
            "SLURM_SSH_CERTIFICATES": "true",
            "SLURM_SSH_CA_KEY": base64.b64encode(ca.read_bytes()).decode(),
            "SLURM_SSH_ADDRESS": sshd.address,
            "SLURM_SSH_ADMIN_USER": admin(),
            "SLURM_SSH_KNOWN_HOSTS": str(sshd.known_hosts),
        },
    )
    site = submission_env.site(over_ssh(slurm_services(settings).cluster))
    job = submission_env.new_job(site)
    assert submission_env.carry_out(site, job).state is State.QUEUED
    site.slurm.cluster.close()
    site.ledger.holder.close()
