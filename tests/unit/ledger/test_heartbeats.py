"""Who tells of ends, and since when; for how long sweeps have not seen a side."""

import pytest

from supervisor_tasks.ledger.heartbeats import (
    HEARTBEAT_MISSING_AFTER_S,
    REPORTER,
    continuous_since_key,
    continuous_uptime_s,
    known_reporters,
    missing_sources,
    reporter_of,
)
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.observability.health import LEAST_S, problems
from supervisor_tasks.reconciliation.source_outages import unreachable_since


def run_ages_s(
    name: str, ago_s: float = 1.0, since_s: float = 900.0
) -> dict[str, float]:
    return {name: ago_s, continuous_since_key(name): since_s}


def test_continuous_uptime_s__callbacks_and_reporter__counts_since_all_are_heard() -> (
    None
):
    assert continuous_uptime_s(run_ages_s(CALLBACKS)) == 900.0
    assert (
        continuous_uptime_s(run_ages_s(CALLBACKS) | run_ages_s(REPORTER, since_s=20.0))
        == 20.0
    )


def test_missing_sources__process_that_plugins_call__also_if_it_was_never_heard() -> (
    None
):
    assert missing_sources({}) == {CALLBACKS: None}
    assert continuous_uptime_s({}) is None
    silent = run_ages_s(CALLBACKS, HEARTBEAT_MISSING_AFTER_S + 1)
    assert (missing_sources(silent), continuous_uptime_s(silent)) == (
        {CALLBACKS: HEARTBEAT_MISSING_AFTER_S + 1},
        None,
    )


def test_missing_sources__a_reporter__only_where_one_was_ever_heard() -> None:
    assert missing_sources(run_ages_s(CALLBACKS)) == {}
    gone = run_ages_s(CALLBACKS) | run_ages_s(REPORTER, 3600.0)
    assert (missing_sources(gone), continuous_uptime_s(gone)) == (
        {REPORTER: 3600.0},
        None,
    )


def test_missing_sources__two_reporters_and_one_stops__that_one_is_missing() -> None:
    """A site with two hosts of slurmctld: each has a spool, and a reporter for it."""
    stopped, beats = reporter_of("ctl1"), reporter_of("ctl2")
    both = run_ages_s(CALLBACKS) | run_ages_s(beats, since_s=60.0)
    assert missing_sources(both | run_ages_s(stopped)) == {}
    assert continuous_uptime_s(both | run_ages_s(stopped, since_s=20.0)) == 20.0
    silent = both | run_ages_s(stopped, 3600.0)
    assert known_reporters(silent) == [stopped, beats]
    assert (missing_sources(silent), continuous_uptime_s(silent)) == (
        {stopped: 3600.0},
        None,
    )


@pytest.mark.parametrize(
    ("node", "source"),
    [
        ("ctl-1.example.org", "reporter ctl-1.example.org"),
        ("", REPORTER),
        ("without a gap", REPORTER),
        ("ctl1\n", REPORTER),
        ("c" * 65, REPORTER),
    ],
)
def test_reporter_of__what_a_caller_names__is_a_host_name_or_nothing(
    node: str, source: str
) -> None:
    assert reporter_of(node) == source
    assert known_reporters(run_ages_s(source)) == [source]


def test_problems__grpc_process_is_not_heard__has_a_line_for_it() -> None:
    assert problems([], run_ages_s(CALLBACKS), 0.0) == []
    for periodic_run_ages_s in ({}, run_ages_s(CALLBACKS, LEAST_S + 1)):
        (line,) = problems([], periodic_run_ages_s, 0.0)
        assert "the gRPC process sends no heartbeat" in line


def test_unreachable_since__several_sweeps_in_a_row__counts_from_the_first() -> None:
    assert unreachable_since(["slurm"], {}, 100.0) == {"slurm": 100.0}
    assert unreachable_since(["slurm", "chain"], {"slurm": 100.0}, 160.0) == {
        "slurm": 100.0,
        "chain": 160.0,
    }
    assert unreachable_since([], {"slurm": 100.0}, 220.0) == {}


def test_missing_sources__heartbeat_in_the_future__is_missing() -> None:
    set_back = run_ages_s(CALLBACKS, -3600.0) | run_ages_s(REPORTER, -0.1)
    assert missing_sources(set_back) == {CALLBACKS: -3600.0}
