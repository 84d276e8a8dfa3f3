"""The archive: old jobs as lines of JSON in a file that zstandard compresses, one line a job, for the time after their
rows are deleted.
"""

import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import zstandard
from sqlalchemy import Engine, text

from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.database import read_connection

AT_ONCE = 500  # jobs in one query
LEVEL = 10  # of the compression

# One line holds all that the ledger has of a job: its row (runs and script are columns of it), and its rows in the
# other tables, oldest first. The claim's transaction has no job, and is found by its hash in claim_key.
_JOBS = text(
    f"""
    SELECT updated_at, job_id, (to_jsonb(jobs) || jsonb_build_object(
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
            SELECT COALESCE(jsonb_agg(to_jsonb(transactions) - 'cluster' ORDER BY id), '[]') FROM transactions
            WHERE transactions.cluster = jobs.cluster AND (transactions.job_id = jobs.job_id OR transactions.id IN (
                SELECT transaction_id FROM signatures WHERE hash = split_part(jobs.claim_key, ':', 1))))
    ))::text AS line
    FROM jobs
    WHERE cluster = :cluster AND updated_at < :before AND (updated_at, job_id) > (:after, :after_job)
        AND state IN ('SETTLED', 'REFUSED') AND (state = 'SETTLED' OR chain_status < {ChainStatus.SCHEDULED:d})
    ORDER BY updated_at, job_id LIMIT :most
    """  # noqa: S608  only constants
)
_BEGINNING = datetime.fromisoformat("0001-01-01T00:00:00+00:00")


class ArchiveError(PermanentError):
    """The archive cannot be written; the message says why. Nothing is left of it."""


def archive(engine: Engine, cluster: str, before: datetime, target: Path) -> int:
    """Write all jobs of the cluster that ended before that time into a new file; returns how many.

    The file appears under its name when all of it is on the disk. Raises ArchiveError when a file of that name exists.
    """
    if target.exists():
        raise ArchiveError(f"{target}: found a file; expected none, as an archive is never overwritten")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise ArchiveError(f"{target.parent}: found no folder to write to ({error.strerror}); expected one") from error
    draft = Path(name)
    try:
        return _written(descriptor, draft, target, _lines(engine, cluster, before))
    except FileExistsError as error:
        raise ArchiveError(f"{target}: found a file that was made meanwhile; expected none") from error
    except OSError as error:
        raise ArchiveError(f"{target}: not written ({error.strerror})") from error
    finally:
        draft.unlink()


def _written(descriptor: int, draft: Path, target: Path, lines: Iterator[str]) -> int:
    number = 0
    with os.fdopen(descriptor, "wb") as file:
        with zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(
            file, closefd=False
        ) as compressed:
            for line in lines:
                compressed.write(line.encode() + b"\n")
                number += 1
        file.flush()
        os.fsync(file.fileno())
    os.link(draft, target)  # unlike a rename, it fails where a file has that name
    _sync_folder(target.parent)
    return number


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(engine: Engine, cluster: str, before: datetime) -> Iterator[str]:
    place = {"after": _BEGINNING, "after_job": ""}
    with read_connection(engine) as connection:
        while rows := connection.execute(_JOBS, {"cluster": cluster, "before": before, "most": AT_ONCE, **place}).all():
            yield from (row.line for row in rows)
            place = {"after": rows[-1].updated_at, "after_job": rows[-1].job_id}
