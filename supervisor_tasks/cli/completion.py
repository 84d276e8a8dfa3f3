"""`supervisor completion`: the words of the command line, for a shell."""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from supervisor_tasks.cli import COMPLETE, options


class Shell(StrEnum):
    """The shells that can complete our words."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


app = options.single()


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell.")],
) -> None:
    """Print the script with which a shell completes the words of `supervisor`.

    Example: supervisor completion bash > /etc/bash_completion.d/supervisor
    """
    typer.echo(
        get_completion_script(
            prog_name="supervisor", complete_var=COMPLETE, shell=shell.value
        )
    )


def answer_shells() -> None:
    """Let the command answer a shell that asks for completions."""
    completion_init()


COMMANDS = {"completion": app}
