"""Make Flower read-only, and make it require a password where it listens on more than
this machine.

Flower reads its options from its command line, FLOWER_ variables and flowerconfig.py.
After that, and before it listens, it loads Celery's configuration, which calls
`require_login`: by then the options are final.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from pydantic import SecretStr

from supervisor_tasks.errors import PermanentError

log = structlog.get_logger()

HERE = "127.0.0.1"
ALL_ADDRESSES = "*"  # of IPv4 and IPv6: a pod may have one of them alone
_LOGIN = re.compile("[^:,]+:[^,]+")
LOOPBACK = (HERE, "::1", "localhost")


class FlowerOpenError(PermanentError):
    """Flower would show the fleet to every caller that reaches its port."""


def require_login(options: Any, basic_auth: SecretStr | None) -> None:
    """Correct the options of a Flower that starts (tornado's options). Raises
    FlowerOpenError; a retry does not help.
    """
    options.read_only = True
    options.address = options.address or HERE
    # Without this, Flower takes an empty FLOWER_BASIC_AUTH for a login without a name
    # and a password.
    options.basic_auth = list(filter(None, options.basic_auth or ()))
    if basic_auth is not None and not options.basic_auth:
        options.basic_auth = basic_auth.get_secret_value().split(",")
    if not all(map(_LOGIN.fullmatch, options.basic_auth)):
        raise FlowerOpenError(
            "--basic_auth: found a login without a name or a password; expected user:password"
        )
    # here: workers load this module too, and have no Flower
    from flower.views.monitor import Metrics
    from flower.views.workers import web  # tornado's, as Flower has it

    # the only page with workers' names that Flower shows without a login
    Metrics.get = web.authenticated(Metrics.get)
    protections = options.unix_socket, options.basic_auth, options.auth
    _require_protection("--address", options.address, protections)
    if options.address == ALL_ADDRESSES:
        options.address = ""  # tornado's word for them


def check_login(environment: Mapping[str, str], basic_auth: SecretStr | None) -> None:
    """Raise FlowerOpenError if `require_login` would refuse a Flower that has its
    address and its login from FLOWER_ variables.
    """
    socket, own_login = (
        environment.get("FLOWER_UNIX_SOCKET"),
        environment.get("FLOWER_AUTH"),
    )
    address = environment.get("FLOWER_ADDRESS") or HERE
    _require_protection("FLOWER_ADDRESS", address, (socket, basic_auth, own_login))


def _require_protection(
    option: str, address: str, protections: Sequence[object]
) -> None:
    """Raise FlowerOpenError for an address beyond this machine that has none of these
    protections.
    """
    if address not in LOOPBACK and not any(protections):
        raise FlowerOpenError(
            f"{option}: found {address!r} and no password; expected {HERE}, or FLOWER_BASIC_AUTH=user:password"
            " (or FLOWER_BASIC_AUTH_FILE): without it any program that reaches the port sees all jobs"
        )


def log_start(options: Any) -> None:
    """Log where Flower will listen."""
    has_login = bool(options.basic_auth or options.auth)
    log.info(
        "flower_started", address=options.address, port=options.port, password=has_login
    )
