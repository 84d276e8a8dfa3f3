"""Read slurmrestd's answers, which rest_versions.py has brought into the form of
v0.0.38. Pure; samples: tests/data/slurm/rest.

slurmrestd answers a request that slurmctld rejects with status 500 and a list of
errors: each has slurmctld's text, and its number as `error_number` or, for a
submission, as `error_code`.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.hardware import (
    PartitionHardware,
    SlurmNode,
    hardware_of,
    node_of,
)
from supervisor_tasks.slurm.job_states import Phase, phase
from supervisor_tasks.slurm.not_started import DRAIN_REASONS, EndedOn
from supervisor_tasks.slurm.parsers import (
    MAX_SLURM_ID,
    JobRecord,
    QuestionRejectedError,
    SlurmRejectedError,
    SlurmUnavailableError,
    can_be_given,
    is_missing_answer,
    may_change_later,
    raise_for_rejection,
)
from supervisor_tasks.slurm.rest_versions import as_object
from supervisor_tasks.slurm.size import (
    ANY_THREADS,
    Size,
    positive_number,
    request_of,
    size_of,
)
from supervisor_tasks.slurm.squeue import SqueueRow, resolved

OK = 200
ACCESS_DENIED = 2002
# Invalid job id; already completing or completed; has already finished
UNKNOWN_JOB = frozenset((2017, 2021, 2084))
# slurmrestd itself rejects the request, and asks slurmctld nothing
_NOT_READ = (400, 401, 403, 404, 405, 413, 415)
_SLURMS_NUMBERS_FROM = 1000
UNKNOWN_USER = 99  # the uid of a user whom slurmctld's host does not know
UNREADABLE = "unreadable values"  # after the state of a job
_SHOWN = 500


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """One answer: its HTTP status and its JSON object."""

    status: int
    body: Mapping[str, Any]

    @property
    def error_numbers(self) -> list[int]:
        """SLURM's numbers of its errors."""
        numbers = list[int]()
        for error in self._errors:
            number = error.get("error_number", error.get("error_code", 0))
            if isinstance(number, int):
                numbers.append(number)
        return numbers

    @property
    def error_text(self) -> str:
        """The errors in words; empty where there is none."""
        texts = list[str]()
        for error in self._errors:
            texts += [_text(error, "error"), _text(error, "description")]
        joined = "; ".join(filter(None, texts))
        return re.sub(r"[^\x20-\x7e]+", " ", joined)[:_SHOWN]

    @property
    def verdict(self) -> str:
        """SLURM's own texts of its errors, in lower case."""
        texts = [_text(error, "error") for error in self._errors]
        return "; ".join(texts).lower()

    @property
    def failed(self) -> bool:
        """Whether the answer is no success."""
        return self.status != OK or bool(self._errors)

    @property
    def was_rejected_by_slurmrestd(self) -> bool:
        """Whether slurmrestd itself rejected the request. 24.11 answers 404 also for a
        job that slurmctld does not know.
        """
        return self.status in _NOT_READ and not self.is_unknown_job

    @property
    def is_missing(self) -> bool:
        """Whether slurmctld gave no answer. slurmrestd 24.11 then answers an order with
        an error number of the system, and a proxy with a page of its own.
        """
        numbers = [number for number in self.error_numbers if number > 0]
        if not numbers or min(numbers) < _SLURMS_NUMBERS_FROM:
            return True
        return self.was_rejected_by_slurmrestd or is_missing_answer(self.verdict)

    @property
    def is_unknown_job(self) -> bool:
        """Whether SLURM has no such job, or the job has ended."""
        return not UNKNOWN_JOB.isdisjoint(self.error_numbers)

    @property
    def _errors(self) -> list[Mapping[str, Any]]:
        listed = self.body.get("errors")
        if not isinstance(listed, list):
            return []
        errors = list[Mapping[str, Any]]()
        for error in listed:
            if isinstance(error, Mapping):
                errors.append(error)
        return errors


def submitted(
    answer: RestAnswer, *, has_submit_key: bool, max_id: int = MAX_SLURM_ID
) -> SlurmId:
    """Return the id of the job that slurmctld took. slurmrestd answers a job that must
    wait for its nodes with an error and an id: it is submitted. Raises the errors of
    `submitted_id` (parsers.py).

    slurmrestd does not pass on the text of job_submit.lua. It shows only that access is
    denied, also to a worker without the key, and for a token that was used before. So
    denied access is no rejection of the job. A worker with a key searches for the job.
    """
    number = answer.body.get("job_id")
    if isinstance(number, int) and can_be_given(number, max_id):
        return SlurmId(number)
    shown = f"slurmrestd answered a submission with status {answer.status} and no job id: {answer.error_text}"
    if answer.was_rejected_by_slurmrestd:
        raise SlurmUnavailableError(shown)
    if ACCESS_DENIED in answer.error_numbers:
        raise _denied(shown, has_submit_key)
    raise_for_rejection(answer.verdict, answer.verdict, answer.error_text, shown)
    raise OutcomeUnknownError(shown)


def _denied(shown: str, has_submit_key: bool) -> SupervisorError:
    reason = (
        "slurmctld's log has the reason of job_submit.lua, or the partition's rights"
    )
    if has_submit_key:
        return OutcomeUnknownError(f"{shown} (SLURM_SUBMIT_KEY: {reason})")
    return SlurmUnavailableError(
        f"{shown} (SLURM_SUBMIT_KEY: the worker has no key: give it the key of job_submit.lua, if SLURM uses that; {reason})"
    )


def require_answer(answer: RestAnswer, what: str) -> Mapping[str, Any]:
    """Return the answer to a question. Raises SlurmUnavailableError; a retry helps.
    Raises QuestionRejectedError where SLURM rejected; a retry helps once SLURM accepts
    the question.
    """
    if not answer.failed:
        return answer.body
    raise _failure(answer, what, QuestionRejectedError)


def require_success(answer: RestAnswer, what: str) -> bool:
    """Return True when SLURM carried out a change, False when it knows no such job or
    the job has ended. Raises SlurmUnavailableError (a retry helps) or
    SlurmRejectedError (a retry does not).
    """
    if not answer.failed:
        return True
    if answer.is_unknown_job:
        return False
    changes_later = may_change_later(answer.verdict)
    rejection = SlurmUnavailableError if changes_later else SlurmRejectedError
    raise _failure(answer, what, rejection)


def _failure(
    answer: RestAnswer, what: str, rejection: type[SupervisorError]
) -> SupervisorError:
    """Return the error of an answer that failed: `rejection` where SLURM has decided."""
    shown = (
        f"{what}: slurmrestd answered with status {answer.status}: {answer.error_text}"
    )
    if answer.is_missing:
        return SlurmUnavailableError(shown)
    return rejection(shown)


def jobs_listed(body: Mapping[str, Any], now_s: int) -> dict[SlurmId, SqueueRow]:
    """Return the jobs of an answer. `now_s` is the time on slurmctld's clock. Raises
    SlurmUnavailableError for a job that lacks a field, or whose id, times or number of
    restarts cannot be read. The worker must not conclude that a job is missing; a retry
    helps. A job with another value that cannot be read is in an unknown state.
    """
    rows = dict[SlurmId, SqueueRow]()
    for job in _objects(body, "jobs"):
        row = _row(job, now_s)
        rows[row.slurm_id] = row
    return rows


def owner(answer: RestAnswer, slurm_id: SlurmId) -> str:
    """Return the user of a job: the number 99 where slurmctld did not know the user,
    and empty where no user, or no such job, is shown. Raises SlurmUnavailableError when
    it cannot be read; a retry helps.
    """
    if answer.is_unknown_job:
        return ""
    body = require_answer(answer, f"GET job/{slurm_id}")
    for job in _objects(body, "jobs"):
        if job.get("job_id") == slurm_id:
            if job.get("user_id") == UNKNOWN_USER:
                return str(UNKNOWN_USER)
            return resolved(_text(job, "user_name"))
    return ""


def requests_listed(
    body: Mapping[str, Any], slurm_ids: Sequence[SlurmId]
) -> dict[SlurmId, Size]:
    """Return what these jobs were submitted for. Raises SlurmUnavailableError when one
    cannot be read; a retry helps.
    """
    sizes = dict[SlurmId, Size]()
    try:
        for job in _objects(body, "jobs"):
            slurm_id = SlurmId(job["job_id"])
            if slurm_id in slurm_ids:
                sizes[slurm_id] = request_of(job)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable("a job", body) from error
    return sizes


def clock_s(body: Mapping[str, Any]) -> int:
    """Return slurmctld's time (Unix time) from its statistics. Raises
    SlurmUnavailableError when the answer shows none; a retry helps.
    """
    return _statistic(body, "req_time")


def counting_since_s(body: Mapping[str, Any]) -> int:
    """Return since when slurmctld has counted its statistics: its start, or a later
    midnight of UTC or `sdiag --reset`. Raises SlurmUnavailableError, also in the first
    second after slurmctld's start, when slurmctld shows 0; retry later.
    """
    statistics = as_object(body.get("statistics"))
    if statistics.get("req_time_start") == 0:
        raise SlurmUnavailableError(
            "slurmctld has just started; it does not count its statistics yet"
        )
    return _statistic(body, "req_time_start")


def parse_identity(body: Mapping[str, Any]) -> ClusterIdentity:
    """Return the cluster as far as slurmrestd's ping shows it: by its controllers.
    Raises SlurmUnavailableError when none of them answers; a retry helps.
    """
    pings = _objects(body, "pings")
    hosts, answers = list[str](), list[object]()
    for ping in pings:
        hosts.append(_text(ping, "hostname"))
        answers.append(ping.get("ping"))
    if "UP" not in answers or "" in hosts:
        raise SlurmUnavailableError(
            f"no slurmctld answers slurmrestd; it shows {str(pings)[:_SHOWN]}"
        )
    return ClusterIdentity("", "", tuple(hosts))


def partition_hardware(
    partitions: Mapping[str, Any],
    nodes: Mapping[str, Any],
    partition: str,
    *,
    unresponsive: bool = False,
) -> PartitionHardware:
    """Return the partition's hardware; with `unresponsive`, nodes that do not work
    count too. Raises SlurmUnavailableError for an answer that is incomplete; a retry
    helps.
    """
    shown = _partition(partitions, partition)
    members = list[SlurmNode]()
    for node in _objects(nodes, "nodes"):
        its_partitions = node.get("partitions") or ()
        if partition in its_partitions:
            members.append(_node(node))
    for name, number in Counter(node.name for node in members).items():
        if number > 1:
            raise SlurmUnavailableError(
                f"slurmrestd shows the node {name} {number} times, expected once"
            )
    total = shown.get("total_nodes")
    if not isinstance(total, int):
        raise _unreadable("a partition", shown)
    max_time_min = positive_number(shown.get("max_time_limit"))
    return hardware_of(members, total, max_time_min, unresponsive=unresponsive)


def partition_memory_per_cpu(
    partitions: Mapping[str, Any], partition: str
) -> int | None:
    """Return the partition's own MaxMemPerCPU in MB; None where it has none. Raises
    SlurmUnavailableError for an answer that is incomplete; a retry helps.
    """
    return positive_number(
        _partition(partitions, partition).get("maximum_memory_per_cpu")
    )


def ended_on(
    body: Mapping[str, Any], slurm_ids: Collection[SlurmId]
) -> dict[SlurmId, EndedOn]:
    """Return where and when these jobs ended. Raises SlurmUnavailableError for an
    answer that cannot be read; a retry helps.
    """
    ended = dict[SlurmId, EndedOn]()
    for job in _objects(body, "jobs"):
        if job.get("job_id") in slurm_ids:
            host, ended_s = _text(job, "batch_host"), _time_s(job, "end_time", body)
            ended[SlurmId(job["job_id"])] = EndedOn(host, ended_s)
    return ended


def drained_s(body: Mapping[str, Any]) -> dict[str, int]:
    """Return since when (Unix time) nodes are drained because they could not start a
    job. Raises SlurmUnavailableError for an answer that cannot be read; a retry helps.
    """
    drained = dict[str, int]()
    for node in _objects(body, "nodes"):
        if node.get("reason") in DRAIN_REASONS:
            drained[str(node.get("name"))] = _time_s(node, "reason_changed_at", body)
    return drained


def _time_s(entry: Mapping[str, Any], name: str, body: Mapping[str, Any]) -> int:
    """The Unix time in a field; 0 if it is not set. Raises SlurmUnavailableError."""
    try:
        return int(entry.get(name) or 0)
    except (TypeError, ValueError) as error:
        raise _unreadable(f"a time in {name}", body) from error


def _partition(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for shown in _objects(body, "partitions"):
        if shown.get("name") == name:
            return shown
    raise SlurmUnavailableError(
        f"slurmrestd shows no partition {name!r}; expected that of SLURM_PARTITION"
    )


def _statistic(body: Mapping[str, Any], name: str) -> int:
    statistics = as_object(body.get("statistics"))
    value = positive_number(statistics.get(name))
    if value is None:
        raise _unreadable("slurmctld's statistics", body)
    return value


def _objects(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    listed = body.get(key)
    if not isinstance(listed, list):
        raise _unreadable(key, body)
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise _unreadable(key, body)
    return listed


def _text(shown: Mapping[str, Any], key: str) -> str:
    """Return the text of a field; empty where the field is missing or null."""
    return str(shown.get(key) or "")


def _unreadable(what: str, shown: Mapping[str, Any]) -> SlurmUnavailableError:
    return SlurmUnavailableError(
        f"slurmrestd shows {what} without the fields of v0.0.38: {str(dict(shown))[:_SHOWN]}"
    )


def _row(job: Mapping[str, Any], now_s: int) -> SqueueRow:
    try:
        seen = _identified(job)
        limit_min = positive_number(job["time_limit"])
        try:
            seen = _with_values(seen, job, now_s, limit_min)
        except (TypeError, ValueError):
            # the other jobs must not wait for this one: its owner may have caused it
            seen = replace(seen, state=f"{seen.state} with {UNREADABLE}")
        return SqueueRow(
            seen.slurm_id,
            seen.user,
            _required_text(job, "name"),
            _required_text(job, "comment"),
            _required_text(job, "standard_output"),
            seen.submit_s,
            seen,
            bool(job["batch_flag"]),
            limit_min,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable("a job", job) from error


def _identified(job: Mapping[str, Any]) -> JobRecord:
    """Return a record with what shows which job it is, and its state. Raises KeyError,
    TypeError or ValueError.
    """
    return JobRecord(
        SlurmId(int(job["job_id"])),
        str(job["job_state"]),
        elapsed_s=0,
        exit_status=0,
        user=resolved(_required_text(job, "user_name")),
        submit_s=int(job["submit_time"]),
        restarts=int(job["restart_cnt"]),
    )


def _with_values(
    seen: JobRecord, job: Mapping[str, Any], now_s: int, limit_min: int | None
) -> JobRecord:
    """Return the record with all that is shown of the job. Raises KeyError, TypeError
    or ValueError.
    """
    return replace(
        seen,
        elapsed_s=_elapsed_s(job, now_s),
        exit_status=int(job["exit_code"]),
        reason=_required_text(job, "state_description")
        or _required_text(job, "state_reason"),
        start_s=int(job["start_time"]) or None,
        size=_size(job, limit_min),
        may_requeue=bool(job["requeue"]),
    )


def _elapsed_s(job: Mapping[str, Any], now_s: int) -> int:
    """Return the seconds that the job's present run has used, without those in which it
    was suspended. `now_s` may be a moment early, so the end of a run that has ended may
    be later.
    """
    state = str(job["job_state"])
    start_s, end_s = _seconds(job, "start_time"), _seconds(job, "end_time")
    suspended_s = _seconds(job, "suspend_time")
    used_before_s = _seconds(job, "pre_sus_time")
    if state == "SUSPENDED":
        return used_before_s
    if phase(state) is Phase.ENDED:
        now_s = max(now_s, end_s)
    if state == "PENDING" or not start_s:
        return 0
    if start_s > now_s:
        return 0
    # of a job that runs, end_time is the end of its time limit
    until_s = min(end_s or now_s, now_s)
    if suspended_s:  # the job was suspended: it runs again since suspend_time
        return max(used_before_s + until_s - suspended_s, 0)
    return max(until_s - start_s, 0)


def _seconds(job: Mapping[str, Any], key: str) -> int:
    """Return a field of seconds; 0 where it is null. Raises KeyError."""
    return int(job[key] or 0)


def _required_text(job: Mapping[str, Any], key: str) -> str:
    """Return the text of a field; empty where it is null. Raises KeyError."""
    return str(job[key] or "")


def _array(job: Mapping[str, Any]) -> str:
    """Return the number of an array's task, or the numbers that wait; empty if the job
    is no array.
    """
    task_id = job["array_task_id"]
    if task_id is None:
        task_id = job["array_task_string"]
    if task_id is None:
        return ""
    return str(task_id)


_GPUS_PER = ("tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket")


def _size(job: Mapping[str, Any], limit_min: int | None) -> Size:
    size = size_of(
        limit_min=limit_min,
        partition=_required_text(job, "partition"),
        qos=_required_text(job, "qos"),
        account=_required_text(job, "account"),
        reservation=_required_text(job, "resv_name"),
        array_task=_array(job),
        tasks=str(job["tasks"]),
        tres=_required_text(job, "tres_alloc_str")
        or _required_text(job, "tres_req_str"),
        gpus_per=[_required_text(job, name) for name in _GPUS_PER],
        per_cpu_mb=job["memory_per_cpu"] or 0,
        per_node_mb=job["memory_per_node"] or 0,
        # null in v0.0.38, which then shows the CPUs of each node alone
        cpus_per_task=job.get("cpus_per_task") or 0,
        cpus_per_node=job.get("minimum_cpus_per_node") or 0,
    )
    threads = job["threads_per_core"]
    if threads is None:
        threads = ANY_THREADS
    # null where squeue shows 0
    whole_memory = not (job["memory_per_node"] or job["memory_per_cpu"])
    return replace(size, threads=str(threads), whole_memory=whole_memory)


def _node(shown: Mapping[str, Any]) -> SlurmNode:
    """Return the node in the words of `scontrol show nodes`."""
    flags = shown.get("state_flags") or ()
    fields = {
        "NodeName": _text(shown, "name"),
        "State": "+".join([_text(shown, "state"), *map(str, flags)]).upper(),
        "CfgTRES": _text(shown, "tres"),
        "CPUTot": _text(shown, "cpus"),
        "Gres": _text(shown, "gres"),
        "RealMemory": _text(shown, "real_memory"),
        # v0.0.38 does not show it
        "MemSpecLimit": _text(shown, "specialized_memory"),
    }
    return node_of(fields, "slurmrestd")
