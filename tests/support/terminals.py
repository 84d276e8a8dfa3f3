"""A terminal in the place of a program's output."""

import io


class Terminal(io.StringIO):
    """Keeps what is written, and says that it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True
