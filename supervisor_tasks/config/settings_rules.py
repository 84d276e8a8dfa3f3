"""Rules over several settings: those that a need requires, and those that do not go
together.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from supervisor_tasks.config import ssh_keys
from supervisor_tasks.config.needs import Need, required_with, slurm_access
from supervisor_tasks.config.validators import is_loopback

if TYPE_CHECKING:
    from supervisor_tasks.config.settings import Settings

_EXPECTED = {
    "eth_private_key": "a private key of 64 hex digits",
    "slurm_ssh_private_key": ssh_keys.PRIVATE_KEY,
    "slurm_ssh_ca_key": ssh_keys.PRIVATE_KEY + ", as SLURM_SSH_CERTIFICATES is set",
    "slurm_ssh_public_key": f"{ssh_keys.PUBLIC_KEY} (or SLURM_SSH_PRIVATE_KEY, to derive it from)",
    "slurm_ssh_address": "the login node's address as host:port",
    "slurm_jwt_key": "the base64 of slurmctld's jwt_key file, as SLURM_TRANSPORT is rest",
    "slurmrestd_url": "unix:///path of slurmrestd's socket or https://host:port, as SLURM_TRANSPORT is rest",
    "ldap_bind_dn": "the name of an entry that may write there, such as cn=admin,dc=example,dc=org",
    "ldap_bind_password": "that entry's password",
    "slurm_ssh_admin_user": "the user who may run scontrol update",
}


def missing(
    needs: Sequence[Need], given: Mapping[str, str], bad: Collection[str]
) -> list[str]:
    """Return a line for each setting that these needs require, and that is neither
    given nor in an error already.
    """
    environment = {name.upper(): value for name, value in given.items()}
    required = required_with(slurm_access(environment))
    known = {*environment, *bad}
    if "slurm_ssh_private_key" in given:
        known.add("SLURM_SSH_PUBLIC_KEY")  # derived from the private key
    lines = []
    for need in needs:
        for name in required[need]:
            if name.upper() not in known:
                expected = _EXPECTED.get(name, "a value")
                lines.append(f"{name.upper()}: found nothing; expected {expected}")
    return lines


def unfit_together(
    settings: "Settings", needs: Sequence[Need], bad: Collection[str]
) -> list[str]:
    """Return a line for each error between settings that are well-formed on their
    own.
    """
    return [
        *_missing_for_mail(settings, bad),
        *_unfit_smtp_login(settings, needs, bad),
        *_unfit_directory(settings, needs, bad),
        *_unfit_transport(settings, needs, bad),
        *_unfit_customer_account(settings, needs, bad),
    ]


def _unfit_transport(
    settings: "Settings", needs: Sequence[Need], bad: Collection[str]
) -> list[str]:
    """Over slurmrestd no user's session can read a benchmark's output, and the
    supervisor does not read the accounting.
    """
    if settings.slurm_transport != "rest" or Need.SLURM not in needs:
        return []
    lines = []
    for name, wrong in {"benchmark_disable": False, "slurm_accounting": True}.items():
        if getattr(settings, name) is wrong and name.upper() not in bad:
            expected = f"expected {str(not wrong).lower()}, as SLURM_TRANSPORT is rest"
            lines.append(f"{name.upper()}: found {str(wrong).lower()}; {expected}")
    return lines


def _unfit_customer_account(
    settings: "Settings", needs: Sequence[Need], bad: Collection[str]
) -> list[str]:
    """Customers are added to an account by sacctmgr, beside sacct on the login node."""
    if not settings.slurm_customer_account or Need.SLURM not in needs:
        return []
    if settings.slurm_transport == "rest":
        return [
            f"SLURM_CUSTOMER_ACCOUNT: found {settings.slurm_customer_account!r}; expected nothing, as SLURM_TRANSPORT is rest:"
            " add each customer to an account by sacctmgr"
        ]
    if settings.slurm_accounting or "SLURM_ACCOUNTING" in bad:
        return []
    return [
        "SLURM_ACCOUNTING: found false; expected true, as SLURM_CUSTOMER_ACCOUNT is set"
    ]


def _missing_with(
    cause: str,
    required: Mapping[str, str],
    settings: "Settings",
    bad: Collection[str],
) -> list[str]:
    """Return a line for each setting that is required where `cause` is set, and that is
    neither given nor in an error already. `required` has what is expected of each.
    """
    lines = []
    for name, expected in required.items():
        if getattr(settings, name) is None and name.upper() not in bad:
            lines.append(
                f"{name.upper()}: found nothing; expected {expected}, as {cause} is set"
            )
    return lines


def _missing_for_mail(settings: "Settings", bad: Collection[str]) -> list[str]:
    if not settings.notify_mail_to:
        return []
    required = {
        "notify_mail_from": "the sender's address",
        "notify_smtp_address": "the SMTP server as host:port",
    }
    return _missing_with("NOTIFY_MAIL_TO", required, settings, bad)


def _unfit_smtp_login(
    settings: "Settings", needs: Sequence[Need], bad: Collection[str]
) -> list[str]:
    if settings.notify_smtp_user is None:
        return []
    lines = list[str]()
    if Need.NOTIFY in needs:
        required = {"notify_smtp_password": "that user's password"}
        lines += _missing_with("NOTIFY_SMTP_USER", required, settings, bad)
    server = settings.notify_smtp_address or "localhost:25"
    if settings.notify_smtp_tls == "none" and not is_loopback(server):
        lines.append(
            "NOTIFY_SMTP_TLS: found 'none'; expected starttls or tls, as NOTIFY_SMTP_USER is set and the password would"
            " cross the network readable by all"
        )
    return lines


def _unfit_directory(
    settings: "Settings", needs: Sequence[Need], bad: Collection[str]
) -> list[str]:
    if settings.ldap_url is None:
        return []
    lines = list[str]()
    if Need.WALLET in needs:
        required = {
            "ldap_bind_dn": _EXPECTED["ldap_bind_dn"],
            "ldap_bind_password": _EXPECTED["ldap_bind_password"],
        }
        lines += _missing_with("LDAP_URL", required, settings, bad)
    home = settings.ldap_home_directory
    shared_homes_allowed = (
        settings.allow_shared_homes_where_customers_can_run_code_as_each_other
    )
    if "{address}" not in home and not shared_homes_allowed:
        lines.append(
            f"LDAP_HOME_DIRECTORY: found {home!r}; expected a path with {{address}} in it, such as /home/{{address}}, so that"
            f" each customer has a home of his own (or ALLOW_SHARED_HOMES_WHERE_CUSTOMERS_CAN_RUN_CODE_AS_EACH_OTHER=true)"
        )
    return lines
