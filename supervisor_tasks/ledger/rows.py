"""Between the ledger's rows and the job that `advance` knows; and what of a stranger's words Postgres can hold."""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from sqlalchemy import RowMapping

from supervisor_tasks.events import Event, ScriptFetched
from supervisor_tasks.job import Address, ChainStatus, Definition, Job, JobId, Outcome, SlurmId, State, Stop, TopUp
from supervisor_tasks.jobs.runs import Run

LONGEST_TEXT = 2000  # characters of an error or of a piece of evidence


def whole(text: str) -> str:
    """A text as Postgres can hold it."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def storable(text: str) -> str:
    """A text that Postgres can hold, and not more of it than an operator reads."""
    return whole(text)[:LONGEST_TEXT]


def storable_json(value: Any) -> Any:
    """What JSON has of a value, with all texts in it such that Postgres can hold them."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {storable(str(key)): storable_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [storable_json(entry) for entry in value]
    return storable(str(value))


def job_from_row(row: RowMapping) -> Job:
    """The job of a row of `jobs`, in which `has_script` stands for the script."""
    return Job(
        job_id=JobId(row["job_id"]),
        customer=Address(row["customer"]),
        provider=Address(row["provider"]),
        claim_key=row["claim_key"],
        definition=Definition(**row["definition"]),
        time_limit_min=row["time_limit_min"],
        state=State(row["state"]),
        chain_status=ChainStatus(row["chain_status"]),
        chain_at=(row["chain_block"], row["chain_log_index"]),
        heard_block=row["heard_block"],
        doubt_until=row["doubt_until"],
        has_script=row["has_script"],
        grid_logger_url=row["grid_logger_url"],
        slurm_id=None if row["slurm_id"] is None else SlurmId(row["slurm_id"]),
        slurm_submit_s=row["slurm_submit_s"],
        top_ups=tuple(TopUp(*entry) for entry in row["top_ups"]),
        applied_limit_min=row["applied_limit_min"],
        cancel_requested=row["cancel_requested"],
        looks=row["looks"],
        outcome=_outcome(row),
        settled_by_operator=row["settled_by_operator"],
        message=row["message"],
        runs=tuple(Run(**entry) for entry in row["runs"]),
        put_back=row["put_back"],
        stop=None if row["stop_status"] is None else Stop(ChainStatus(row["stop_status"]), row["stop_reason"]),
    )


def row_from_job(job: Job) -> dict[str, Any]:
    """The columns of `jobs` for a job, but for the cluster, the script and the times."""
    outcome = job.outcome
    return {
        "job_id": job.job_id,
        "customer": job.customer,
        "provider": job.provider,
        "claim_key": job.claim_key,
        "definition": _plain(job.definition),
        "time_limit_min": job.time_limit_min,
        "state": job.state.value,
        "chain_status": int(job.chain_status),
        "chain_block": job.chain_at[0],
        "chain_log_index": job.chain_at[1],
        "heard_block": job.heard_block,
        "doubt_until": job.doubt_until,
        "grid_logger_url": whole(job.grid_logger_url),
        "slurm_id": job.slurm_id,
        "slurm_submit_s": job.slurm_submit_s,
        "top_ups": [[top_up.key, top_up.minutes, top_up.block] for top_up in job.top_ups],
        "applied_limit_min": job.applied_limit_min,
        "cancel_requested": job.cancel_requested,
        "looks": job.looks,
        "outcome_status": None if outcome is None else int(outcome.status),
        "elapsed_s": None if outcome is None else outcome.elapsed_s,
        "exit_status": None if outcome is None else outcome.exit_status,
        "reason": None if outcome is None else whole(outcome.reason),
        "settled_by_operator": job.settled_by_operator,
        "message": whole(job.message),
        "runs": [_plain(run) for run in job.runs],
        "put_back": job.put_back,
        "stop_status": None if job.stop is None else int(job.stop.status),
        "stop_reason": None if job.stop is None else whole(job.stop.reason),
    }


def details(event: Event) -> dict[str, Any]:
    """An event as the journal keeps it. The script is in `jobs` already."""
    if isinstance(event, ScriptFetched):
        return {"bytes": len(event.script.encode()), "grid_logger_url": whole(event.grid_logger_url)}
    return {entry.name: _plain(getattr(event, entry.name)) for entry in fields(event)}


def _outcome(row: RowMapping) -> Outcome | None:
    if row["outcome_status"] is None:
        return None
    return Outcome(
        status=ChainStatus(row["outcome_status"]),
        elapsed_s=row["elapsed_s"],
        exit_status=row["exit_status"],
        reason=row["reason"],
    )


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    return whole(value) if isinstance(value, str) else value
