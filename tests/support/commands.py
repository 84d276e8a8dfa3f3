"""Runs the operator's command as from a command line without a terminal."""

from collections.abc import Mapping

from typer.testing import CliRunner, Result

from supervisor_tasks.cli.app import app

__all__ = ["Result", "supervisor"]


def supervisor(*words: str, env: Mapping[str, str | None], typed: str = "") -> Result:
    """Run `supervisor` with these words and variables. The screen has 200 columns
    unless `env` sets COLUMNS.

    Without COLUMNS, the output would depend on the width of the terminal in which the
    tests run.
    """
    return CliRunner().invoke(
        app, words, env={"COLUMNS": "200", **env}, input=typed, prog_name="supervisor"
    )
