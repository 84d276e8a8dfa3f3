"""What follows from SLURM's record of a benchmark's job, and from the job's output.
Pure.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkState,
    Measurement,
    MeasurementUpdate,
    Value,
    limit_of,
    sbatch_option,
)
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord, describe_exit
from supervisor_tasks.slurm.script_matching import was_rejected
from supervisor_tasks.slurm.submit_once import may_arrive

FIRST_POLL_S = 1.0
MAX_POLL_S = 60.0
MISSING_AGAIN_S = 5.0
# submissions that SLURM, when asked, does not know; then the benchmark has failed
MAX_SUBMISSIONS = 5
# a network file system may show the login node an older file for so long
OUTPUT_LATE_S = 60.0
COMPLETED = "COMPLETED"
STANDS_STILL = ("SUSPENDED", "STOPPED")
# in SLURM's queue: a job that needs all planned nodes waits for one that went down
NODES_COUNTED_AFTER_S = 15 * 60.0
# in SLURM's queue, or in states that lead to no end; then an alarm is raised
LONG_WAIT_S = 3600.0
# in states that lead to no end: SLURM kills processes within half a minute
LEFT_AFTER_S = 60.0
# in SLURM's queue; all that waits for the run, such as the registration, waits as long
MAX_WAIT_S = 48 * 3600.0


def after_poll(
    measurement: Measurement,
    record: JobRecord | None,
    submission_window_s: float,
    *,
    output_shows_end: bool = False,
) -> MeasurementUpdate:
    """Return what follows from SLURM's record of the job. No record means that SLURM
    has answered and does not know the job, and neither does accounting, if the site has
    it. `output_shows_end` means that the job's output shows its end.
    """
    if record is not None:
        return _recorded(measurement, record)
    if output_shows_end:
        return MeasurementUpdate(
            state=BenchmarkState.ENDED, slurm_id=measurement.slurm_id
        )
    if measurement.state is BenchmarkState.SUBMITTING:
        return _never_arrived(measurement, submission_window_s)
    missing_s = measurement.missing_for_s or 0.0
    if missing_s >= submission_window_s:
        return MeasurementUpdate(
            state=BenchmarkState.ENDED, slurm_id=measurement.slurm_id
        )
    again_s = min(submission_window_s - missing_s, MISSING_AGAIN_S)
    return MeasurementUpdate(
        state=measurement.state,
        poll_delay_s=again_s,
        slurm_id=measurement.slurm_id,
        slurm_state=measurement.slurm_state,
        missing=True,
    )


def _recorded(measurement: Measurement, record: JobRecord) -> MeasurementUpdate:
    if was_rejected(record):
        return MeasurementUpdate(
            state=BenchmarkState.FAILED,
            slurm_id=record.slurm_id,
            slurm_state=record.state,
            reason=f"SLURM rejected the job: {record.reason}",
        )
    if record.phase is Phase.ENDED:
        return MeasurementUpdate(
            state=BenchmarkState.ENDED,
            slurm_id=record.slurm_id,
            slurm_state=record.state,
            exit_status=record.exit_status,
        )
    poll_delay_s = min(max(measurement.called_ago_s / 2, FIRST_POLL_S), MAX_POLL_S)
    return MeasurementUpdate(
        state=BenchmarkState.SUBMITTED,
        poll_delay_s=poll_delay_s,
        slurm_id=record.slurm_id,
        slurm_state=record.shown,
    )


def blocked_reason(
    measurement: Measurement,
    record: JobRecord | None,
    hardware: PartitionHardware | None = None,
) -> str:
    """Return why a job that waits in SLURM must be ended: it will not begin, or others
    wait for it too long. Empty if it may wait on. `hardware` are the nodes as they are
    now, if it is time to count them.
    """
    if not _waits(record):
        return ""
    if record.never_begins:
        return f"SLURM would let it wait without end: {record.reason} (it asked for {limit_of(measurement)})"
    too_few = ""
    if hardware is not None:
        too_few = too_few_nodes(measurement, hardware)
    if too_few:
        return f"{too_few}; SLURM: {record.shown}"
    if _waited_s(measurement, record) > MAX_WAIT_S:
        return f"it waited for more than {MAX_WAIT_S / 3600:.0f} h: {record.shown}"
    return ""


def counts_nodes(measurement: Measurement, record: JobRecord | None) -> bool:
    """Whether the job has waited so long that the worker checks whether the nodes that
    it needs still work.
    """
    return _waited_s(measurement, record) > NODES_COUNTED_AFTER_S


def leads_to_no_end(record: JobRecord | None) -> bool:
    """Whether SLURM shows a state that leads to no end if it stays: COMPLETING on a
    node whose processes cannot be killed, a suspended job.
    """
    if record is None:
        return False
    return record.phase is Phase.UNKNOWN or record.state in STANDS_STILL


def waits_long(
    measurement: Measurement, record: JobRecord | None, no_end_s: float
) -> bool:
    """Whether an alarm is raised: the partition is busy, or something is wrong that
    only the operator can see. `no_end_s` is for how many seconds SLURM has shown states
    that lead to no end.
    """
    return max(_waited_s(measurement, record), no_end_s) > LONG_WAIT_S


def left_behind(
    change: MeasurementUpdate,
    record: JobRecord | None,
    *,
    cancel_reason: str | None,
    no_end_s: float,
) -> MeasurementUpdate:
    """Return what follows for a job that SLURM was asked to end: a run that must end
    does not wait for one that stays in states that lead to no end.
    """
    if cancel_reason is None or record is None:
        return change
    if change.state is not BenchmarkState.SUBMITTED or no_end_s < LEFT_AFTER_S:
        return change
    left = f"SLURM has shown {record.state} for {no_end_s / 60:.0f} min, and the job was left to it"
    reason = "; ".join(filter(None, (cancel_reason, left, change.reason)))
    return replace(
        change, state=BenchmarkState.CANCELLED, poll_delay_s=0.0, reason=reason
    )


def too_few_nodes(measurement: Measurement, hardware: PartitionHardware) -> str:
    """Return what is missing; empty if nothing is. Nodes that SLURM does not show count
    as working: the job may wait for them.
    """
    wanted = int(sbatch_option(measurement, "nodes") or 1)
    nodelist = sbatch_option(measurement, "nodelist")
    named = nodelist.split(",")
    excluded = sbatch_option(measurement, "exclude").split(",")
    working = 0
    for node in hardware.in_order:
        can_be_used = node.name not in excluded and (not nodelist or node.name in named)
        if can_be_used and node.works:
            working += 1
    if working + hardware.hidden_nodes >= wanted:
        return ""
    return f"it needs {wanted} nodes, {working} work"


def _waits(record: JobRecord | None) -> TypeGuard[JobRecord]:
    """Whether SLURM knows the job, and it has not begun."""
    return record is not None and record.phase is Phase.WAITING


def _waited_s(measurement: Measurement, record: JobRecord | None) -> float:
    """How long the job has waited in SLURM, as far as is known."""
    if not _waits(record) or not math.isfinite(measurement.called_ago_s):
        return 0.0
    return measurement.called_ago_s


def after_cancel(
    change: MeasurementUpdate,
    record: JobRecord | None,
    *,
    cannot_start: str,
    cancel_reason: str | None,
    rejected: str,
) -> MeasurementUpdate:
    """Return what follows once SLURM was asked to end a job, because it cannot start or
    because the run must end. `rejected` is why SLURM did not end it. Then the run leaves
    a waiting job behind, and waits for a running one: that ends by its time limit.
    """
    stays = f"it could not be cancelled: {rejected}" if rejected else ""
    if cancel_reason is None:
        reason = "; ".join(filter(None, (cannot_start, stays)))
        return replace(
            change, state=BenchmarkState.FAILED, poll_delay_s=0.0, reason=reason
        )
    if rejected and _waits(record):
        return replace(
            change,
            state=BenchmarkState.CANCELLED,
            poll_delay_s=0.0,
            reason=f"{cancel_reason}; {stays}",
        )
    again_s = MAX_POLL_S if rejected else FIRST_POLL_S
    return replace(change, poll_delay_s=again_s, reason=stays)


def _never_arrived(
    measurement: Measurement, submission_window_s: float
) -> MeasurementUpdate:
    if may_arrive(measurement.called_ago_s, submission_window_s):
        return MeasurementUpdate(
            state=BenchmarkState.SUBMITTING,
            poll_delay_s=submission_window_s - measurement.called_ago_s,
        )
    if measurement.lost_submissions + 1 >= MAX_SUBMISSIONS:
        reason = f"it was handed to SLURM {MAX_SUBMISSIONS} times, and SLURM knows nothing of it"
        return MeasurementUpdate(state=BenchmarkState.FAILED, reason=reason)
    return MeasurementUpdate(state=BenchmarkState.WAITING, lost=True)


def end_reported(name: str, output: bytes | None) -> tuple[int, bytes] | None:
    """Return the exit status that the last line of an output shows, and the output
    without that line; None if no end is shown.
    """
    if output is None:
        return None
    body, separator, rest = output.rpartition(f"\n{name} ended ".encode())
    status = re.match(rb"(\d{1,3})\n", rest)
    if not separator or status is None:
        return None
    return int(status[1]), body + rest[status.end() :]


def why_failed(measurement: Measurement, output: bytes | None) -> str | None:
    """Return why a job's output cannot be a measurement; empty if it can; None while
    its output may still arrive.
    """
    reported = end_reported(measurement.job_name, output)
    if measurement.slurm_state == COMPLETED:
        if reported is not None:
            return ""
        if measurement.ended_ago_s < OUTPUT_LATE_S:
            return None
        if output is None:
            return "no output came back: the benchmark's user needs a home folder that nodes and login node share"
        return "the output is not whole: its last line is missing"
    if measurement.slurm_state == "":
        if reported is None:
            return (
                "SLURM has forgotten the job, and its output does not tell how it ended"
            )
        if reported[0] == 0:
            return ""
        return f"exit code {reported[0]}"
    if measurement.slurm_state == "TIMEOUT":
        return f"it ran into its time limit ({limit_of(measurement)})"
    if measurement.slurm_state == "FAILED":
        return describe_exit(measurement.exit_status)
    return f"SLURM: {measurement.slurm_state}"


def cut_short(
    measurement: Measurement, failed: str | None, cancel_reason: str | None
) -> bool:
    """Whether a job does not count because its run had to end. A job that had completed
    by then counts. `failed` is the result of `why_failed`.
    """
    if cancel_reason is None or measurement.slurm_state == COMPLETED:
        return False
    output_shows_success = (measurement.slurm_state, failed) == ("", "")
    return not output_shows_success


def unsound(values: Mapping[str, Value]) -> str:
    """Return what is wrong with values that a parser found; empty if nothing is. A
    number that cannot be a measurement is not registered.
    """
    if not values:
        return "the output holds no result"
    wrong = list[str]()
    for label, value in values.items():
        if not _is_sound(value):
            wrong.append(f"{label} is {value}")
    return "; ".join(wrong)


def _is_sound(value: Value) -> bool:
    """Whether a value can be a result: a text that is not empty, or a number above
    zero.
    """
    if isinstance(value, str):
        return bool(value.strip())
    return math.isfinite(value) and value > 0
