"""A benchmark run: its states, its next step, and how its jobs are named and submitted.
Pure.

A run measures one benchmark after the other, each as one SLURM job. It goes by small
steps, and another worker may begin each of them again. The ledger has what is known;
the worker asks SLURM for the rest under the job's name, which no other job has. During
an outage of SLURM the run waits. A benchmark that does not work is recorded with its
reason, and the others go on.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor_tasks.jobs.model import SlurmId

MAX_OUTPUT_BYTES = 10_000_000  # bytes that are read from the end of a job's output
NICE = 10_000  # below the jobs of customers
# for how long the login node rejects the user before an alarm is raised
REJECTED_S = 60.0
LOGIN_AGAIN_AT_LEAST_S, LOGIN_AGAIN_AT_MOST_S = 2.0, 60.0
CLEAN_AGAIN_S = 30.0
# after the job's end; a file that stays must not keep a run from its end
CLEAN_GIVEN_UP_S = 15 * 60.0
# of names and comments: SLURM's plugins report what begins with `supervisor`
PREFIX = "benchmark"

Value = float | str


class RunState(StrEnum):
    """How far a run is."""

    ASKED = "ASKED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CANCELLED = "CANCELLED"

    @property
    def open(self) -> bool:
        """Whether something is left to do."""
        return self in (RunState.ASKED, RunState.RUNNING)


class BenchmarkState(StrEnum):
    """How far a benchmark of a run is."""

    WAITING = "WAITING"
    SUBMITTING = "SUBMITTING"  # SLURM may have it or not
    SUBMITTED = "SUBMITTED"  # SLURM has it, in the state `slurm_state`
    ENDED = "ENDED"  # its output must be read
    MEASURED = "MEASURED"
    FAILED = "FAILED"
    LEFT_OUT = "LEFT_OUT"  # the nodes lack what it needs
    CANCELLED = "CANCELLED"

    @property
    def open(self) -> bool:
        """Whether something is left to do."""
        return self in (
            BenchmarkState.WAITING,
            BenchmarkState.SUBMITTING,
            BenchmarkState.SUBMITTED,
            BenchmarkState.ENDED,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """A run. `token`, random hex digits, is in the names and the output of its jobs.
    `cancel_reason` is set as soon as the run must end.
    """

    id: int
    why: str
    state: RunState
    token: str = ""
    cancel_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBenchmark:
    """A benchmark as it will run: the script, and the sbatch options beyond those that
    all benchmarks have.
    """

    benchmark: str
    options: tuple[str, ...] = ()
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A benchmark of a run. `run_as` is the user as which it was submitted to SLURM.
    Ages are by the database's clock. `due_in_s` is when its next step is due, as far as
    the worker that has the run knows.
    """

    id: int
    run_id: int
    benchmark: str
    state: BenchmarkState
    job_name: str
    run_as: str = ""
    options: tuple[str, ...] = ()
    script: str = ""
    lost_submissions: int = 0
    slurm_id: SlurmId | None = None
    slurm_state: str = ""
    exit_status: int = 0
    due_in_s: float = 0.0
    called_ago_s: float = math.inf
    missing_for_s: float | None = None
    ended_ago_s: float = 0.0
    cleaned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementUpdate:
    """What is new about a benchmark. `missing` means that SLURM does not know it, and
    `lost` that SLURM never did, though it was handed over.
    """

    state: BenchmarkState
    poll_delay_s: float = 0.0
    slurm_id: SlurmId | None = None
    slurm_state: str = ""
    exit_status: int = 0
    missing: bool = False
    lost: bool = False
    reason: str = ""


class RunStep(StrEnum):
    """What the worker can do next."""

    BEGIN = "begin"
    SUBMIT = "submit"
    LOOK = "look"
    READ = "read"
    SKIP = "skip"
    CLEAN = "clean"
    FINISH = "finish"

    @property
    def asks_slurm(self) -> bool:
        """Whether the step needs the SLURM that has the ledger's jobs."""
        return self not in (RunStep.SKIP, RunStep.FINISH)

    @property
    def begins_something(self) -> bool:
        """Whether the step waits until SLURM is known to work, and while submissions
        are paused.
        """
        return self in (RunStep.BEGIN, RunStep.SUBMIT)


def next_step(
    run: BenchmarkRun, measurements: Sequence[Measurement]
) -> tuple[RunStep, Measurement | None] | None:
    """Return the step to do now, and its benchmark if it has one; None means that the
    run waits.
    """
    if run.state is RunState.ASKED:
        if run.cancel_reason is not None:
            return RunStep.FINISH, None
        return RunStep.BEGIN, None
    dirty = list(filter(_is_dirty, measurements))
    for measurement in dirty:
        if measurement.due_in_s <= 0:
            return RunStep.CLEAN, measurement
    for measurement in measurements:
        if measurement.state.open:
            return _step_of(run, measurement)
    if dirty:
        return None
    return RunStep.FINISH, None


def _is_dirty(measurement: Measurement) -> bool:
    """Whether the files of a measurement that has ended may still be on the cluster. If
    SLURM never had the job, there is nothing to clean, and the login node may not even
    let its user in.
    """
    if measurement.state.open or measurement.cleaned:
        return False
    if measurement.state is not BenchmarkState.CANCELLED:
        return True
    return measurement.slurm_id is not None or math.isfinite(measurement.called_ago_s)


def _step_of(
    run: BenchmarkRun, measurement: Measurement
) -> tuple[RunStep, Measurement] | None:
    """Return the step of a measurement that has not ended; None means that it waits."""
    if measurement.state is BenchmarkState.WAITING:
        if run.cancel_reason is not None:
            return RunStep.SKIP, measurement
        return RunStep.SUBMIT, measurement
    if measurement.due_in_s > 0:
        return None
    if measurement.state is BenchmarkState.ENDED:
        return RunStep.READ, measurement
    return RunStep.LOOK, measurement


def login_again_in_s(rejected_for_s: float) -> float:
    """Return how long after a rejected login the next one is tried. The intervals grow,
    because only the site can mend the cause.
    """
    return min(max(rejected_for_s / 2, LOGIN_AGAIN_AT_LEAST_S), LOGIN_AGAIN_AT_MOST_S)


def cleanup_expired(run: BenchmarkRun, measurement: Measurement) -> bool:
    """Whether a file that cannot be removed stays where it is: the run must end, or the
    removal was tried for long enough.
    """
    return run.cancel_reason is not None or measurement.ended_ago_s >= CLEAN_GIVEN_UP_S


# --- names ----------------------------------------------------------------------------


def name_beginning(provider: str, cluster: str) -> str:
    """Return how the names of all our benchmark jobs begin. No job of the grid has such
    a name: its name is a number in hex digits.
    """
    return f"{PREFIX}-{provider.lower()}-{cluster}-"


def job_name(beginning: str, run_id: int, token: str, benchmark: str) -> str:
    """Return the name of a job, which no other job has. A new ledger has other tokens
    for the same numbers.
    """
    return f"{beginning}{run_id}-{token}-{benchmark}"


def is_named(name: str, beginning: str) -> bool:
    """Whether a name is that of one of our benchmark jobs, and not of a cluster whose
    name begins like ours.
    """
    return (
        name.startswith(beginning)
        and re.match("[0-9]+-[0-9a-f]{16}-", name[len(beginning) :]) is not None
    )


def output_file(name: str) -> str:
    """Return the file that a job writes, in the home folder of the user that it runs
    as.
    """
    return f"{name}.log"


def sbatch(path: str, measurement: Measurement, *, partition: str) -> list[str]:
    """Return the command that submits a benchmark; its script goes to standard input.
    The options that all benchmarks have come last: the others cannot overrule them.
    """
    return [
        path,
        *measurement.options,
        "--parsable",
        f"--job-name={measurement.job_name}",
        f"--comment={PREFIX} {measurement.benchmark} of run {measurement.run_id}",
        f"--partition={partition}",
        f"--output={output_file(measurement.job_name)}",
        f"--nice={NICE}",
        "--no-requeue",
    ]


def batch_script(measurement: Measurement) -> bytes:
    """Return the script as sbatch reads it. The last line of its output shows with
    which status it ended. Its body is a subshell, whose exit and traps are its own, and
    in which sbatch searches for no #SBATCH lines.
    """
    interpreter, body = "#!/bin/bash", measurement.script
    if body.startswith("#!"):
        interpreter, _, body = body.partition("\n")
    report_end = (
        f'status=$?; echo; echo "{measurement.job_name} ended $status"; exit $status'
    )
    return f"{interpreter}\n(\n{body}\n)\n{report_end}\n".encode()


def sbatch_option(measurement: Measurement, option: str) -> str:
    """Return what sbatch was given for an option, such as `time`; empty for nothing."""
    beginning = f"--{option}="
    for word in measurement.options:
        if word.startswith(beginning):
            return word.removeprefix(beginning)
    return ""


def limit_of(measurement: Measurement) -> str:
    """Return the job's time limit as text."""
    return f"{sbatch_option(measurement, 'time') or '?'} min"
