"""The command `devgrid` without a grid, with a dead one, and with words that it does not take."""

from pathlib import Path

import pytest

from devgrid import command_line, kept_grid
from devgrid.processes import Processes

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
def test_main__no_grid__says_how_to_start_one(link: Path, words: tuple[str, ...]) -> None:
    link.symlink_to(link.parent / "gone")
    message = refused(*words)
    assert "no grid runs for this clone; start one with" in message
    assert "\n" not in message
    assert not link.is_symlink()


@pytest.mark.parametrize("words", [("status",), ("env",), ("jobs",), ("cancel", "0xa"), ("output", "0xa")])
def test_main__dead_grid__is_said_to_be_dead(link: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = tmp_path / "grid"
    folder.mkdir()
    (folder / "processes.json").write_text('[{"name": "anvil", "pid": 1, "started_s": 1.0}]')
    (folder / "chain.json").write_text("{}")
    link.symlink_to(folder)
    message = refused(*words)
    assert f"the grid in {folder} is dead" in message
    assert "\n" not in message


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
        (("demo", "WORKFLOW", "--clusters", "0"), "--clusters: found '0'; expected a whole number from 1 to 8"),
        (("demo", "WORKFLOW", "--clusters", "9"), "--clusters: found '9'"),
        (("demo", "WORKFLOW", "--clusters", "2", "--benchmark"), "expected 1 with --benchmark"),
        (("up", "--clusters", "-3"), "--clusters: found '-3'"),
        (("submit", "WORKFLOW", "--minutes", "0"), "--minutes: found '0'; expected a whole number from 1 to 525,600"),
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


def test_demo__script_that_quotation_marks_blow_up__is_refused_before_a_grid_starts(link: Path, tmp_path: Path) -> None:
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
