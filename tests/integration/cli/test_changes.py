"""Every command of `supervisor`: either it only reads, or it says what it will change,
asks, and is in the log.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Engine, make_url, text

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli.cli_context import operator
from supervisor_tasks.cli.exit_codes import ExitCode
from supervisor_tasks.jobs.events import ScriptFetched, SlurmCompleted, SubmitStarted
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, Outcome
from supervisor_tasks.ledger.block_reads import Blocks
from supervisor_tasks.ledger.facts import UNEXPECTED_CLUSTER
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.operator_log import DONE, OperatorLog
from supervisor_tasks.ledger.registrations import REGISTRATION
from supervisor_tasks.ledger.switch_names import Switch
from tests.support.command_list import COMMANDS, commands_with
from tests.support.commands import supervisor
from tests.support.ledger import bring_to_queued, claim, job_id, park_one

JOB = job_id(1)
WALLET = "0x" + "a" * 40
TAG = b"\x0a" * 8


@dataclass(frozen=True)
class Change:
    """A command with its arguments; what makes it possible, and returns more arguments;
    the status when it is confirmed (1 where it then waits in vain for a worker).
    """

    words: str
    arguments: tuple[str, ...] = ()
    prepare: Callable[[Ledger], tuple[str, ...]] = field(default=lambda _: ())
    status: int = 0


def queued(ledger: Ledger) -> tuple[str, ...]:
    bring_to_queued(ledger, 1)
    return ()


def parked_submission(ledger: Ledger) -> tuple[str, ...]:
    ledger.record(
        *(
            JobChange(JOB, event)
            for event in (claim(1), ScriptFetched("echo", ""), SubmitStarted(10))
        )
    )
    park_one(ledger, EffectKind.SUBMIT)
    return ()


def parked_line(ledger: Ledger) -> tuple[str, ...]:
    bring_to_queued(ledger, 1)
    ledger.record(
        JobChange(
            JOB,
            SlurmCompleted(Outcome(status=ChainStatus.FAILED, reason="exit code 1")),
        )
    )
    return (str(park_one(ledger, EffectKind.NOTIFY_CUSTOMER).id),)


def parked_look(ledger: Ledger) -> tuple[str, ...]:
    bring_to_queued(ledger, 1)
    park_one(ledger)
    return ()


def parked_message(ledger: Ledger) -> tuple[str, ...]:
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    insert = """
        INSERT INTO alarm_messages (cluster, incident_id, channel, kind, failing_since, parked_at)
        SELECT 'here', id, 'mail', 'raised', now(), now() FROM alarm_incidents"""
    with ledger.engine.begin() as connection:
        connection.execute(text(insert))
    return ()


def held_job(ledger: Ledger) -> tuple[str, ...]:
    ledger.reconciliations.store(
        ledger.reconciliations.begin(""),
        {"needs_operator": {bring_to_queued(ledger, 1): 101}, "again_s": 900.0},
        {},
    )
    return ()


def foreign_claim(ledger: Ledger) -> tuple[str, ...]:
    ledger.foreign_claims.store([ForeignClaim(TAG, claim(1))])
    return ()


def kept_blocks(ledger: Ledger) -> tuple[str, ...]:
    with ledger.engine.begin() as connection:
        Blocks(ledger.engine, ledger.cluster, 0).store(
            connection, {70: "0x70", 71: "0x71"}
        )
    return ()


def paused(switch: Switch) -> Callable[[Ledger], tuple[str, ...]]:
    def pause(ledger: Ledger) -> tuple[str, ...]:
        ledger.switches.set(switch, "maintenance")
        return ()

    return pause


def silenced(ledger: Ledger) -> tuple[str, ...]:
    supervisor_now = OperatorLog(ledger.engine, ledger.cluster).now()
    ledger.incidents.silence(
        "claims_full", supervisor_now.replace(year=supervisor_now.year + 1), "busy"
    )
    return ()


def offered(ledger: Ledger) -> tuple[str, ...]:
    nodes = [{"cpus": 8, "gpus": 0, "mem_mb": 16_000, "nodes": 3}]
    prices = {
        "gpu_credits_per_min": "8.5",
        "cpu_credits_per_min": "0.95",
        "mem_credits_per_min": "0.00008",
    }
    ledger.facts.set(
        REGISTRATION,
        {"offered": {"machines": nodes, "prices": prices, "labels": {"zone": "ch"}}},
    )
    return ()


def another_slurm(ledger: Ledger) -> tuple[str, ...]:
    ledger.facts.set(UNEXPECTED_CLUSTER, "geneva 2")
    return ()


def wallet_of_a_dead_fleet(ledger: Ledger) -> tuple[str, ...]:
    ledger.wallets.hold(1, WALLET, shared=False)
    with ledger.engine.begin() as connection:
        connection.execute(
            text("UPDATE periodic_runs SET succeeded_at = now() - interval '1 h'")
        )
    return ()


def retention_paused(ledger: Ledger) -> tuple[str, ...]:
    ledger.switches.set(Switch.RETENTION_PAUSED, "audit")
    return ()


def benchmark_asked(ledger: Ledger) -> tuple[str, ...]:
    ledger.benchmarks.ask("new switches")
    return ()


def open_transaction(ledger: Ledger) -> tuple[str, ...]:
    insert = """
        INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, idempotency_key, gas, max_fee_wei,
            priority_fee_wei, raw, hash, state)
        VALUES ('here', 1, '0x1', 4, 'claim', 'i', 1, 1, 1, '', '0xbeef', 'SENT') RETURNING id"""
    with ledger.engine.begin() as connection:
        return (str(connection.scalar(text(insert))),)


CHANGES = [
    Change("alarm silence", ("claims_full", "--for", "2h")),
    Change("alarm unsilence", ("claims_full",), silenced),
    Change("alarm test", ("--wait-s", "0"), status=1),
    Change("alarm drop", (), parked_message),
    Change("benchmark run"),
    Change("benchmark cancel", (), benchmark_asked),
    Change("chain rewind", ("--to-block", "70"), kept_blocks),
    Change("claims pause"),
    Change("claims resume", (), paused(Switch.CLAIMING_PAUSED)),
    Change("cluster accept", (), another_slurm),
    Change("cluster release-wallet", (), wallet_of_a_dead_fleet),
    Change("effect abandon", (), parked_line),
    Change("job retry", (JOB,), parked_look),
    Change("job cancel", (JOB,), queued),
    Change("job settle", (JOB, "--status", "FAILED", "--minutes", "3"), queued),
    Change("job resubmit", (JOB,), parked_submission),
    Change("job adopt", (TAG.hex(), "--yes-it-is-dead"), foreign_claim),
    Change("job mark-lost", (), held_job),
    Change("provider register", (), offered),
    Change("provider measure"),
    Change("reporter disable"),
    Change("retention pause"),
    Change("retention resume", (), retention_paused),
    Change("submissions pause"),
    Change("submissions resume", (), paused(Switch.SUBMISSIONS_PAUSED)),
    Change("sweep run", ("--wait-s", "0"), status=1),
    Change("tx bump", (), open_transaction),
    Change("tx cancel", (), open_transaction),
]
# test_db.py: it needs tables of an earlier release, and is about all clusters
ELSEWHERE = {"db upgrade"}
READS = {
    *(
        "alarm list",
        "alarm show",
        "archive",
        "benchmark plan",
        "benchmark show",
        "benchmark history",
    ),
    *(
        "benchmark output",
        "benchmark plot",
        "cluster list",
        "cluster show",
        "completion",
        "config show",
    ),
    *(
        "config check",
        "db status",
        "db wait",
        "doctor",
        "earnings",
        "effect list",
        "health",
        "job list",
        "job show",
        "log",
    ),
    *(
        "metrics",
        "provider show",
        "run",
        "status",
        "sweep list",
        "sweep show",
        "tx list",
        "tx show",
    ),
    "top",  # its key p asks and is in the log: test_top.py
}


@pytest.fixture(scope="module")
def migrated_ledger(
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> tuple[Engine, dict[str, str]]:
    """A ledger and the environment of a process, whose chain does not answer."""
    engine, environment = migrated_ledger
    return engine, environment | {"METASCHEDULER_ENDPOINT_RPC": "http://127.0.0.1:1"}


def test_commands__each_one__is_known_to_read_or_to_change() -> None:
    changes = {change.words for change in CHANGES} | ELSEWHERE
    assert changes | READS == set(COMMANDS)
    assert changes & READS == set()
    assert set(commands_with("yes")) == changes


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.words)
def test_change__of_each_command__asks_and_is_recorded(
    change: Change, ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    environment = migrated_ledger[1]
    words = (
        *change.words.split(),
        *change.arguments,
        *change.prepare(ledger),
        "--reason",
        "an audit",
    )
    log = OperatorLog(ledger.engine, "here")
    unknown = supervisor(*words, "--yes", env=environment | {"CLUSTER_NAME": "her"})
    assert (
        unknown.exit_code,
        "a cluster that this ledger knows (here)" in unknown.stderr,
    ) == (ExitCode.REFUSED, True)
    unasked = supervisor(*words, env=environment)
    assert unasked.exit_code == ExitCode.NOT_CONFIRMED, unasked.output
    url = make_url(environment["DATABASE_URL"])
    first, *will, refusal = unasked.stderr.splitlines()
    assert first == f"here@{url.query['host']}/{url.database}"
    assert will[-1].endswith(".")
    without_ids = re.sub(r"0x[0-9a-f]+", "", " ".join(will))
    assert re.search(r"(?<![\w.])\d+", without_ids), f"no number in {will}"
    assert "nothing was changed" in refusal
    assert log.last(10) == []
    confirmed = supervisor(*words, "--yes", env=environment)
    assert confirmed.exit_code == change.status, confirmed.output
    (entry,) = log.last(10)
    told = {name: entry[name] for name in ("command", "reason", "operator", "outcome")}
    assert told == {
        "command": change.words,
        "reason": "an audit",
        "operator": operator(),
        "outcome": DONE,
    }
    assert f"{entry['change']}." in confirmed.stderr
