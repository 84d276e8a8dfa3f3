"""Which process of `supervisor run` gets what."""

import pytest

from supervisor_tasks.cli.run_fleet import (
    FLEET,
    LASTED_S,
    MAX_PAUSE_S,
    Child,
    environment_of,
)

GIVEN = {
    "ETH_PRIVATE_KEY": "k",
    "SLURM_SSH_PRIVATE_KEY_FILE": "/f",
    "CALLBACK_KEY": "c",
    "NOTIFY_SLACK_URL": "n",
    "METASCHEDULER_ENDPOINT_RPC": "https://node.example/token",
    "METASCHEDULER_ENDPOINT_WS_FILE": "/w",
    "LDAP_BIND_DN": "cn=admin",
    "FLOWER_BASIC_AUTH": "user:password",
    "DATABASE_URL": "d",
    "PATH": "/bin",
}


@pytest.mark.parametrize(
    ("process", "keys"),
    [
        (
            "worker",
            {
                "ETH_PRIVATE_KEY",
                "SLURM_SSH_PRIVATE_KEY_FILE",
                "NOTIFY_SLACK_URL",
                "METASCHEDULER_ENDPOINT_RPC",
                "METASCHEDULER_ENDPOINT_WS_FILE",
                "LDAP_BIND_DN",
            },
        ),
        ("beat", set()),
        ("callbacks", {"CALLBACK_KEY"}),
        ("flower", {"FLOWER_BASIC_AUTH"}),
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


def test_child__ends_again_and_again__waits_longer_up_to_a_bound() -> None:
    child, waits = Child("worker"), []
    for _ in range(7):
        child.ended(1.0)
        waits.append(child.start_at_s - 1.0)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_S, MAX_PAUSE_S]
    child.started_s = 1.0
    child.ended(1.0 + LASTED_S)
    assert (child.restarts, child.start_at_s) == (1, 2.0 + LASTED_S)
