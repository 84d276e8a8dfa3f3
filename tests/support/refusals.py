"""Reads from its log why a process of the fleet did not start."""

import json


def reasons(log: str) -> list[str]:
    """The reasons in a log, in order. Lines of other events are left out; every line
    must be JSON.
    """
    lines = [json.loads(line) for line in log.splitlines()]
    refusals = [line for line in lines if line["event"] == "process_refuses_to_start"]
    assert {line["level"] for line in refusals} <= {"error"}
    return [line["reason"] for line in refusals]
