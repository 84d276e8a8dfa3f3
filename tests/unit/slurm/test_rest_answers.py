"""What slurmrestd 22.05.8 answered (tests/data/slurm/rest), and where it matters a newer
one, read as the worker reads it.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.hardware import SlurmNode
from supervisor_tasks.slurm.job_matching import (
    MatchRequest,
    MatchResult,
    listed_record,
    match_jobs,
)
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.not_started import DRAIN_REASONS
from supervisor_tasks.slurm.parsers import (
    QuestionRejectedError,
    SlurmRejectedError,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.rest_answers import (
    RestAnswer,
    clock_s,
    counting_since_s,
    drained_s,
    ended_on,
    jobs_listed,
    parse_identity,
    partition_hardware,
    partition_memory_per_cpu,
    require_answer,
    require_success,
    submitted,
)
from supervisor_tasks.slurm.rest_versions import NEW, OLD
from supervisor_tasks.slurm.script_matching import was_rejected
from tests.support.slurm_samples import rest_answer, rows_by_name

CUSTOMER = "0x" + "a" * 40


VERSIONS = pytest.mark.parametrize(
    ("slurm", "api"), [("22.05.8", OLD), ("24.11.5", NEW)], ids=[OLD, NEW]
)
answer = partial(rest_answer, slurm="22.05.8", api=OLD)


def test_submitted__taken__is_the_id() -> None:
    assert submitted(answer("submitted"), has_submit_key=False) == 18


def test_submitted__waits_for_a_node__is_the_id_beside_the_error() -> None:
    assert answer("waits-for-node").failed
    assert submitted(answer("waits-for-node"), has_submit_key=True) == 29


@VERSIONS
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rejected-memory", SlurmRejectedError),
        ("rejected-partition", SlurmRejectedError),
        ("partition-inactive", SlurmUnavailableError),
        ("late-token", OutcomeUnknownError),
    ],
)
def test_submitted__no_id__says_what_became_of_the_job(
    slurm: str, api: str, name: str, kind: type[SupervisorError]
) -> None:
    with pytest.raises(kind):
        submitted(rest_answer(name, slurm, api), has_submit_key=False)


def test_submitted__key_that_the_site_does_not_know__counts_as_no_answer() -> None:
    with pytest.raises(SlurmUnavailableError):
        submitted(answer("no-such-key"), has_submit_key=False)


def test_submitted__access_denied__is_no_refusal_with_and_without_a_key() -> None:
    denied = answer("cancel-denied")
    with pytest.raises(SlurmUnavailableError, match=r"SLURM_SUBMIT_KEY.* has no key"):
        submitted(denied, has_submit_key=False)
    with pytest.raises(OutcomeUnknownError, match="SLURM_SUBMIT_KEY"):
        submitted(denied, has_submit_key=True)


@pytest.mark.parametrize("number", [0, -1, 2**26, "18", None])
def test_submitted__impossible_id__is_no_submission(number: object) -> None:
    with pytest.raises(OutcomeUnknownError):
        submitted(
            RestAnswer(200, {"errors": [], "job_id": number}), has_submit_key=False
        )


def test_require_success__job_is_unknown__is_no_error() -> None:
    assert not require_success(answer("cancel-unknown"), "cancel")
    assert require_success(answer("cancelled"), "cancel")
    with pytest.raises(SlurmRejectedError, match="permission denied"):
        require_success(answer("cancel-denied"), "cancel")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "body",
    [{}, {"errors": [{"error": "no JSON object: '<html>502 Bad Gateway</html>'"}]}],
    ids=["empty", "page"],
)
def test_answer__of_a_proxy_and_not_of_slurm__is_no_refusal(
    status: int, body: dict[str, object]
) -> None:
    foreign = RestAnswer(status, body)
    with pytest.raises(SlurmUnavailableError, match=str(status)):
        require_success(foreign, "cancel")
    with pytest.raises(SlurmUnavailableError, match=str(status)):
        require_answer(foreign, "GET jobs")


def test_require_success__reason_that_passes__is_tried_again() -> None:
    later = "Job can not be altered now, try again later"
    refused = RestAnswer(500, {"errors": [{"error": later, "error_number": 2050}]})
    with pytest.raises(SlurmUnavailableError, match="try again later"):
        require_success(refused, "update")


def test_require_answer__refused__is_not_a_missing_answer() -> None:
    with pytest.raises(QuestionRejectedError):
        require_answer(answer("job-unknown"), "GET job/999")
    with pytest.raises(SlurmUnavailableError) as missing:
        require_answer(answer("late-token"), "GET jobs")
    assert type(missing.value) is SlurmUnavailableError


def test_jobs_listed__running_job__has_what_squeue_shows() -> None:
    row = rows_by_name(answer("jobs"), now_s=1795481738)["running"]
    assert (row.slurm_id, row.user, row.comment, row.stdout) == (
        18,
        CUSTOMER,
        "supervisor x",
        "running.log",
    )
    assert (row.limit_min, row.has_script, row.record.may_requeue) == (9, True, False)
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
        name: row.record.size for name, row in rows_by_name(answer("jobs")).items()
    }
    found = {name: size for name, size in sizes.items() if size is not None}
    assert {name for name, size in found.items() if size.whole_memory} == {"whole"}
    assert {name for name, size in found.items() if size.array} == {"array"}
    assert {name for name, size in found.items() if size.gpus} == {"gpu"}
    assert {name for name, size in found.items() if size.threads != "*"} == {"threads"}
    assert {name for name, size in found.items() if size.limit_min is None} == {
        "nolimit"
    }


@pytest.mark.parametrize(
    ("shown", "memory_mb"),
    [
        ({"memory_per_cpu": 800}, 1600),
        ({"memory_per_cpu": None, "memory_per_node": 900}, 900),
    ],
)
def test_jobs_listed__more_memory_than_in_the_tres__counts(
    shown: dict[str, int | None], memory_mb: int
) -> None:
    (job,) = (job for job in answer("jobs").body["jobs"] if job["name"] == "running")
    (row,) = jobs_listed({"jobs": [job | shown]}, 2**31).values()
    assert row.record.size is not None
    assert row.record.size.memory_mb == memory_mb


def test_jobs_listed__user_is_unknown__has_no_name() -> None:
    assert rows_by_name(answer("jobs"))["unknown-user"].user == ""


@VERSIONS
def test_jobs_listed__rejected_job__is_identified(slurm: str, api: str) -> None:
    rows = rows_by_name(rest_answer("jobs", slurm, api))
    assert [name for name, row in rows.items() if was_rejected(row.record)] == ["rej"]


def test_jobs_listed__ends__have_the_seconds_and_statuses_of_squeue() -> None:
    rows = rows_by_name(answer("jobs-ended"), now_s=clock_s(answer("diag").body))
    shown = {
        name: (row.record.state, row.record.elapsed_s, row.record.exit_status)
        for name, row in rows.items()
    }
    assert shown["gpu"] == ("CANCELLED", 28, 15)
    assert shown["whole"] == ("CANCELLED", 0, 0)
    assert shown["nonzero"] == ("FAILED", 0, 768)
    assert shown["suspended"] == ("SUSPENDED", 6, 0)
    assert shown["running"] == ("RUNNING", 37, 0)


@pytest.mark.parametrize("early_s", [1, 2, 29])
def test_jobs_listed__ended_after_the_time_of_the_worker__has_all_its_seconds(
    early_s: int,
) -> None:
    (job,) = (job for job in answer("jobs-ended").body["jobs"] if job["name"] == "gpu")
    assert job["end_time"] - job["start_time"] == 28
    assert (
        rows_by_name(answer("jobs-ended"), now_s=job["end_time"] - early_s)[
            "gpu"
        ].record.elapsed_s
        == 28
    )


def test_jobs_listed__field_is_missing__counts_as_no_answer() -> None:
    body = answer("jobs").body
    cut = {"jobs": [dict(job) for job in body["jobs"]]}
    for job in cut["jobs"]:
        del job["submit_time"]
    with pytest.raises(SlurmUnavailableError, match="a job without the fields"):
        jobs_listed(cut, 0)
    with pytest.raises(SlurmUnavailableError):
        jobs_listed({"errors": []}, 0)


@pytest.mark.parametrize(
    "unreadable",
    [
        {"exit_code": None},
        {"exit_code": "many"},
        {"start_time": "soon"},
    ],
)
def test_jobs_listed__value_cannot_be_read__only_that_job_is_unclear(
    unreadable: dict[str, Any],
) -> None:
    body = answer("jobs").body
    shown = list[dict[str, Any]]()
    for job in body["jobs"]:
        if job["name"] == "running":
            job = {**job, **unreadable}
        shown.append(job)
    expected = rows_by_name(answer("jobs"))
    listed = jobs_listed({"jobs": shown}, 2**31)
    rows = {row.name: row for row in listed.values()}
    unclear = rows.pop("running")
    readable = expected.pop("running")
    assert rows == expected
    assert unclear.record.phase is Phase.UNKNOWN
    assert (unclear.slurm_id, unclear.user, unclear.submit_s, unclear.stdout) == (
        readable.slurm_id,
        readable.user,
        readable.submit_s,
        readable.stdout,
    )
    wanted = MatchRequest(
        job_id=JobId("running"),
        slurm_id=unclear.slurm_id,
        user=Address(CUSTOMER),
        submit_s=unclear.submit_s,
    )
    found = match_jobs([wanted], map(listed_record, listed.values()), lambda _: {})
    assert found == {"running": MatchResult(unclear.record)}


@pytest.mark.parametrize("key", ["submit_time", "job_id", "restart_cnt"])
def test_jobs_listed__which_job_it_is_cannot_be_read__counts_as_no_answer(
    key: str,
) -> None:
    (job,) = (job for job in answer("jobs").body["jobs"] if job["name"] == "running")
    with pytest.raises(SlurmUnavailableError, match="a job without the fields"):
        jobs_listed({"jobs": [{**job, key: None}]}, 0)


def test_partition_hardware__nodes__are_those_of_the_partition() -> None:
    found = partition_hardware(answer("partitions").body, answer("nodes").body, "main")
    assert found.nodes == (SlurmNode("node1", 8, 2, 16_000),)
    assert (found.excluded_nodes, found.hidden_nodes, found.max_time_min) == (
        (),
        0,
        None,
    )


def test_partition_hardware__memory_that_slurm_keeps__is_not_counted() -> None:
    """v0.0.38 does not show it."""
    (node,) = rest_answer("nodes", "24.11.5", NEW).body["nodes"]
    assert node["specialized_memory"] == 0
    nodes = {"nodes": [{**node, "specialized_memory": 1000}]}
    found = partition_hardware(answer("partitions").body, nodes, "main")
    assert found.nodes == (SlurmNode("node1", 8, 2, 15_000),)


def test_partition_hardware__drained_node__does_not_count() -> None:
    drained = partition_hardware(
        answer("partitions").body, answer("nodes-drained").body, "main"
    )
    assert (drained.nodes, [node.name for node in drained.excluded_nodes]) == (
        (),
        ["node1"],
    )
    counted = partition_hardware(
        answer("partitions").body,
        answer("nodes-drained").body,
        "main",
        unresponsive=True,
    )
    assert [node.name for node in counted.nodes] == ["node1"]


def test_partition__not_there__counts_as_no_answer() -> None:
    with pytest.raises(SlurmUnavailableError, match="no partition 'mian'"):
        partition_hardware(answer("partitions").body, answer("nodes").body, "mian")
    assert partition_memory_per_cpu(answer("partitions").body, "main") is None


def test_identity__controllers__without_a_name() -> None:
    found = parse_identity(answer("ping").body)
    assert (
        found == ClusterIdentity("", "", ("vm",)) == ClusterIdentity.parse(str(found))
    )
    assert found.is_the_same_as(ClusterIdentity("devgrid", "6817", ("vm", "vm2")))
    assert not found.is_the_same_as(replace(found, hosts=("other",)))


def test_identity__controller_is_down__counts_as_no_answer() -> None:
    with pytest.raises(SlurmUnavailableError):
        parse_identity({"pings": [{"hostname": "vm", "ping": "DOWN"}]})


def test_clock__statistics__have_it() -> None:
    body = answer("diag").body
    assert counting_since_s(body) < clock_s(body)
    with pytest.raises(SlurmUnavailableError):
        clock_s({"statistics": {}})


def test_counting_since_s__first_second_of_a_slurmctld__is_not_known_yet() -> None:
    body = {"statistics": {**answer("diag").body["statistics"], "req_time_start": 0}}
    with pytest.raises(SlurmUnavailableError, match="just started"):
        counting_since_s(body)


@pytest.mark.parametrize("time", ["soon", [1]])
def test_times__no_number__count_as_no_answer(time: object) -> None:
    with pytest.raises(SlurmUnavailableError):
        ended_on(
            {"jobs": [{"job_id": 1, "batch_host": "node1", "end_time": time}]},
            [SlurmId(1)],
        )
    with pytest.raises(SlurmUnavailableError):
        drained_s(
            {
                "nodes": [
                    {
                        "name": "node1",
                        "reason": DRAIN_REASONS[0],
                        "reason_changed_at": time,
                    }
                ]
            }
        )


@pytest.mark.parametrize(
    ("errors", "numbers", "text"),
    [
        (None, [], ""),
        ("no list", [], ""),
        (["no object", {"error_number": 5, "error": "e"}], [5], "e"),
        (
            [
                {"error_number": "5", "error": "e"},
                {"error_code": 7, "description": "d"},
            ],
            [7],
            "e; d",
        ),
    ],
)
def test_rest_answer__errors_of_another_form__are_left_out(
    errors: object, numbers: list[int], text: str
) -> None:
    found = RestAnswer(200, {"errors": errors})
    assert (found.error_numbers, found.error_text) == (numbers, text)
    assert found.failed is bool(text)


def test_partition_hardware__node_is_shown_twice__counts_as_no_answer() -> None:
    partitions, nodes = answer("partitions").body, answer("nodes").body
    twice = {"nodes": [*nodes["nodes"], *nodes["nodes"]]}
    with pytest.raises(SlurmUnavailableError, match=r"shows the node .* 2 times"):
        partition_hardware(partitions, twice, "main")


def test_partition_hardware__number_of_nodes_is_missing__counts_as_no_answer() -> None:
    shown = [{"name": "main", "total_nodes": None}]
    with pytest.raises(SlurmUnavailableError, match="a partition without the fields"):
        partition_hardware({"partitions": shown}, answer("nodes").body, "main")


def test_ended_on__several_jobs__has_those_that_are_asked_for() -> None:
    jobs_of_nodes = [
        {"job_id": number, "batch_host": f"node{number}", "end_time": 100 + number}
        for number in (1, 2, 3)
    ]
    found = ended_on({"jobs": jobs_of_nodes}, [SlurmId(2), SlurmId(9)])
    assert {slurm_id: (on.node, on.ended_s) for slurm_id, on in found.items()} == {
        SlurmId(2): ("node2", 102)
    }


def test_drained_s__several_nodes__has_those_that_could_not_start_a_job() -> None:
    nodes = [
        {"name": "node1", "reason": DRAIN_REASONS[0], "reason_changed_at": 7},
        {"name": "node2", "reason": "broken fan", "reason_changed_at": 8},
        {"name": "node3", "reason": None},
        {"name": "node4", "reason": DRAIN_REASONS[1], "reason_changed_at": None},
    ]
    assert drained_s({"nodes": nodes}) == {"node1": 7, "node4": 0}


@pytest.mark.parametrize(
    ("resumed_s", "used_before_s", "now_s", "elapsed_s"),
    [(0, 0, 130, 30), (120, 15, 130, 25), (140, 15, 130, 5), (160, 15, 130, 0)],
)
def test_jobs_listed__job_was_suspended__seconds_of_the_pause_do_not_count(
    resumed_s: int, used_before_s: int, now_s: int, elapsed_s: int
) -> None:
    """It began at 100. A worker's clock may be a moment early."""
    (job,) = (job for job in answer("jobs").body["jobs"] if job["name"] == "running")
    times = {
        "start_time": 100,
        "end_time": 1000,
        "suspend_time": resumed_s,
        "pre_sus_time": used_before_s,
    }
    (row,) = jobs_listed({"jobs": [job | times]}, now_s).values()
    assert row.record.elapsed_s == elapsed_s
