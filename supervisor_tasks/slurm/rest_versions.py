"""What differs between the versions of slurmrestd's API. Pure.

The worker builds requests and reads answers in the form of v0.0.38 (SLURM 22.05). This
module writes such a request in the form of v0.0.42 (SLURM 24.11), and reads an answer
of v0.0.42 as one of v0.0.38. No SLURM has both.
"""

from collections.abc import Callable, Mapping
from typing import Any

OLD, NEW = "v0.0.38", "v0.0.42"
VERSIONS = (OLD, NEW)

# a number of a request that v0.0.42 has in an object
_BOXED = ("memory_per_cpu", "time_limit")
# the keys that each such object has
_BOX = frozenset(("set", "number"))
# The low bytes of a wait status that is neither an exit nor a signal's: slurmrestd tells
# them apart by the flag of a core dump. A job's owner can set either
# (slurm_complete_job); squeue and v0.0.38 show the whole number.
_CORE_DUMPED, _NO_END = 0xFF, 0x7F
# job_state has all words that apply. squeue and v0.0.38 show the first of these, or
# else the state itself.
_SHOWN_FIRST = (
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "STOPPED",
    "REVOKED",
    "RECONFIG_FAIL",
    "SIGNALING",
)


def written(version: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a request to this version's API."""
    if version == OLD:
        return body
    if "job" in body:
        return {**body, "job": _written_job(body["job"])}
    return _written_job(body)


def read(version: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer of this version's API in the form of v0.0.38. A part that has
    not the expected form stays as it is: its reader rejects it.
    """
    if version == OLD:
        return body
    converted = {key: _READ.get(key, _unboxed)(value) for key, value in body.items()}
    return {**converted, **_rejected(converted)}


def as_object(shown: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one in the place of anything else."""
    if isinstance(shown, Mapping):
        return shown
    return {}


def _written_job(job: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(job)
    for key in _BOXED:
        if key in new:
            new[key] = {"set": True, "number": new[key]}
    if "gpus" in new:
        new["tres_per_job"] = f"gres/gpu:{new.pop('gpus')}"
    if "no_requeue" in new:
        new["requeue"] = not new.pop("no_requeue")
    if "environment" in new:
        variables = new["environment"].items()
        new["environment"] = [f"{name}={value}" for name, value in variables]
    return new


def _unboxed(shown: Any) -> Any:
    """Return what is shown, with each number out of its object: None for a number that
    is not set or is infinite.
    """
    if isinstance(shown, list):
        return list(map(_unboxed, shown))
    if not isinstance(shown, Mapping):
        return shown
    if not shown.keys() >= _BOX:
        return {key: _unboxed(value) for key, value in shown.items()}
    if not shown["set"]:
        return None
    if shown.get("infinite"):
        return None
    return shown["number"]


def _rejected(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the errors, and after them the error of each job that SLURM rejected to
    change. v0.0.42 answers such an order with status 200, and shows the error in the
    job's status.
    """
    statuses, errors = body.get("status"), body.get("errors")
    if not isinstance(statuses, list) or not isinstance(errors, list):
        return {}
    all_errors = list(errors)
    for status in statuses:
        error = as_object(as_object(status).get("error"))
        if error.get("code"):
            all_errors.append(
                {"error": error.get("string"), "error_number": error.get("code")}
            )
    return {"errors": all_errors}


def _each(convert: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Any], Any]:
    """Return a reader of a list that converts each object of the list."""

    def read_list(shown: Any) -> Any:
        listed = _unboxed(shown)
        if not isinstance(listed, list):
            return listed
        converted = list[Any]()
        for entry in listed:
            if isinstance(entry, dict):
                converted.append(convert(entry))
            else:
                converted.append(entry)
        return converted

    return read_list


def _job(job: dict[str, Any]) -> dict[str, Any]:
    return {
        **job,
        **_changed(job, "job_state", _state),
        **_changed(job, "exit_code", _wait_status),
    }


def _node(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, **_changed(node, "state", "+".join)}


def _partition(partition: dict[str, Any]) -> dict[str, Any]:
    nodes, maximums = partition.get("nodes"), partition.get("maximums")
    if not isinstance(nodes, Mapping) or not isinstance(maximums, Mapping):
        return partition
    return {
        **partition,
        "total_nodes": nodes.get("total"),
        "max_time_limit": maximums.get("time"),
        "maximum_memory_per_cpu": maximums.get("partition_memory_per_cpu"),
    }


def _ping(ping: dict[str, Any]) -> dict[str, Any]:
    if "pinged" not in ping:
        return ping
    return {**ping, "ping": ping["pinged"]}


def _changed(
    shown: Mapping[str, Any], key: str, convert: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the converted field; nothing where it has not the form of v0.0.42."""
    if not isinstance(shown.get(key), list | Mapping):
        return {}
    try:
        return {key: convert(shown[key])}
    except TypeError:
        return {}


def _state(words: list[str]) -> str:
    for word in _SHOWN_FIRST:
        if word in words:
            return word
    if not words:
        return ""
    return words[0]


def _wait_status(shown: Mapping[str, Any]) -> int | None:
    """Return the raw wait(2) status of an exit code and a signal; None when the object
    lacks these fields. If neither is set, only the status' low byte is known.
    """
    if "return_code" not in shown or "signal" not in shown:
        return None
    exit_code = shown["return_code"]
    signal_number = as_object(shown["signal"]).get("id")
    if exit_code is None and signal_number is None:
        if shown.get("status") == ["CORE_DUMPED"]:
            return _CORE_DUMPED
        return _NO_END
    return (exit_code or 0) * 256 + (signal_number or 0)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "jobs": _each(_job),
    "nodes": _each(_node),
    "partitions": _each(_partition),
    "pings": _each(_ping),
}
