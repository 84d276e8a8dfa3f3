"""Workflow files: what is read, what is refused and how, and that a command arrives
byte for byte.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.services.workflow import ELSEWHERE, WorkflowError, load, render


def run(text: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the rendered script as a job would."""
    script = render(load(text))
    assert subprocess.run(["bash", "-n"], input=script.encode()).returncode == 0
    environment = {**os.environ, "SLURM_JOB_ID": "1"}
    return subprocess.run(
        ["bash"],
        input=script.encode(),
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=deadline(20),
    )


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "devgrid" / "workflows").glob("*.yaml"))
)
def test_load__the_examples__are_good(file: Path) -> None:
    assert (
        subprocess.run(
            ["bash", "-n"], input=render(load(file.read_text())).encode()
        ).returncode
        == 0
    )


def test_load__older_flat_form__is_the_same() -> None:
    old = load(
        "tasks: 2\ncpusPerTask: 3\nmemPerCpu: 4\ngpus: 1\nsteps: [{name: x, image: ubuntu, command: echo}]"
    )
    new = load(
        "resources: {tasks: 2, cpusPerTask: 3, memPerCpu: 4, gpus: 1}\n"
        "steps: [{name: x, run: {container: {image: ubuntu}, command: echo}}]"
    )
    assert old == new


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "resources: {tasks: 0}\nsteps: [{run: {command: x}}]",
            "resources.tasks: found 0; Input should be greater",
        ),
        (
            "resources: {tasks: true}\nsteps: [{run: {command: x}}]",
            "resources.tasks: found True; Input should be a",
        ),
        (
            "resources: {taks: 1}\nsteps: [{run: {command: x}}]",
            "resources.taks: no such field; allowed: tasks, cpusPerTask, memPerCpu, gpus; found 1",
        ),
        (
            "steps: [{run: {command: x, cmd: [1]}}]",
            "steps.0.run.cmd: no such field; allowed: command, container, env, resources; found a list of 1",
        ),
        (
            "steps: [{for: {items: [a], parallel: true, steps: [{run: {command: x}}]}}]",
            "steps.0.for.parallel: no such field; allowed: range, items, steps; found True",
        ),
        (
            "steps: [{run: {command: x}, catch: [{run: {command: x}, else: 1}]}]",
            "steps.0.catch.0.else: no such field; allowed: name, run, for, catch, finally; found 1",
        ),
        ("steps: []", "steps: found a list of 0; expected at least one step"),
        ("resources: {}", "steps: found nothing; Field required"),
        (
            "steps: [{name: x}]",
            "steps.0: found a mapping of 'name'; expected either run or for",
        ),
        (
            "steps: [{for: {range: {begin: 1, end: 2, increment: 0}, steps: [{run: {command: x}}]}}]",
            "range: increment must not be 0",
        ),
        (
            "steps: [{run: {command: x, env: [{key: 'A B', value: y}]}}]",
            "steps.0.run.env.0.key: found 'A B'",
        ),
        (
            "steps: [{launch: {steps: []}}]",
            "steps.0.launch: 'launch' is a part of the grid's workflows",
        ),
        (
            "input: {}\nsteps: [{run: {command: x}}]",
            "input: 'input' is a part of the grid's workflows",
        ),
        ("steps: [{use: {source: x}}]", "steps.0.use: 'use' is a part"),
        (
            'steps: [{run: {command: "a\\0b"}}]',
            "steps.0.run.command: found 'a\\x00b'; must hold no NUL",
        ),
        (
            'steps: [{run: {command: "a\\ud800b"}}]',
            "steps.0.run.command: found 'a\\ud800b'; must hold no half",
        ),
        (
            'env: [{key: A, value: "\\0"}]\nsteps: [{run: {command: x}}]',
            "env.0.value: found '\\x00'; must hold no NUL",
        ),
        ("a: [", "the file: not YAML: while parsing"),
        ("just text", "the file: found 'just text'"),
        ("", "the file: found None"),
    ],
)
def test_load__what_cannot_be_used__is_refused_with_the_field(
    text: str, line: str
) -> None:
    with pytest.raises(WorkflowError) as caught:
        load(text)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ELSEWHERE)
def test_load__part_that_devgrid_has_not__is_refused_by_name_wherever_it_stands(
    name: str,
) -> None:
    for text, path in (
        (f"{name}: x\nsteps: [{{run: {{command: x}}}}]", ""),
        (f"steps: [{{run: {{command: x}}, {name}: x}}]", "steps.0."),
        (f"steps: [{{run: {{command: x, {name}: x}}}}]", "steps.0.run."),
    ):
        with pytest.raises(
            WorkflowError,
            match=f"^{path}{name}: {name!r} is a part of the grid's workflows",
        ):
            load(text)


def test_load__long_value__is_shown_short() -> None:
    with pytest.raises(WorkflowError) as caught:
        load(f"resources: {{tasks: {'x' * 10_000}}}\nsteps: [{{run: {{command: x}}}}]")
    assert len(str(caught.value)) < 300


def test_load__nested_too_deeply__is_refused_at_once() -> None:
    with pytest.raises(
        WorkflowError, match=r"^the file: nested too deeply; allowed: 100 levels$"
    ):
        load("a: " + "[" * 1_000_000)


def test_load__loops_in_loops__are_read() -> None:
    assert load(
        "steps: "
        + "[{for: {items: [a], steps: " * 30
        + "[{run: {command: x}}]"
        + "}}]" * 30
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: 2026-13-45",
        "a: !!int x",
        "a: !!float x",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: " + "9" * 5000,
    ],
    ids=["date", "int", "float", "bool", "timestamp", "digits"],
)
def test_load__what_the_yaml_reader_trips_over__is_refused_all_the_same(
    text: str,
) -> None:
    with pytest.raises(WorkflowError, match=r"^the file: not YAML: "):
        load(text)


def test_load__steps_that_hold_themselves__are_refused() -> None:
    with pytest.raises(WorkflowError):
        load("steps: &all [{for: {items: [x], steps: *all}}]")


YAML = st.text(alphabet="steprunfoc: {}[]&*!|>-#'\"\n0129_\\", max_size=60)


@given(YAML | YAML.map(lambda text: f"steps: [{{run: {{command: {text}}}}}]"))
def test_load__any_text__is_a_workflow_or_an_error_of_ours(text: str) -> None:
    try:
        render(load(text)).encode()
    except WorkflowError as error:
        said = str(error)
    else:
        return
    assert len(said.splitlines()) == 1


def test_render__long_range__is_a_short_script(tmp_path: Path) -> None:
    text = "steps: [{for: {range: {begin: 1, end: 1000000000}, steps: [{run: {command: 'echo $index; exit 5'}}]}}]"
    assert len(render(load(text))) < 3000
    assert (run(text, tmp_path).stdout, run(text, tmp_path).returncode) == (b"1\n", 5)


def test_render__empty_items__runs_nothing(tmp_path: Path) -> None:
    found = run(
        "steps: [{for: {items: [], steps: [{run: {command: echo never}}]}}]", tmp_path
    )
    assert (found.stdout, found.returncode) == (b"", 0)


def test_render__step_of_several_tasks__is_srun_with_the_command_as_one_word(
    tmp_path: Path,
) -> None:
    """A stand-in for srun prints its words; SLURM's own is asked in the tests of the
    journey.
    """
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    text = """
resources: {tasks: 4}
steps: [{run: {command: "echo 'a' $B\\nc", resources: {tasks: 4, cpusPerTask: 2}}}]
"""
    script = render(load(text))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    found = subprocess.run(
        ["bash"],
        input=script.encode(),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
    )
    assert (
        found.stdout
        == b"<--ntasks=4><--cpus-per-task=2></bin/bash><-c><echo 'a' $B\nc>"
    )


def test_load__several_fields_wrong__says_all_at_once() -> None:
    with pytest.raises(WorkflowError) as caught:
        load("resources: {tasks: none, gpus: -1}\nsteps: [{run: {command: x}}]")
    said = str(caught.value)
    assert said.startswith("resources.tasks: found 'none'; ")
    assert "; resources.gpus: found -1; " in said
    assert "\n" not in said


def test_load__line_feed_in_the_name_of_a_field__is_told_in_one_line() -> None:
    with pytest.raises(
        WorkflowError, match=r"^a b: no such field; allowed: [^\n]*; found 1$"
    ):
        load('"a\\n b": 1\nsteps: [{run: {command: x}}]')


@pytest.mark.parametrize(
    "command",
    [
        "echo \"it's\" '$HOME' `echo tick` $(echo sub) \\\\ \\$",
        "cat <<EOF\n$((1+1))\nEOF\necho after",
        "cat <<'EOT'\nEOF\n'\nEOT",
        "printf '%s\\n' 'a' \"b\"\n\n\techo tab",
        "echo \N{PILE OF POO} \x7f",
        "# nothing but a comment",
        "echo a\r\necho b\n\n",
        "  echo indented\\\n  on",
        ")\nstatus=0\nexit 3",
        "-c",
    ],
)
def test_render__command__runs_as_if_bash_had_been_given_it(
    command: str, tmp_path: Path
) -> None:
    text = yaml.safe_dump(
        {"steps": [{"run": {"command": command}}]}, allow_unicode=True
    )
    wanted = subprocess.run(["bash", "-c", command], capture_output=True)
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (wanted.stdout, wanted.returncode)


def test_render__hostile_names_and_values__are_shown_and_never_run(
    tmp_path: Path,
) -> None:
    hostile = "';touch a #\"$(touch b)`touch c`\n) ; touch d\nEOF\n"
    step = {
        "name": hostile,
        "run": {
            "command": 'printf %s "$OWN$TOP$item"',
            "env": [{"key": "OWN", "value": hostile}],
        },
    }
    boxed = {"run": {"command": "true", "container": {"image": hostile}}}
    loop = {"for": {"items": [hostile], "steps": [step, boxed]}}
    found = run(
        yaml.safe_dump({"env": [{"key": "TOP", "value": hostile}], "steps": [loop]}),
        tmp_path,
    )
    title, image = (
        f"--- {hostile}\n",
        f"devgrid: {hostile} is not used; the command runs on the node\n",
    )
    assert found.stdout.decode() == title + 3 * hostile + image
    assert found.returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == ["job-1"]


def test_render__finally_in_a_loop__runs_each_time_and_hides_no_failure(
    tmp_path: Path,
) -> None:
    text = """
steps:
  - for:
      range: {begin: 1, end: 3}
      steps:
        - run: {command: 'echo "in $index"; exit $((index / 2 * 5))'}
          finally: [{run: {command: 'echo "out $index"'}}]
    finally: [{run: {command: echo end}}]
"""
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (b"in 1\nout 1\nin 2\nout 2\nend\n", 5)


FAILS_IN_CATCH = """
steps:
  - run: {command: exit 7}
    catch: [{run: {command: 'echo "caught $DEEPSQUARE_ERROR_CODE"; exit 8'}}]
    finally: [{run: {command: echo finally}}]
  - run: {command: echo never}
"""
CAUGHT = """
steps:
  - run: {command: exit 7}
    catch: [{run: {command: echo caught}}]
  - run: {command: echo next}
"""
FINALLY_FAILS = """
steps:
  - run: {command: 'true'}
    finally: [{run: {command: exit 9}}]
"""
BOTH_FAIL = """
steps:
  - run: {command: exit 70}
    finally: [{run: {command: exit 9}}]
"""


@pytest.mark.parametrize(
    ("text", "stdout", "status"),
    [
        (FAILS_IN_CATCH, b"caught 7\nfinally\n", 8),
        (CAUGHT, b"caught\nnext\n", 0),
        (FINALLY_FAILS, b"", 9),
        (BOTH_FAIL, b"", 70),
    ],
    ids=["catch fails", "caught", "finally fails", "step and finally fail"],
)
def test_render__step_catch_or_finally_fails__the_job_has_its_status(
    tmp_path: Path, text: str, stdout: bytes, status: int
) -> None:
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (stdout, status)


def test_render__for__range_and_items(tmp_path: Path) -> None:
    text = """
steps:
  - for: {range: {begin: 3, end: 1, increment: -1}, steps: [{run: {command: 'echo "i $index"'}}]}
  - for: {items: ["a b", "$HOME"], steps: [{run: {command: 'echo "item $item"'}}]}
"""
    assert run(text, tmp_path).stdout == b"i 3\ni 2\ni 1\nitem a b\nitem $HOME\n"


def test_render__step_of_a_loop_fails__ends_the_loop(tmp_path: Path) -> None:
    text = "steps: [{for: {range: {begin: 1, end: 3}, steps: [{run: {command: 'echo $index; exit $index'}}]}}]"
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (b"1\n", 1)


def test_render__environment__numbers_folders_and_variables(tmp_path: Path) -> None:
    text = """
resources: {tasks: 2, cpusPerTask: 3, memPerCpu: 10, gpus: 1}
env: [{key: TOP, value: "it's $TOP"}]
steps:
  - run:
      env: [{key: OWN, value: "`x`"}]
      command: 'echo "$NTASKS $CPUS_PER_TASK $MEM_PER_CPU $GPUS $CPUS $MEM|$TOP|$OWN"; ls -d "$DEEPSQUARE_OUTPUT" "$DEEPSQUARE_DISK_WORLD_TMP"; echo "LATER=yes" >> "$DEEPSQUARE_ENV"'
  - run: {command: 'echo "$LATER"'}
"""  # noqa: E501
    lines = run(text, tmp_path).stdout.decode().splitlines()
    assert lines[0] == "2 3 10 1 6 60|it's $TOP|`x`"
    assert lines[1:3] == [
        f"{tmp_path}/job-1/{name}" for name in ("disk-world-tmp", "output")
    ]
    assert lines[3] == "yes"
