"""`supervisor run`: which program becomes of it, without running it."""

import pytest

from supervisor_tasks.cli.run import command


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "west-worker@%h"),
        (["-Q", "west.chain"], "west-chain@%h"),
        (["--queues=west.slurm,west.benchmark"], "west-slurm-benchmark@%h"),
    ],
)
def test_command__a_worker__is_named_after_its_cluster_and_queues(
    monkeypatch: pytest.MonkeyPatch, options: list[str], name: str
) -> None:
    monkeypatch.setenv("CLUSTER_NAME", "west")
    argv = command("worker", options)
    assert argv[argv.index("--hostname") + 1] == name
    assert argv[-len(options) :] == options or not options


@pytest.mark.parametrize("options", [["-n", "mine@%h"], ["--hostname", "mine@%h"], ["--hostname=mine@%h"]])
def test_command__a_worker_with_a_name__keeps_it(options: list[str]) -> None:
    assert sum(word.startswith(("-n", "--hostname")) for word in command("worker", options)) == 1


def test_command__no_cluster_name__is_main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER_NAME", raising=False)
    assert "main-worker@%h" in command("worker", [])


@pytest.mark.parametrize("process", ["beat", "callbacks", "flower"])
def test_command__other_processes__have_no_node_name(process: str) -> None:
    assert "--hostname" not in command(process, [])
