"""The JSON files by which one program knows the grid that another one has started."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class StateFileError(RuntimeError):
    """A file of a grid's state folder is missing or damaged. A retry does not help;
    `devgrid down` removes such a grid.
    """

    def __init__(self, file: Path, found: str) -> None:
        super().__init__(
            f"{file}: found {found}; expected what devgrid wrote there: remove the grid with `devgrid down`, then start"
            " another"
        )


@contextmanager
def state_in(file: Path) -> Iterator[Any]:
    """The content of a file. Raises StateFileError, also for what is missing or of the
    wrong type when it is used within.
    """
    try:
        yield json.loads(file.read_text())
    except FileNotFoundError as error:
        raise StateFileError(file, "no such file") from error
    except KeyError as error:
        raise StateFileError(file, f"no {error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StateFileError(file, "text that is not JSON") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise StateFileError(file, f"values that do not fit ({error})") from error
