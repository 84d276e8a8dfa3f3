"""The operator's command, called as from a command line without a terminal."""

from collections.abc import Mapping

from typer.testing import CliRunner, Result

from supervisor_tasks.cli.app import app

__all__ = ["Result", "supervisor"]


def supervisor(*words: str, env: Mapping[str, str | None], typed: str = "") -> Result:
    """Run `supervisor` with these words, and these variables in its environment."""
    return CliRunner().invoke(app, words, env=env, input=typed, prog_name="supervisor")
