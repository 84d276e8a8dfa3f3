"""The settings: every variable that operators already have, and what is said about
those that cannot be used.
"""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pydantic import SecretStr

from supervisor_tasks.config import settings as module
from supervisor_tasks.config.needs import KEYS, ONLY_FOR, Need, SlurmAccess, kept
from supervisor_tasks.config.settings import (
    Settings,
    SettingsError,
    hide_secrets,
    load,
)
from supervisor_tasks.slurm.ssh import load_key
from tests.support.refusals import reasons

KEY = ed25519.Ed25519PrivateKey.generate()
KEY_FILE = KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.OpenSSH,
    serialization.NoEncryption(),
)
LOCKED_KEY_FILE = KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.OpenSSH,
    serialization.BestAvailableEncryption(b"passphrase"),
)
PUBLIC = (
    KEY.public_key()
    .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    .decode()
)
WALLET_KEY = "0x" + "4c" * 32
SSH = {
    "SLURM_SSH_PRIVATE_KEY": base64.b64encode(KEY_FILE).decode(),
    "SLURM_SSH_ADDRESS": "login:22",
    "SLURM_SSH_ADMIN_USER": "slurm",
}

# The Go program's settings: variable, what it is without one, a value, what that means
FIELD = [
    ("LISTEN_ADDRESS", ":3000", "127.0.0.1:4000", "127.0.0.1:4000"),
    ("PUBLIC_ADDRESS", "supervisor.example.com:3000", "here:1", "here:1"),
    ("TLS_ENABLE", False, "true", True),
    ("TLS_CERT", None, "/c", Path("/c")),
    ("TLS_KEY", None, "/k", Path("/k")),
    (
        "METASCHEDULER_ENDPOINT_RPC",
        SecretStr("https://testnet.deepsquare.run/rpc"),
        "http://n/rpc",
        SecretStr("http://n/rpc"),
    ),
    (
        "METASCHEDULER_ENDPOINT_WS",
        SecretStr("wss://testnet.deepsquare.run/ws"),
        "ws://n/ws",
        SecretStr("ws://n/ws"),
    ),
    (
        "METASCHEDULER_SMART_CONTRACT",
        "0x3707aB457CF457275b7ec32e203c54df80C299d5",
        "0x" + "Aa" * 20,
        "0x" + "Aa" * 20,
    ),
    ("METASCHEDULER_CPU_PRICE_PER_MIN", 950000000000000000, "1", 1),
    ("METASCHEDULER_GPU_PRICE_PER_MIN", 8500000000000000000, "9" * 30, int("9" * 30)),
    ("METASCHEDULER_MEM_PRICE_PER_MIN", 80000000000000, "0", 0),
    ("METASCHEDULER_LABELS", {}, "zone=ch, name=a=b,", {"zone": "ch", "name": "a=b"}),
    ("HARDWARE_STABLE_S", 300.0, "0", 0.0),
    ("BENCHMARK_EVERY", 0.0, "168h", 604800.0),
    ("SBATCH_ENDPOINT", "127.0.0.1:443", "[::1]:443", "[::1]:443"),
    ("SBATCH_TLS_ENABLE", True, "false", False),
    ("SBATCH_CA", None, "/ca", Path("/ca")),
    ("SBATCH_TLS_INSECURE", False, "1", True),
    ("SLURM_SBATCH_PATH", "/usr/bin/sbatch", "/s", "/s"),
    ("SLURM_SCANCEL_PATH", "/usr/bin/scancel", "/s", "/s"),
    ("SLURM_SCONTROL_PATH", "/usr/bin/scontrol", "/s", "/s"),
    ("SLURM_SINFO_PATH", "/usr/bin/sinfo", "/s", "/s"),
    ("SLURM_SQUEUE_PATH", "/usr/bin/squeue", "/s", "/s"),
    ("SLURM_PARTITION", "main", "gpu_1", "gpu_1"),
    ("SLURM_COMPARE_SIZES", True, "false", False),
    ("SLURM_CUSTOMER_ACCOUNT", "", "grid.customers", "grid.customers"),
    ("NVIDIA_SMI_PATH", "nvidia-smi", "/n", "/n"),
    ("TRACE", False, "true", True),
    ("BENCHMARK_DISABLE", False, "true", True),
    ("BENCHMARK_RUN_AS", "root", "bench", "bench"),
    ("BENCHMARK_TIME_LIMIT", 86400.0, "1h30m0.5s", 5400.5),
    ("BENCHMARK_TRACE", False, "true", True),
    ("BENCHMARK_UNRESPONSIVE", False, "true", True),
    (
        "BENCHMARK_HPL_IMAGE",
        "registry-1.deepsquare.run#library/hpc-benchmarks:23.5",
        "i",
        "i",
    ),
    ("BENCHMARK_HPL_SINGLE_NODE", False, "true", True),
    (
        "BENCHMARK_OSU_IMAGE",
        "registry-1.deepsquare.run#library/osu-benchmarks:latest",
        "i",
        "i",
    ),
    (
        "BENCHMARK_IOR_IMAGE",
        "registry-1.deepsquare.run#library/ior-benchmarks:latest",
        "i",
        "i",
    ),
    ("BENCHMARK_IOR_SINGLE_NODE", False, "true", True),
    (
        "BENCHMARK_SPEEDTEST_IMAGE",
        "registry-1.docker.io#gists/speedtest-cli:1.2.0",
        "i",
        "i",
    ),
    ("BENCHMARK_UCX", False, "true", True),
    ("BENCHMARK_UCX_AFFINITY", "", "mlx5_0:1|mlx5_0:1", "mlx5_0:1|mlx5_0:1"),
    ("BENCHMARK_UCX_TRANSPORT", "", "sm,self,rc", "sm,self,rc"),
]


def lines(*needs: Need, **environment: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*needs, environment=environment)
    return caught.value.lines


@pytest.mark.parametrize(
    ("name", "default", "text", "value"), FIELD, ids=[row[0] for row in FIELD]
)
def test_load__variable_of_the_field__has_its_default_and_its_meaning(
    name: str, default: object, text: str, value: object
) -> None:
    assert getattr(load(environment={}), name.lower()) == default
    assert getattr(load(environment={name: ""}), name.lower()) == default
    assert getattr(load(environment={name: text}), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text", "setting", "value"),
    [
        (
            "BENCHMARK_ENV",
            "A=b,C=d e,",
            "benchmark_environment",
            {"A": "b", "C": "d e"},
        ),
        ("BENCHMARK_ENV", "A=it's;$(x)", "benchmark_environment", {"A": "it's;$(x)"}),
        ("BENCHMARK_HPL_MEMORY_PERCENT", "80", "benchmark_hpl_memory_share", 0.8),
    ],
)
def test_load__other_form_of_a_setting__is_read_and_ours_comes_first(
    name: str, text: str, setting: str, value: object
) -> None:
    assert getattr(load(environment={name: text}), setting) == value
    ours = {
        "benchmark_environment": ("X=y", {"X": "y"}),
        "benchmark_hpl_memory_share": ("0.3", 0.3),
    }[setting]
    assert (
        getattr(load(environment={name: text, setting.upper(): ours[0]}), setting)
        == ours[1]
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BENCHMARK_ENV", "A"),
        ("BENCHMARK_ENV", "=b"),
        ("BENCHMARK_HPL_MEMORY_PERCENT", "0"),
    ]
    + [("BENCHMARK_HPL_MEMORY_PERCENT", text) for text in ("101", "-1", "half", "nan")],
)
def test_load__other_form_malformed__is_told_by_its_own_name(
    name: str, text: str
) -> None:
    (line,) = lines(**{name: text})
    assert line.startswith(f"{name}: found {text!r}; expected ")


MALFORMED = {
    "LISTEN_ADDRESS": ("3000", "an address as host:port or :port"),
    "PUBLIC_ADDRESS": ("here:70000", "an address as host:port"),
    "TLS_ENABLE": ("maybe", "a valid boolean"),
    "METASCHEDULER_ENDPOINT_RPC": (
        "n:8545",
        "a URL that begins with http:// or https://",
    ),
    "METASCHEDULER_ENDPOINT_WS": ("http://n", "a URL that begins with ws:// or wss://"),
    "METASCHEDULER_SMART_CONTRACT": ("0x12", "an address of 0x and 40 hex digits"),
    "METASCHEDULER_CPU_PRICE_PER_MIN": (
        "-1",
        "a price in wei (credits x 1e18) a minute: a whole number",
    ),
    "METASCHEDULER_GPU_PRICE_PER_MIN": (
        "1.5",
        "a price in wei (credits x 1e18) a minute: a whole number",
    ),
    "METASCHEDULER_MEM_PRICE_PER_MIN": (
        str(2**256),
        "a price in wei (credits x 1e18) a minute: a whole number",
    ),
    "METASCHEDULER_LABELS": ("zone", "labels as key=value,key=value"),
    "HARDWARE_STABLE_S": ("-1", "greater than or equal to 0"),
    "BENCHMARK_EVERY": ("weekly", "a duration in Go's syntax"),
    "SLURM_PARTITION": ("a b", "letters, digits, - _ and ."),
    "BENCHMARK_TIME_LIMIT": (
        "24",
        "a duration in Go's syntax that is not negative, such as 24h0m0s",
    ),
    "BENCHMARK_HPL_IMAGE": ("a b", "a container image: letters, digits and"),
    "BENCHMARK_OSU_IMAGE": ("--x", "a container image: letters, digits and"),
    "BENCHMARK_IOR_IMAGE": ("$x", "a container image: letters, digits and"),
    "BENCHMARK_SPEEDTEST_IMAGE": ("a;b", "a container image: letters, digits and"),
    "BENCHMARK_ENVIRONMENT": ("A='b", "words as a shell reads them, each quote closed"),
    "BENCHMARK_MODULES": (
        "openmpi 'hpl",
        "words as a shell reads them, each quote closed",
    ),
    "BENCHMARK_CONTAINER_FLAGS": (
        '"--container-x',
        "words as a shell reads them, each quote closed",
    ),
    "BENCHMARK_UCX_AFFINITY": (
        "mlx5_0:1|mlx5 0",
        "devices such as mlx5_0:1, or one entry for each node with | between",
    ),
    "BENCHMARK_UCX_TRANSPORT": ("sm self", "names of transports with commas between"),
    "BENCHMARK_IPERF3_SERVER": ("here", "an address as host:port"),
    "BENCHMARK_SBATCH_FLAGS": (
        "-A grid",
        "long options of sbatch with their values, --name=value ('-A' is none)",
    ),
    "NVIDIA_SMI_PATH": (
        "nvidia-smi -L",
        "a program's name or path: letters, digits and",
    ),
    "BENCHMARK_RUN_AS": ("-l x", "the name of a Linux user"),
    "CHAIN_POLL_S": ("inf", "a finite number"),
    "SLURM_SSH_ADMIN_USER": (" ", "the name of a Linux user"),
    "SBATCH_ENDPOINT": ("::1:443", "an address as host:port"),
    "CLUSTER_NAME": ("a.b", "letters, digits, - and _"),
    "LOG_LEVEL": ("loud", "debug, info, warning or error"),
    "LDAP_PEOPLE_DN": (
        "people",
        "a name in a directory, such as ou=people,dc=example,dc=org",
    ),
    "LDAP_GROUP_DN": (
        "cn=users,,dc=run",
        "a name in a directory, such as ou=people,dc=example,dc=org",
    ),
    "LDAP_BIND_DN": (
        "cn=",
        "a name in a directory, such as ou=people,dc=example,dc=org",
    ),
    "LDAP_OBJECT_CLASSES": (
        "person,,posixAccount",
        "names of object classes with commas between",
    ),
    "LDAP_ATTRIBUTES": ("{gecos: x}", "a JSON object of attributes, such as"),
    "LDAP_MEMBER_ATTRIBUTE": ("owner", "member, uniqueMember or memberUid"),
    "LDAP_HOME_DIRECTORY": (
        "home/{address}",
        "an absolute path in which {address} is the customer's",
    ),
    "LDAP_LOGIN_SHELL": ("bash", "an absolute path"),
    "SLURM_ENVIRONMENT_FILE": (
        "modules.sh",
        "the absolute path of a file on the login node",
    ),
    "LDAP_URL": (
        "ldap://here:x",
        "a URL whose login, host, port and path can be told apart",
    ),
}


CERTIFICATES = {
    "SLURM_SSH_CERTIFICATES": "true",
    "SLURM_SSH_ADDRESS": "h:22",
    "SLURM_SSH_ADMIN_USER": "root",
}


def test_load__certificates__want_the_authoritys_key_and_no_other() -> None:
    (line,) = lines(Need.SLURM, **CERTIFICATES)
    assert line.startswith(
        "SLURM_SSH_CA_KEY: found nothing; expected an SSH private key file without a"
    )
    ca = base64.b64encode(KEY_FILE).decode()
    settings = load(
        Need.SLURM,
        environment={
            **CERTIFICATES,
            "SLURM_SSH_CA_KEY": ca,
            "SLURM_SSH_PRIVATE_KEY": ca,
        },
    )
    assert settings.slurm_ssh_ca_key is not None
    assert settings.slurm_ssh_ca_key.get_secret_value() in settings.secret_values()
    assert settings.slurm_ssh_private_key is None
    assert (
        load(
            Need.SSH_PUBLIC, environment={**CERTIFICATES, "SLURM_SSH_CA_KEY": ca}
        ).slurm_ssh_ca_key
        is None
    )


LDAP = {
    "LDAP_URL": "ldaps://here",
    "LDAP_BIND_DN": "cn=admin,dc=run",
    "LDAP_BIND_PASSWORD": "hunter2",
}


@pytest.mark.parametrize("missing", ["LDAP_BIND_DN", "LDAP_BIND_PASSWORD"])
def test_load__directory_without_an_account_that_may_write_there__is_one_line(
    missing: str,
) -> None:
    given = {name: value for name, value in LDAP.items() if name != missing}
    (line,) = lines(Need.WALLET, ETH_PRIVATE_KEY=WALLET_KEY, **given)
    assert line.startswith(f"{missing}: found nothing; expected ")
    assert line.endswith(", as LDAP_URL is set")
    # those that do not work with the directory do not need it
    assert load(environment=given).ldap_url


def test_load__account_of_customers_without_accounting__is_one_line() -> None:
    account = {"SLURM_CUSTOMER_ACCOUNT": "grid"}
    (line,) = lines(Need.SLURM, **SSH, **account)
    assert line == (
        "SLURM_ACCOUNTING: found false; expected true, as SLURM_CUSTOMER_ACCOUNT is set"
    )
    given = {**SSH, **account, "SLURM_ACCOUNTING": "true"}
    assert load(Need.SLURM, environment=given).slurm_customer_account == "grid"
    assert load(environment=account).slurm_customer_account == "grid"


def test_load__home_of_all_customers__is_refused_unless_the_site_says_what_it_allows() -> (
    None
):
    allowed = "ALLOW_SHARED_HOMES_WHERE_CUSTOMERS_CAN_RUN_CODE_AS_EACH_OTHER"
    (line,) = lines(**LDAP, LDAP_HOME_DIRECTORY="/dev/shm")
    assert line.startswith(
        "LDAP_HOME_DIRECTORY: found '/dev/shm'; expected a path with {address} in it"
    )
    assert allowed in line
    assert load(
        environment={**LDAP, "LDAP_HOME_DIRECTORY": "/dev/shm", allowed: "true"}
    ).ldap_home_directory
    assert load(environment=LDAP).ldap_home_directory == "/home/{address}"


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("{}", {}),
        ('{"gecos": "customer {address}"}', {"gecos": ("customer {address}",)}),
        (
            '{"mail": ["a@b", "c@d"], "shadowMax": 9}',
            {"mail": ("a@b", "c@d"), "shadowMax": ("9",)},
        ),
    ],
)
def test_load__attributes__as_json(
    text: str, attributes: dict[str, tuple[str, ...]]
) -> None:
    assert load(environment={"LDAP_ATTRIBUTES": text}).ldap_attributes == attributes


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        '{"a b": "x"}',
        '{"a": null}',
        '{"a": true}',
        '{"a": []}',
        '{"a": {}}',
        "x",
    ],
)
def test_load__attributes_of_another_form__are_refused(text: str) -> None:
    (line,) = lines(LDAP_ATTRIBUTES=text)
    assert line.startswith(
        f"LDAP_ATTRIBUTES: found {text!r}; expected a JSON object of attributes"
    )


def test_load__attribute_that_another_setting_is_for__is_refused() -> None:
    (line,) = lines(LDAP_ATTRIBUTES='{"UIDNumber": 0}')
    assert "UIDNumber" in line


@pytest.mark.parametrize("name", ["member", "uniqueMember", "memberUid"])
def test_load__member_attribute_of_each_group_class__is_taken(name: str) -> None:
    settings = load(environment={"LDAP_MEMBER_ATTRIBUTE": name})
    assert settings.ldap_member_attribute == name


def test_load__own_groups__are_where_the_group_of_all_is() -> None:
    assert load(environment={}).own_groups_dn == "ou=groups,dc=hpc,dc=deepsquare,dc=run"
    assert (
        load(environment={"LDAP_GROUP_DN": r"cn=a\,b, ou=c,dc=d"}).own_groups_dn
        == "ou=c,dc=d"
    )
    assert (
        load(environment={"LDAP_OWN_GROUPS_DN": "ou=e,dc=f"}).own_groups_dn
        == "ou=e,dc=f"
    )


def test_load__several_rpc_endpoints__are_told_apart_and_each_is_checked() -> None:
    urls = "https://one/rpc,http://user:hunter2@two:8545/a,b , https://three"
    settings = load(environment={"METASCHEDULER_ENDPOINT_RPC": urls})
    assert settings.rpc_urls == [
        "https://one/rpc",
        "http://user:hunter2@two:8545/a,b",
        "https://three",
    ]
    assert "hunter2" in settings.secret_values()
    (line,) = lines(METASCHEDULER_ENDPOINT_RPC="https://one,ws://two")
    assert "a URL that begins with http:// or https://" in line


def test_load__labels__as_the_grid_has_them_and_which_come_first() -> None:
    settings = load(
        environment={
            "METASCHEDULER_LABELS": "CPU=Fast one,zone=ch",
            "LABELS_OVERRIDE": " cpu, ",
        }
    )
    assert settings.operator_labels == {"cpu": "fast-one", "zone": "ch"}
    assert settings.labels_override == {"cpu"}


@pytest.mark.parametrize(
    ("labels", "override", "line"),
    [
        (
            "zone=ch",
            "zone,cpu",
            "LABELS_OVERRIDE: found 'zone,cpu'; expected keys of METASCHEDULER_LABELS",
        ),
        (
            "zone=ch,zone=de",
            "",
            "METASCHEDULER_LABELS: found 'zone=ch,zone=de'; expected labels as key=value,key=value, each",
        ),
        (
            "zone=ch,Zone=de",
            "",
            "METASCHEDULER_LABELS: found 'zone=ch,Zone=de'; expected each label once",
        ),
        (
            "zone=-",
            "",
            "METASCHEDULER_LABELS: found 'zone=-'; expected labels whose keys and values have a letter",
        ),
    ],
)
def test_load__labels_that_cannot_be_meant_so__are_refused(
    labels: str, override: str, line: str
) -> None:
    (said,) = lines(METASCHEDULER_LABELS=labels, LABELS_OVERRIDE=override)
    assert said.startswith(line)


def test_load__many_malformed__one_line_each_all_at_once() -> None:
    said = lines(**{name: text for name, (text, _) in MALFORMED.items()})
    assert [line.partition(":")[0] for line in said] == sorted(MALFORMED)
    for line in said:
        text, expected = MALFORMED[line.partition(":")[0]]
        assert line.startswith(
            f"{line.partition(':')[0]}: found {text!r}; expected {expected}"
        )
        assert "\n" not in line


def test_load__login_in_the_url_of_a_brokers_socket__is_told_and_not_shown() -> None:
    (line,) = lines(BROKER_URL="redis+socket://:secret@/run/redis.sock")
    assert "expected redis+socket:// with the socket's path and no login" in line
    load(environment={"BROKER_URL": "redis+socket:///srv/a@b/redis.sock"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ETH_PRIVATE_KEY", "0xsecretsecret"),
        ("ETH_PRIVATE_KEY", "0" * 64),
        ("ETH_PRIVATE_KEY", "f" * 64),
        ("SLURM_SSH_PRIVATE_KEY", "bm90IGEga2V5IHNlY3JldA=="),
        ("SLURM_SSH_PRIVATE_KEY", base64.b64encode(LOCKED_KEY_FILE).decode()),
        ("SLURM_SSH_PRIVATE_KEY", LOCKED_KEY_FILE.decode()),
        ("DATABASE_URL", "mysql://u:secret@h/d"),
        ("BROKER_URL", "amqp://u:secret@h"),
        ("DATABASE_URL", "postgresql://u:secret@h:port/d"),
        ("BROKER_URL", "redis://:secret@h:port/0"),
        ("BROKER_URL", "redis://:sec[ret@h/0"),
        ("BROKER_URL", "redis://:secret@h/first"),
        ("BROKER_URL", "redis+socket://:secret@/run/redis.sock"),
        ("SLURM_SSH_PUBLIC_KEY", KEY_FILE.decode()),
        ("SLURM_SSH_PUBLIC_KEY", base64.b64encode(KEY_FILE).decode()),
        ("SLURM_SSH_PUBLIC_KEY", f"{PUBLIC}\n{PUBLIC}"),
    ],
)
def test_load__secret_malformed__is_named_and_not_shown(name: str, text: str) -> None:
    (line,) = lines(**{name: text})
    assert line.startswith(f"{name}: found a value that is not shown; expected ")
    assert text not in line
    assert "secret" not in line


@pytest.mark.parametrize(
    "text", ["0x" + "4c" * 32, base64.b64encode(KEY_FILE).decode(), "4c" * 32]
)
def test_load__secret_where_its_file_is_expected__is_not_shown(text: str) -> None:
    (line,) = lines(SLURM_SSH_PRIVATE_KEY_FILE=text)
    assert line.startswith(
        "SLURM_SSH_PRIVATE_KEY_FILE: found a value that is not shown; expected a file that can be"
    )
    assert text not in line


@pytest.mark.parametrize(
    "text", ["user:hunter2@n/rpc", "ws://user:hunter2@n", "http://user:hunter2@n:port/"]
)
def test_load__malformed_url_with_a_password__shows_the_rest(text: str) -> None:
    (line,) = lines(METASCHEDULER_ENDPOINT_RPC=text)
    assert "hunter2" not in line
    assert line.startswith("METASCHEDULER_ENDPOINT_RPC: found '")
    assert "@n" in line


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("0", 0.0),
        ("+2h", 7200.0),
        (".5h", 1800.0),
        ("1.m", 60.0),
        ("5us3\u00b5s2\u03bcs", 1e-5),
        ("1ms", 1e-3),
    ],
)
def test_load__duration__is_read_as_go_reads_it(text: str, duration_s: float) -> None:
    read = load(environment={"BENCHMARK_TIME_LIMIT": text}).benchmark_time_limit
    assert read == pytest.approx(duration_s)


@pytest.mark.parametrize(
    "text", ["-1h", "1h 30m", "1d", "1e3s", "h", ".h", "+", "1h30", "00"]
)
def test_load__duration_that_go_would_refuse_or_negative__is_refused(text: str) -> None:
    (line,) = lines(BENCHMARK_TIME_LIMIT=text)
    assert line.startswith(
        f"BENCHMARK_TIME_LIMIT: found {text!r}; expected a duration in Go's syntax"
    )


@pytest.mark.parametrize("text", ["1ns", "59m59s"])
def test_load__benchmarks_more_often_than_hourly__are_refused(text: str) -> None:
    assert lines(BENCHMARK_EVERY=text) == [
        f"BENCHMARK_EVERY: found {text!r}; expected 0 (none) or at least 1h"
    ]
    assert [
        load(environment={"BENCHMARK_EVERY": often}).benchmark_every
        for often in ("0s", "1h")
    ] == [0.0, 3600.0]


def test_load__nothing_given__names_all_that_the_process_needs() -> None:
    named = [
        line.partition(": found nothing; expected ")[0]
        for line in lines(Need.WALLET, Need.SLURM)
    ]
    assert named == [
        "ETH_PRIVATE_KEY",
        "SLURM_SSH_ADDRESS",
        "SLURM_SSH_ADMIN_USER",
        "SLURM_SSH_PRIVATE_KEY",
    ]


def test_load__missing_and_malformed__are_told_together_and_once() -> None:
    said = lines(
        Need.WALLET,
        Need.SLURM,
        Need.SSH_PUBLIC,
        SLURM_SSH_PRIVATE_KEY="x",
        CHAIN_ID="x",
    )
    names = [line.partition(":")[0] for line in said]
    assert names == [
        "CHAIN_ID",
        "ETH_PRIVATE_KEY",
        "SLURM_SSH_ADDRESS",
        "SLURM_SSH_ADMIN_USER",
        "SLURM_SSH_PRIVATE_KEY",
    ]


CHAIN_PATHS = {"/rpc", "/ws"}  # of the default endpoints


def test_load__secrets_that_are_not_needed__are_not_kept() -> None:
    environment = {
        **SSH,
        "ETH_PRIVATE_KEY": WALLET_KEY,
        "LDAP_BIND_PASSWORD": "directory-password",
    }
    neither, wallet = (
        load(environment=environment),
        load(Need.WALLET, environment=environment),
    )
    public = load(Need.SSH_PUBLIC, environment=environment)
    for settings in (neither, public):
        assert set(settings.secret_values()) == CHAIN_PATHS
    assert wallet.eth_private_key is not None
    assert wallet.slurm_ssh_private_key is None
    assert public.slurm_ssh_public_key == PUBLIC


# a secret that every process of a fleet works with
OF_ALL_PROCESSES = {"database_url"}


def test_keys__each_secret_that_not_all_processes_need__is_one() -> None:
    """Each process keeps a secret that is no key, also without a need for it."""
    secrets = set[str]()
    for name, field in module.Settings.model_fields.items():
        if "Secret" in str(field.annotation):
            secrets.add(name)
    assert secrets - OF_ALL_PROCESSES - ONLY_FOR.keys() == set(KEYS)
    assert kept(Need, SlurmAccess.SSH_KEY) | kept(
        Need, SlurmAccess.SSH_CERTIFICATES
    ) | kept(Need, SlurmAccess.REST) >= set(KEYS)


def test_load__ssh_needed__is_the_key_file_itself() -> None:
    settings = load(Need.SLURM, environment=SSH)
    assert settings.slurm_ssh_private_key is not None
    assert settings.slurm_ssh_private_key.get_secret_value() == KEY_FILE.decode()


@pytest.mark.parametrize(
    "text",
    [KEY_FILE.decode(), KEY_FILE.decode().strip(), base64.b64encode(KEY_FILE).decode()],
)
def test_load__ssh_key__is_the_file_as_ssh_keygen_wrote_it_or_its_base64(
    text: str, tmp_path: Path
) -> None:
    file = tmp_path / "id_ed25519"
    file.write_text(text)
    for given in (
        {"SLURM_SSH_PRIVATE_KEY": text},
        {"SLURM_SSH_PRIVATE_KEY": "", "SLURM_SSH_PRIVATE_KEY_FILE": str(file)},
    ):
        settings = load(Need.SLURM, environment={**SSH, **given})
        assert settings.slurm_ssh_private_key is not None
        assert settings.slurm_ssh_private_key.get_secret_value() == KEY_FILE.decode()
        assert KEY_FILE.decode().splitlines()[1] in settings.secret_values()


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
@pytest.mark.parametrize(
    "form",
    [serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8],
)
def test_load__ssh_key_as_pem__is_one_that_ssh_can_use(
    kind: str, form: serialization.PrivateFormat
) -> None:
    key = (
        rsa.generate_private_key(65537, 2048)
        if kind == "rsa"
        else ec.generate_private_key(ec.SECP256R1())
    )
    file = key.private_bytes(
        serialization.Encoding.PEM, form, serialization.NoEncryption()
    )
    environment = {**SSH, "SLURM_SSH_PRIVATE_KEY": base64.b64encode(file).decode()}
    settings = load(Need.SLURM, Need.SSH_PUBLIC, environment=environment)
    assert settings.slurm_ssh_private_key is not None
    read = load_key(settings.slurm_ssh_private_key.get_secret_value())
    assert settings.slurm_ssh_public_key == f"{read.get_name()} {read.get_base64()}"


def test_load__secret_as_a_file__is_read(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(WALLET_KEY + "\n")
    settings = load(Need.WALLET, environment={"ETH_PRIVATE_KEY_FILE": str(file)})
    assert settings.eth_private_key is not None
    assert settings.eth_private_key.get_secret_value() == WALLET_KEY
    missing = str(tmp_path / "none")
    (line,) = lines(Need.WALLET, ETH_PRIVATE_KEY_FILE=missing)
    assert line.startswith(
        f"ETH_PRIVATE_KEY_FILE: found {missing!r}; expected a file that can be read"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("METASCHEDULER_ENDPOINT_RPC", "https://node/v2/token"),
        ("METASCHEDULER_ENDPOINT_WS", "wss://node/ws?key=token"),
        ("DATABASE_URL", "postgresql+psycopg://u:token@h/d"),
        ("BROKER_URL", "rediss://u:token@h:6379/0"),
        ("FLOWER_BASIC_AUTH", "operator:token"),
        ("FLOWER_BASIC_AUTH", "operator:token,second:other:token"),
        ("LDAP_URL", "ldaps://token.example"),
        ("LDAP_BIND_DN", "cn=token"),
    ],
)
def test_load__url_with_a_token_as_a_file__is_read(
    name: str, value: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(f"{value}\n")
    found = getattr(
        load(environment={f"{name}_FILE": str(tmp_path / "file")}), name.lower()
    )
    assert (
        found.get_secret_value() if isinstance(found, SecretStr) else found
    ) == value


@pytest.fixture
def given_secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_hidden", {})
    broker = "redis://:brokers-password@h/0"
    environment = {
        **SSH,
        "ETH_PRIVATE_KEY": WALLET_KEY,
        "DATABASE_URL": "postgresql://u:pass@h/d",
        "BROKER_URL": broker,
        "METASCHEDULER_ENDPOINT_RPC": "https://node.example.org/rpc-token",
        "CELERY_BROKER_URL": broker,  # so does Celery's command
        "CELERY_BROKER_READ_URL": broker,
        "CELERY_BROKER_WRITE_URL": broker,
        "CELERY_RESULT_BACKEND": "db+postgresql://u:backends-password@h/d",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield
    secrets = {
        environment[name]
        for name in (
            "ETH_PRIVATE_KEY",
            "SLURM_SSH_PRIVATE_KEY",
            "DATABASE_URL",
            "BROKER_URL",
            "METASCHEDULER_ENDPOINT_RPC",
        )
    }
    for secret in {*secrets, "brokers-password", "backends-password"}:
        assert not [name for name, value in os.environ.items() if secret in value]


@pytest.mark.usefixtures("given_secrets")
def test_hide_secrets__process_with_a_need__keeps_only_the_secrets_it_needs() -> None:
    hide_secrets("worker", Need.WALLET)
    settings = load(Need.WALLET)
    assert settings.eth_private_key is not None
    assert settings.database_url is not None
    assert settings.rpc_urls == ["https://node.example.org/rpc-token"]
    with pytest.raises(SettingsError, match="SLURM_SSH_PRIVATE_KEY: found nothing"):
        load(Need.SLURM)


@pytest.mark.usefixtures("given_secrets")
def test_hide_secrets__of_a_process_without_a_need__forgets_the_keys() -> None:
    hide_secrets("beat")
    with pytest.raises(SettingsError, match="ETH_PRIVATE_KEY: found nothing"):
        load(Need.WALLET)
    assert load().database_url is not None
    assert load().rpc_urls == Settings().rpc_urls


@pytest.mark.parametrize(
    ("process", "hidden"),
    [
        ("worker", {"FLOWER_BASIC_AUTH"}),
        ("flower", {"METASCHEDULER_ENDPOINT_RPC"}),
        ("metrics", {"BROKER_URL", "FLOWER_BASIC_AUTH", "METASCHEDULER_ENDPOINT_RPC"}),
    ],
)
def test_hide_secrets__given_to_all__keeps_what_the_process_works_with(
    monkeypatch: pytest.MonkeyPatch, process: str, hidden: set[str]
) -> None:
    given = {
        "BROKER_URL": "redis://:password@h/0",
        "FLOWER_BASIC_AUTH": "user:password",
        "METASCHEDULER_ENDPOINT_RPC": "https://node.example.org/token",
    }
    monkeypatch.setattr(module, "_hidden", {})
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    hide_secrets(process)
    assert module._hidden == {
        name: value for name, value in given.items() if name not in hidden
    }


def test_hide_secrets__of_celerys_option_broker__is_the_broker_and_in_no_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_hidden", {})
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:password-of-the-option@h/0")
    monkeypatch.setenv("BROKER_URL", "redis://:another@h/0")
    hide_secrets("beat")
    found = load().broker_url
    assert found is not None
    assert found.get_secret_value() == "redis://:password-of-the-option@h/0"
    assert not [
        name for name, value in os.environ.items() if "password-of-the-option" in value
    ]


def test_load__home_abbreviated__is_expanded() -> None:
    settings = load(
        environment={"SLURM_SSH_KNOWN_HOSTS": "~/known", "STATE_DIR": "~/state"}
    )
    assert settings.slurm_ssh_known_hosts == Path("~/known").expanduser()
    assert settings.state_dir == Path("~/state").expanduser()


def test_settings__printed_or_changed__shows_no_secret_and_refuses() -> None:
    environment: Mapping[str, str] = {
        **SSH,
        "ETH_PRIVATE_KEY": WALLET_KEY,
        "DATABASE_URL": "postgresql://u:pass%20word@h/d",
    }
    settings = load(Need.WALLET, Need.SLURM, environment=environment)
    for secret in {*settings.secret_values(), *CHAIN_PATHS}:
        assert secret not in repr(settings)
        assert secret not in settings.model_dump_json()
    with pytest.raises(ValueError, match="frozen"):
        settings.cluster_name = "other"  # type: ignore[misc]


def test_secret_values__key_or_password__hold_every_form_that_others_might_log() -> (
    None
):
    environment = {
        **SSH,
        "ETH_PRIVATE_KEY": WALLET_KEY,
        "DATABASE_URL": "postgresql://u:pass%20word@h/d",
    }
    values = load(Need.WALLET, Need.SLURM, environment=environment).secret_values()
    assert {
        WALLET_KEY,
        WALLET_KEY[2:],
        "pass%20word",
        "pass word",
        SSH["SLURM_SSH_PRIVATE_KEY"],
    } <= set(values)
    assert KEY_FILE.decode().splitlines()[2] in values


@pytest.mark.parametrize(
    ("name", "url", "password"),
    [
        ("DATABASE_URL", "postgresql://u:a%23hash%2F@h/d", "a#hash/"),
        ("DATABASE_URL", "postgresql://u:brac[ket@h:5432/d", "brac[ket"),
        (
            "DATABASE_URL",
            "postgresql://u@h/d?sslmode=require&password=in%20query",
            "in query",
        ),
        ("BROKER_URL", "redis://:redis-password@h/0", "redis-password"),
        (
            "METASCHEDULER_ENDPOINT_RPC",
            "https://user:rpc-password@h/rpc",
            "rpc-password",
        ),
    ],
)
def test_secret_values__password_in_any_url__is_one_of_them(
    name: str, url: str, password: str
) -> None:
    assert password in load(environment={name: url}).secret_values()


def test_secret_values__url_of_host_and_port__adds_nothing() -> None:
    environment = {
        "METASCHEDULER_ENDPOINT_RPC": "http://127.0.0.1:8545/",
        "METASCHEDULER_ENDPOINT_WS": "ws://n:1",
    }
    assert load(environment=environment).secret_values() == []


KEYED = "https://user-of-ours:a%20password@h:8545/v3/0123456789abcdef?apikey=fedcba9876543210&x=1"


def test_secret_values__key_in_an_rpc_url__is_one_of_them() -> None:
    urls = {
        "METASCHEDULER_ENDPOINT_RPC": f"http://h/rpc,{KEYED}",
        "METASCHEDULER_ENDPOINT_WS": "wss://h/ws/0f0f0f0f0f0f",
    }
    values = set(load(environment=urls).secret_values())
    assert {
        "0123456789abcdef",
        "fedcba9876543210",
        "0f0f0f0f0f0f",
        "v3/0123456789abcdef",
    } <= values
    assert {
        "/rpc",
        "apikey=fedcba9876543210&x=1",
        "user-of-ours:a%20password",
        "user-of-ours:a password",
    } <= values
    # plain words, which are hidden in what is said of that URL alone
    assert not {"rpc", "v3", "1", "apikey"} & values


def test_load__rpc_url_malformed__its_key_is_not_shown() -> None:
    (line,) = lines(METASCHEDULER_ENDPOINT_RPC=KEYED.replace("https", "htps"))
    assert "(not shown)@h:8545/(not shown)'" in line
    assert not any(
        part in line for part in ("0123456789abcdef", "fedcba9876543210", "password")
    )


@pytest.mark.parametrize(
    "url",
    [
        "htps://h/a1",
        "htps://a1@h",
        "h:1/a1?a1=a1#a1",
        "a1@h,htps://i/x,a1",
        "//u:a1@h?a1",
    ],
)
def test_load__rpc_url_malformed__not_even_a_short_key_is_shown(url: str) -> None:
    (line,) = lines(METASCHEDULER_ENDPOINT_RPC=url)
    assert "a1" not in line


def test_load_or_exit__malformed__every_line_on_stderr_and_status_2() -> None:
    program = (
        "from supervisor_tasks.config.needs import Need; from supervisor_tasks.config.settings import load_or_exit;"
        " load_or_exit(Need.WALLET)"
    )
    environment = {"CHAIN_ID": "x", "PATH": "/usr/bin:/bin"}
    repository = Path(module.__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert [reason.partition(":")[0] for reason in reasons(ended.stderr)] == [
        "CHAIN_ID",
        "ETH_PRIVATE_KEY",
    ]
