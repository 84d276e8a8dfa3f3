"""What a process measures by itself, and the label that all of it gets."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from supervisor_tasks import instruments
from supervisor_tasks.instruments import (
    BuildInfo,
    ClusterLabel,
    program_of,
    timed,
)


def lines_of(registry: CollectorRegistry) -> list[str]:
    return [
        line
        for line in generate_latest(registry).decode().splitlines()
        if not line.startswith("#")
    ]


@pytest.mark.parametrize(
    ("path", "program"),
    [
        ("/usr/bin/sbatch", "sbatch"),
        ("squeue", "squeue"),
        ("/opt/site/wrapper", "other"),
        ("", "other"),
    ],
)
def test_program_of__a_path__is_one_of_few_labels(path: str, program: str) -> None:
    assert program_of(path) == program


def test_timed__block_that_ends_and_one_that_raises__are_told_apart() -> None:
    registry = CollectorRegistry()
    seconds = Histogram("work_seconds", "Work.", ["what", "result"], registry=registry)
    with timed(seconds, "a"):
        pass
    with pytest.raises(ValueError, match="bad"), timed(seconds, "a"):
        raise ValueError("bad")
    counts = [
        line for line in lines_of(registry) if line.startswith("work_seconds_count")
    ]
    assert sorted(counts) == [
        'work_seconds_count{result="error",what="a"} 1.0',
        'work_seconds_count{result="ok",what="a"} 1.0',
    ]


def test_cluster_label__of_several_collectors__is_on_every_sample() -> None:
    inner, outer = CollectorRegistry(), CollectorRegistry()
    Counter("things", "Things.", ["kind"], registry=inner).labels("a").inc()
    Histogram("work_seconds", "Work.", registry=inner)
    outer.register(ClusterLabel("main", inner, BuildInfo("beat")))
    lines = lines_of(outer)
    assert all('cluster="main"' in line for line in lines)
    assert 'things_total{cluster="main",kind="a"} 1.0' in lines
    assert any(
        line.startswith("supervisor_build_info{") and 'process="beat"' in line
        for line in lines
    )
    assert not any("_created" in line for line in lines)


def test_zero__callbacks_process__has_each_verdict_before_the_first_callback() -> None:
    instruments.zero("callbacks")
    lines = lines_of(instruments.REGISTRY)
    for verdict in instruments.CALLBACK_ANSWERS:
        assert any(
            line.startswith(
                f'supervisor_callbacks_received_total{{verdict="{verdict}"}}'
            )
            for line in lines
        )


def test_zero__worker__has_each_result_of_a_login_before_the_first_login() -> None:
    instruments.zero("worker")
    lines = lines_of(instruments.REGISTRY)
    for result in ("ok", "error"):
        assert any(
            line.startswith(
                f'supervisor_ssh_login_duration_seconds_count{{result="{result}"}} '
            )
            for line in lines
        )


def test_chain_not_read_yet__head_and_lag__are_there_and_not_numbers() -> None:
    instruments.chain_not_read_yet(4711)
    lines = generate_latest(instruments.REGISTRY).decode().splitlines()
    for name in ("head_block", "head_lag_blocks"):
        assert f'supervisor_chain_{name}{{chain_id="4711"}} NaN' in lines
