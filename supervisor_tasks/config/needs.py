"""Which process needs which settings, and which keys it may keep."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from supervisor_tasks.messaging.queues import Queue


class Need(StrEnum):
    """What a process needs beyond the settings that all processes need."""

    WALLET = "wallet"
    SLURM = "slurm"
    SSH_PUBLIC = "ssh public"
    NOTIFY = "notify"


NEED_OF_QUEUE = {
    Queue.CHAIN: Need.WALLET,
    Queue.SLURM: Need.SLURM,
    Queue.DEFAULT: Need.NOTIFY,
    Queue.BENCHMARK: Need.SLURM,
}
REQUIRED = {
    Need.WALLET: ("eth_private_key",),
    Need.SLURM: ("slurm_ssh_private_key", "slurm_ssh_address", "slurm_ssh_admin_user"),
    Need.SSH_PUBLIC: ("slurm_ssh_public_key",),
    Need.NOTIFY: (),
}


class SlurmAccess(StrEnum):
    """How a process gets to SLURM, which decides the settings that it needs."""

    SSH_KEY = "a key over SSH"
    SSH_CERTIFICATES = "certificates over SSH"  # SLURM_SSH_CERTIFICATES
    REST = "slurmrestd"  # SLURM_TRANSPORT=rest


WITH_CERTIFICATES = {
    Need.SLURM: ("slurm_ssh_ca_key", "slurm_ssh_address", "slurm_ssh_admin_user"),
    Need.SSH_PUBLIC: (),
}
OVER_REST: dict[Need, tuple[str, ...]] = {
    Need.SLURM: ("slurm_jwt_key", "slurmrestd_url"),
    Need.SSH_PUBLIC: (),
}
NOTIFY_URLS = ("notify_webhook_url", "notify_slack_url", "notify_alertmanager_url")
NOTIFY_KEYS = (*NOTIFY_URLS, "notify_webhook_token", "notify_smtp_password")
ALSO_KEPT = {
    # the chain's workers make the customers' accounts
    Need.WALLET: ("ldap_bind_password",),
    Need.SLURM: ("slurm_submit_key",),
    Need.SSH_PUBLIC: ("callback_key",),
    Need.NOTIFY: NOTIFY_KEYS,
}
KEYS = (
    "eth_private_key",
    "slurm_ssh_private_key",
    "slurm_ssh_ca_key",
    "slurm_submit_key",
    "slurm_jwt_key",
    "ldap_bind_password",
    "callback_key",
    *NOTIFY_KEYS,
)  # only a process that needs one keeps it
# the URLs of RPC endpoints may contain tokens: logs show scheme, host and port only
CHAIN_URLS = ("metascheduler_endpoint_rpc", "metascheduler_endpoint_ws")
ONLY_FOR = dict.fromkeys((*CHAIN_URLS, "ldap_bind_dn"), ("worker",)) | {
    "otel_exporter_otlp_endpoint": ("worker", "callbacks"),
    "broker_url": ("worker", "beat", "callbacks", "flower"),
    "flower_basic_auth": ("flower",),
}
"""The processes that use a setting which may have a key in it; the others get none."""


def unused_by(process: str) -> set[str]:
    """Return the settings of ONLY_FOR that this process does not use."""
    return {name for name, users in ONLY_FOR.items() if process not in users}


def needs_of_queues(queues: Collection[str]) -> list[Need]:
    """Return the needs of a worker of these queues, in the order of NEED_OF_QUEUE, each
    once. Every worker serves the default queue, too.
    """
    served = {*queues, Queue.DEFAULT}
    return list(
        dict.fromkeys(need for queue, need in NEED_OF_QUEUE.items() if queue in served)
    )


def slurm_access(environment: Mapping[str, str]) -> SlurmAccess:
    """Return how a process with this environment gets to SLURM. `load` reports
    malformed values of these two settings.
    """
    certificates = environment.get("SLURM_SSH_CERTIFICATES", "").lower() in (
        "1",
        "true",
        "t",
        "yes",
        "y",
        "on",
    )
    return access_by(
        rest=environment.get("SLURM_TRANSPORT") == "rest", certificates=certificates
    )


def access_by(*, rest: bool, certificates: bool) -> SlurmAccess:
    """Return how a process with SLURM_TRANSPORT=rest (or not) and
    SLURM_SSH_CERTIFICATES (or not) gets to SLURM.
    """
    if rest:
        return SlurmAccess.REST
    if certificates:
        return SlurmAccess.SSH_CERTIFICATES
    return SlurmAccess.SSH_KEY


def kept(needs: Iterable[Need], access: SlurmAccess) -> set[str]:
    """Return the names of the keys and settings that processes with these needs
    keep.
    """
    required = required_with(access)
    names = set[str]()
    for need in needs:
        names.update(required[need], ALSO_KEPT.get(need, ()))
    return names


def required_with(access: SlurmAccess) -> dict[Need, tuple[str, ...]]:
    """Return the settings that each need requires."""
    return REQUIRED | _REQUIRED_BY[access]


_REQUIRED_BY: dict[SlurmAccess, dict[Need, tuple[str, ...]]] = {
    SlurmAccess.SSH_KEY: {},
    SlurmAccess.SSH_CERTIFICATES: WITH_CERTIFICATES,
    SlurmAccess.REST: OVER_REST,
}
