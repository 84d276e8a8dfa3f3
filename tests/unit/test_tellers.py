"""Who tells of ends, and since when; for how long sweeps have not seen a side."""

from supervisor_tasks.health import LEAST_S, complaints
from supervisor_tasks.journey.blind import blind_since
from supervisor_tasks.ledger.tellers import AWAY_S, CALLBACKS, REPORTER, away, in_touch_s, unbroken_tick


def ticks(name: str, ago_s: float = 1.0, since_s: float = 900.0) -> dict[str, float]:
    return {name: ago_s, unbroken_tick(name): since_s}


def test_in_touch__since_all_are_heard() -> None:
    assert in_touch_s(ticks(CALLBACKS)) == 900.0
    assert in_touch_s(ticks(CALLBACKS) | ticks(REPORTER, since_s=20.0)) == 20.0


def test_away__the_process_that_plugins_call__also_when_it_was_never_heard() -> None:
    assert away({}) == {CALLBACKS: None}
    assert in_touch_s({}) is None
    silent = ticks(CALLBACKS, AWAY_S + 1)
    assert (away(silent), in_touch_s(silent)) == ({CALLBACKS: AWAY_S + 1}, None)


def test_away__a_reporter__only_where_one_was_ever_heard() -> None:
    assert away(ticks(CALLBACKS)) == {}
    gone = ticks(CALLBACKS) | ticks(REPORTER, 3600.0)
    assert (away(gone), in_touch_s(gone)) == ({REPORTER: 3600.0}, None)


def test_complaints__the_grpc_process_is_part_of_the_fleet() -> None:
    assert complaints([], ticks(CALLBACKS), 0.0) == []
    for ticks_s in ({}, ticks(CALLBACKS, LEAST_S + 1)):
        (line,) = complaints([], ticks_s, 0.0)
        assert "the gRPC process is not heard" in line


def test_blind_since__counts_from_the_first_of_sweeps_in_a_row() -> None:
    assert blind_since(["slurm"], {}, 100.0) == {"slurm": 100.0}
    assert blind_since(["slurm", "chain"], {"slurm": 100.0}, 160.0) == {"slurm": 100.0, "chain": 160.0}
    assert blind_since([], {"slurm": 100.0}, 220.0) == {}
