"""The files `.env.local` and `.env` of the working directory. The Go program takes its
variables from them, too, so a unit with a WorkingDirectory needs no EnvironmentFile.
"""

import os
import stat
from pathlib import Path

from dotenv.parser import parse_stream

from supervisor_tasks.config.variables import overridden

# a variable of the first one wins
FILES = (".env.local", ".env")


class EnvFileError(ValueError):
    """A file with variables cannot be used; the message states why."""


def files_here() -> list[Path]:
    """Return the files with variables in the working directory, the one that wins
    first. None in a folder that this process cannot read.
    """
    try:
        folder = Path.cwd()
        return [folder / name for name in FILES if (folder / name).is_file()]
    except OSError:
        return []


def variables_of(files: list[Path]) -> dict[str, str]:
    """Return the variables of these files. Variables in a value are not replaced.
    Raises EnvFileError if a file cannot be read, or if another user may write to it and
    so choose where the keys go; a retry does not help.
    """
    found = dict[str, str]()
    for file in reversed(files):
        found = overridden(found, _read(file))
    return found


def _read(file: Path) -> dict[str, str]:
    found = dict[str, str]()
    try:
        with file.open(encoding="utf-8") as opened:
            _require_own(file, os.fstat(opened.fileno()))
            for line in parse_stream(opened):
                # The line itself may be a part of a key.
                if line.error or (line.key is not None and line.value is None):
                    raise EnvFileError(
                        f"{file}, line {line.original.line}: found no NAME=VALUE; expected one, on one line, or a comment"
                    )
                if line.key is not None:
                    found[line.key] = str(line.value)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvFileError(
            f"{file}: found a file that cannot be read ({error}); expected one that this user can read, in UTF-8: chmod it, or"
            " start in another folder"
        ) from error
    return found


def _require_own(file: Path, status: os.stat_result) -> None:
    is_own = status.st_uid in (0, os.geteuid())
    if is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise EnvFileError(
        f"{file}: found mode {stat.S_IMODE(status.st_mode):o} of user {status.st_uid}; expected a file of root, or of the"
        " user that runs this, to which no other user may write: chown and chmod go-w it, or start in another folder"
    )
