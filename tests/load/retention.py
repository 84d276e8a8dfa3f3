"""`python -m tests.load.retention`: measures calls of the retention on a ledger with a
million old, settled jobs. With `--calls 240` these are the calls of a whole night,
without the pauses between them.

One call may delete at most PASS_JOBS jobs and take at most PASS_S.
"""

import argparse
import os
import time

from sqlalchemy import Engine, create_engine, text

from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.migrations import upgrade
from supervisor_tasks.ledger.retention import PASS_JOBS, PASS_S, Retention
from tests.support.large_ledger import SETTLED, fill
from tests.support.load_figures import Figure, show

CLUSTER = "old"
DAYS = 400
CALLS = 5
KEPT = 129  # jobs of the ledger's last blocks, which a reorganisation can still lose
MAKE_OLD = "UPDATE jobs SET updated_at = now() - interval '500 days' WHERE cluster = :cluster AND state = 'SETTLED'"


def calls(engine: Engine, count: int = CALLS) -> list[tuple[int, float]]:
    """Call the retention `count` times, or until no old job is left. Returns the number
    of deleted jobs and the seconds of each call.
    """
    retention, measured = Retention(engine, CLUSTER, DAYS), []
    for _ in range(count):
        begun_s = time.monotonic()
        deleted = retention.delete(lambda: True)
        measured.append((deleted.rows["jobs"], time.monotonic() - begun_s))
        show(f"    {measured[-1][0]} jobs in {measured[-1][1]:.2f} s")
        if measured[-1][0] < PASS_JOBS:
            break
    return measured


def figures(settled: int = SETTLED, count: int = CALLS) -> list[Figure]:
    """The seconds of the slowest of `count` calls, on a ledger with so many old jobs."""
    with private_processes() as processes:
        folder = processes.folder / "postgres"
        folder.mkdir()
        server = embedded_servers.postgres(folder)
        start_server(processes, "postgres", server)
        upgrade(server.url)
        engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
        fill(
            engine.execution_options(isolation_level="READ COMMITTED"),
            CLUSTER,
            settled=settled,
        )
        with engine.connect() as connection:
            connection.execute(text(MAKE_OLD), {"cluster": CLUSTER})
            connection.execute(text("VACUUM ANALYZE"))
        measured = calls(
            engine.execution_options(isolation_level="READ COMMITTED"), count
        )
    jobs, slowest_s = (
        sum(jobs for jobs, _ in measured),
        max(took_s for _, took_s in measured),
    )
    expected = min(settled - KEPT, count * PASS_JOBS)
    if jobs < expected:
        raise RuntimeError(f"{count} calls deleted {jobs} jobs; expected {expected}")
    return [
        Figure(
            f"slowest of {len(measured)} calls of the retention, {jobs} of {settled} old jobs",
            slowest_s,
            "s",
            PASS_S,
        )
    ]


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(prog="retention", description=__doc__)
    parser.add_argument("--jobs", type=int, default=SETTLED)
    parser.add_argument("--calls", type=int, default=CALLS)
    given = parser.parse_args()
    for figure in figures(given.jobs, given.calls):
        print(
            f"{figure.name}: {figure.value:.2f} {figure.unit} (bound {figure.bound:g}; load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
