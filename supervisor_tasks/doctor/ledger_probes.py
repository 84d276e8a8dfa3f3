"""Probes of the database, the broker and the fleet, as the ledger knows it."""

import time
from collections.abc import Iterable, Iterator

# Imported here, because of two threads that import kombu at the same time, one can see
# the unfinished module.
import kombu.transport.redis  # noqa: F401

from supervisor_tasks.config.embedded_servers import broker_tls
from supervisor_tasks.doctor.check_results import Finding, NotTriedError, green, skipped
from supervisor_tasks.doctor.probe_context import ProbeContext
from supervisor_tasks.doctor.probe_runner import Probe
from supervisor_tasks.doctor.verdicts import (
    alarm_verdicts,
    clock_verdict,
    cluster_verdict,
    database_verdict,
    fleet_verdicts,
    heartbeat_verdict,
    migrations_verdict,
)
from supervisor_tasks.ledger.clusters import known_clusters
from supervisor_tasks.ledger.database import clock_s
from supervisor_tasks.ledger.doctor_queries import (
    keeps_sessions,
    last_callback_age_s,
    server_version,
)
from supervisor_tasks.ledger.fleet_heartbeats import read_fleet_heartbeats
from supervisor_tasks.ledger.heartbeats import (
    HEARTBEAT_MISSING_AFTER_S,
    REPORTER,
    known_reporters,
)
from supervisor_tasks.ledger.migrations import newest_revision, revision
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.observability.checks import BrokerAnswers
from supervisor_tasks.observability.health import periodic_work, problems

START_DATABASE = (
    "start Postgres, or correct DATABASE_URL; `supervisor db status` tries it again"
)


def database(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the ledger's database answers, and keeps a session for each
    connection.
    """
    engine = shared.engine.get()
    yield database_verdict(
        server_version(engine), keeps_sessions=keeps_sessions(engine)
    )


def migrations(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the ledger's tables are those that this version works with."""
    shared.engine.needed()
    yield migrations_verdict(revision(shared.url.get()), newest_revision())


def broker(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the broker answers."""
    url = shared.settings.broker_url
    if url is None:
        raise NotTriedError(
            "BROKER_URL is not set: the fleet has a Redis of its own, in STATE_DIR"
        )
    BrokerAnswers(url.get_secret_value(), broker_tls(shared.settings))()
    yield green("broker", "Redis answers")


def cluster(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the ledger knows the cluster."""
    yield cluster_verdict(
        shared.settings.cluster_name, known_clusters(shared.engine.needed())
    )


def fleet(shared: ProbeContext) -> Iterable[Finding]:
    """Whether the fleet's periodic work ends in time."""
    settings = shared.settings
    shared.engine.needed()
    heartbeats = read_fleet_heartbeats(shared.url.get(), settings.cluster_name)
    periodic = periodic_work(
        settings.chain_poll_s, accounts=settings.ldap_url is not None
    )
    return fleet_verdicts(
        problems(periodic, heartbeats.periodic_run_ages_s, heartbeats.untaken_s)
    )


def alarms(shared: ProbeContext) -> Iterable[Finding]:
    """Whether an alarm is on."""
    return alarm_verdicts([alarm.name for alarm in shared.ledger.alarms.all()])


def heartbeats(shared: ProbeContext) -> Iterator[Finding]:
    """When the gRPC process and each reporter last sent a heartbeat, and when a plugin
    last called.
    """
    periodic_run_ages_s = shared.ledger.periodic_runs.ages_s()
    start_grpc = (
        "start the gRPC process, and read its log: LISTEN_ADDRESS, TLS_CERT, TLS_KEY"
    )
    yield heartbeat_verdict(
        "gRPC process",
        periodic_run_ages_s.get(CALLBACKS),
        HEARTBEAT_MISSING_AFTER_S,
        start_grpc,
        needed=True,
    )
    start_reporter = (
        "start the reporter beside slurmctld, and read its log;"
        " where there is none: `supervisor reporter disable NODE`"
    )
    for name in known_reporters(periodic_run_ages_s) or [REPORTER]:
        yield heartbeat_verdict(
            name,
            periodic_run_ages_s.get(name),
            HEARTBEAT_MISSING_AFTER_S,
            start_reporter,
            needed=False,
        )
    age_s = last_callback_age_s(shared.engine.needed(), shared.settings.cluster_name)
    if age_s is None:
        yield skipped("hooks", "no plugin or hook has called yet")
    else:
        yield green("hooks", f"the last call came {age_s:.0f} s ago")


def database_clock(shared: ProbeContext) -> Iterator[Finding]:
    """How far the database's clock is from ours."""
    yield clock_verdict("the database", clock_s(shared.engine.needed()) - time.time())


LEDGER = (
    Probe("database", database, START_DATABASE),
    Probe("migrations", migrations, "supervisor db upgrade"),
)
SERVERS = (
    *LEDGER,
    Probe(
        "broker",
        broker,
        "start Redis, or correct BROKER_URL, BROKER_CA, BROKER_CERT and BROKER_KEY",
    ),
)
FLEET = (
    Probe("cluster", cluster, START_DATABASE),
    Probe("fleet", fleet, START_DATABASE),
    Probe("alarms", alarms, START_DATABASE),
    Probe("heartbeats", heartbeats, START_DATABASE),
    Probe("clock of the database", database_clock, START_DATABASE),
)
