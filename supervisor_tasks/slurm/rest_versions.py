"""What differs between the versions of slurmrestd's API. Pure.

The worker builds requests and reads answers in the form of v0.0.38 (SLURM 22.05). This module writes such a request in the
form of v0.0.42 (SLURM 24.11), and reads an answer of v0.0.42 as one of v0.0.38. No SLURM has both.
"""

from collections.abc import Callable, Mapping
from typing import Any

OLD, NEW = "v0.0.38", "v0.0.42"
VERSIONS = (OLD, NEW)

_BOXED = ("memory_per_cpu", "time_limit")  # a number of a request that v0.0.42 has in an object
# job_state has all words that apply. squeue and v0.0.38 show the first of these, or else the state itself.
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
    """Return an answer of this version's API. What has another form than expected is left as it is: its reader refuses it."""
    if version == OLD:
        return body
    found = {key: _READ.get(key, _unboxed)(value) for key, value in body.items()}
    return {**found, **_refused(found)}


def _written_job(job: Mapping[str, Any]) -> dict[str, Any]:
    boxed = {key: {"set": True, "number": job[key]} for key in _BOXED if key in job}
    renamed = dict[str, Any]()
    if "gpus" in job:
        renamed["tres_per_job"] = f"gres/gpu:{job['gpus']}"
    if "no_requeue" in job:
        renamed["requeue"] = not job["no_requeue"]
    if "environment" in job:
        renamed["environment"] = [f"{name}={value}" for name, value in job["environment"].items()]
    kept = {key: value for key, value in job.items() if key not in ("gpus", "no_requeue")}
    return {**kept, **boxed, **renamed}


def _unboxed(shown: Any) -> Any:
    """Take numbers out of their objects: None for one that is not set or is infinite."""
    if isinstance(shown, list):
        return [_unboxed(one) for one in shown]
    if not isinstance(shown, Mapping):
        return shown
    if "set" in shown and "number" in shown:
        return shown["number"] if shown["set"] and not shown.get("infinite") else None
    return {key: _unboxed(value) for key, value in shown.items()}


def _refused(body: Mapping[str, Any]) -> dict[str, Any]:
    """The errors with those of each job that an order was about: v0.0.42 answers an order with status 200 beside them."""
    about, errors = body.get("status"), body.get("errors")
    if not isinstance(about, list) or not isinstance(errors, list):
        return {}
    shown = [one["error"] for one in about if isinstance(one, Mapping) and isinstance(one.get("error"), Mapping)]
    each = [{"error": one.get("string"), "error_number": one.get("code")} for one in shown if one.get("code")]
    return {"errors": [*errors, *each]}


def _each(convert: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Any], Any]:
    def listed(shown: Any) -> Any:
        found = _unboxed(shown)
        if not isinstance(found, list):
            return found
        return [convert(one) if isinstance(one, dict) else one for one in found]

    return listed


def _job(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, **_changed(job, "job_state", _state), **_changed(job, "exit_code", _wait_status)}


def _node(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, **_changed(node, "state", "+".join)}


def _partition(partition: dict[str, Any]) -> dict[str, Any]:
    nodes, most = partition.get("nodes"), partition.get("maximums")
    if not isinstance(nodes, Mapping) or not isinstance(most, Mapping):
        return partition
    memory = most.get("partition_memory_per_cpu")
    return {
        **partition,
        "total_nodes": nodes.get("total"),
        "max_time_limit": most.get("time"),
        "maximum_memory_per_cpu": memory,
    }


def _ping(ping: dict[str, Any]) -> dict[str, Any]:
    return {**ping, **({"ping": ping["pinged"]} if "pinged" in ping else {})}


def _changed(shown: Mapping[str, Any], key: str, convert: Callable[[Any], Any]) -> dict[str, Any]:
    return {key: convert(shown[key])} if isinstance(shown.get(key), list | Mapping) else {}


def _state(words: list[str]) -> str:
    return next((word for word in _SHOWN_FIRST if word in words), words[0] if words else "")


def _wait_status(shown: Mapping[str, Any]) -> int | None:
    """The raw wait status of an exit code and a signal."""
    code, signal = shown.get("return_code"), shown.get("signal")
    number = signal.get("id") if isinstance(signal, Mapping) else None
    return None if code is None and number is None else (code or 0) * 256 + (number or 0)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "jobs": _each(_job),
    "nodes": _each(_node),
    "partitions": _each(_partition),
    "pings": _each(_ping),
}
