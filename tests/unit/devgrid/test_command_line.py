"""The command `devgrid` without a grid, with a dead or damaged one, and with words that
it does not take.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import psutil
import pytest

from devgrid import command_line, kept_grid
from devgrid.chain.model import ChainAddresses
from devgrid.cluster.cluster import NEEDED
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import Processes, Running, StartError

WORKFLOW = "steps: [{run: {command: 'true'}}]\n"


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    link = tmp_path / "current"
    for module in (kept_grid, command_line):
        monkeypatch.setattr(module, "CURRENT", link)
    return link


@pytest.fixture
def workflow(tmp_path: Path) -> str:
    file = tmp_path / "workflow.yaml"
    file.write_text(WORKFLOW)
    return str(file)


def refused(*words: str) -> str:
    """What the command says as it ends."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)
    return str(ended.value.code)


NEEDS_A_GRID = [
    ("status",),
    ("env",),
    ("logs",),
    ("jobs",),
    ("output", "0xa"),
    ("cancel", "0xa"),
    ("top-up", "0xa", "1"),
]


@pytest.mark.parametrize("words", [*NEEDS_A_GRID, ("down",)])
def test_main__no_grid__says_how_to_start_one(
    link: Path, words: tuple[str, ...]
) -> None:
    link.symlink_to(link.parent / "gone")
    message = refused(*words)
    assert "no grid runs for this clone; start one with" in message
    assert "\n" not in message
    assert not link.is_symlink()


@pytest.mark.parametrize(
    "words", [("status",), ("env",), ("jobs",), ("cancel", "0xa"), ("output", "0xa")]
)
def test_main__dead_grid__is_said_to_be_dead(
    link: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "grid"
    folder.mkdir()
    (folder / "processes.json").write_text(
        '[{"name": "anvil", "pid": 1, "started_s": 1.0}]'
    )
    (folder / "chain.json").write_text("{}")
    link.symlink_to(folder)
    message = refused(*words)
    assert f"the grid in {folder} is dead" in message
    assert "\n" not in message


@pytest.fixture
def living(link: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder of a grid whose chain seems to run: a process of that name does."""
    folder = tmp_path / "grid"
    folder.mkdir()
    with subprocess.Popen(["sleep", "600"]) as chain:
        anvil = Running("anvil", chain.pid, psutil.Process(chain.pid).create_time())
        (folder / "processes.json").write_text(json.dumps([asdict(anvil)]))
        addresses = dict.fromkeys(
            (field.name for field in fields(ChainAddresses)), "0x1"
        )
        known = {
            "rpc_url": "http://127.0.0.1:1",
            "chain_id": 1,
            "addresses": addresses,
            "accounts": {},
        }
        (folder / "chain.json").write_text(json.dumps(known))
        (folder / "environment.json").write_text(json.dumps(dict.fromkeys(NEEDED, "1")))
        link.symlink_to(folder)
        yield folder
        chain.kill()


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("processes.json", "[{", "text that is not JSON"),
        (
            "processes.json",
            '[{"pid": 1}]',
            "values that do not fit (Running.__init__() missing",
        ),
        ("chain.json", "", "text that is not JSON"),
        ("chain.json", "\udcff", "text that is not JSON"),
        ("chain.json", "{}", "no 'rpc_url'"),
        ("chain.json", "[]", "values that do not fit (list indices must be integers"),
        (
            "chain.json",
            '{"rpc_url": 1, "chain_id": 1, "addresses": {"a": 1}}',
            "values that do not fit (ChainAddresses",
        ),
        ("environment.json", "{}", "no 'CLUSTER_NAME'"),
        ("environment.json", None, "no such file"),
        ("", "", "no account with the role 'customer' (known: none)"),
    ],
)
def test_main__damaged_file_of_the_grid__is_told_with_what_to_do(
    living: Path, file: str, content: str | None, found: str
) -> None:
    if content is None:
        (living / file).unlink()
    elif file:
        (living / file).write_text(content, errors="surrogateescape")
    message = refused("jobs")
    assert message.startswith(
        f"devgrid: {living / (file or 'chain.json')}: found {found}"
    )
    assert message.endswith(
        "expected what devgrid wrote there: remove the grid with `devgrid down`, then start another"
    )
    assert "\n" not in message


@pytest.mark.parametrize("file", ["chain.json", "environment.json"])
def test_down__damaged_grid__ends_its_processes_and_is_removed(
    living: Path, link: Path, file: str
) -> None:
    (anvil,) = Processes(living).running()
    (living / file).write_text("[{")
    command_line.main(["down"])
    assert anvil.process() is None
    assert not living.exists()
    assert not link.is_symlink()


def test_down__list_of_processes_is_damaged__is_removed(
    living: Path, link: Path
) -> None:
    (living / "processes.json").write_text("[{")
    command_line.main(["down"])
    assert not living.exists()
    assert not link.is_symlink()


def test_main__bug__is_one_line_and_a_traceback_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_grid, "CURRENT", None)
    message = refused("status")
    assert message == (
        "devgrid: a bug of devgrid: found AttributeError: 'NoneType' object has no attribute 'exists'; DEVGRID_DEBUG=1"
        " shows where"
    )
    monkeypatch.setenv("DEVGRID_DEBUG", "1")
    with pytest.raises(AttributeError):
        command_line.main(["status"])


def test_down__dead_grid__is_removed(link: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    folder.mkdir()
    link.symlink_to(folder)
    command_line.main(["down"])
    assert not folder.exists()
    assert not link.is_symlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("demo", "WORKFLOW", "--clusters", "0"),
            "--clusters: found '0'; expected a whole number from 1 to 8",
        ),
        (("demo", "WORKFLOW", "--clusters", "9"), "--clusters: found '9'"),
        (
            ("demo", "WORKFLOW", "--clusters", "2", "--benchmark"),
            "expected 1 with --benchmark",
        ),
        (("up", "--clusters", "-3"), "--clusters: found '-3'"),
        (
            ("submit", "WORKFLOW", "--minutes", "0"),
            "--minutes: found '0'; expected a whole number from 1 to 525,600",
        ),
        (("submit", "/dev/zero"), "/dev/zero: found more than 1,000,000 bytes"),
        (("submit", "/"), "/: Is a directory; expected a workflow file"),
        (("submit", "/none"), "/none: No such file or directory"),
        (("demo", "/bin/true"), "/bin/true: it is not UTF-8 text"),
        (("top-up", "0xabc", "nan"), "credits: found 'nan'"),
    ],
)
def test_main__words_out_of_range__are_refused_in_one_line(
    link: Path, workflow: str, words: tuple[str, ...], says: str
) -> None:
    message = refused(*(workflow if word == "WORKFLOW" else word for word in words))
    assert message.startswith("devgrid: ")
    assert says in message
    assert "\n" not in message
    assert not link.is_symlink()


@pytest.mark.parametrize("words", [(), ("fly",), ("submit",), ("jobs", "--all")])
def test_main__unknown_words__are_refused_in_one_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(*words) == "2"
    said = capsys.readouterr().err
    assert said.startswith("devgrid: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("up",),
        ("up", "--clusters", "2"),
        ("demo", "WORKFLOW", "--clusters", "2"),
        ("demo", "WORKFLOW", "--benchmark"),
    ],
)
@pytest.mark.parametrize("switch", [(), ("--without-job-submit",)])
def test_main__without_job_submit__no_cluster_of_the_grid_has_it(
    link: Path,
    workflow: str,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    switch: tuple[str, ...],
) -> None:
    asked_for = list[GridOptions]()

    def start(options: GridOptions) -> Grid:
        asked_for.append(options)
        raise StartError("this test starts none")

    monkeypatch.setattr(Grid, "start", start)
    argv = [workflow if word == "WORKFLOW" else word for word in words]
    assert refused(*argv, *switch) == "devgrid: this test starts none"
    (options,) = asked_for
    clusters = (options, *options.others)
    assert {cluster.job_submit for cluster in clusters} == {switch == ()}


def test_demo__script_that_quotation_marks_blow_up__is_refused_before_a_grid_starts(
    link: Path, tmp_path: Path
) -> None:
    file = tmp_path / "marks.yaml"
    file.write_text(f'steps: [{{run: {{command: "{chr(39) * 900_000}"}}}}]\n')
    assert "its batch script would have" in refused("demo", str(file))
    assert not link.is_symlink()


def test_logs__unknown_name__lists_the_known(link: Path, tmp_path: Path) -> None:
    logs = Processes(tmp_path / "grid").logs
    logs.mkdir(parents=True)
    (logs / "worker.log").write_text("")
    link.symlink_to(tmp_path / "grid")
    assert refused("logs", "wroker").endswith("found 'wroker'; expected one of worker")
