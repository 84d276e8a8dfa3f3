"""The settings of `supervisor doctor`: with every key that is there, and without what
is malformed.
"""

import pytest

from supervisor_tasks.doctor.probe_context import is_proxied, readable_settings

KEY = "0x" + "1" * 64
PROXY = "http://proxy.example:3128"


def test_settings__key_is_set__is_kept() -> None:
    settings, lines = readable_settings(
        {"ETH_PRIVATE_KEY": KEY, "CLUSTER_NAME": "here"}
    )
    assert settings.eth_private_key is not None
    assert settings.cluster_name == "here"
    assert lines == []


def test_settings__without_a_key__are_read() -> None:
    settings, lines = readable_settings({"SLURM_SSH_ADDRESS": "login:22"})
    assert settings.slurm_ssh_private_key is None
    assert settings.slurm_ssh_address == "login:22"
    assert lines == []


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"CHAIN_ID": "x"}, {"CHAIN_ID"}),
        ({"LDAP_URL": "ldap://d"}, {"LDAP_BIND_DN", "LDAP_BIND_PASSWORD"}),
        (
            {"NOTIFY_MAIL_TO": "a@example.com"},
            {"NOTIFY_MAIL_FROM", "NOTIFY_SMTP_ADDRESS"},
        ),
        ({"DATABASE_URL_FILE": "/nowhere/at/all"}, {"DATABASE_URL_FILE"}),
    ],
)
def test_settings__some_are_malformed__the_others_are_read_and_these_named(
    environment: dict[str, str], named: set[str]
) -> None:
    settings, lines = readable_settings(
        {"ETH_PRIVATE_KEY": KEY, "CLUSTER_NAME": "here"} | environment
    )
    assert settings.cluster_name == "here"
    assert settings.eth_private_key is not None
    assert {line.partition(":")[0] for line in lines} == named


@pytest.mark.parametrize(
    ("variables", "host", "expected"),
    [
        ({}, "rpc.example", False),
        ({"HTTPS_PROXY": PROXY}, "rpc.example", True),
        ({"https_proxy": PROXY}, "rpc.example", True),
        ({"HTTP_PROXY": PROXY}, "rpc.example", False),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "rpc.example"}, "rpc.example", False),
        ({"HTTPS_PROXY": PROXY, "no_proxy": ".example"}, "rpc.example", False),
        ({"HTTPS_PROXY": PROXY, "no_proxy": "*"}, "rpc.example", False),
    ],
)
def test_is_proxied__variables_of_proxies__decide_by_host(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    host: str,
    expected: bool,
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_proxied(host) is expected
