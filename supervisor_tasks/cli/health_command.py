"""The probe of the fleet. It asks only the database and imports little: orchestrators
call it every few seconds.

It reads four settings and does not validate the others: that would take longer than
everything else together.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg.errors import UndefinedColumn, UndefinedTable

from supervisor_tasks.cli.target import target
from supervisor_tasks.config.running_postgres import (
    default_state_folder,
    no_database,
    running_postgres,
)
from supervisor_tasks.connections.postgres_url import for_libpq
from supervisor_tasks.ledger.driver import unavailable
from supervisor_tasks.ledger.fleet_heartbeats import (
    FleetHeartbeats,
    read_fleet_heartbeats,
)
from supervisor_tasks.observability.health import periodic_work, problems

# As in settings.py; a test compares them.
CLUSTER_NAME = "main"
CHAIN_POLL_S = 1.0


ABOUT = "Report whether the fleet is healthy: exit status 0, or 1 with what is wrong; for probes."
EXAMPLE = "Example: supervisor health --json"


class HealthError(Exception):
    """The health is not known: a setting is wrong, or the database does not answer. The
    message is the reason.
    """


def main(words: Sequence[str]) -> int:
    """Run the command; returns the status of the process."""
    parser = argparse.ArgumentParser(
        "supervisor health", description=ABOUT, epilog=EXAMPLE, allow_abbrev=False
    )
    parser.add_argument(
        "--json",
        action="store_true",
        dest="as_json",
        help="Machine-readable, one document.",
    )
    try:
        return health(parser.parse_args(words).as_json)
    except HealthError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def health(as_json: bool) -> int:
    """Print whether the fleet is healthy; returns 1 if it is not."""
    cluster = _given("CLUSTER_NAME") or CLUSTER_NAME
    url = _database_url()
    print(target(cluster, url), file=sys.stderr)
    heartbeats = _heartbeats(url, cluster)
    if heartbeats.clusters and cluster not in heartbeats.clusters:
        known = ", ".join(heartbeats.clusters)
        raise HealthError(
            f"CLUSTER_NAME: found {cluster!r}; expected a cluster that this ledger knows ({known})"
        )
    periodic = periodic_work(_chain_poll_s(), accounts=bool(_given("LDAP_URL")))
    lines = problems(periodic, heartbeats.periodic_run_ages_s, heartbeats.untaken_s)
    if as_json:
        print(
            json.dumps(
                {"cluster": cluster, "healthy": not lines, "problems": lines}, indent=2
            )
        )
    else:
        print("\n".join(lines) or "healthy")
    return 1 if lines else 0


def _heartbeats(url: str, cluster: str) -> FleetHeartbeats:
    try:
        return read_fleet_heartbeats(url, cluster)
    except (UndefinedTable, UndefinedColumn) as error:
        reason = f"found other tables than expected ({_first_line(error)}): `supervisor db upgrade` first"
        raise HealthError(reason) from error
    except psycopg.Error as error:
        if away := unavailable(error):
            raise HealthError(f"{away}: {away.mend}") from error
        raise HealthError(f"the ledger's database: {_first_line(error)}") from error


def _database_url() -> str:
    """Return the database's URL for psycopg; if none is set, that of the embedded
    Postgres, which must run.
    """
    url = _given("DATABASE_URL") or _embedded_database_url()
    try:
        return for_libpq(url)
    except ValueError as error:
        raise HealthError(
            f"DATABASE_URL: found a value that is not shown; expected {error}"
        ) from error


def _embedded_database_url() -> str:
    state_dir = _given("STATE_DIR")
    folder = Path(state_dir).expanduser() if state_dir else default_state_folder()
    url = running_postgres(folder)
    if not url:
        raise HealthError(no_database(folder))
    return url


def _chain_poll_s() -> float:
    text = _given("CHAIN_POLL_S")
    if not text:
        return CHAIN_POLL_S
    try:
        return float(text)
    except ValueError as error:
        raise HealthError(
            f"CHAIN_POLL_S: found {text!r}; expected a number of seconds"
        ) from error


def _given(name: str) -> str:
    """Return a setting, or the text of the file that NAME_FILE names; empty if neither
    is set.
    """
    value, file = os.environ.get(name, ""), os.environ.get(f"{name}_FILE", "")
    if value or not file:
        return value
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as error:
        raise HealthError(
            f"{name}_FILE: expected a file that can be read ({error.strerror})"
        ) from error


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
