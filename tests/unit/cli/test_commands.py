"""The commands by name, their help, and how `supervisor run` starts each process."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from supervisor_tasks import cli
from supervisor_tasks.cli import run_command
from supervisor_tasks.cli.app import MODULES, app
from supervisor_tasks.cli.exit_codes import MEANINGS, ExitCode
from tests.support.command_list import COMMANDS, commands_with
from tests.support.commands import supervisor
from tests.support.golden_cases import printed

PACKAGE = Path(cli.__file__).parent
WITHOUT_COMMANDS = {
    *(
        "__init__",
        "__main__",
        "app",
        "bill",
        "claim_stops",
        "cli_context",
        "fleet_flags",
        "run_fleet",
        "exit_codes",
        "health_command",
        "job_actions",
        "options",
        "output",
        "plot",
        "restarts",
        "run_command",
        "env_files",
    ),
    *("timeline", "views", "wording"),
    "target",
}


def test_modules__with_commands__are_all_listed_with_their_names() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} - WITHOUT_COMMANDS == set(
        MODULES
    )
    for module, names in MODULES.items():
        assert tuple(import_module(f"supervisor_tasks.cli.{module}").COMMANDS) == names


def test_help__of_the_program__lists_every_noun_and_every_exit_status() -> None:
    shown = supervisor("--help", env={}).output
    assert all(f"\n  {name} " in shown for names in MODULES.values() for name in names)
    assert set(MEANINGS) == set(ExitCode)
    assert all(
        f"\n  {code.value}  {meaning[:40]}" in shown
        for code, meaning in MEANINGS.items()
    )
    assert "\n  130  ended by Ctrl-C\n" in shown


def test_exit_statuses__of_the_page__are_those_of_help() -> None:
    _, _, listed = (
        (PACKAGE.parent.parent / "docs" / "how-to" / "operate.md")
        .read_text()
        .partition("## Exit statuses\n")
    )
    rows = re.findall(r"^\| (\d+) \|", listed.partition("\n## ")[0], re.MULTILINE)
    assert rows == [str(code.value) for code in ExitCode]


@pytest.mark.parametrize(
    "noun", ["", *sorted({words.split()[0] for words in COMMANDS if " " in words})]
)
def test_help__of_a_group__has_a_whole_sentence_for_each_command(noun: str) -> None:
    _, _, listed = supervisor(*noun.split(), "--help", env={}).output.partition(
        "\nCommands:\n"
    )
    commands = " ".join(listed.partition("\n\n")[0].split())
    assert commands.endswith(".")
    assert "..." not in commands


@pytest.mark.parametrize("words", COMMANDS)
def test_help__of_each_command__fits_80_columns(words: str) -> None:
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words.split(), "--help"]
    told = (
        supervisor(*words.split(), "--help", env={}).output
        if words not in ("run", "health")
        else None
    )
    if told is None:  # they start without typer
        environment = os.environ | {"COLUMNS": "80"}
        told = subprocess.run(
            argv,
            env=environment,
            cwd=PACKAGE.parent.parent,
            capture_output=True,
            text=True,
        ).stdout
    assert "Example: supervisor" in told
    assert [line for line in told.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_help__of_each_command__is_a_whole_sentence_with_an_example(words: str) -> None:
    sentence, *_, example = COMMANDS[words].help.strip().split("\n\n")
    assert re.fullmatch(r"[A-Z][^\n]*( [^\n]+)*\.", " ".join(sentence.split())), (
        sentence
    )
    assert example.startswith(f"Example: supervisor {words}"), example
    first = sentence.split()[0]
    assert not first.endswith("s"), "expected a verb that tells the command what to do"


@pytest.mark.parametrize(
    "words",
    [
        words
        for words in COMMANDS
        if words.endswith((" list", " show", " status")) or words in ("log", "status")
    ],
)
def test_list_and_show__each_command__has_all_forms(words: str) -> None:
    assert "output" in {parameter.name for parameter in COMMANDS[words].params}


# What narrows and orders each list. Sweeps, runs and the operators' log are told in the
# order of time alone; a site has few clusters.
NARROWED_BY = {
    "job list": {"state", "customer", "since", "sort", "limit"},
    "tx list": {"state", "customer", "since", "sort", "limit"},
    "effect list": {"state", "customer", "since", "sort", "limit"},
    "alarm list": {"since", "sort", "limit"},
    "sweep list": {"since", "limit"},
    "log": {"who", "command", "subject", "since", "limit"},
    "benchmark history": {"since", "limit"},
    "cluster list": set(),
    "earnings": {"customer", "since", "sort", "limit"},
}


@pytest.mark.parametrize(
    "words",
    [words for words in COMMANDS if words.endswith(" list") or words in NARROWED_BY],
)
def test_list__its_options__are_those_of_the_table(words: str) -> None:
    known = set().union(*NARROWED_BY.values())
    assert {
        parameter.name for parameter in COMMANDS[words].params
    } & known == NARROWED_BY[words]


CHANGES_SELDOM = ("config show",)  # it is this shell's environment


@pytest.mark.parametrize(
    "words",
    [
        words
        for words in COMMANDS
        if (
            words.endswith((" list", " show"))
            or words in ("log", "status", "benchmark history", "earnings")
        )
        and words not in CHANGES_SELDOM
    ],
)
def test_list_and_show__each_that_changes_often__can_be_watched(words: str) -> None:
    assert "watch" in {parameter.name for parameter in COMMANDS[words].params}


@pytest.mark.parametrize(
    "noun", sorted({words.split()[0] for words in COMMANDS if " " in words})
)
def test_help__of_each_noun__ends_with_an_example_of_a_command(noun: str) -> None:
    root: Any = typer.main.get_command(app)
    group = root.get_command(
        root.make_context("supervisor", [], resilient_parsing=True), noun
    )
    sentence, example = group.help.strip().split("\n\n")
    assert sentence.endswith(".")
    assert any(
        example.startswith(f"Example: supervisor {words}")
        for words in COMMANDS
        if words.startswith(f"{noun} ")
    )


@pytest.mark.parametrize("words", commands_with("output"))
def test_forms__of_each_command__can_be_without_colours(words: str) -> None:
    assert "no_color" in {parameter.name for parameter in COMMANDS[words].params}


@pytest.mark.parametrize("words", commands_with("yes"))
def test_change__each_command_that_asks_first__can_be_given_a_reason(
    words: str,
) -> None:
    assert "reason" in {parameter.name for parameter in COMMANDS[words].params}


def test_unknown_command__of_the_program_or_a_noun__is_wrong_usage() -> None:
    assert supervisor("nonsense", env={}).exit_code == ExitCode.USAGE
    assert supervisor("job", "nonsense", env={}).exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "nearest"), [("jobs", "job"), ("stauts", "status"), ("job lsit", "list")]
)
def test_unknown_command__that_resembles_one__is_told_with_it(
    words: str, nearest: str
) -> None:
    assert f"Did you mean '{nearest}'" in supervisor(*words.split(), env={}).stderr


def test_value__that_is_not_listed__is_told_with_those_that_are() -> None:
    told = " ".join(supervisor("status", "-o", "csv", env={}).stderr.split())
    assert "'csv' is not one of 'table', 'wide', 'json', 'yaml', 'name'." in told
    assert "Value error" not in told


@pytest.mark.parametrize("process", run_command.PROCESSES)
def test_run__process__is_a_module_of_python_with_its_options(process: str) -> None:
    argv = run_command.command(process, ["-Q", "main.chain"], {})
    assert (argv[0], argv[1], argv[-2:]) == (sys.executable, "-m", ["-Q", "main.chain"])


def test_run__health_address__is_of_this_machine_unless_one_is_given() -> None:
    ports = [
        process.health_port
        for process in run_command.PROCESSES.values()
        if process.health_port is not None
    ]
    assert len(set(ports)) == len(ports) == 5
    assert run_command.environment("beat", {"A": "b"}) == {
        "A": "b",
        "HEALTH_ADDRESS": "127.0.0.1:9466",
    }
    assert run_command.environment("beat", {"HEALTH_ADDRESS": ":1"}) == {
        "HEALTH_ADDRESS": ":1"
    }
    assert run_command.environment("migrate", {}) == {}


def test_run__unknown_process__is_wrong_usage_and_names_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "nonsense"])
    assert ended.value.code == ExitCode.USAGE
    told = capsys.readouterr().err
    assert all(name in told for name in run_command.PROCESSES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion__of_each_shell__is_a_script_for_our_command(shell: str) -> None:
    script = supervisor("completion", shell, env={}).stdout
    assert "_SUPERVISOR_COMPLETE" in script
    assert "supervisor" in script


@pytest.mark.parametrize(
    ("color", "shown"), [(True, "\x1b[32mRUNNING"), (False, "RUNNING")]
)
def test_state__at_a_terminal__is_in_colour_unless_it_must_not(
    monkeypatch: pytest.MonkeyPatch, color: bool, shown: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    told = printed("job-list", 80, color=color)
    assert shown in told
    assert ("\x1b" in told) is color
    assert ("\x1b[31mFAILED: the" in told) is color
