"""/livez and /readyz of a process, from its loop and from the services that it
needs.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus

from plugins.probes.dependencies import Dependencies
from plugins.probes.http_server import JSON, Page
from plugins.probes.progress import STALLED_AFTER_S, Progress


def livez(loop: Progress, dependencies: Dependencies) -> Page:
    """200 while the main loop completes rounds, or waits because a service does
    not answer.
    """
    if dependencies.hold_loop:
        loop.completed()
    about = {
        "alive": not loop.is_stalled,
        "loop_age_s": round(loop.age_s, 1),
        "expected_within_s": STALLED_AFTER_S,
    }
    return _document(about, well=not loop.is_stalled)


def readyz(loop: Progress, dependencies: Dependencies) -> Page:
    """200 while the services that the process needs answer, with the state of each."""
    ready = dependencies.ready and not loop.ending
    return _document(
        {
            "ready": ready,
            "ending": loop.ending,
            "dependencies": dict(dependencies.states()),
        },
        well=ready,
    )


def _document(about: Mapping[str, object], *, well: bool) -> Page:
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(json.dumps(about).encode() + b"\n", status, JSON)
