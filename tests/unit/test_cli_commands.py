"""The commands by name, and how `supervisor run` starts each process."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor_tasks import cli
from supervisor_tasks.cli import run

PACKAGE = Path(cli.__file__).parent
WITHOUT_COMMANDS = {"__init__", "__main__", "desk", "picture"}


def test_modules__with_commands__are_all_listed_with_their_names() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} - WITHOUT_COMMANDS == set(cli.MODULES)
    for module, names in cli.MODULES.items():
        commands = import_module(f"supervisor_tasks.cli.{module}").COMMANDS
        assert tuple(command.name for command in commands) == names


def test_help__lists_every_command() -> None:
    shown = CliRunner().invoke(cli.main, ["--help"]).output
    assert all(f"\n  {name} " in shown for names in cli.MODULES.values() for name in names)


def test_unknown_command__is_wrong_usage() -> None:
    assert CliRunner().invoke(cli.main, ["nonsense"]).exit_code == 2


@pytest.mark.parametrize("process", run.PROCESSES)
def test_run__process__is_a_module_of_python_with_its_options(process: str) -> None:
    argv = run.command(process, ["-Q", "main.chain"])
    assert (argv[0], argv[1], argv[-2:]) == (sys.executable, "-m", ["-Q", "main.chain"])


def test_run__health_address__is_of_this_machine_unless_one_is_given() -> None:
    ports = [process.health_port for process in run.PROCESSES.values() if process.health_port is not None]
    assert len(set(ports)) == len(ports) == 4
    assert run.environment("beat", {"A": "b"}) == {"A": "b", "HEALTH_ADDRESS": "127.0.0.1:9466"}
    assert run.environment("beat", {"HEALTH_ADDRESS": ":1"}) == {"HEALTH_ADDRESS": ":1"}
    assert run.environment("migrate", {}) == {}


def test_run__unknown_process__is_wrong_usage_and_names_them() -> None:
    done = CliRunner().invoke(cli.main, ["run", "nonsense"])
    assert done.exit_code == 2
    assert all(name in done.output for name in run.PROCESSES)
