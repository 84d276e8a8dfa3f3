"""The URL of the ledger's Postgres. The fleet uses SQLAlchemy and libpq, and each has a
parser of its own. They differ about a password with a slash or with a %
that begins no %XX, about a + in an option, and about ports of several hosts. So only a
URL that both read alike is taken.

`supervisor health` needs this too, so it does without SQLAlchemy, which takes long to
import.
"""

import re
from urllib.parse import parse_qsl

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
    could read it differently.
    """
    found = _FORM.fullmatch(url)
    if found is None or not _are_alike(found["options"] or ""):
        raise ValueError(EXPECTED)
    written = SCHEME + url[url.index("://") :]
    if not _is_known_to_libpq(written):
        raise ValueError(EXPECTED)
    return written


def for_libpq(url: str) -> str:
    """Return the URL as the driver takes it, without SQLAlchemy. Raises ValueError as
    `canonical` does.
    """
    return canonical(url).replace(SCHEME, "postgresql", 1)


def _are_alike(query: str) -> bool:
    """Whether both read the options alike: each is there once, no port is among the
    hosts, and several hosts have a port each.
    """
    listed = parse_qsl(query)
    options = dict(listed)
    hosts, ports = options.get("host", ""), options.get("port", "")
    if len(options) != len(listed) or ":" in hosts:
        return False
    if not ports:
        return "," not in hosts
    same_number = hosts.count(",") == ports.count(",")
    return bool(hosts) and same_number and _PORTS.fullmatch(ports) is not None


def _is_known_to_libpq(url: str) -> bool:
    """Whether libpq can read the URL: it knows each option. Its error, which can contain
    the password, is not raised on.
    """
    from psycopg import ProgrammingError  # Flower without a database needs none
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url.replace(SCHEME, "postgresql", 1))
    except ProgrammingError:
        return False
    return True
