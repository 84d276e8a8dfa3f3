"""The formats of the settings: durations, addresses, URLs, names in a directory,
labels. Checks have no side effects.

Each check raises ValueError with a description of the expected value.
"""

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import time
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, SecretStr, TypeAdapter
from pydantic_settings import NoDecode

from benchmarks import plan
from benchmarks.label_format import normalised
from supervisor_tasks.config import ssh_keys
from supervisor_tasks.connections.postgres_url import canonical
from supervisor_tasks.notifications.delivery_rules import QuietHours
from supervisor_tasks.provider.offer import normalised_labels

LEAST_INTERVAL_S = 3600.0
LEAST_JWT_KEY = 32  # bytes; RFC 7518 requires as many as a hash of HS256 has
LEAST_KEY_CHARACTERS = 32  # of CALLBACK_KEY, as in plugins/proof.py
# of secp256k1; keys are smaller
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def _text_of(value: object) -> str:
    """Return a value's text, also if it is already a secret."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value)


def parsed(parse: Callable[[str], object]) -> BeforeValidator:
    """Return the parser of a variable's text. pydantic checks the defaults too: these
    are no texts, and stay as they are.
    """

    def check(value: object) -> object:
        if not isinstance(value, str):
            return value
        return parse(value)

    return BeforeValidator(check)


def _split(assignment: str, expected: str) -> tuple[str, str]:
    """Return the name and the value of name=value. Raises ValueError."""
    name, equals, value = assignment.partition("=")
    if not name or not equals:
        raise ValueError(expected)
    return name, value


def _go_duration_s(value: object) -> float:
    """Parse Go's duration syntax (time.ParseDuration), such as 24h0m0s, 1.5h or 0;
    returns seconds.
    """
    if isinstance(value, float):
        return value  # pydantic checks the default too
    units = {
        "ns": 1e-9,
        "us": 1e-6,
        "µs": 1e-6,
        "\u03bcs": 1e-6,
        "ms": 1e-3,
        "s": 1.0,
        "m": 60.0,
        "h": 3600.0,
    }
    text = str(value).removeprefix("+")
    if text == "0":
        return 0.0
    number_and_unit = rf"(\d+\.?\d*|\.\d+)({'|'.join(units)})"
    if not re.fullmatch(f"({number_and_unit})+", text):
        raise ValueError(
            "a duration in Go's syntax that is not negative, such as 24h0m0s"
        )
    return sum(
        float(number) * units[unit]
        for number, unit in re.findall(number_and_unit, text)
    )


def _listed(text: str) -> Iterator[str]:
    """Return the parts of a text between its commas, without those that are empty."""
    return filter(None, map(str.strip, text.split(",")))


def _labels(text: str) -> dict[str, str]:
    """Parse key=value,key=value into a mapping."""
    pairs = list[tuple[str, str]]()
    for pair in _listed(text):
        key, value = _split(pair, "labels as key=value,key=value")
        pairs.append((key.strip(), value.strip()))
    labels = dict(pairs)
    if len(labels) != len(pairs):
        raise ValueError("labels as key=value,key=value, each key once")
    normalised_labels(labels)
    return labels


def _assignments(text: str) -> dict[str, str]:
    """Parse NAME=value NAME=value into a mapping, as a shell reads words: a value with
    spaces needs quotes.
    """
    assignments = dict[str, str]()
    for word in _words(text):
        name, value = _split(word, 'NAME=value NAME="two words"')
        assignments[name] = value
    return assignments


# Options of sbatch that the supervisor itself sets for a benchmark's job, and options
# with which sbatch would not submit one job whose output the supervisor can read.
_NOT_THE_SITES = (
    *(
        "parsable",
        "job-name",
        "comment",
        "partition",
        "output",
        "nice",
        "requeue",
        "no-requeue",
    ),
    *(
        "nodes",
        "nodelist",
        "nodefile",
        "exclusive",
        "oversubscribe",
        "time",
        "time-min",
    ),
    *(
        "ntasks",
        "ntasks-per-node",
        "ntasks-per-core",
        "ntasks-per-socket",
        "ntasks-per-gpu",
        "cpus-per-task",
    ),
    *(
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gpus-per-socket",
        "cpus-per-gpu",
        "gres",
    ),
    *("mem", "mem-per-cpu", "mem-per-gpu"),
    *(
        "array",
        "batch",
        "begin",
        "chdir",
        "clusters",
        "deadline",
        "dependency",
        "error",
        "gid",
        "help",
        "hold",
        "input",
    ),
    *(
        "open-mode",
        "quiet",
        "test-only",
        "uid",
        "usage",
        "version",
        "wait",
        "wait-all-nodes",
        "wrap",
    ),
)


def _sbatch_flags(text: str) -> tuple[str, ...]:
    """Check words for sbatch: each must be --name=value.

    sbatch also accepts the beginning of an option's name. It would take the word after
    an option without = for the option's value, and any other word for its script.
    """
    words = tuple(_words(text))
    for word in words:
        option = re.fullmatch(r"--([a-z][a-z-]*)=(.+)", word)
        if option is None:
            raise ValueError(
                f"long options of sbatch with their values, --name=value ({word!r} is none)"
            )
        if any(name.startswith(option[1]) for name in _NOT_THE_SITES):
            raise ValueError(
                f"options of sbatch that a benchmark does not need for itself (--{option[1]} is not the site's)"
            )
        _fits(plan.Text, word, "words without control characters")
    return words


def _words(text: str) -> list[str]:
    """Split a text as a shell reads words."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError("words as a shell reads them, each quote closed") from error


def _fits(form: Any, value: object, expected: str) -> None:
    try:
        TypeAdapter(form).validate_python(value)
    except ValueError as error:
        raise ValueError(expected) from error


def matches_type(
    form: Any,
    expected: str,
    *,
    each_of: Callable[[str], list[str]] = lambda text: [text],
) -> BeforeValidator:
    """Return a check that a text, or each part of it, has a form of the benchmark's
    plan.
    """

    def check(value: object) -> object:
        for part in each_of(str(value)):
            _fits(form, part, expected)
        return value

    return BeforeValidator(check)


def _label_keys(text: str) -> frozenset[str]:
    """Parse keys of labels, separated by commas, into the grid's form."""
    return frozenset(map(normalised, _listed(text)))


def _price(value: object) -> object:
    """Parse a whole number of decimal digits only; int() would accept other forms
    too.
    """
    if not re.fullmatch(r"\d{1,78}", str(value), re.ASCII) or int(str(value)) >= 2**256:
        raise ValueError(
            "a price in wei (credits x 1e18) a minute: a whole number that is not negative"
        )
    return int(str(value))


def _is_address(text: str, host: str) -> bool:
    """Return whether the text is host:port; `host` is the pattern of a name."""
    parts = re.fullmatch(rf"(?:\[[0-9a-fA-F:]+\]|{host}):(\d{{1,5}})", text)
    return parts is not None and int(parts[1]) < 2**16


def _host_port(value: object) -> object:
    if not _is_address(str(value), r"[^\s:\[\]]+"):
        raise ValueError("an address as host:port")
    return value


def _listened_at(value: object) -> object:
    """Check an address to listen at, in Go's form: `:3000` means all interfaces."""
    if not _is_address(str(value), r"[^\s:\[\]]*"):
        raise ValueError("an address as host:port or :port")
    return value


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach a process that listens at
    host:port.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _job_variables(text: str) -> dict[str, str]:
    """Parse the variables of all jobs. SLURM sets its own, and sbatch would read some
    of them as options.
    """
    variables = _assignments(text)
    wrong = [
        name
        for name in variables
        if not re.fullmatch(r"(?!SLURM_|SBATCH_)[A-Za-z_][A-Za-z0-9_]*", name)
    ]
    if wrong:
        raise ValueError(
            f"variables as NAME=value NAME=value, none of SLURM's ({', '.join(wrong)!r})"
        )
    return variables


def _is_rest_url(url: str) -> bool:
    """Return whether the URL is a socket's path, or a host and port. Over a network it
    must be https: it carries tokens.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return url.startswith("unix:///")
    if parts.path not in ("", "/") or parts.query:
        return False
    if parts.port is None:
        return False
    if parts.scheme == "https":
        return True
    return is_loopback(f"{parts.hostname}:{parts.port}")


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Parse networks such as 10.0.0.0/8,fd00::/8."""
    networks = list[IPv4Network | IPv6Network]()
    for network in _listed(text):
        try:
            networks.append(ip_network(network))
        except ValueError as error:
            raise ValueError(f"networks as 10.0.0.0/8,fd00::/8 ({error})") from error
    return tuple(networks)


def _splits(url: str) -> bool:
    """Return whether urllib can separate host and port."""
    try:
        return urlsplit(url).port != 0
    except ValueError:  # the port is no number, or the brackets do not match
        return False


def _is_broker_url(url: str) -> bool:
    """Return whether kombu can read the URL: the path must be the number of a database.

    With redis+socket it is the socket's path. A login raises ValueError: kombu shows it
    as a part of the connection's host name, so Flower would show the password.
    """
    if not _splits(url):
        return False
    if url.startswith("redis+socket:"):
        if "@" in urlsplit(url).netloc:
            raise ValueError(
                "redis+socket:// with the socket's path and no login (a broker with a login: redis:// over TCP)"
            )
        return True
    return re.fullmatch(r"/?\d*", urlsplit(url).path) is not None


def url_with(*schemes: str, reads: Callable[[str], bool] = _splits) -> BeforeValidator:
    """Return a check that a URL, secret or not, begins with one of these schemes and
    that `reads` accepts it.
    """
    beginnings = [f"{scheme}://" for scheme in schemes]
    form = re.compile(rf"(?:{'|'.join(map(re.escape, beginnings))})\S+")

    def check(value: object) -> object:
        text = _text_of(value)
        if not form.fullmatch(text):
            raise ValueError(f"a URL that begins with {' or '.join(beginnings)}")
        if not reads(text):
            raise ValueError(
                "a URL whose login, host, port and path can be told apart (write other characters as %XX)"
            )
        return value

    return BeforeValidator(check)


def split_urls(text: str) -> list[str]:
    """Split URLs that are separated by commas; a comma inside a URL does not
    separate.
    """
    return [url.strip() for url in re.split(r",(?=\s*\w+://)", text)]


def _http_urls(value: object) -> object:
    """Check one URL or several, the best first."""
    check = url_with("http", "https").func
    for url in split_urls(_text_of(value)):
        check(url)  # type: ignore[call-arg]  # pydantic's type has a second argument
    return value


def _zero_or_at_least_one_hour(interval_s: float) -> float:
    """Check the interval: benchmarks take the whole cluster, and must leave it to the
    customers most of the time.
    """
    if 0 < interval_s < LEAST_INTERVAL_S:
        raise ValueError("0 (none) or at least 1h")
    return interval_s


def pattern(expression: str, expected: str) -> BeforeValidator:
    """Return a check of a value, secret or not, by a regular expression; its error
    describes the expected value in words.
    """

    def check(value: object) -> object:
        if not re.fullmatch(expression, _text_of(value)):
            raise ValueError(expected)
        return value

    return BeforeValidator(check)


_ATTRIBUTE = "[A-Za-z][A-Za-z0-9-]*"
_SET_BY_OTHER_SETTINGS = {
    "objectclass",
    "uid",
    "uidnumber",
    "gidnumber",
    "homedirectory",
}


def _ldap_attributes(text: str) -> dict[str, tuple[str, ...]]:
    """Parse a JSON object, whose values are texts, numbers or lists of these, into a
    mapping of names to texts.
    """
    expected = """a JSON object of attributes, such as {"gecos": "customer {address}", "mail": ["a@b.c", "d@e.f"]}"""
    attributes = dict[str, tuple[str, ...]]()
    for name, given in _json_object(text, expected).items():
        values = given
        if not isinstance(given, list):
            values = [given]
        if not re.fullmatch(_ATTRIBUTE, name) or not _are_texts(values):
            raise ValueError(expected)
        attributes[name] = tuple(map(str, values))
    others = sorted(
        name for name in attributes if name.lower() in _SET_BY_OTHER_SETTINGS
    )
    if others:
        raise ValueError(
            f"attributes that no other setting is for ({', '.join(others)}: see the other settings LDAP_*)"
        )
    return attributes


def _json_object(text: str, expected: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ValueError(expected) from error
    if not isinstance(parsed, dict):
        raise ValueError(expected)
    return parsed


def _are_texts(values: list[object]) -> bool:
    """Return whether there is a value, and each one is a whole number or a text that is
    not empty. JSON's true and false are bool, which is a subclass of int.
    """
    for value in values:
        if type(value) not in (int, str) or value == "":
            return False
    return bool(values)


def _home(value: object) -> object:
    """Expand `~`, as a shell does: a unit file or a container sets the variable without
    a shell.
    """
    return Path(str(value)).expanduser()


_MAIL_ADDRESS = r"[^\s@,<>\"]+@[^\s@,<>\"]+"


def _mail_addresses(text: str) -> tuple[str, ...]:
    """Parse addresses of mail, separated by commas."""
    addresses = [part.strip() for part in text.split(",")]
    for address in addresses:
        if not re.fullmatch(_MAIL_ADDRESS, address, re.ASCII):
            raise ValueError(
                f"addresses as ops@example.org, with commas between ({address!r} is none)"
            )
    return tuple(dict.fromkeys(addresses))


def _command_words(text: str) -> tuple[str, ...]:
    """Parse a command as a shell reads words."""
    words = tuple(_words(text))
    if words and not words[0].startswith("/"):
        raise ValueError(
            "a command that begins with an absolute path, and its arguments"
        )
    return words


def _quiet_hours(text: str) -> QuietHours:
    """Parse hours with a time zone, such as 22:00-07:00 Europe/Zurich."""
    expected = "hours and a time zone, such as 22:00-07:00 Europe/Zurich"
    parts = re.fullmatch(r"(\d\d:\d\d)-(\d\d:\d\d)(?: +(\S+))?", text.strip())
    if parts is None:
        raise ValueError(expected)
    try:
        zone = parts[3] or "UTC"
        ZoneInfo(zone)
        hours = QuietHours(
            time.fromisoformat(parts[1]), time.fromisoformat(parts[2]), zone
        )
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(f"{expected} ({error})") from error
    if hours.begin == hours.end:
        raise ValueError(f"{expected}: not the whole day")
    return hours


def _secret(read: Callable[[str], str]) -> AfterValidator:
    """Return the check of a secret by a function that returns the text to keep."""

    def check(value: SecretStr) -> SecretStr:
        return SecretStr(read(value.get_secret_value()))

    return AfterValidator(check)


def _ethereum_key(text: str) -> str:
    key = text.strip()
    is_hex = re.fullmatch("(0x)?[0-9a-fA-F]{64}", key)
    if not is_hex or not 0 < int(key, 16) < CURVE_ORDER:
        raise ValueError("a private key of 64 hex digits")
    return key


def _jwt_key(text: str) -> str:
    expected = f"the base64 of slurmctld's jwt_key file, which has {LEAST_JWT_KEY} bytes or more"
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(expected) from error
    if len(key) < LEAST_JWT_KEY:
        raise ValueError(expected)
    return text


def _callback_key(text: str) -> str:
    key = text.strip()
    if len(key) < LEAST_KEY_CHARACTERS or not key.isascii():
        raise ValueError(
            f"{LEAST_KEY_CHARACTERS} ASCII characters or more, such as `openssl rand -hex 32` prints"
        )
    return key


EthereumKey = Annotated[SecretStr, _secret(_ethereum_key)]
JwtKey = Annotated[SecretStr, _secret(_jwt_key)]
CallbackKey = Annotated[SecretStr, _secret(_callback_key)]
SshPrivateKey = Annotated[SecretStr, _secret(ssh_keys.private_key)]
SshPublicKey = Annotated[str, AfterValidator(ssh_keys.public_key)]
SubmitKey = Annotated[
    SecretStr,
    pattern(
        "[0-9a-fA-F]{64}",
        "64 hex digits (openssl rand -hex 32), as in the key file of job_submit.lua",
    ),
]
HostPort = Annotated[str, BeforeValidator(_host_port)]
ListenAddress = Annotated[str, BeforeValidator(_listened_at)]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, parsed(_networks)]
HttpUrls = Annotated[SecretStr, BeforeValidator(_http_urls)]
File = Annotated[Path, BeforeValidator(_home)]
Address = Annotated[
    str, pattern("0x[0-9a-fA-F]{40}", "an address of 0x and 40 hex digits")
]
Duration = Annotated[float, BeforeValidator(_go_duration_s)]
Interval = Annotated[Duration, AfterValidator(_zero_or_at_least_one_hour)]
Price = Annotated[int, BeforeValidator(_price)]  # a uint256 on chain
LinuxUser = Annotated[str, pattern(r"[^\s:/-][^\s:/]*", "the name of a Linux user")]
_RDN = r"[A-Za-z][A-Za-z0-9-]*=(\\.|[^,;<>\"\\\s])(\\.|[^,;<>\"\\])*"
Dn = Annotated[
    str,
    pattern(
        f"{_RDN}(, *{_RDN})*",
        "a name in a directory, such as ou=people,dc=example,dc=org",
    ),
]
ObjectClasses = Annotated[
    str,
    pattern(
        f" *{_ATTRIBUTE} *(, *{_ATTRIBUTE} *)*",
        "names of object classes with commas between",
    ),
]
LdapAttributes = Annotated[
    dict[str, tuple[str, ...]], NoDecode, parsed(_ldap_attributes)
]
HomeTemplate = Annotated[
    str,
    pattern(
        r"(/([^/:{}\s]|\{address\})+)+/?",
        "an absolute path in which {address} is the customer's",
    ),
]
RestUrl = Annotated[str, url_with("unix", "https", "http", reads=_is_rest_url)]
SitePath = Annotated[str, pattern(r"/[^\s:]*", "an absolute path")]
DatabaseUrl = Annotated[SecretStr, parsed(canonical)]
BrokerUrl = Annotated[
    SecretStr, url_with("redis", "rediss", "redis+socket", reads=_is_broker_url)
]
Labels = Annotated[dict[str, str], NoDecode, parsed(_labels)]
Variables = Annotated[
    dict[plan.VariableName, plan.Text], NoDecode, parsed(_assignments)
]
JobVariables = Annotated[dict[str, str], NoDecode, parsed(_job_variables)]
Volumes = Annotated[
    dict[plan.VolumeName, plan.AbsolutePath], NoDecode, parsed(_assignments)
]
_WORD = "letters, digits and _./:@=,+%#-, no - first"
Image = Annotated[str, matches_type(plan.Word, f"a container image: {_WORD}")]
Command = Annotated[str, matches_type(plan.Word, f"a program's name or path: {_WORD}")]
Modules = Annotated[
    str,
    matches_type(
        plan.Word, f"names of modules with spaces between: {_WORD}", each_of=_words
    ),
]
SrunFlags = Annotated[
    str,
    matches_type(
        plan.Text, "words for srun without control characters", each_of=_words
    ),
]
SbatchFlags = Annotated[tuple[str, ...], NoDecode, parsed(_sbatch_flags)]
UcxAffinity = Annotated[
    str,
    matches_type(
        plan.Device,
        "devices such as mlx5_0:1, or one entry for each node with | between",
        each_of=lambda text: list(filter(None, text.split("|"))),
    ),
]
UcxTransport = Annotated[
    str, matches_type(plan.Transport, "names of transports with commas between")
]
Iperf3Server = Annotated[
    str, matches_type(plan.Iperf3Server, "an address as host:port")
]
LabelKeys = Annotated[frozenset[str], NoDecode, parsed(_label_keys)]
MailAddress = Annotated[
    str, pattern(_MAIL_ADDRESS, "an address as supervisor@example.org")
]
MailAddresses = Annotated[tuple[str, ...], NoDecode, parsed(_mail_addresses)]
CommandWords = Annotated[tuple[str, ...], NoDecode, parsed(_command_words)]
QuietHoursSetting = Annotated[QuietHours, NoDecode, parsed(_quiet_hours)]
