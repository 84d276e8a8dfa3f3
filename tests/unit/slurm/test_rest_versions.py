"""What slurmrestd 24.11.5 (API v0.0.42) answered is read as the worker reads 22.05; its
requests are written for it.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.hardware import SlurmNode
from supervisor_tasks.slurm.parsers import (
    QuestionRejectedError,
    SlurmRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.rest_answers import (
    RestAnswer,
    clock_s,
    counting_since_s,
    jobs_listed,
    parse_identity,
    partition_hardware,
    partition_memory_per_cpu,
    requests_listed,
    require_answer,
    require_success,
    submitted,
)
from supervisor_tasks.slurm.rest_versions import NEW, OLD, read, written
from tests.support.slurm_samples import rest_answer, rows_by_name

CUSTOMER = "0x" + "a" * 40


answer = partial(rest_answer, slurm="24.11.5", api=NEW)


@pytest.mark.parametrize(
    ("name", "has_submit_key", "slurm_id"),
    [("submitted", False, 1), ("waits-for-node", True, 10)],
)
def test_submitted__taken_or_waits_for_a_node__is_the_id(
    name: str, has_submit_key: bool, slurm_id: int
) -> None:
    assert submitted(answer(name), has_submit_key=has_submit_key) == slurm_id


def test_require_success__of_changes__tells_an_unknown_job_from_a_refusal() -> None:
    assert require_success(answer("cancelled"), "cancel")
    assert require_success(answer("limit"), "update")
    assert not require_success(answer("cancel-unknown"), "cancel")
    assert not require_success(answer("cancel-ended"), "cancel")
    assert not require_success(answer("limit-unknown"), "update")


def test_require_success__slurmctld_gave_no_answer__is_no_refusal() -> None:
    with pytest.raises(SlurmUnavailableError, match="Operation not permitted"):
        require_success(answer("cancel-no-answer"), "cancel")


def test_require_success__a_jobs_own_error__is_a_refusal() -> None:
    denied = read(
        NEW,
        {
            "status": [{"error": {"string": "Access/permission denied", "code": 2002}}],
            "errors": [],
        },
    )
    with pytest.raises(SlurmRejectedError, match="permission denied"):
        require_success(RestAnswer(200, denied), "cancel")


def test_require_answer__refused__is_not_a_missing_answer() -> None:
    assert answer("job-unknown").is_unknown_job
    with pytest.raises(QuestionRejectedError):
        require_answer(answer("job-unknown"), "GET job/999")
    with pytest.raises(SlurmUnavailableError) as missing:
        require_answer(answer("late-token"), "GET jobs")
    assert type(missing.value) is SlurmUnavailableError


def test_jobs_listed__running_job__has_what_squeue_shows() -> None:
    row = rows_by_name(answer("jobs"))["running"]
    assert (row.slurm_id, row.user, row.comment, row.limit_min) == (
        1,
        CUSTOMER,
        "supervisor x",
        9,
    )
    assert row.stdout.endswith("running.log")
    assert (row.has_script, row.record.may_requeue, row.record.state) == (
        True,
        False,
        "RUNNING",
    )
    assert row.record.size is not None
    assert (row.record.size.cpus, row.record.size.memory_mb, row.record.size.nodes) == (
        2,
        200,
        1,
    )
    assert (
        row.record.size.threads,
        row.record.size.whole_memory,
        row.record.size.partition,
    ) == ("*", False, "main")


def test_jobs_listed__unusual_sizes__are_seen() -> None:
    sizes = {
        name: row.record.size
        for name, row in rows_by_name(answer("jobs")).items()
        if row.record.size is not None
    }
    assert {name for name, size in sizes.items() if size.array} == {"array"}
    assert {name for name, size in sizes.items() if size.gpus} == {"gpu"}
    assert {name for name, size in sizes.items() if size.threads != "*"} == {"threads"}
    assert {name for name, size in sizes.items() if size.limit_min is None} == {
        "nolimit"
    }


def test_jobs_listed__ends__have_the_states_and_statuses_of_squeue() -> None:
    shown = {
        name: (row.record.state, row.record.exit_status)
        for name, row in rows_by_name(answer("jobs-ended")).items()
    }
    assert shown["nonzero"] == ("FAILED", 768)
    assert shown["gpu"] == ("CANCELLED", 15)
    assert shown["suspended"] == ("SUSPENDED", 0)
    assert shown["running"] == ("RUNNING", 0)


def test_jobs_listed__neither_exit_code_nor_signal__is_a_failure() -> None:
    """As after slurm_complete_job(its id, 0xff), which the job's owner may call."""
    body = rest_answer("jobs-ended", slurm="24.11.5", api=OLD).body
    not_set = {"set": False, "infinite": False, "number": 0}
    ended = {
        "status": ["CORE_DUMPED"],
        "return_code": not_set,
        "signal": {"id": not_set, "name": ""},
    }
    shown = list[dict[str, Any]]()
    for job in body["jobs"]:
        if job["name"] == "nonzero":
            job = {**job, "exit_code": ended}
        shown.append(job)
    listed = jobs_listed(read(NEW, {**body, "jobs": shown}), 2**31)
    rows = {row.name: row.record for row in listed.values()}
    assert (rows["nonzero"].state, rows["nonzero"].exit_status) == ("FAILED", 0xFF)
    assert rows["gpu"].exit_status == 15


def test_requests_listed__running_job__is_its_request() -> None:
    assert [
        size.cpus
        for size in requests_listed(answer("jobs").body, [1]).values()  # type: ignore[list-item]
    ] == [2]


def test_partition_hardware__nodes__are_those_of_the_partition() -> None:
    partitions = answer("partitions").body
    found = partition_hardware(partitions, answer("nodes").body, "main")
    assert found.nodes == (SlurmNode("node1", 8, 2, 16_000),)
    assert (found.excluded_nodes, found.hidden_nodes, found.max_time_min) == (
        (),
        0,
        None,
    )
    drained = partition_hardware(partitions, answer("nodes-drained").body, "main")
    assert (drained.nodes, [node.name for node in drained.excluded_nodes]) == (
        (),
        ["node1"],
    )
    assert partition_memory_per_cpu(partitions, "main") is None


def test_parse_identity__controller_is_up__is_read_and_so_is_the_clock() -> None:
    found = parse_identity(answer("ping").body)
    assert found == ClusterIdentity("", "", ("login1",))
    assert not found.is_the_same_as(replace(found, hosts=("other",)))
    assert counting_since_s(answer("diag").body) <= clock_s(answer("diag").body)


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (
            {
                "return_code": {"set": True, "number": 3},
                "signal": {"id": {"set": False, "number": 0}},
            },
            768,
        ),
        (
            {
                "return_code": {"set": True, "number": 0},
                "signal": {"id": {"set": True, "number": 9}},
            },
            9,
        ),
        (
            {
                "return_code": {"set": False, "number": 0},
                "signal": {"id": {"set": False, "number": 0}},
                "status": ["CORE_DUMPED"],
            },
            0xFF,
        ),
        (
            {
                "return_code": {"set": False, "number": 0},
                "signal": {"id": {"set": False, "number": 0}},
                "status": ["INVALID"],
            },
            0x7F,
        ),
        ({"status": ["CORE_DUMPED"]}, None),
    ],
)
def test_read__exit_code__is_the_raw_wait_status(
    shown: dict[str, Any], status: int | None
) -> None:
    assert read(NEW, {"jobs": [{"exit_code": shown}]}) == {
        "jobs": [{"exit_code": status}]
    }


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["RUNNING"], "RUNNING"),
        (["FAILED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUED"], "REQUEUED"),
    ],
)
def test_read__words_of_a_state__is_the_one_that_squeue_shows(
    words: list[str], state: str
) -> None:
    assert read(NEW, {"jobs": [{"job_state": words}]}) == {
        "jobs": [{"job_state": state}]
    }


@pytest.mark.parametrize(
    "broken", [None, "text", [None], [{"exit_code": 3}], [{"job_state": []}]]
)
def test_read__unexpected_jobs__count_as_no_answer(broken: object) -> None:
    with pytest.raises(SlurmUnavailableError):
        jobs_listed(read(NEW, {"jobs": broken}), 0)


def test_written__submission__has_the_words_of_the_newer_api() -> None:
    job = {
        "gpus": "2",
        "memory_per_cpu": 5,
        "time_limit": 7,
        "no_requeue": True,
        "environment": {"A": "b"},
        "tasks": 1,
    }
    assert written(NEW, {"script": "s", "job": job}) == {
        "script": "s",
        "job": {
            "tasks": 1,
            "memory_per_cpu": {"set": True, "number": 5},
            "time_limit": {"set": True, "number": 7},
            "tres_per_job": "gres/gpu:2",
            "requeue": False,
            "environment": ["A=b"],
        },
    }
    assert written(OLD, {"script": "s", "job": job}) == {"script": "s", "job": job}


def test_written__change__has_no_job_around_it() -> None:
    assert written(NEW, {"time_limit": 7, "partition": "main"}) == {
        "time_limit": {"set": True, "number": 7},
        "partition": "main",
    }


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": True, "infinite": True, "number": 7}, None),
        ({"set": False, "infinite": False, "number": 7}, None),
        ({"number": 7}, {"number": 7}),
        ([{"set": True, "number": 1}, "x"], [1, "x"]),
    ],
)
def test_read__number_in_its_object__is_the_number_or_none(
    shown: object, value: object
) -> None:
    assert read(NEW, {"field": shown}) == {"field": value}


def test_read__status_of_a_job_that_was_changed__is_no_error() -> None:
    statuses = [{"error": {"string": "No error", "code": 0}}, {"error": None}, "x"]
    assert read(NEW, {"status": statuses, "errors": []})["errors"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"partitions": [{"name": "main", "nodes": 3, "maximums": {}}]},
        {"partitions": [{"name": "main", "nodes": {}, "maximums": None}]},
        {"pings": [{"hostname": "vm", "ping": "UP"}]},
    ],
)
def test_read__part_of_another_form__stays_as_it_is(body: dict[str, Any]) -> None:
    assert read(NEW, body) == body
