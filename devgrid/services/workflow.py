"""Workflow files: what a customer writes, and the batch script that it becomes."""

import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

# Parts of the grid's workflow language that devgrid does not have. They are refused by
# name.
ELSEWHERE = (
    "launch",
    "use",
    "input",
    "output",
    "inputMode",
    "virtualNetworks",
    "continuousOutputSync",
    "network",
)
NESTING = 100  # levels of lists and mappings; a loop in a loop adds three
FOUND_CHARACTERS = 80  # of a wrong value, shown to its author


class WorkflowError(ValueError):
    """A workflow file that cannot be used: one line that names each field that is
    wrong.
    """


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _fits_a_script(text: str) -> str:
    """Refuse text that would not arrive unchanged: bash drops NUL bytes, and half a
    surrogate pair is not valid UTF-8.
    """
    if "\0" in text:
        raise ValueError("must hold no NUL character")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must hold no half of a surrogate pair")
    return text


def _at_least_one(steps: tuple["WorkflowStep", ...]) -> tuple["WorkflowStep", ...]:
    if not steps:
        raise ValueError("expected at least one step")
    return steps


Text = Annotated[str, AfterValidator(_fits_a_script)]
Count = Annotated[int, Field(strict=True, ge=1)]
Steps = Annotated[tuple["WorkflowStep", ...], AfterValidator(_at_least_one)]


class Resources(_Strict):
    """The resources of a job, or of a step of it."""

    tasks: Count = 1
    cpusPerTask: Count = 1  # noqa: N815  the file's own names
    memPerCpu: Count = 1024  # noqa: N815
    gpus: int = Field(0, strict=True, ge=0)


class Variable(_Strict):
    """An environment variable."""

    key: str = Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    value: Text


class Container(_Strict):
    """A container image. devgrid does not use it, and runs the command on the node
    itself.
    """

    image: Text


class StepResources(_Strict):
    """The resources of a step. A step with more than one task runs by srun."""

    tasks: Count = 1
    cpusPerTask: Count | None = None  # noqa: N815


class RunAction(_Strict):
    """A command."""

    command: Text
    container: Container | None = None
    env: tuple[Variable, ...] = ()
    resources: StepResources = StepResources()


class Range(_Strict):
    """Whole numbers from `begin` to `end`, both included."""

    begin: int = Field(strict=True)
    end: int = Field(strict=True)
    increment: int = Field(1, strict=True)

    def loop(self) -> str:
        """The loop in bash, which counts itself, so that a long range does not make the
        script long.
        """
        comparison = "<=" if self.increment > 0 else ">="
        return f"for ((index={self.begin}; index{comparison}{self.end}; index+={self.increment})); do"


class For(_Strict):
    """Steps that run for each of several values. The value is in $index or $item."""

    range: Range | None = None
    items: tuple[Text, ...] | None = None
    steps: Steps

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.range is None) == (self.items is None):
            raise ValueError("expected either range or items")
        if self.range is not None and self.range.increment == 0:
            raise ValueError("range: increment must not be 0")
        return self


class WorkflowStep(_Strict):
    """One step. `catch` runs if it fails, `finally` in any case."""

    name: Text = ""
    run: RunAction | None = None
    for_: For | None = Field(None, alias="for")
    catch: tuple["WorkflowStep", ...] = ()
    finally_: tuple["WorkflowStep", ...] = Field((), alias="finally")

    @model_validator(mode="before")
    @classmethod
    def _older_form(cls, value: Any) -> Any:
        """Accept the older form, with `image` and `command` in the step itself."""
        if isinstance(value, dict) and "command" in value and "run" not in value:
            rest = {
                key: part
                for key, part in value.items()
                if key not in ("command", "image", "env", "resources")
            }
            run = {
                key: value[key]
                for key in ("command", "env", "resources")
                if key in value
            }
            if "image" in value:
                run["container"] = {"image": value["image"]}
            return rest | {"run": run}
        return value

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if (self.run is None) == (self.for_ is None):
            raise ValueError("expected either run or for")
        return self


class Workflow(_Strict):
    """A whole file."""

    enableLogging: bool = False  # noqa: N815
    resources: Resources = Resources()
    env: tuple[Variable, ...] = ()
    steps: Steps

    @model_validator(mode="before")
    @classmethod
    def _older_form(cls, value: Any) -> Any:
        """Accept the older form, with the resources at the top level."""
        names = ("tasks", "cpusPerTask", "memPerCpu", "gpus")
        if (
            isinstance(value, dict)
            and "resources" not in value
            and any(name in value for name in names)
        ):
            rest = {key: part for key, part in value.items() if key not in names}
            return rest | {
                "resources": {name: value[name] for name in names if name in value}
            }
        return value


def load(text: str) -> Workflow:
    """Read a workflow file. Raises WorkflowError: the path of each wrong field, what
    was found and what is allowed.
    """
    try:
        return Workflow.model_validate(_parsed(text))
    except ValidationError as error:
        raise WorkflowError(" ".join("; ".join(_faults(error)).split())) from error


def _parsed(text: str) -> Any:
    """Parse YAML. PyYAML passes on Python's own errors for an invalid date, number or
    `!!bool`. The depth is limited here: eth_abi's parser raises Python's own limit to
    100,000, and PyYAML takes a minute to reach that.
    """
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > NESTING:
                break
        else:
            return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError) as error:
        raise WorkflowError(
            f"the file: not YAML: {' '.join(str(error).split())}"
        ) from error
    raise WorkflowError(f"the file: nested too deeply; allowed: {NESTING} levels")


def render(workflow: Workflow) -> str:
    """The batch script. Commands and values are data of the customer's: they are quoted
    whole, byte for byte.
    """
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


def _sequence(steps: tuple[WorkflowStep, ...]) -> list[str]:
    """Steps one after another; the first that fails ends the script (or the subshell)
    with its status.
    """
    return [line for step in steps for line in _step(step)]


def _step(step: WorkflowStep) -> list[str]:
    body = _run(step.run) if step.run is not None else _for(step.for_)
    title = [f"echo {shlex.quote(f'--- {step.name}')}"] if step.name else []
    lines = [
        *title,
        "(",
        'set -a; . "$DEEPSQUARE_ENV"; set +a',
        *body,
        ")",
        "status=$?",
    ]
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


def _run(run: RunAction) -> Iterator[str]:
    if run.container is not None:
        yield f"echo {shlex.quote(f'devgrid: {run.container.image} is not used; the command runs on the node')}"
    for variable in run.env:
        yield _export(variable)
    command = f"/bin/bash -c {shlex.quote(run.command)}"
    if run.resources.tasks > 1:
        cpus = (
            f" --cpus-per-task={run.resources.cpusPerTask}"
            if run.resources.cpusPerTask
            else ""
        )
        command = f"srun --ntasks={run.resources.tasks}{cpus} {command}"
    yield command


def _for(loop: For | None) -> Iterator[str]:
    if loop is None:
        return
    if loop.range is not None:
        yield loop.range.loop()
    else:
        yield f"for item in {' '.join(map(shlex.quote, loop.items or ()))}; do"
    yield "export index" if loop.range is not None else "export item"
    yield from _sequence(loop.steps)
    yield "done"


def _export(variable: Variable) -> str:
    return f"export {variable.key}={shlex.quote(variable.value)}"


def _faults(error: ValidationError) -> Iterator[str]:
    for entry in error.errors(include_url=False):
        path = ".".join(str(part) for part in entry["loc"]) or "the file"
        found = "nothing" if entry["type"] == "missing" else _found(entry["input"])
        if entry["type"] == "extra_forbidden":
            yield f"{path}: {_why_not(entry['loc'])}; found {found}"
        else:
            yield f"{path}: found {found}; {entry['msg'].removeprefix('Value error, ')}"


def _found(value: object) -> str:
    if isinstance(value, dict):
        return f"a mapping of {', '.join(map(repr, value)) or 'nothing'}"[
            :FOUND_CHARACTERS
        ]
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= FOUND_CHARACTERS else f"{text[:FOUND_CHARACTERS]}..."


def _why_not(path: tuple[int | str, ...]) -> str:
    """Why a field is refused: devgrid does not have it, or no grid has it; then what is
    allowed in its place.
    """
    name = path[-1]
    if name in ELSEWHERE:
        return f"{name!r} is a part of the grid's workflows that devgrid does not have"
    model: type[BaseModel] = Workflow
    for part in path[:-1]:
        model = _model_of(model, part) if isinstance(part, str) else model
    return f"no such field; allowed: {', '.join(_fields(model))}"


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """The types of a model's fields, by the names that a file uses."""
    return {
        field.alias or name: field.annotation
        for name, field in model.model_fields.items()
    }


def _model_of(model: type[BaseModel], name: str) -> type[BaseModel]:
    waiting = [_fields(model)[name]]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        waiting += get_args(kind)
    raise KeyError(f"{model.__name__}.{name} holds no fields")
