"""The commands that pause claims and submissions, and those for the chain and a reporter."""

from sqlalchemy import text

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.facts import REWIND
from supervisor_tasks.ledger.heartbeats import (
    known_reporters,
    missing_sources,
    record_heartbeats,
)
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.ledger.switch_names import STATE_LOST, Switch
from tests.support.ledger import bring_to_queued
from tests.support.operator_commands import Run


def test_claims__paused_and_resumed__sets_the_switch(run: Run, ledger: Ledger) -> None:
    assert "nothing to resume" in run("claims", "resume", "--yes", status=1).stderr
    run("claims", "pause", "--yes")
    assert ledger.switches.is_set(Switch.CLAIMING_PAUSED)
    run("claims", "resume", "--yes")
    assert not ledger.switches.is_set(Switch.CLAIMING_PAUSED)


def test_disable_reporter__known_reporters__their_heartbeats_are_no_longer_awaited(
    run: Run, ledger: Ledger
) -> None:
    reporters = ["reporter ctl1", "reporter ctl2", "reporter ctl3"]
    with ledger.engine.begin() as connection:
        record_heartbeats(connection.exec_driver_sql, "here", [CALLBACKS, *reporters])
        connection.execute(
            text(
                "UPDATE periodic_runs SET succeeded_at = now() - interval '1 h' WHERE name LIKE 'reporter%'"
            )
        )
    assert list(missing_sources(ledger.periodic_runs.ages_s())) == reporters
    refused = run("reporter", "disable", "ctl4", "--yes", status=1).stderr
    assert f"expected one of: {', '.join(reporters)}" in refused
    said = run("reporter", "disable", "ctl2", status=4).stderr
    assert "no reporter ctl2 until its next heartbeat" in said
    run("reporter", "disable", "ctl2", "--yes")
    left = ["reporter ctl1", "reporter ctl3"]
    assert list(missing_sources(ledger.periodic_runs.ages_s())) == left
    assert "ctl3" in run("reporter", "disable", "--yes").stderr
    assert known_reporters(ledger.periodic_runs.ages_s()) == []
    assert not any("reporter" in name for name in ledger.periodic_runs.ages_s())
    assert missing_sources(ledger.periodic_runs.ages_s()) == {}


def test_rewind__to_a_block_that_is_kept__is_a_fact_and_to_any_other_refused(
    run: Run, ledger: Ledger
) -> None:
    assert (
        "none is kept yet"
        in run("chain", "rewind", "--to-block", "0", "--yes", status=1).stderr
    )
    with ledger.engine.begin() as connection:
        Blocks(ledger.engine, ledger.cluster, 0).store(
            connection, {70: "0x70", 71: "0x71"}
        )
    assert (
        "70 is the first that is kept"
        in run("chain", "rewind", "--to-block", "69", "--yes", status=1).stderr
    )
    assert (
        "71 the last"
        in run("chain", "rewind", "--to-block", "72", "--yes", status=1).stderr
    )
    assert ledger.facts.read(REWIND) is None
    run("chain", "rewind", "--to-block", "70", "--yes")
    asked = ledger.facts.read(REWIND)
    assert asked is not None
    assert asked.value == 70


def test_resume__paused_by_operator_or_by_fleet__only_the_operators_pause_ends(
    run: Run, ledger: Ledger
) -> None:
    bring_to_queued(ledger, 1)
    assert (
        "1 job in SLURM will go on"
        in run("submissions", "pause", "--reason", "upgrade", "--yes").stderr
    )
    assert ledger.switches.reason(Switch.SUBMISSIONS_PAUSED) == "upgrade"
    run("submissions", "resume", "--yes")
    assert not ledger.switches.is_set(Switch.SUBMISSIONS_PAUSED)
    ledger.switches.set(Switch.SUBMISSIONS_PAUSED, f"{STATE_LOST} 2 jobs")
    ledger.alarms.on(AlarmName.SLURM_STATE_LOST)
    assert "cluster accept" in run("submissions", "resume", "--yes", status=1).stderr
    run("cluster", "accept", "--yes")
    assert not ledger.switches.is_set(Switch.SUBMISSIONS_PAUSED)
