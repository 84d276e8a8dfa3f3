"""Workflow files: what is read, what is refused and how, and that a command arrives byte for byte."""

import os
import subprocess
from pathlib import Path

import pytest

from devgrid.workflow import WorkflowError, load, render

ONE = "resources: {{tasks: 1}}\nsteps:\n  - run: {{command: {command}}}\n"


def run(text: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the rendered script as a job would."""
    script = render(load(text))
    assert subprocess.run(["bash", "-n"], input=script.encode()).returncode == 0
    environment = {**os.environ, "SLURM_JOB_ID": "1"}
    return subprocess.run(["bash"], input=script.encode(), cwd=folder, env=environment, capture_output=True, timeout=20)


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "devgrid" / "workflows").glob("*.yaml")))
def test_load__the_examples__are_good(file: Path) -> None:
    assert subprocess.run(["bash", "-n"], input=render(load(file.read_text())).encode()).returncode == 0


def test_load__older_flat_form__is_the_same() -> None:
    old = load("tasks: 2\ncpusPerTask: 3\nmemPerCpu: 4\ngpus: 1\nsteps: [{name: x, image: ubuntu, command: echo}]")
    new = load(
        "resources: {tasks: 2, cpusPerTask: 3, memPerCpu: 4, gpus: 1}\n"
        "steps: [{name: x, run: {container: {image: ubuntu}, command: echo}}]"
    )
    assert old == new


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("resources: {tasks: 0}\nsteps: [{run: {command: x}}]", "resources.tasks: found 0; Input should be greater"),
        ("resources: {taks: 1}\nsteps: [{run: {command: x}}]", "resources.taks: found 1; no such field"),
        ("steps: []", "steps: "),
        ("steps: [{name: x}]", "steps.0: either run or for"),
        ("steps: [{run: {command: x, env: [{key: 'A B', value: y}]}}]", "steps.0.run.env.0.key: found 'A B'"),
        ("steps: [{launch: {steps: []}}]", "steps.0: 'launch' is a part of the grid's workflows"),
        ("input: {}\nsteps: [{run: {command: x}}]", "the file: 'input' is a part of the grid's workflows"),
        ("steps: [{use: {source: x}}]", "steps.0: 'use' is a part"),
        ("a: [", "not YAML"),
        ("just text", "the file: found 'just text'"),
    ],
)
def test_load__what_cannot_be_used__is_refused_with_the_field(text: str, line: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        load(text)
    assert line in str(caught.value)


def test_load__several_fields_wrong__says_all_at_once() -> None:
    with pytest.raises(WorkflowError) as caught:
        load("resources: {tasks: none, gpus: -1}\nsteps: [{run: {command: x}}]")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "command",
    [
        "echo \"it's\" '$HOME' `echo tick` $(echo sub) \\\\ \\$",
        "cat <<EOF\n$((1+1))\nEOF\necho after",
        "cat <<'EOT'\nEOF\n'\nEOT",
        "printf '%s\\n' 'a' \"b\"\n\n\techo tab",
        "echo \N{PILE OF POO} \x7f",
        "# nothing but a comment",
    ],
)
def test_render__command__runs_as_if_bash_had_been_given_it(command: str, tmp_path: Path) -> None:
    import yaml

    text = yaml.safe_dump({"steps": [{"run": {"command": command}}]}, allow_unicode=True)
    wanted = subprocess.run(["bash", "-c", command], capture_output=True)
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (wanted.stdout, wanted.returncode)


def test_render__failing_step__ends_the_job_with_its_status_after_catch_and_finally(tmp_path: Path) -> None:
    text = """
steps:
  - run: {command: exit 7}
    catch: [{run: {command: 'echo "caught $DEEPSQUARE_ERROR_CODE"; exit 8'}}]
    finally: [{run: {command: echo finally}}]
  - run: {command: echo never}
"""
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (b"caught 7\nfinally\n", 8)


def test_render__caught__goes_on(tmp_path: Path) -> None:
    text = "steps: [{run: {command: exit 7}, catch: [{run: {command: echo caught}}]}, {run: {command: echo next}}]"
    found = run(text, tmp_path)
    assert (found.stdout, found.returncode) == (b"caught\nnext\n", 0)


def test_render__finally_fails__is_the_jobs_status(tmp_path: Path) -> None:
    found = run("steps: [{run: {command: 'true'}, finally: [{run: {command: exit 9}}]}]", tmp_path)
    assert found.returncode == 9


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
    assert lines[1:3] == [f"{tmp_path}/job-1/{name}" for name in ("disk-world-tmp", "output")]
    assert lines[3] == "yes"
