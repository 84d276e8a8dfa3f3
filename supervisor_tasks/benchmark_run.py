"""The life of a benchmark run: its states, what is next, how its jobs are called and submitted. Pure.

A run measures one benchmark after the other, each as one SLURM job. It goes by small steps, each of which another worker may
begin again: what is known stands in the ledger, and SLURM is asked for the rest under the job's name, which no other job has.
An outage of SLURM is waited out. A benchmark that does not work is recorded with its reason, and the others go on.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor_tasks.job import SlurmId

MOST_OUTPUT = 10_000_000  # bytes that are read of a job's output, its last ones
NICE = 10_000  # below the jobs of customers
STANDS_STILL_S = 15 * 60.0  # without a step that succeeded; then the operator is called
REFUSED_S = 60.0  # without a login as the user; then the operator is called
LOGIN_AGAIN_AT_LEAST_S, LOGIN_AGAIN_AT_MOST_S = 2.0, 60.0
CLEAN_AGAIN_S = 30.0
CLEAN_GIVEN_UP_S = 15 * 60.0  # after the job's end; a file that stays is no reason to keep a run from its end
PREFIX = "benchmark"  # of names and comments: SLURM's plugins report what begins with `supervisor`

Value = float | str


class RunState(StrEnum):
    """How far a run is."""

    ASKED = "ASKED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CANCELLED = "CANCELLED"

    @property
    def open(self) -> bool:
        """Whether there is something left to do."""
        return self in (RunState.ASKED, RunState.RUNNING)


class Stage(StrEnum):
    """How far a benchmark of a run is."""

    WAITING = "WAITING"
    SUBMITTING = "SUBMITTING"  # SLURM may have it or not
    SUBMITTED = "SUBMITTED"  # SLURM has it; `slurm_state` says what it does with it
    ENDED = "ENDED"  # its output is to be read
    MEASURED = "MEASURED"
    FAILED = "FAILED"
    LEFT_OUT = "LEFT_OUT"  # what it takes is not on the nodes
    CANCELLED = "CANCELLED"

    @property
    def open(self) -> bool:
        """Whether there is something left to do."""
        return self in (Stage.WAITING, Stage.SUBMITTING, Stage.SUBMITTED, Stage.ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run. `token`, random hex digits, is in the names and the output of its jobs; `cancel_reason` is there as soon as
    somebody wants it to end.
    """

    id: int
    why: str
    state: RunState
    token: str = ""
    cancel_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A benchmark as it is to be run: what sbatch is asked for beyond what all have, and the script."""

    benchmark: str
    options: tuple[str, ...] = ()
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A benchmark of a run; `run_as` is the user under whom it was handed to SLURM. Ages are by the database's clock."""

    id: int
    run_id: int
    benchmark: str
    stage: Stage
    job_name: str
    run_as: str = ""
    options: tuple[str, ...] = ()
    script: str = ""
    lost: int = 0
    slurm_id: SlurmId | None = None
    slurm_state: str = ""
    exit_status: int = 0
    due_in_s: float = 0.0
    called_s_ago: float = math.inf
    missing_for_s: float | None = None
    ended_s_ago: float = 0.0
    cleaned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is new of a benchmark. `missing`: SLURM does not know it; `lost`: it never did, though it was handed over."""

    stage: Stage
    look_in_s: float = 0.0
    slurm_id: SlurmId | None = None
    slurm_state: str = ""
    exit_status: int = 0
    missing: bool = False
    lost: bool = False
    reason: str = ""


class Step(StrEnum):
    """What can be done next."""

    BEGIN = "begin"
    SUBMIT = "submit"
    LOOK = "look"
    READ = "read"
    SKIP = "skip"
    CLEAN = "clean"
    FINISH = "finish"

    @property
    def asks_slurm(self) -> bool:
        """Whether it takes the SLURM that has the ledger's jobs."""
        return self not in (Step.SKIP, Step.FINISH)

    @property
    def begins_something(self) -> bool:
        """Whether it waits until SLURM is known to work, and while submissions are held."""
        return self in (Step.BEGIN, Step.SUBMIT)


def next_step(run: Run, measurements: Sequence[Measurement]) -> tuple[Step, Measurement | None] | None:
    """What is to be done now; None is to wait."""
    if run.state is RunState.ASKED:
        return (Step.FINISH if run.cancel_reason is not None else Step.BEGIN), None
    dirty = [one for one in measurements if not one.stage.open and not one.cleaned and _was_called(one)]
    due = next((one for one in dirty if one.due_in_s <= 0), None)
    if due is not None:
        return Step.CLEAN, due
    one = next((one for one in measurements if one.stage.open), None)
    if one is None:
        return None if dirty else (Step.FINISH, None)
    if one.stage is Stage.WAITING:
        return (Step.SKIP if run.cancel_reason is not None else Step.SUBMIT), one
    if one.due_in_s > 0:
        return None
    return (Step.READ if one.stage is Stage.ENDED else Step.LOOK), one


def patience_s(*, impossible: bool) -> float:
    """For how long a run may make no step before the operator is called; not at all when it cannot be planned: with these
    settings and nodes it never will.
    """
    return 0.0 if impossible else STANDS_STILL_S


def login_again_in_s(refused_for_s: float) -> float:
    """How long after a refused login the next one is tried: ever longer, as only the site can mend what is wrong."""
    return min(max(refused_for_s / 2, LOGIN_AGAIN_AT_LEAST_S), LOGIN_AGAIN_AT_MOST_S)


def gives_up_cleaning(run: Run, one: Measurement) -> bool:
    """Whether a file that cannot be removed is left where it is: the run is to end, or it was tried for long enough."""
    return run.cancel_reason is not None or one.ended_s_ago >= CLEAN_GIVEN_UP_S


def _was_called(one: Measurement) -> bool:
    """Whether SLURM may have had it: else there is nothing to clean, and whom it runs as may not even be let in."""
    return one.stage is not Stage.CANCELLED or one.slurm_id is not None or math.isfinite(one.called_s_ago)


# --- names --------------------------------------------------------------------------------------------------------------


def name_beginning(provider: str, cluster: str) -> str:
    """How the names of all our benchmark jobs begin. No job of the grid is called so: its name is a number in hex digits."""
    return f"{PREFIX}-{provider.lower()}-{cluster}-"


def job_name(beginning: str, run_id: int, token: str, benchmark: str) -> str:
    """The name of a job, which no other job has: a ledger that began anew has other tokens for the same numbers."""
    return f"{beginning}{run_id}-{token}-{benchmark}"


def is_named(name: str, beginning: str) -> bool:
    """Whether a name is that of a benchmark job of ours, and not of a cluster whose name begins as ours does."""
    return name.startswith(beginning) and re.match("[0-9]+-[0-9a-f]{16}-", name[len(beginning) :]) is not None


def output_file(name: str) -> str:
    """Where a job writes, in the home folder of whom it runs as."""
    return f"{name}.log"


def sbatch(path: str, one: Measurement, *, partition: str) -> list[str]:
    """Submit a benchmark; its script goes to standard input. What is common to all stands last: it cannot be overruled."""
    return [
        path,
        *one.options,
        "--parsable",
        f"--job-name={one.job_name}",
        f"--comment={PREFIX} {one.benchmark} of run {one.run_id}",
        f"--partition={partition}",
        f"--output={output_file(one.job_name)}",
        f"--nice={NICE}",
        "--no-requeue",
    ]


def batch_script(one: Measurement) -> bytes:
    """The script as sbatch reads it: however it ends, the last line of its output says so. Its body is a subshell, whose exit
    and traps are its own, and in which sbatch looks for no #SBATCH lines.
    """
    interpreter, body = "#!/bin/bash", one.script
    if body.startswith("#!"):
        interpreter, _, body = body.partition("\n")
    told = f'status=$?; echo; echo "{one.job_name} ended $status"; exit $status'
    return f"{interpreter}\n(\n{body}\n)\n{told}\n".encode()


def given(one: Measurement, option: str) -> str:
    """What sbatch was given for an option, such as `time`; empty for nothing."""
    beginning = f"--{option}="
    return next((word.removeprefix(beginning) for word in one.options if word.startswith(beginning)), "")


def limit_of(one: Measurement) -> str:
    """The time limit that a job was given, in words."""
    return f"{given(one, 'time') or '?'} min"
