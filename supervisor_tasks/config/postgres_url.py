"""The URL of the ledger's Postgres, in a form that SQLAlchemy and libpq read alike.

Both have a parser of their own, and these differ: about a password with a slash or with
a % that begins no %XX, a socket's folder in place of a host, and ports of several
hosts. So a URL is read once, in here, as SQLAlchemy reads it, and written with %XX.
`supervisor health` needs this too, so it does without SQLAlchemy, which takes long to
import.
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote

# SQLAlchemy's name for our driver
SCHEME = "postgresql+psycopg"
EXPECTED = (
    "a URL such as postgresql://user:password@host:port/database?sslmode=require, with options that libpq knows"
    " (write other characters as %XX)"
)
# No @ may follow that of the login: it would make the end of the password a host or a
# database, which are shown. Nor may a password look like a port, a path and options: an
# @ in an option would make the login out of all before it.
_FORM = re.compile(
    r"(?:postgresql|postgres|postgresql\+psycopg)://"
    r"(?:(?P<user>[^:/@\s]*)(?::(?!\d*(?:/[^?@]*)?\?\w+=)(?P<password>[^@\s]*))?@)?"
    r"(?P<hosts>[^/?@\s]*)(?:/(?P<database>[^?@\s]*))?"
    r"(?:\?(?P<query>(?:[^=&\s]+=[^&\s]*&?)*))?"
)
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^:/\[\]]*)(?::(\d{1,5}))?")
_PORTS = re.compile(r"\d{0,5}(,\d{0,5})*")
_NAME = re.compile(r"[A-Za-z0-9._-]*")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+")
_SEVERAL = ("host", "port")  # SQLAlchemy lets these options be repeated


def canonical(url: str) -> str:
    """Return the URL, with the scheme that SQLAlchemy needs, as both parsers read it.

    Raises ValueError with what is expected, and no part of the URL.
    """
    found = _FORM.fullmatch(url)
    if found is None:
        raise ValueError(EXPECTED)
    options = _options(found["query"] or "")
    authority, servers = _servers(found["hosts"], options)
    database = quote(unquote(found["database"] or ""))
    written = f"{SCHEME}://{_login(found)}{authority}/{database}"
    query = "&".join(
        f"{quote(name)}={quote(value, safe='/,:')}"
        for name, value in {**options, **servers}.items()
    )
    if query:
        written += f"?{query}"
    if not _is_known_to_libpq(written):
        raise ValueError(EXPECTED)
    return written


def for_libpq(url: str) -> str:
    """Return the canonical URL as the driver takes it, without SQLAlchemy. Raises
    ValueError as `canonical` does.
    """
    return canonical(url).replace(SCHEME, "postgresql", 1)


def _login(found: re.Match[str]) -> str:
    """Return user and password with %XX, and the @ behind them."""
    user, password = found["user"] or "", found["password"] or ""
    login = quote(unquote(user), safe="")
    if password:
        login += f":{quote(unquote(password), safe='')}"
    return login and f"{login}@"


def _options(query: str) -> dict[str, str]:
    """Return the options of a URL's query. Raises ValueError if one is repeated."""
    options = dict[str, str]()
    for name, value in parse_qsl(query):
        if name not in options:
            options[name] = value
        elif name in _SEVERAL:
            options[name] += f",{value}"
        else:
            raise ValueError(EXPECTED)
    return options


def _servers(authority: str, options: dict[str, str]) -> tuple[str, Mapping[str, str]]:
    """Take hosts and ports out of the options; return the authority, or, if it cannot
    name them, it as empty and the options that do. An option has priority over the
    authority.
    """
    hosts, ports = _addresses(authority)
    if "host" in options:
        hosts, own_ports = _listed(options.pop("host"))
        ports = own_ports or ports
    if "port" in options:
        ports = options.pop("port").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts) or not _PORTS.fullmatch(",".join(ports)):
        raise ValueError(EXPECTED)
    name = _plain(hosts)
    if name is not None:
        return f"{name}:{ports[0]}" if ports[0] else name, {}
    servers = {"host": ",".join(hosts)}
    if any(ports):
        servers["port"] = ",".join(ports)
    return "", servers


def _addresses(authority: str) -> tuple[list[str], list[str]]:
    """Return the hosts and ports of an authority; an empty port is the usual one.
    Raises ValueError.
    """
    hosts, ports = list[str](), list[str]()
    for part in authority.split(","):
        address = _ADDRESS.fullmatch(part)
        if address is None:
            raise ValueError(EXPECTED)
        hosts.append(unquote(address[1].strip("[]")))
        ports.append(address[2] or "")
    return hosts, ports


def _listed(text: str) -> tuple[list[str], list[str]]:
    """Return the hosts of an option and, if it has any, their ports. A socket's folder
    and an address of IPv6 without brackets have none.
    """
    hosts, ports = list[str](), list[str]()
    for part in text.split(","):
        host, port = part, ""
        if address := _ADDRESS.fullmatch(part):
            host, port = address[1].strip("[]"), address[2] or ""
        hosts.append(host)
        ports.append(port)
    return hosts, ports if any(ports) else []


def _plain(hosts: list[str]) -> str | None:
    """Return the host as an authority names it; None if it cannot: several hosts, or a
    socket's folder.
    """
    host = ",".join(hosts)
    if _NAME.fullmatch(host):
        return host
    return f"[{host}]" if _IPV6.fullmatch(host) else None


def _is_known_to_libpq(url: str) -> bool:
    """Return whether libpq can read the URL: it knows each option. Its error is not
    raised on: it can contain the password.
    """
    from psycopg import ProgrammingError  # Flower without a database needs none
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url.replace(SCHEME, "postgresql", 1))
    except ProgrammingError:
        return False
    return True
