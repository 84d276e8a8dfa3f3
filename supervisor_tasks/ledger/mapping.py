"""Converts between the rows of the ledger and the `Job` of `advance`."""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from supervisor_tasks.jobs.events import Event, ScriptFetched
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    Job,
    JobId,
    Outcome,
    State,
    Stop,
    TopUp,
)
from supervisor_tasks.jobs.runs import JobRun
from supervisor_tasks.ledger.stored_text import sanitize_text

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

COLUMNS = (
    "job_id",
    "customer",
    "provider",
    "claim_key",
    "definition",
    "time_limit_min",
    "state",
    "chain_status",
    "claim_block",
    "claim_log_index",
    "chain_block",
    "chain_log_index",
    "last_event_block",
    "reorg_deadline_block",
    "grid_logger_url",
    "slurm_id",
    "slurm_submit_s",
    "top_ups",
    "applied_limit_min",
    "cancel_requested",
    "poll_count",
    "outcome_status",
    "elapsed_s",
    "exit_status",
    "reason",
    "settled_by_operator",
    "status_message",
    "runs",
    "put_back",
    "stop_status",
    "stop_reason",
    "may_run_again",
)  # of a job, in `jobs`


def optional_float(number: Any) -> float | None:
    """A number of a row as a float; None if the row has none."""
    if number is None:
        return None
    return float(number)


def job_from_row(row: "RowMapping") -> Job:
    """The job of a row of `jobs`. The row has `has_script` instead of the script."""
    return Job(
        job_id=JobId(row["job_id"]),
        customer=Address(row["customer"]),
        provider=Address(row["provider"]),
        claim_key=row["claim_key"],
        definition=Definition(**row["definition"]),
        time_limit_min=row["time_limit_min"],
        state=State(row["state"]),
        chain_status=ChainStatus(row["chain_status"]),
        claim_position=(row["claim_block"], row["claim_log_index"]),
        chain_position=(row["chain_block"], row["chain_log_index"]),
        last_event_block=row["last_event_block"],
        reorg_deadline_block=row["reorg_deadline_block"],
        has_script=row["has_script"],
        grid_logger_url=row["grid_logger_url"],
        slurm_id=row["slurm_id"],
        slurm_submit_s=row["slurm_submit_s"],
        top_ups=tuple(TopUp(*entry) for entry in row["top_ups"]),
        applied_limit_min=row["applied_limit_min"],
        cancel_requested=row["cancel_requested"],
        poll_count=row["poll_count"],
        outcome=_outcome(row),
        settled_by_operator=row["settled_by_operator"],
        status_message=row["status_message"],
        runs=tuple(JobRun(**entry) for entry in row["runs"]),
        put_back=row["put_back"],
        stop=_stop(row),
        may_run_again=row["may_run_again"],
    )


def row_from_job(job: Job) -> dict[str, Any]:
    """COLUMNS for a job: those of `jobs` without the cluster, the script and the
    times.
    """
    columns: dict[str, Any] = {
        "job_id": job.job_id,
        "customer": job.customer,
        "provider": job.provider,
        "claim_key": job.claim_key,
        "definition": to_json_value(job.definition),
        "time_limit_min": job.time_limit_min,
        "state": job.state.value,
        "chain_status": int(job.chain_status),
        "claim_block": job.claim_position[0],
        "claim_log_index": job.claim_position[1],
        "chain_block": job.chain_position[0],
        "chain_log_index": job.chain_position[1],
        "last_event_block": job.last_event_block,
        "reorg_deadline_block": job.reorg_deadline_block,
        "grid_logger_url": sanitize_text(job.grid_logger_url),
        "slurm_id": job.slurm_id,
        "slurm_submit_s": job.slurm_submit_s,
        "top_ups": [
            [top_up.key, top_up.minutes, top_up.block] for top_up in job.top_ups
        ],
        "applied_limit_min": job.applied_limit_min,
        "cancel_requested": job.cancel_requested,
        "poll_count": job.poll_count,
        "outcome_status": None,
        "elapsed_s": None,
        "exit_status": None,
        "reason": None,
        "settled_by_operator": job.settled_by_operator,
        "status_message": sanitize_text(job.status_message),
        "runs": [to_json_value(run) for run in job.runs],
        "put_back": job.put_back,
        "stop_status": None,
        "stop_reason": None,
        "may_run_again": job.may_run_again,
    }
    if job.outcome is not None:
        columns |= {
            "outcome_status": int(job.outcome.status),
            "elapsed_s": job.outcome.elapsed_s,
            "exit_status": job.outcome.exit_status,
            "reason": sanitize_text(job.outcome.reason),
        }
    if job.stop is not None:
        columns |= {
            "stop_status": int(job.stop.status),
            "stop_reason": sanitize_text(job.stop.reason),
        }
    return columns


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as the journal stores it. A script is left out, because `jobs` has
    it.
    """
    if isinstance(event, ScriptFetched):
        return {
            "bytes": len(event.script.encode()),
            "grid_logger_url": sanitize_text(event.grid_logger_url),
        }
    return {
        entry.name: to_json_value(getattr(event, entry.name)) for entry in fields(event)
    }


def _outcome(row: "RowMapping") -> Outcome | None:
    if row["outcome_status"] is None:
        return None
    return Outcome(
        status=ChainStatus(row["outcome_status"]),
        elapsed_s=row["elapsed_s"],
        exit_status=row["exit_status"],
        reason=row["reason"],
    )


def _stop(row: "RowMapping") -> Stop | None:
    if row["stop_status"] is None:
        return None
    return Stop(ChainStatus(row["stop_status"]), row["stop_reason"])


def to_json_value(value: object) -> object:
    """A value of an event as JSON: an enum by its name, a dataclass as an object."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {
            entry.name: to_json_value(getattr(value, entry.name))
            for entry in fields(value)
        }
    if isinstance(value, str):
        return sanitize_text(value)
    return value
