"""Probes of the login node, its users and SLURM behind it, or of slurmrestd. They
change nothing: sbatch gets --test-only.
"""

import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import paramiko

from supervisor_tasks.config import ssh_keys
from supervisor_tasks.doctor.check_results import (
    Finding,
    NotTriedError,
    green,
    yellow,
)
from supervisor_tasks.doctor.probe_context import CONNECT_S, ProbeContext
from supervisor_tasks.doctor.probe_runner import Probe
from supervisor_tasks.doctor.verdicts import (
    accounting_verdict,
    associations_verdict,
    clock_verdict,
    confinement_verdict,
    controller_verdict,
    host_key_verdict,
    job_limits_verdict,
    job_submit_verdict,
    key_pair_verdict,
    nodes_verdict,
    off_within_s,
    version_verdict,
)
from supervisor_tasks.ledger.facts import SLURM_CLUSTER
from supervisor_tasks.slurm import commands, site_limits
from supervisor_tasks.slurm.cluster import over_ssh
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.parsers import controller_time_s

COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "sacct")
COMMAND_S = 4.0
LOGIN = "read sshd's log on the login node: SLURM_SSH_ADDRESS, SLURM_SSH_ADMIN_USER, and whether it takes our key"
CUSTOMER = "read sshd's log on the login node: the customer's account, and the AuthorizedKeysCommand"
RESTD = "start slurmrestd; SLURMRESTD_URL, SLURM_JWT_ADMIN_USER, and SLURM_JWT_KEY must be slurmctld's jwt_key"
SLURM = "run `scontrol ping` on the login node, and read slurmctld's log"


def host_key(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the login node shows the host key that we know."""
    shared.require_ssh()
    address = shared.settings.slurm_ssh_address
    assert address is not None  # noqa: S101  required
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    known = _known_keys(shared.settings.slurm_ssh_known_hosts, host, int(port))
    with socket.create_connection((host, int(port)), CONNECT_S) as connection:
        transport = paramiko.Transport(connection)
        try:
            options = transport.get_security_options()
            # as a login asks for it
            options.key_types = sorted(
                options.key_types, key=lambda kind: kind not in known
            )
            transport.start_client(timeout=CONNECT_S)
            shown = transport.get_remote_server_key()
        finally:
            transport.close()
    file = str(shared.settings.slurm_ssh_known_hosts)
    fingerprints = [key.fingerprint for key in known.values()]
    yield host_key_verdict(address, shown.fingerprint, fingerprints, file)


def _known_keys(file: Path, host: str, port: int) -> dict[str, paramiko.PKey]:
    """Return the keys of a host in a file of OpenSSH's form, by their type; none if
    there is no such file.
    """
    if not file.exists():
        return {}
    name = f"[{host}]:{port}"
    if port == 22:
        name = host
    return dict((paramiko.HostKeys(str(file)).lookup(name) or {}).items())


def key_pair(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the public key that customers' logins are let in by is that of the key
    that we log in with.
    """
    private = shared.settings.slurm_ssh_private_key
    public = shared.settings.slurm_ssh_public_key
    if private is None or public is None:
        raise NotTriedError(
            "not both SLURM_SSH_PRIVATE_KEY and SLURM_SSH_PUBLIC_KEY are set here"
        )
    yield key_pair_verdict(ssh_keys.public_half(private.get_secret_value()), public)


def admin_login(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the login node lets the admin user in."""
    shared.require_ssh()
    yield green(
        "SSH login of the admin",
        f"{over_ssh(shared.slurm.get().cluster).login_node.admin} may log in",
    )


def customer_login(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the login node lets a customer in."""
    shared.slurm.needed()
    yield green("SSH login of a customer", f"{shared.login.get()} may log in")


def version(name: str, shared: ProbeContext) -> Iterator[Finding]:
    """Whether a SLURM command is there, and its version."""
    if name == "sacct" and not shared.settings.slurm_accounting:
        raise NotTriedError("SLURM_ACCOUNTING is false")
    login_node = over_ssh(shared.slurm.needed().cluster).login_node
    path = getattr(shared.settings, f"slurm_{name}_path")
    answer = login_node.ssh.run(
        login_node.admin, [path, "--version"], timeout_s=COMMAND_S
    )
    yield version_verdict(
        name,
        f"SLURM_{name.upper()}_PATH={path}",
        answer.status,
        answer.stdout,
        answer.stderr,
    )


def controller(shared: ProbeContext) -> Iterator[Finding]:
    """Whether slurmctld answers, and is the one that has the ledger's jobs."""
    shared.slurm.needed()
    identity = shared.controller.get().identity
    known = _known_cluster(shared)
    same = known is None or identity.is_the_same_as(ClusterIdentity.parse(known))
    yield controller_verdict(str(identity), known, same=same)


def _known_cluster(shared: ProbeContext) -> str | None:
    """Return the identity of the SLURM that has the ledger's jobs; None if the ledger
    has none, or does not answer.
    """
    try:
        return shared.ledger.facts.get(SLURM_CLUSTER)
    except NotTriedError:
        return None


def accounting(shared: ProbeContext) -> Iterator[Finding]:
    """Whether accounting answers where it is asked, and is asked where it exists."""
    login_node = over_ssh(shared.slurm.needed().cluster).login_node
    asked = shared.settings.slurm_accounting
    unused = shared.controller.needed().accounting_unused
    status, stderr = 0, ""
    if asked:
        argv = [
            shared.settings.slurm_sacct_path,
            "--allocations",
            "--noheader",
            "--starttime=now-1minutes",
        ]
        answer = login_node.ssh.run(login_node.admin, argv, timeout_s=COMMAND_S)
        status, stderr = answer.status, answer.stderr
    yield accounting_verdict(asked=asked, unused=unused, status=status, stderr=stderr)


def nodes(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the partition has nodes that work."""
    services = shared.slurm.needed()
    shared.controller.needed()
    found = services.nodes.hardware()
    yield nodes_verdict(
        len(found.nodes), services.cluster.settings.partition, len(found.excluded_nodes)
    )


def confinement(shared: ProbeContext) -> Iterator[Finding]:
    """Whether nodes confine jobs, by slurmctld's answer to `scontrol show config`."""
    yield confinement_verdict(site_limits.confinement(shared.slurm_config.get()))


def job_limits(shared: ProbeContext) -> Iterator[Finding]:
    """Whether SLURM gives jobs more than they ask for, by slurmctld's answers to
    `scontrol show config` and `scontrol show partition`.
    """
    cluster = over_ssh(shared.slurm.needed().cluster)
    login_node = cluster.login_node
    config = shared.slurm_config.needed()
    argv = commands.show_partition(
        login_node.paths.scontrol, cluster.settings.partition
    )
    partition = login_node.ssh.run(login_node.admin, argv, timeout_s=COMMAND_S)
    yield job_limits_verdict(site_limits.job_limits(config, partition))


def associations(shared: ProbeContext) -> Iterator[Finding]:
    """Whether new customers get what slurmctld requires of a user in accounting."""
    cluster = over_ssh(shared.slurm.needed().cluster)
    required = site_limits.requires_associations(shared.slurm_config.needed())
    yield associations_verdict(cluster.settings.customer_account, required=required)


def job_submit(shared: ProbeContext) -> Iterator[Finding]:
    """Whether slurmctld rejects a customer's job without payment. sbatch only asks, and
    submits nothing.

    The customer's own start-up files could forge this answer; the sweep watches the
    jobs themselves (foreign_jobs.py).
    """
    if shared.settings.slurm_submit_key is None:
        raise NotTriedError(
            "SLURM_SUBMIT_KEY is not set here: the site does not use it, or the slurm worker has it"
        )
    cluster, user = over_ssh(shared.slurm.needed().cluster), shared.login.needed()
    shared.controller.needed()
    words = (
        "--test-only",
        "--ntasks=1",
        "--time=1",
        "--job-name=supervisor-doctor",
        "--wrap=true",
    )
    argv = [
        cluster.login_node.paths.sbatch,
        f"--partition={cluster.settings.partition}",
        *words,
    ]
    answer = cluster.login_node.ssh.ask(user, argv)
    yield job_submit_verdict(answer.status, answer.stderr)


def login_clock(shared: ProbeContext) -> Iterator[Finding]:
    """How far the login node's clock is from ours."""
    theirs_s = shared.slurm.needed().cluster.clock.now_s()
    yield clock_verdict("the login node", theirs_s - int(time.time()))


def controller_clock(shared: ProbeContext) -> Iterator[Finding]:
    """How far slurmctld's clock is from ours, by its answer to `scontrol show
    config`.
    """
    shared.slurm.needed()
    shared.controller.needed()
    asked_s = time.time()
    theirs_s = controller_time_s(shared.ask_slurm_config())
    if theirs_s is None:
        raise NotTriedError(
            "found no time of slurmctld in `scontrol show config`; expected `Configuration data as of UNIX_TIME`: run it on the"
            " login node"
        )
    yield clock_verdict("slurmctld", off_within_s(theirs_s, asked_s, time.time()))


def slurmrestd(shared: ProbeContext) -> Iterator[Finding]:
    """Whether slurmrestd answers the admin, and how far slurmctld's clock is from
    ours.
    """
    cluster = shared.slurm.get().cluster
    theirs_s = cluster.clock.now_s()
    cluster.queries.list_all()  # as the admin; slurmctld checks the token
    yield green(
        "slurmrestd", f"{cluster.address} answers, and slurmctld takes our tokens"
    )
    yield clock_verdict("slurmctld", theirs_s - int(time.time()))


def rest_accounting(shared: ProbeContext) -> Iterator[Finding]:
    """Report that the fleet uses no accounting with this transport."""
    shared.slurm.needed()
    yield green(
        "accounting",
        "not asked over slurmrestd: the fleet learns of ends from looks, hooks and callbacks",
    )


OVER_REST = (
    Probe("slurmrestd", slurmrestd, RESTD),
    Probe("slurmctld", controller, RESTD),
    Probe("accounting", rest_accounting, RESTD),
    Probe("nodes", nodes, RESTD),
)
SETTINGS = (
    Probe(
        "SSH host key",
        host_key,
        "start sshd on the login node, or correct SLURM_SSH_ADDRESS (127.0.0.1 in a container is the container)",
    ),
    Probe("SSH key pair", key_pair, "correct SLURM_SSH_PRIVATE_KEY"),
    Probe("SSH login of the admin", admin_login, LOGIN),
    *(Probe(name, partial(version, name), LOGIN) for name in COMMANDS),
    Probe("slurmctld", controller, SLURM),
    Probe("accounting", accounting, SLURM),
    Probe("nodes", nodes, SLURM),
    Probe("customers in accounting", associations, SLURM, failed=yellow),
    Probe("confinement of jobs", confinement, SLURM),
    Probe("limits of jobs", job_limits, SLURM, failed=yellow),
    Probe("clock of the login node", login_clock, LOGIN),
    Probe("clock of slurmctld", controller_clock, SLURM),
)
FLEET = (
    Probe("SSH login of a customer", customer_login, CUSTOMER),
    Probe("job_submit.lua", job_submit, SLURM),
)
