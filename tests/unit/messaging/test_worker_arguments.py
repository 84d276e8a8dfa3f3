"""What the arguments of a Celery worker name, in each way of writing an option."""

import pytest

from supervisor_tasks.messaging.worker_arguments import (
    has_name,
    queues_named,
    words_of,
)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], []),
        (["-Q", "chain"], ["-Q", "chain"]),
        (["-Qchain"], ["-Q", "chain"]),
        (["-Q=chain"], ["-Q", "chain"]),
        (["--queues", "chain"], ["--queues", "chain"]),
        (["--queues=chain"], ["--queues", "chain"]),
        (["-nmine@%h"], ["-n", "mine@%h"]),
        (["-n=mine@%h"], ["-n", "mine@%h"]),
        (["-na=b"], ["-n", "a=b"]),
        (["--hostname=a=b"], ["--hostname", "a=b"]),
        (["-Q="], ["-Q", ""]),
        (["-n", "-Q"], ["-n", "-Q"]),
        (["--no-color"], ["--no-color"]),
        (["-c2", "-Qchain"], ["-c2", "-Q", "chain"]),
        (["mine-Qchain"], ["mine-Qchain"]),
        ([""], [""]),
    ],
)
def test_words_of__each_way_to_join_a_value__splits_it_from_its_option(
    arguments: list[str], words: list[str]
) -> None:
    assert words_of(arguments) == words


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-n", "mine"], True),
        (["-nmine"], True),
        (["--hostname", "mine"], True),
        (["--hostname=mine"], True),
        (["-Q", "chain", "-n", "mine"], True),
        ([], False),
        (["-Q", "chain"], False),
        (["-Qn"], False),
        (["--hostnames=mine"], False),
        (["-N", "mine"], False),
        (["hostname"], False),
    ],
)
def test_has_name__each_option__is_true_only_for_a_name(
    arguments: list[str], named: bool
) -> None:
    assert has_name(arguments) is named


@pytest.mark.parametrize(
    ("arguments", "queues"),
    [
        ([], []),
        (["-c", "2"], []),
        (["-Q"], []),
        (["-Q", "chain"], ["chain"]),
        (["-Q", "west.chain"], ["chain"]),
        (["-Q", "of.the.west.chain"], ["chain"]),
        (["-Qwest.chain,west.slurm"], ["chain", "slurm"]),
        (["--queues=west.slurm,benchmark"], ["slurm", "benchmark"]),
        (["-Q", "a.chain", "--queues", "a.slurm"], ["chain", "slurm"]),
        (["-c", "2", "--queues", "a.chain", "-n", "b.slurm"], ["chain"]),
        (["-n", "a.chain"], []),
        (["--exclude-queues=a.chain"], []),
    ],
)
def test_queues_named__each_option__are_its_queues_without_their_cluster(
    arguments: list[str], queues: list[str]
) -> None:
    assert queues_named(arguments) == queues
