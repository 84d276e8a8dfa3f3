"""The operator's command, called as from a command line without a terminal."""

from collections.abc import Mapping

from typer.testing import CliRunner, Result

from supervisor_tasks.cli.app import app

__all__ = ["Result", "supervisor"]


def supervisor(*words: str, env: Mapping[str, str | None], typed: str = "") -> Result:
    """Run `supervisor` with these words, and these variables in its environment, on a wide screen unless COLUMNS says so.

    Without it, the width of the terminal counts where the tests were started, if there is one.
    """
    return CliRunner().invoke(app, words, env={"COLUMNS": "200", **env}, input=typed, prog_name="supervisor")
