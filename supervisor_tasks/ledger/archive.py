"""The archive: a file or a stream with what has ended, as lines of JSON, compressed by zstandard.
It is for the time after the rows are deleted.

The `kind` of a line is job, transaction (of no job), sweep, alarm_incident or
benchmark_run; a line has all rows that go with it.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import zstandard
from sqlalchemy import Engine, TextClause, text

from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.database import read_connection

LINES_AT_ONCE = 50  # lines of one query: a script has up to 4 MB
COMPRESSION_LEVEL = 10  # of the compression

_TRANSACTION = """to_jsonb(transactions) || jsonb_build_object('signatures', (
    SELECT COALESCE(jsonb_agg(to_jsonb(signatures) - 'transaction_id' ORDER BY signed_at), '[]') FROM signatures
    WHERE transaction_id = transactions.id))"""
# One line holds all that the ledger has of a job: its row (runs and script are columns
# of it), and its rows in the other tables, oldest first. The claim's transaction has no
# job, and is found by its hash in claim_key. It has a line of its own, too, because its
# age does not depend on the job's.
_JOBS = text(
    f"""
    SELECT updated_at AS at, job_id AS id, (to_jsonb(jobs) || jsonb_build_object(
        'kind', 'job',
        'events', (
            SELECT COALESCE(jsonb_agg(to_jsonb(events) - 'cluster' - 'job_id' ORDER BY id), '[]') FROM events
            WHERE events.cluster = jobs.cluster AND events.job_id = jobs.job_id),
        'effects', (
            SELECT COALESCE(jsonb_agg(to_jsonb(effects) - 'cluster' - 'job_id' ORDER BY id), '[]') FROM effects
            WHERE effects.cluster = jobs.cluster AND effects.job_id = jobs.job_id),
        'callbacks', (
            SELECT COALESCE(jsonb_agg(to_jsonb(callbacks) - 'cluster' - 'job_id' ORDER BY id), '[]') FROM callbacks
            WHERE callbacks.cluster = jobs.cluster AND callbacks.job_id = jobs.job_id),
        'transactions', (
            SELECT COALESCE(jsonb_agg(({_TRANSACTION}) - 'cluster' ORDER BY id), '[]') FROM (
                SELECT id FROM transactions AS own WHERE own.cluster = jobs.cluster AND own.job_id = jobs.job_id
                UNION SELECT transaction_id FROM signatures WHERE hash = split_part(jobs.claim_key, ':', 1)
            ) AS of_job JOIN transactions USING (id) WHERE transactions.cluster = jobs.cluster)
    ))::text AS line
    FROM jobs
    WHERE cluster = :cluster AND updated_at < :before AND (updated_at, job_id) > (:after, :after_id)
        AND state IN ('SETTLED', 'REFUSED') AND (state = 'SETTLED' OR chain_status < {ChainStatus.SCHEDULED:d})
    ORDER BY updated_at, job_id LIMIT :most
    """  # noqa: S608  only constants
)
_TRANSACTIONS = text(
    f"""
    SELECT done_at AS at, id, ({_TRANSACTION} || jsonb_build_object('kind', 'transaction'))::text AS line
    FROM transactions
    WHERE cluster = :cluster AND job_id IS NULL AND done_at < :before AND (done_at, id) > (:after, :after_id)
    ORDER BY done_at, id LIMIT :most
    """  # noqa: S608  only constants
)
_RECONCILIATIONS = text(
    """
    SELECT finished_at AS at, id, (to_jsonb(reconciliations) || jsonb_build_object('kind', 'sweep'))::text AS line
    FROM reconciliations
    WHERE cluster = :cluster AND finished_at < :before AND id > :after_id ORDER BY id LIMIT :most
    """
)
_INCIDENTS = text(
    """
    SELECT closed_at AS at, id, (to_jsonb(incident) || jsonb_build_object(
        'kind', 'alarm_incident',
        'messages', (
            SELECT COALESCE(jsonb_agg(to_jsonb(message) - 'cluster' - 'incident_id' ORDER BY id), '[]')
            FROM alarm_messages AS message WHERE incident_id = incident.id)
    ))::text AS line
    FROM alarm_incidents AS incident
    WHERE cluster = :cluster AND closed_at < :before AND id > :after_id ORDER BY id LIMIT :most
    """
)
_BENCHMARK_RUNS = text(
    """
    SELECT ended_at AS at, id, (to_jsonb(benchmark_runs) || jsonb_build_object(
        'kind', 'benchmark_run',
        'results', (
            SELECT COALESCE(jsonb_agg(to_jsonb(benchmark_results) - 'cluster' - 'run_id' ORDER BY id), '[]')
            FROM benchmark_results WHERE run_id = benchmark_runs.id),
        'effects', (
            SELECT COALESCE(jsonb_agg(to_jsonb(effects) - 'cluster' ORDER BY id), '[]') FROM effects
            WHERE effects.cluster = benchmark_runs.cluster AND effects.kind = 'benchmark'
                AND effects.subject = benchmark_runs.id::text)
    ))::text AS line
    FROM benchmark_runs
    WHERE cluster = :cluster AND ended_at < :before AND (ended_at, id) > (:after, :after_id)
    ORDER BY ended_at, id LIMIT 1
    """
)  # one at a time: the outputs of a run can have 10 MB each
_BEGINNING = datetime.fromisoformat("0001-01-01T00:00:00+00:00")
_QUERIES: Mapping[str, tuple[TextClause, str | int]] = {
    "job": (_JOBS, ""),
    "transaction": (_TRANSACTIONS, 0),
    "sweep": (_RECONCILIATIONS, 0),
    "alarm_incident": (_INCIDENTS, 0),
    "benchmark_run": (_BENCHMARK_RUNS, 0),
}
"""For each kind of line its query, and an id that is before all others."""


class ArchiveError(PermanentError):
    """The archive cannot be written; the message states why. Nothing is left of a file;
    what was written to standard output is incomplete. A retry does not help: another
    path or more room is needed.
    """


def archive(
    engine: Engine, cluster: str, before: datetime, target: Path
) -> Mapping[str, int]:
    """Write what ended before that time in the cluster into a new file; returns how
    many lines of each kind.

    The file appears under its name when all of it is on the disk. Raises ArchiveError,
    when a file of that name exists or the folder cannot be written; a retry does not
    help: another path is needed. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    if target.exists():
        raise ArchiveError(
            f"{target}: found a file; expected none, as an archive is never overwritten"
        )
    try:
        descriptor, name = tempfile.mkstemp(
            prefix=f".{target.name}.", dir=target.parent
        )
    except OSError as error:
        raise ArchiveError(
            f"{target.parent}: found no folder to write to ({error.strerror}); expected one"
        ) from error
    draft = Path(name)
    try:
        return _write(descriptor, draft, target, _lines(engine, cluster, before))
    except FileExistsError as error:
        raise ArchiveError(
            f"{target}: found a file that was made meanwhile; expected none"
        ) from error
    except OSError as error:
        raise ArchiveError(
            f"{target}: not written ({error.strerror}); expected a folder that this user can write to"
        ) from error
    finally:
        draft.unlink()


def archive_to_stream(
    engine: Engine, cluster: str, before: datetime, stream: BinaryIO
) -> Mapping[str, int]:
    """Write the same lines to a stream, such as standard output; returns how many of
    each kind.

    When it raises an error, the stream has a part of the archive. Raises
    LedgerUnavailableError, when the database does not answer, and OSError, when the
    stream takes no more. A retry helps with an empty stream.
    """
    written = _compress(stream, _lines(engine, cluster, before))
    stream.flush()
    return written


def _write(
    descriptor: int, draft: Path, target: Path, lines: Iterator[tuple[str, str]]
) -> Mapping[str, int]:
    with os.fdopen(descriptor, "wb") as file:
        written = _compress(file, lines)
        file.flush()
        os.fsync(file.fileno())
    os.link(draft, target)  # unlike a rename, it fails where a file has that name
    _sync_folder(target.parent)
    return written


def _compress(stream: BinaryIO, lines: Iterator[tuple[str, str]]) -> Mapping[str, int]:
    written = dict.fromkeys(_QUERIES, 0)
    with zstandard.ZstdCompressor(
        level=COMPRESSION_LEVEL, write_checksum=True
    ).stream_writer(stream, closefd=False) as compressed:
        for kind, line in lines:
            compressed.write(line.encode() + b"\n")
            written[kind] += 1
    return written


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(engine: Engine, cluster: str, before: datetime) -> Iterator[tuple[str, str]]:
    """Return the lines, each with its kind."""
    where = {"cluster": cluster, "before": before, "most": LINES_AT_ONCE}
    with read_connection(engine) as connection:
        for kind, (query, first) in _QUERIES.items():
            at, last = _BEGINNING, first
            while rows := connection.execute(
                query, {**where, "after": at, "after_id": last}
            ).all():
                yield from ((kind, row.line) for row in rows)
                at, last = rows[-1].at, rows[-1].id
