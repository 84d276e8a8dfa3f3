"""Workflow files: what a customer writes, and the batch script that it becomes."""

import shlex
from collections.abc import Iterator
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

# Parts of the grid's language that devgrid has not: refused by name, so that nobody waits for them.
ELSEWHERE = ("launch", "use", "input", "output", "inputMode", "virtualNetworks", "continuousOutputSync", "network")


class WorkflowError(ValueError):
    """A workflow file that cannot be used; one line for each field that is wrong."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in ELSEWHERE:
                if name in value:
                    raise ValueError(f"{name!r} is a part of the grid's workflows that devgrid does not have")
        return value


class Resources(_Strict):
    """What a job, or a step of it, is given."""

    tasks: int = Field(1, ge=1)
    cpusPerTask: int = Field(1, ge=1)  # noqa: N815  the file's own names
    memPerCpu: int = Field(1024, ge=1)  # noqa: N815
    gpus: int = Field(0, ge=0)


class Variable(_Strict):
    """An environment variable."""

    key: str = Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    value: str


class Container(_Strict):
    """An image; devgrid runs the command on the node itself."""

    image: str


class StepResources(_Strict):
    """A step that asks for more than one task runs by srun."""

    tasks: int = Field(1, ge=1)
    cpusPerTask: int | None = Field(None, ge=1)  # noqa: N815


class Run(_Strict):
    """A command."""

    command: str
    container: Container | None = None
    env: tuple[Variable, ...] = ()
    resources: StepResources = StepResources()


class Range(_Strict):
    """Whole numbers from `begin` to `end`, both included."""

    begin: int
    end: int
    increment: int = 1

    def values(self) -> list[str]:
        """The numbers, as text."""
        last = self.end + (1 if self.increment > 0 else -1)
        return [str(number) for number in range(self.begin, last, self.increment)]


class For(_Strict):
    """Steps for each of several values, which stand in $index and $item."""

    range: Range | None = None
    items: tuple[str, ...] | None = None
    steps: tuple["Step", ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.range is None) == (self.items is None):
            raise ValueError("either range or items")
        if self.range is not None and self.range.increment == 0:
            raise ValueError("range: increment must not be 0")
        return self


class Step(_Strict):
    """One thing after another; `catch` runs when it fails, `finally` in any case."""

    name: str = ""
    run: Run | None = None
    for_: For | None = Field(None, alias="for")
    catch: tuple["Step", ...] = ()
    finally_: tuple["Step", ...] = Field((), alias="finally")

    @model_validator(mode="before")
    @classmethod
    def _older_form(cls, value: Any) -> Any:
        """`image` and `command` used to stand in the step itself."""
        if isinstance(value, dict) and "command" in value and "run" not in value:
            rest = {key: part for key, part in value.items() if key not in ("command", "image", "env", "resources")}
            run = {key: value[key] for key in ("command", "env", "resources") if key in value}
            if "image" in value:
                run["container"] = {"image": value["image"]}
            return rest | {"run": run}
        return value

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if (self.run is None) == (self.for_ is None):
            raise ValueError("either run or for")
        return self


class Workflow(_Strict):
    """A whole file."""

    enableLogging: bool = False  # noqa: N815
    resources: Resources = Resources()
    env: tuple[Variable, ...] = ()
    steps: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _older_form(cls, value: Any) -> Any:
        """The resources used to stand at the top."""
        names = ("tasks", "cpusPerTask", "memPerCpu", "gpus")
        if isinstance(value, dict) and "resources" not in value and any(name in value for name in names):
            rest = {key: part for key, part in value.items() if key not in names}
            return rest | {"resources": {name: value[name] for name in names if name in value}}
        return value


def load(text: str) -> Workflow:
    """Read a workflow file. Raises WorkflowError: the path of each wrong field, what was found and what is allowed."""
    try:
        return Workflow.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise WorkflowError(f"not YAML: {error}") from error
    except ValidationError as error:
        raise WorkflowError("\n".join(_lines(error))) from error


def render(workflow: Workflow) -> str:
    """The batch script. Commands and values are data of the customer's: they are quoted whole, byte for byte."""
    lines = ["#!/bin/bash", "set -u", *_job_environment(workflow.resources)]
    lines += [_export(variable) for variable in workflow.env]
    lines += _sequence(workflow.steps)
    return "\n".join([*lines, ""])


def _job_environment(resources: Resources) -> list[str]:
    cpus = resources.tasks * resources.cpusPerTask
    numbers = {
        "NTASKS": resources.tasks,
        "CPUS_PER_TASK": resources.cpusPerTask,
        "MEM_PER_CPU": resources.memPerCpu,
        "GPUS": resources.gpus,
        "CPUS": cpus,
        "MEM": cpus * resources.memPerCpu,
    }
    folders = {
        "STORAGE_PATH": ".",
        "DEEPSQUARE_INPUT": "input",
        "DEEPSQUARE_OUTPUT": "output",
        "DEEPSQUARE_TMP": "tmp",
        "DEEPSQUARE_SHARED_TMP": "shared-tmp",
        "DEEPSQUARE_SHARED_WORLD_TMP": "shared-world-tmp",
        "DEEPSQUARE_DISK_TMP": "disk-tmp",
        "DEEPSQUARE_DISK_WORLD_TMP": "disk-world-tmp",
    }
    return [
        *(f"export {name}={number}" for name, number in numbers.items()),
        'job_folder="$PWD/job-$SLURM_JOB_ID"',
        *(f'export {name}="$job_folder/{folder}"' for name, folder in folders.items()),
        "mkdir -p " + " ".join(f'"${name}"' for name in folders),
        'export DEEPSQUARE_ENV="$job_folder/env"',
        'touch "$DEEPSQUARE_ENV"',
    ]


def _sequence(steps: tuple[Step, ...]) -> list[str]:
    """Steps one after another; the first that fails ends the script (or the subshell) with its status."""
    return [line for step in steps for line in _step(step)]


def _step(step: Step) -> list[str]:
    body = _run(step.run) if step.run is not None else _for(step.for_)
    title = [f"echo {shlex.quote(f'--- {step.name}')}"] if step.name else []
    lines = [*title, "(", 'set -a; . "$DEEPSQUARE_ENV"; set +a', *body, ")", "status=$?"]
    if step.catch:
        lines += [
            "if [ $status -ne 0 ]; then (",
            "export DEEPSQUARE_ERROR_CODE=$status",
            *_sequence(step.catch),
            "); status=$?; fi",
        ]
    if step.finally_:
        lines += ["(", *_sequence(step.finally_), ") || status=${status/#0/$?}"]
    return [*lines, "[ $status -eq 0 ] || exit $status"]


def _run(run: Run) -> Iterator[str]:
    if run.container is not None:
        yield f"echo {shlex.quote(f'devgrid: {run.container.image} is not used; the command runs on the node')}"
    for variable in run.env:
        yield _export(variable)
    command = f"/bin/bash -c {shlex.quote(run.command)}"
    if run.resources.tasks > 1:
        cpus = f" --cpus-per-task={run.resources.cpusPerTask}" if run.resources.cpusPerTask else ""
        command = f"srun --ntasks={run.resources.tasks}{cpus} {command}"
    yield command


def _for(loop: For | None) -> Iterator[str]:
    if loop is None:
        return
    values = loop.items if loop.range is None else loop.range.values()
    name = "item" if loop.range is None else "index"
    yield f"for {name} in {' '.join(shlex.quote(value) for value in values or ())}; do"
    yield f"export {name}"
    yield from _sequence(loop.steps)
    yield "done"


def _export(variable: Variable) -> str:
    return f"export {variable.key}={shlex.quote(variable.value)}"


def _lines(error: ValidationError) -> Iterator[str]:
    for entry in error.errors(include_url=False):
        path = ".".join(str(part) for part in entry["loc"]) or "the file"
        message = entry["msg"].removeprefix("Value error, ")
        if entry["type"] == "extra_forbidden":
            message = "no such field"
        found = "" if isinstance(entry["input"], dict | list | tuple) else f" found {entry['input']!r};"
        yield f"{path}:{found} {message}"
