"""The URL of the ledger's Postgres. The fleet uses SQLAlchemy and libpq, and each has a
parser of its own. They differ about a password with a slash or with a % that begins no
%XX, about a + in an option, and about ports of several hosts. So only a URL that both
read alike is taken.

`supervisor health` needs this too, so it does without SQLAlchemy, which takes long to
import.
"""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

SCHEME = "postgresql+psycopg"  # SQLAlchemy's name for our driver
EXPECTED = (
    "a URL such as postgresql://user:password@host:port/database?sslmode=require, with options that libpq knows, each once"
    " (write / ? # % @ & + and spaces in a user, a password or a value as %2F %3F %23 %25 %40 %26 %2B %20)"
)
_XX = "%(?!00)[0-9A-Fa-f]{2}"
_FORM = re.compile(
    r"(?:postgresql|postgres|postgresql\+psycopg)://"
    rf"(?:(?:[^:/?#%@\s]|{_XX})*(?::(?:[^/?#%@\s]|{_XX})*)?@)?"
    r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::\d{1,5})?"
    rf"(?:/(?:[^/?#%@\s]|{_XX})*)?"
    rf"(?:\?(?P<options>\w+=(?:[^=&#+%@\s]|{_XX})+(?:&\w+=(?:[^=&#+%@\s]|{_XX})+)*))?"
)
_PORTS = re.compile(r"\d{1,5}(,\d{1,5})*")


def canonical(url: str) -> str:
    """Return the URL with the scheme that SQLAlchemy needs.

    Raises ValueError with what is expected, and no part of the URL, if the two parsers
    could read it differently; a retry does not help.
    """
    found = _FORM.fullmatch(url)
    if found is None or not _is_text(url):
        raise ValueError(EXPECTED)
    options = parse_qsl(found["options"] or "")
    written = SCHEME + url[url.index("://") :]
    if not _are_alike(options) or not _are_known_to_libpq(options, written):
        raise ValueError(EXPECTED)
    return written


def for_libpq(url: str) -> str:
    """Return the URL as the driver takes it, without SQLAlchemy. Raises ValueError as
    `canonical` does; a retry does not help.
    """
    return canonical(url).replace(SCHEME, "postgresql", 1)


def _is_text(url: str) -> bool:
    """Whether what stands behind the % is UTF-8."""
    try:
        unquote(url, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


def _are_alike(options: Sequence[tuple[str, str]]) -> bool:
    """Whether both read the options alike: each is there once, no port is among the
    hosts, and several hosts have a port each.
    """
    values = dict(options)
    hosts, ports = values.get("host", ""), values.get("port", "")
    has_port = any(":" in host for host in hosts.split(",") if host[:1] != "/")
    if len(values) != len(options) or has_port:
        return False
    if not ports:
        return "," not in hosts
    same_number = hosts.count(",") == ports.count(",")
    return bool(hosts) and same_number and _PORTS.fullmatch(ports) is not None


def _are_known_to_libpq(options: Sequence[tuple[str, str]], url: str) -> bool:
    """Whether libpq knows the options by these names: of ssl=true it makes sslmode. Its
    error, which can contain the password, is not raised on.
    """
    names = {name for name, _ in options}
    if names <= {"host", "port"}:
        return True  # without the driver, which Flower imports only for a page of ours
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return names <= conninfo_to_dict(url.replace(SCHEME, "postgresql", 1)).keys()
    except ProgrammingError:
        return False
