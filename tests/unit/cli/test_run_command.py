"""`supervisor run`: which program becomes of it, without running it."""

import os

import pytest

from supervisor_tasks.cli.run_command import (
    PROCESSES,
    command,
    missing_servers,
    take_embedded_flag,
)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "west-worker@%h"),
        (["-Q", "west.chain"], "west-chain@%h"),
        (["--queues=west.slurm,west.benchmark"], "west-slurm-benchmark@%h"),
        (["-Qwest.chain"], "west-chain@%h"),
        (["-Q=west.chain"], "west-chain@%h"),
    ],
)
def test_command__a_worker__is_named_after_its_cluster_and_queues(
    monkeypatch: pytest.MonkeyPatch, options: list[str], name: str
) -> None:
    monkeypatch.setenv("CLUSTER_NAME", "west")
    argv = command("worker", options, os.environ)
    assert argv[argv.index("--hostname") + 1] == name
    assert argv[-len(options) :] == options or not options


@pytest.mark.parametrize(
    "options",
    [
        ["-n", "mine@%h"],
        ["--hostname", "mine@%h"],
        ["--hostname=mine@%h"],
        ["-nmine@%h"],
    ],
)
def test_command__a_worker_with_a_name__keeps_it(options: list[str]) -> None:
    assert (
        sum(
            word.startswith(("-n", "--hostname"))
            for word in command("worker", options, os.environ)
        )
        == 1
    )


def test_command__no_cluster_name__is_main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER_NAME", raising=False)
    assert "main-worker@%h" in command("worker", [], os.environ)


@pytest.mark.parametrize("process", ["beat", "callbacks", "flower"])
def test_command__other_processes__have_no_node_name(process: str) -> None:
    assert "--hostname" not in command(process, [], os.environ)


DATABASE, BROKER = "DATABASE_URL", "BROKER_URL"
EXPECTED = {
    DATABASE: "DATABASE_URL: found nothing; expected postgresql+psycopg://..., or the flag --embedded",
    BROKER: "BROKER_URL: found nothing; expected redis://..., or the flag --embedded",
}


@pytest.mark.parametrize(
    ("process", "servers"),
    [
        ("worker", [DATABASE, BROKER]),
        ("beat", [DATABASE, BROKER]),
        ("callbacks", [DATABASE, BROKER]),
        ("flower", [BROKER]),
        ("metrics", [DATABASE]),
        ("migrate", [DATABASE]),
        ("reporter", []),
    ],
)
def test_missing_servers__of_a_process__is_a_line_for_each_that_it_needs(
    process: str, servers: list[str]
) -> None:
    expected = [EXPECTED[name] for name in servers]
    assert missing_servers(PROCESSES[process].servers, {"PATH": "/bin"}) == expected
    assert (
        missing_servers(
            PROCESSES[process].servers, {"DATABASE_URL_FILE": "/f", BROKER: "redis://r"}
        )
        == []
    )


def test_take_embedded_flag__of_a_process_with_servers__takes_the_flag_away() -> None:
    assert take_embedded_flag(
        PROCESSES["worker"], ["--embedded", "-Q", "main.chain"]
    ) == (["-Q", "main.chain"], True)
    assert take_embedded_flag(PROCESSES["worker"], ["-Q", "main.chain"]) == (
        ["-Q", "main.chain"],
        False,
    )
    assert take_embedded_flag(PROCESSES["reporter"], ["--embedded"]) == (
        ["--embedded"],
        False,
    )
