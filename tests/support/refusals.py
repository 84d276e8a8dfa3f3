"""Why a process of the fleet did not start, as its log tells it."""

import json


def reasons(log: str) -> list[str]:
    """The reasons in the lines of a log: a line each. Lines of other events are left out, but each must be one of JSON."""
    lines = [json.loads(line) for line in log.splitlines()]
    refusals = [line for line in lines if line["event"] == "process_refuses_to_start"]
    assert {line["level"] for line in refusals} <= {"error"}
    return [line["reason"] for line in refusals]
