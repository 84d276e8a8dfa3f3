"""The embedded Postgres for commands: a command uses one that runs, starts none, and
makes no folder.

It imports the standard library only, because `supervisor health` must start fast.
"""

import os
import socket
from pathlib import Path
from urllib.parse import quote

# in STATE_DIR, as embedded_servers.py makes it
SOCKET = Path("postgres", "run", ".s.PGSQL.5432")
ANSWER_TIMEOUT_S = 1.0


def default_state_folder() -> Path:
    """Return the default of STATE_DIR. For root it is not in the home, which Postgres's
    own user cannot enter.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/supervisor")
    return (
        Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        / "supervisor"
    )


def running_postgres(state_dir: Path) -> str | None:
    """Return the URL (for psycopg) of the embedded Postgres of that folder; None if
    none accepts connections.
    """
    path = state_dir / SOCKET
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            # also a path that is too long for a socket: no server can have it
            return None
    return f"postgresql://postgres@/postgres?host={quote(str(path.parent))}"


def no_database(state_dir: Path) -> str:
    """Return the message for a command that finds no database."""
    return (
        f"DATABASE_URL: found nothing, and no embedded Postgres runs in STATE_DIR {str(state_dir)!r}; expected the fleet's"
        " database: set DATABASE_URL (or DATABASE_URL_FILE) as for the fleet, or start the fleet"
    )
