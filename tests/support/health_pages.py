"""The pages /livez, /readyz and /metrics of a process, asked while the machine may
leave it without a core.
"""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from devgrid.machine import deadline
from devgrid.processes import wait_until

NO_ANSWER = 0


def ask(port: int, page: str) -> tuple[int, str]:
    """Status and body; NO_ANSWER where no process listens, or none answers in time."""
    url = f"http://127.0.0.1:{port}/{page}"
    try:
        try:
            with urllib.request.urlopen(url, timeout=deadline(5)) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return NO_ANSWER, repr(error)


def answer(port: int, page: str) -> tuple[int, str]:
    """Status and body, once the process answers."""
    found = (NO_ANSWER, "")

    def answers() -> bool:
        nonlocal found
        found = ask(port, page)
        return found[0] != NO_ANSWER

    wait_until(answers, f"an answer to /{page}", 60.0)
    return found


def dependencies(port: int) -> dict[str, Any]:
    """The services of a process, as its page tells them; none while it does not
    answer.
    """
    status, said = ask(port, "readyz")
    if status == NO_ANSWER:
        return {}
    services: dict[str, Any] = json.loads(said)["dependencies"]
    return services
