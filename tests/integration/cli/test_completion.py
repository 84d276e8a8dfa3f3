"""The completions of the command `supervisor` in real shells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BASH = """
source <(supervisor completion bash)
COMP_WORDS=(supervisor job l) COMP_CWORD=2
_supervisor_completion supervisor
echo "${COMPREPLY[@]}"
"""

# zsh completes only for a person at its line editor: its two functions for that are
# replaced.
ZSH = r"""
compdef() { :; }
_arguments() { print -r -- "$1" | sed -n 's/.*(("\([a-z-]*\)".*/\1/p'; }
source <(supervisor completion zsh)
words=(supervisor job l) CURRENT=3
_supervisor_completion
"""

FISH = "supervisor completion fish | source; complete --do-complete 'supervisor job l'"


@pytest.mark.parametrize(
    ("shell", "asks"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)]
)
def test_completion__in_a_shell__completes_a_word_that_is_begun(
    shell: str, asks: str
) -> None:
    # where `supervisor` is
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", asks],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["list"], (
        done.stderr
    )
