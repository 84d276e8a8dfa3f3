"""Which process of `supervisor run` gets what."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from supervisor_tasks.cli.run_fleet import (
    FLEET,
    LASTED_S,
    MAX_PAUSE_S,
    Child,
    environment_of,
)
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import Settings, load
from supervisor_tasks.config.ssh_keys import public_half

GIVEN = {
    "ETH_PRIVATE_KEY": "k",
    "SLURM_SSH_PRIVATE_KEY_FILE": "/f",
    "CALLBACK_KEY": "c",
    "NOTIFY_SLACK_URL": "n",
    "METASCHEDULER_ENDPOINT_RPC": "https://node.example/token",
    "METASCHEDULER_ENDPOINT_WS_FILE": "/w",
    "LDAP_BIND_DN": "cn=admin",
    "FLOWER_BASIC_AUTH": "user:password",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example/key",
    "DATABASE_URL": "d",
    "BROKER_URL": "b",
    "PATH": "/bin",
}


@pytest.mark.parametrize(
    ("process", "keys"),
    [
        (
            "worker",
            {
                "BROKER_URL",
                "ETH_PRIVATE_KEY",
                "SLURM_SSH_PRIVATE_KEY_FILE",
                "NOTIFY_SLACK_URL",
                "METASCHEDULER_ENDPOINT_RPC",
                "METASCHEDULER_ENDPOINT_WS_FILE",
                "LDAP_BIND_DN",
                "OTEL_EXPORTER_OTLP_ENDPOINT",
            },
        ),
        ("beat", {"BROKER_URL"}),
        ("callbacks", {"BROKER_URL", "CALLBACK_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT"}),
        ("flower", {"BROKER_URL", "FLOWER_BASIC_AUTH"}),
        ("metrics", set()),
        ("migrate", set()),
    ],
)
def test_environment_of__process__has_the_secrets_that_it_works_with(
    process: str, keys: set[str]
) -> None:
    found = environment_of(process, GIVEN)
    assert found.keys() - {"HEALTH_ADDRESS"} == keys | {"DATABASE_URL", "PATH"}


def test_environment_of__health_address__counts_from_the_one_that_is_given() -> None:
    given = {"HEALTH_ADDRESS": "127.0.0.1:7000"}
    found = [environment_of(process, given)["HEALTH_ADDRESS"] for process in FLEET]
    assert found == [f"127.0.0.1:{7000 + place}" for place in range(len(FLEET))]


def a_private_key() -> str:
    key = Ed25519PrivateKey.generate()
    openssh = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return openssh.decode()


@pytest.mark.parametrize("given", [{}, {"SLURM_SSH_PUBLIC_KEY": ""}])
def test_environment_of__no_public_key__callbacks_has_the_derived_one(
    given: dict[str, str],
) -> None:
    private = a_private_key()
    fleet = given | {"SLURM_SSH_PRIVATE_KEY": private, "CALLBACK_KEY": "c"}
    found = environment_of("callbacks", fleet)
    assert found["SLURM_SSH_PUBLIC_KEY"] == public_half(private)


def test_environment_of__key_file_in_the_home__callbacks_has_the_derived_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the worker reads that file; else the callbacks process ends the fleet."""
    private = a_private_key()
    (tmp_path / "key").write_text(private)
    monkeypatch.setenv("HOME", str(tmp_path))
    fleet = {"SLURM_SSH_PRIVATE_KEY_FILE": "~/key", "CALLBACK_KEY": "c"}
    found = environment_of("callbacks", fleet)
    assert found["SLURM_SSH_PUBLIC_KEY"] == public_half(private)


def test_environment_of__public_key_given__callbacks_has_that_one() -> None:
    given = {"SLURM_SSH_PRIVATE_KEY": a_private_key(), "SLURM_SSH_PUBLIC_KEY": "mine"}
    assert environment_of("callbacks", given)["SLURM_SSH_PUBLIC_KEY"] == "mine"


@pytest.mark.parametrize("process", FLEET)
def test_environment_of__empty_variables__the_child_works_as_without(
    process: str,
) -> None:
    private = a_private_key()
    given = {"ETH_PRIVATE_KEY": "11" * 32, "SLURM_SSH_PRIVATE_KEY": private}
    empty = dict.fromkeys((name.upper() for name in Settings.model_fields), "")
    found = environment_of(process, empty | given)
    needs = (Need.SSH_PUBLIC,) if process == "callbacks" else ()
    without = load(*needs, environment=environment_of(process, given))
    assert load(*needs, environment=found) == without


def test_child__ends_again_and_again__waits_longer_up_to_a_bound() -> None:
    child, waits = Child("worker"), []
    for _ in range(7):
        child.ended(1.0)
        waits.append(child.start_at_s - 1.0)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_S, MAX_PAUSE_S]
    child.started_s = 1.0
    child.ended(1.0 + LASTED_S)
    assert (child.restarts, child.start_at_s) == (1, 2.0 + LASTED_S)
