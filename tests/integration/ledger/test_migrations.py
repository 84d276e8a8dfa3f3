"""The migrations that rename what is stored, on rows as the version before wrote them,
and beside autovacuums.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, NullPool, create_engine, text

from devgrid.processes import wait_until
from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    Claimed,
    EarlierRunsReported,
    ExistingSlurmJobAdopted,
    FalseSlurmId,
    OperatorSettledJob,
    SubmitOutcomeUnknown,
    SubmitStarted,
    stored_name,
)
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger import migrations
from supervisor_tasks.ledger.callbacks import UNKNOWN_CALLBACKS_PURGED
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import SLURM_CLUSTER, SWEEP_REQUESTED
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import request
from supervisor_tasks.ledger.periodic_run_names import BEAT
from supervisor_tasks.ledger.reconciliations import Reconciliations
from supervisor_tasks.ledger.registrations import (
    HARDWARE,
    REGISTRATION,
    REGISTRATION_RECORD,
)
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.ledger.transaction_names import Purpose
from supervisor_tasks.ledger.transactions import TransactionStore
from supervisor_tasks.provider.registration_rules import RegistrationRecord
from tests.support.ledger import claim, emptied, job_id

JOB = job_id(1)


class Tables:
    """A ledger's tables as a revision has them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._config = Config(
            attributes={"url": engine.url.render_as_string(hide_password=False)}
        )
        self._config.set_main_option(
            "script_location", str(Path(migrations.__file__).parent)
        )

    def upgrade(self, revision: str = "head") -> None:
        command.upgrade(self._config, revision)

    def downgrade(self, revision: str) -> None:
        command.downgrade(self._config, revision)

    def insert(self, table: str, **columns: Any) -> None:
        names, values = ", ".join(columns), ", ".join(f":{name}" for name in columns)
        plain = {
            name: json.dumps(value) if isinstance(value, dict) else value
            for name, value in columns.items()
        }
        with self.engine.begin() as connection:
            connection.execute(
                text(f"INSERT INTO {table} ({names}) VALUES ({values})"),  # noqa: S608
                plain,
            )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]


@pytest.fixture
def tables(engine: Engine) -> Iterator[Tables]:
    emptied(engine)
    tables = Tables(engine)
    yield tables
    tables.upgrade()
    emptied(engine)


EVENTS = "SELECT name, details FROM events ORDER BY id"
REPORTS = "SELECT report FROM sweeps ORDER BY id"


def test_event_names__rows_of_the_version_before__have_the_new_names_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0018")
    before: list[tuple[str, dict[str, Any]]] = [
        ("Claimed", {"job_id": JOB, "signed_here": False, "at": [7, 1]}),
        ("SubmitStarted", {"limit_min": 10}),
        ("SubmitUnclear", {"reason": "?", "strange": True}),
        ("Adopted", {"slurm_id": None}),
        ("CalledBack", {"look_in_s": 8.0, "running": True}),
    ]
    for name, details in before:
        tables.insert(
            "events",
            cluster="here",
            job_id=JOB,
            name=name,
            details=details,
            state="CLAIMED",
        )
    findings = [
        {"found": "adopted", "done": ["ChainSaw", "Adopted", "Claimed"]},
        {"found": "held"},
    ]
    tables.insert(
        "sweeps",
        cluster="here",
        begun_at="now",
        report={"findings": findings, "jobs": 1},
        suspects={},
    )
    tables.insert(
        "sweeps", cluster="here", begun_at="now", report={"why": "?"}, suspects={}
    )
    tables.upgrade("0019")
    assert tables.rows(EVENTS) == [
        (
            stored_name(Claimed),
            {"job_id": JOB, "claim_known_to_ledger": False, "at": [7, 1]},
        ),
        (stored_name(SubmitStarted), {"limit_min": 10}),
        (stored_name(SubmitOutcomeUnknown), {"reason": "?", "unparsed": True}),
        (stored_name(ExistingSlurmJobAdopted), {"slurm_id": None}),
        (stored_name(CallbackReceived), {"poll_delay_s": 8.0, "running": True}),
    ]
    done = ["ChainStatusObserved", "ExistingSlurmJobAdopted", "Claimed"]
    after = [{"found": "adopted", "done": done}, {"found": "held"}]
    assert tables.rows(REPORTS) == [({"findings": after, "jobs": 1},), ({"why": "?"},)]
    tables.downgrade("0018")
    assert tables.rows(EVENTS) == before
    assert tables.rows(REPORTS) == [
        ({"findings": findings, "jobs": 1},),
        ({"why": "?"},),
    ]


KINDS = "SELECT job_id, kind FROM effects ORDER BY id"
TICKS = "SELECT name FROM ticks ORDER BY name"
JOB_COLUMNS = (
    "INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,"
    " chain_block, chain_log_index, grid_logger_url, top_ups, cancel_requested, looks, message)"
    " VALUES ('here', :id, '0x2', '0x3', 'claim', :definition, 10, 'QUEUED', 2, 7, 1, '', '[]', false, 0, '')"
)

DEFINITION = json.dumps(asdict(claim(1).definition))


def test_effect_kinds__rows_of_the_version_before__have_the_new_kinds_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0019")
    with tables.engine.begin() as connection:
        connection.execute(text(JOB_COLUMNS), {"id": JOB, "definition": DEFINITION})
    kinds = ["witness", "refuse", "tell_user", "submit"]
    for kind in kinds:
        tables.insert("effects", cluster="here", job_id=JOB, kind=kind, due_at="now")
    about: list[tuple[str, dict[str, Any]]] = [
        ("EffectMissing", {"kind": "WITNESS"}),
        ("EffectCompleted", {"kind": "TELL_USER"}),
        ("OperatorAbandonedEffect", {"kind": "REFUSE", "reason": "WITNESS"}),
        ("EffectMissing", {"kind": "SUBMIT"}),
    ]
    for name, details in about:
        tables.insert(
            "events",
            cluster="here",
            job_id=JOB,
            name=name,
            details=details,
            state="QUEUED",
        )
    ticks = [
        "look_at_nodes finished",
        "nudge",
        "scan finished",
        "watch",
        "watch finished",
        "witness",
    ]
    for name in ticks:
        tables.insert("ticks", cluster="here", name=name, succeeded_at="now")
    tables.upgrade("0020")
    assert [kind for _, kind in tables.rows(KINDS)] == [
        "poll_slurm",
        "return_job",
        "notify_customer",
        "submit",
    ]
    assert {EffectKind(kind) for _, kind in tables.rows(KINDS)} == {
        EffectKind.POLL_SLURM,
        EffectKind.RETURN_JOB,
        EffectKind.NOTIFY_CUSTOMER,
        EffectKind.SUBMIT,
    }
    assert [details for _, details in tables.rows(EVENTS)] == [
        {"kind": EffectKind.POLL_SLURM.name},
        {"kind": EffectKind.NOTIFY_CUSTOMER.name},
        {"kind": EffectKind.RETURN_JOB.name, "reason": "WITNESS"},
        {"kind": "SUBMIT"},
    ]
    assert [name for (name,) in tables.rows(TICKS)] == [
        "check_alarms",
        "check_alarms finished",
        "dispatch_due_effects",
        "poll_jobs",
        "refresh_inventory finished",
        "scan finished",
    ]
    tables.downgrade("0019")
    assert [kind for _, kind in tables.rows(KINDS)] == kinds
    assert tables.rows(EVENTS) == about
    assert [name for (name,) in tables.rows(TICKS)] == ticks


def test_alarms_and_facts__rows_of_the_version_before__have_the_new_names_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0020")
    before = {
        "alarms": ["effect_late", "nodes_not_seen", "slurm_forgot", "wallet_empty"],
        "switches": ["drained", "submissions_held"],
        "facts": [
            "condition.nodes_not_seen",
            "provider.hardware",
            "slurm.cluster",
            "sweep.wanted",
        ],
        "ticks": ["scan", "strange callbacks forgotten"],
    }
    columns: dict[str, dict[str, Any]] = {
        "alarms": {"details": {}},
        "switches": {"reason": "maintenance"},
        "facts": {"value": "7"},
        "ticks": {"succeeded_at": "now"},
    }
    for table, names in before.items():
        for name in names:
            tables.insert(table, cluster="here", name=name, **columns[table])

    def names_of(table: str) -> list[str]:
        return [
            name
            for (name,) in tables.rows(f"SELECT name FROM {table} ORDER BY name")  # noqa: S608
        ]

    tables.upgrade("0021")
    assert {AlarmName(name) for name in names_of("alarms")} == {
        AlarmName.EFFECT_OVERDUE,
        AlarmName.NO_USABLE_NODES,
        AlarmName.SLURM_STATE_LOST,
        AlarmName.WALLET_EMPTY,
    }
    assert {Switch(name) for name in names_of("switches")} == {
        Switch.CLAIMING_PAUSED,
        Switch.SUBMISSIONS_PAUSED,
    }
    assert names_of("facts") == sorted(
        [
            f"condition.{AlarmName.NO_USABLE_NODES.value}",
            HARDWARE.name,
            SLURM_CLUSTER.name,
            SWEEP_REQUESTED.name,
        ]
    )
    assert names_of("ticks") == ["scan", UNKNOWN_CALLBACKS_PURGED]
    tables.downgrade("0020")
    assert {table: names_of(table) for table in before} == before


def test_names__rows_of_the_version_before__are_read_by_the_present_ledger(
    tables: Tables,
) -> None:
    tables.downgrade("0021")
    with tables.engine.begin() as connection:
        connection.execute(text(JOB_COLUMNS), {"id": JOB, "definition": DEFINITION})
        connection.execute(
            text(
                "UPDATE jobs SET heard_block = 9, doubt_until = 12, looks = 3, message = 'why'"
            )
        )
    given: dict[str, Any] = {"wakes": 2, "takings": 5, "unforeseen": 1, "refusals": 4}
    tables.insert(
        "effects", cluster="here", job_id=JOB, kind="poll_slurm", due_at="now", **given
    )
    tables.insert("ticks", cluster="here", name="scan", succeeded_at="now")
    tables.insert("taken_marks", cluster="here", mark=b"\7" * 8)
    tables.upgrade()
    ledger = Ledger(tables.engine, "here", dispatch=lambda _: None)
    job = ledger.jobs([JOB])[JOB]
    assert (job.last_event_block, job.reorg_deadline_block, job.poll_count) == (
        9,
        12,
        3,
    )
    assert job.status_message == "why"
    assert job.claim_position == (0, 0)  # each of its top-ups counts
    (effect,) = ledger.effects.lease([EffectKind.POLL_SLURM])
    assert (effect.generation, effect.lease_token) == (2, 6)
    assert (effect.unexpected_failures, effect.contract_rejections) == (1, 4)
    assert ledger.periodic_runs.age_s("scan") is not None
    assert ledger.foreign_claims.adopted_tags() == {b"\7" * 8}
    ledger.holder.close()
    tables.downgrade("0021")
    assert tables.rows("SELECT wakes, takings, unforeseen, refusals FROM effects") == [
        (2, 6, 1, 4)
    ]
    assert tables.rows("SELECT heard_block, doubt_until, looks, message FROM jobs") == [
        (9, 12, 3, "why")
    ]


ACCOUNT_EFFECTS = "SELECT subject, attempts, last_error, done_at IS NOT NULL, due_at > now() FROM effects ORDER BY subject"
NOT_NULL = (
    "SELECT is_nullable FROM information_schema.columns WHERE table_name = 'effects' AND column_name = 'job_id'"
    " UNION ALL SELECT conname FROM pg_constraint WHERE conname LIKE '%not_null'"
)
ACCOUNTS = (
    "SELECT customer, attempts, done_at IS NOT NULL FROM accounts ORDER BY customer"
)


def test_subjects__accounts_of_the_version_before__are_effects_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0028")
    ledger = Ledger(tables.engine, "here", lambda _: None)
    tables.insert("accounts", cluster="here", customer="0xa", done_at="now")
    tables.insert(
        "accounts", cluster="here", customer="0xb", attempts=3, last_error="away"
    )
    tables.upgrade("0029")
    # by a worker of the version before
    tables.insert("accounts", cluster="here", customer="0xc")
    tables.insert("accounts", cluster="here", customer="0xd")
    expected = [("0xa", 0, None, True, False), ("0xb", 3, "away", False, True)]
    new = [(customer, 0, None, False, True) for customer in ("0xc", "0xd")]
    assert tables.rows(ACCOUNT_EFFECTS) == expected + new
    assert ledger.effects.lease([EffectKind.ACCOUNT]) == []
    ledger.effects.bring_forward([EffectKind.ACCOUNT])
    leased = ledger.effects.lease([EffectKind.ACCOUNT])
    assert {effect.subject for effect in leased} == {"0xb", "0xc", "0xd"}
    ledger.effects.finish(next(effect for effect in leased if effect.subject == "0xc"))
    with tables.engine.begin() as connection:
        request(connection, "here", EffectKind.ACCOUNT, ["0xa", "0xc", "0xe"])
    assert [
        effect.subject for effect in ledger.effects.lease([EffectKind.ACCOUNT])
    ] == ["0xe"]
    tables.downgrade("0028")
    assert tables.rows(NOT_NULL) == [("NO",)]
    done = {"0xa": True, "0xb": False, "0xc": True, "0xd": False, "0xe": False}
    assert [
        (customer, is_done) for customer, _, is_done in tables.rows(ACCOUNTS)
    ] == list(done.items())
    ledger.holder.close()
    with tables.engine.begin() as connection:
        connection.execute(text("DELETE FROM accounts"))


RECORD: dict[str, Any] = {
    "sent": "digest",
    "tries": 2,
    "operator": {"intent": "a label"},
}


def test_plain_names__rows_of_the_version_before__are_read_by_the_present_ledger(
    tables: Tables,
) -> None:
    tables.downgrade("0029")
    tables.insert(
        "transactions",
        cluster="here",
        chain_id=1,
        address="0x1",
        nonce=4,
        purpose="claim",
        intent="claim:4",
        contested_at="now",
        gas=1,
        max_fee_wei=1,
        priority_fee_wei=1,
        raw=b"",
        hash="0xbeef",
        state="SENT",
    )
    record = {**RECORD, "intent": "register:1", "rejected": []}
    tables.insert("facts", cluster="here", name=REGISTRATION_RECORD.name, value=record)
    shown = {
        "decision": "wait",
        "why": "it would be refused: \x00",
        "odd": ["a price"],
        "offered": {"labels": {"odd": "1"}},
    }
    tables.insert("facts", cluster="here", name=REGISTRATION.name, value=shown)
    suspects, report = {f"missing {JOB}": 7.0}, {"why": "the clock"}
    tables.insert(
        "sweeps", cluster="here", begun_at="now", report=report, suspects=suspects
    )
    tables.upgrade("0030")
    transactions = TransactionStore(tables.engine, "here", 1)
    assert transactions.missing(["claim:4", "claim:5"]) == {"claim:5"}
    (sent,) = transactions.open_transactions()
    assert sent.nonce_conflict_age_s is not None
    reconciliations = Reconciliations(tables.engine, "here")
    assert [last.report for last in reconciliations.last()] == [report]
    begun = reconciliations.begin("again")
    assert begun.previous_doubts_s.keys() == suspects.keys()
    reconciliations.store(begun, report, {})
    facts = Facts(tables.engine, "here")
    registration = facts.get(REGISTRATION_RECORD)
    assert registration == RegistrationRecord(**RECORD, idempotency_key="register:1")
    warned = {name: value for name, value in shown.items() if name != "odd"}
    assert facts.get(REGISTRATION) == warned | {"warnings": ["a price"]}
    tables.downgrade("0029")
    assert tables.rows("SELECT intent, contested_at IS NULL FROM transactions") == [
        ("claim:4", False)
    ]
    doubts = tables.rows("SELECT suspects FROM sweeps ORDER BY id")
    assert doubts == [(suspects,), ({},)]
    stored = tables.rows("SELECT value FROM facts ORDER BY name")
    assert [json.loads(value) for (value,) in stored] == [shown, record]


def test_rejections__rows_of_the_version_before__have_the_new_names_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0030")
    for alarm in ("benchmark_user_refused", "registration_refused"):
        about = {"cluster": "here", "alarm": alarm}
        tables.insert("alarms", cluster="here", name=alarm, details={})
        tables.insert("alarm_incidents", **about, details={})
        tables.insert("alarm_silences", **about, ends_at="now", reason="known")
    tables.insert(
        "facts", cluster="here", name="condition.benchmark_user_refused", value="7"
    )
    statements = (
        "SELECT name FROM alarms ORDER BY 1",
        "SELECT alarm FROM alarm_incidents ORDER BY 1",
        "SELECT alarm FROM alarm_silences ORDER BY 1",
        "SELECT name FROM facts ORDER BY 1",
    )
    before = [tables.rows(statement) for statement in statements]
    tables.upgrade("0031")
    names = [
        (AlarmName.BENCHMARK_USER_REJECTED.value,),
        (AlarmName.REGISTRATION_REJECTED.value,),
    ]
    condition = f"condition.{AlarmName.BENCHMARK_USER_REJECTED.value}"
    assert [tables.rows(statement) for statement in statements] == [
        names,
        names,
        names,
        [(condition,)],
    ]
    tables.downgrade("0030")
    assert [tables.rows(statement) for statement in statements] == before


def test_unknown_job_label__counters_of_the_version_before__have_it_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0031")
    for name, label in (
        ("callbacks", "strange"),
        ("callbacks", "early"),
        ("x", "strange"),
    ):
        about = {"cluster": "here", "name": name, "label": label}
        tables.insert("counters", **about, total=2)
        tables.insert("counter_increments", **about, amount=3)
    statements = (
        "SELECT name, label, total FROM counters ORDER BY 1, 2",
        "SELECT name, label, amount FROM counter_increments ORDER BY 1, 2",
    )
    before = [tables.rows(statement) for statement in statements]
    tables.upgrade("0032")
    labels = [("callbacks", "early"), ("callbacks", "unknown_job"), ("x", "strange")]
    assert [tables.rows(statement) for statement in statements] == [
        [(*label, 2) for label in labels],
        [(*label, 3) for label in labels],
    ]
    tables.downgrade("0031")
    assert [tables.rows(statement) for statement in statements] == before


def test_reports_and_pauses__rows_of_the_version_before__have_the_new_names_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0032")
    then = "2026-01-02 03:04:05+00"
    tables.insert(
        "facts", cluster="here", name="retention.held", value="audit", since=then
    )
    tables.insert("periodic_runs", cluster="here", name="clock", succeeded_at=then)
    found, old = [{"found": "missing"}], {"jobs": 1}
    for report in (old | {"findings": found, "held": {JOB: 7}}, old):
        tables.insert(
            "reconciliations",
            cluster="here",
            begun_at="now",
            report=report,
            previous_doubts={},
        )
    statements = (
        "SELECT name, value, since FROM facts",
        "SELECT name, reason, set_at FROM switches",
        "SELECT name FROM periodic_runs",
        "SELECT report FROM reconciliations ORDER BY id",
    )
    before = [tables.rows(statement) for statement in statements]
    ((_, _, since),) = before[0]
    tables.upgrade("0033")
    new = old | {"discrepancies": found, "needs_operator": {JOB: 7}}
    assert [tables.rows(statement) for statement in statements] == [
        [],
        [(Switch.RETENTION_PAUSED.value, "audit", since)],
        [(BEAT,)],
        [(new,), (old,)],
    ]
    tables.downgrade("0032")
    assert [tables.rows(statement) for statement in statements] == before


def test_earlier_runs__rows_of_the_version_before__have_new_names_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0033")
    events: list[tuple[str, dict[str, Any]]] = [
        ("EarlierRunsTold", {"earlier": []}),
        (stored_name(Claimed), {"job_id": JOB}),
    ]
    for name, details in events:
        tables.insert(
            "events",
            cluster="here",
            job_id=JOB,
            name=name,
            details=details,
            state="RUNNING",
        )
    since = {"slurm": 1700.5}
    for report in ({"jobs": 1, "blind_since_s": since}, {"jobs": 1}):
        tables.insert(
            "reconciliations",
            cluster="here",
            begun_at="now",
            report=report,
            previous_doubts={},
        )
    statements = (EVENTS, "SELECT report FROM reconciliations ORDER BY id")
    before = [tables.rows(statement) for statement in statements]
    tables.upgrade("0034")
    assert [tables.rows(statement) for statement in statements] == [
        [(stored_name(EarlierRunsReported), {"earlier": []}), events[1]],
        [({"jobs": 1, "unreachable_since_s": since},), ({"jobs": 1},)],
    ]
    tables.downgrade("0033")
    assert [tables.rows(statement) for statement in statements] == before


def test_benchmark_state__row_of_the_version_before__has_the_new_name_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0034")
    tables.insert(
        "benchmark_runs", cluster="here", why="asked", state="RUNNING", token=""
    )
    (run_id,) = tables.rows("SELECT id FROM benchmark_runs")[0]
    tables.insert(
        "benchmark_results",
        run_id=run_id,
        cluster="here",
        benchmark="hpl",
        stage="MEASURED",
        job_name="",
        options={},
        script="",
    )
    tables.upgrade("0035")
    assert tables.rows("SELECT state FROM benchmark_results") == [("MEASURED",)]
    tables.downgrade("0034")
    assert tables.rows("SELECT stage FROM benchmark_results") == [("MEASURED",)]


def test_events_and_purposes__rows_of_the_version_before__have_new_names_and_back(
    tables: Tables,
) -> None:
    tables.downgrade("0036")
    for name in ("OperatorClosedJob", "SubmissionDenied", stored_name(Claimed)):
        tables.insert(
            "events",
            cluster="here",
            job_id=JOB,
            name=name,
            details={},
            state="RUNNING",
        )
    for nonce, purpose in enumerate(("refuse", "claim", "fill")):
        tables.insert(
            "transactions",
            cluster="here",
            purpose=purpose,
            nonce=nonce,
            idempotency_key=f"{purpose}:1",
            chain_id=1,
            address="0x1",
            gas=1,
            max_fee_wei=1,
            priority_fee_wei=1,
            raw=b"",
            hash=f"0x{nonce}",
            state="MINED",
        )
    purposes = "SELECT purpose FROM transactions ORDER BY id"
    before = [tables.rows(statement) for statement in (EVENTS, purposes)]
    tables.upgrade("0037")
    settled, denied = stored_name(OperatorSettledJob), stored_name(FalseSlurmId)
    assert tables.rows(EVENTS) == [
        (settled, {}),
        (denied, {}),
        (stored_name(Claimed), {}),
    ]
    assert tables.rows(purposes) == [
        (Purpose.RETURN_JOB,),
        (Purpose.CLAIM,),
        (Purpose.FILL_NONCE,),
    ]
    tables.downgrade("0036")
    assert [tables.rows(statement) for statement in (EVENTS, purposes)] == before


# An autovacuum begins within a second, and needs as long for a page as for a thousand
# otherwise.
AUTOVACUUM = ("-c", "autovacuum_naptime=1s")
SLOW = "autovacuum_vacuum_threshold=1, autovacuum_vacuum_cost_delay=100, autovacuum_vacuum_cost_limit=1"
MANY_TICKS = "INSERT INTO ticks SELECT 'here', n::text, now() FROM generate_series(1, 20000) AS n"
MANY_CALLBACKS = (
    "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
    " SELECT 'here', 'job', n, 7, 61, 0, 'peer' FROM generate_series(1, 20000) AS n"
)
VACUUMED = (
    "SELECT DISTINCT relid::regclass::text FROM pg_stat_progress_vacuum ORDER BY 1"
)


@pytest.fixture
def vacuumed() -> Iterator[Engine]:
    """Tables of the revision 0021; autovacuums work on two of them for minutes."""
    with private_processes() as processes:
        folder = processes.folder / "postgres"
        folder.mkdir()
        server = embedded_servers.postgres(folder)
        server.argv.extend(AUTOVACUUM)
        start_server(processes, "postgres", server)
        migrations.upgrade(server.url, "0021")
        engine = create_engine(server.url, poolclass=NullPool)
        with engine.begin() as connection:
            for table, rows, column in (
                ("ticks", MANY_TICKS, "succeeded_at"),
                ("callbacks", MANY_CALLBACKS, "received_at"),
            ):
                connection.execute(text(f"ALTER TABLE {table} SET ({SLOW})"))
                connection.execute(text(rows))
                connection.execute(text(f"UPDATE {table} SET {column} = now()"))  # noqa: S608
        wait_until(
            lambda: _vacuumed(engine) == ["callbacks", "ticks"], "two autovacuums", 60.0
        )
        yield engine


def _vacuumed(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text(VACUUMED)))


def test_upgrade__beside_autovacuums_that_take_minutes__ends_them(
    vacuumed: Engine,
) -> None:
    migrations.upgrade(vacuumed.url.render_as_string(hide_password=False), "0022")
    with vacuumed.connect() as connection:
        assert (
            connection.scalar(
                text("SELECT count(*) FROM periodic_runs WHERE cluster = 'here'")
            )
            == 20_000
        )
