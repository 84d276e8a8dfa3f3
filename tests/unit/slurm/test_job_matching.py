"""An id is not a job: whose record is it?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.job_matching import (
    UNKNOWN,
    UNNAMED,
    UNREAD,
    MatchRequest,
    MatchResult,
    Record,
    accounted_record,
    listed_record,
    match_jobs,
)
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.sacct import SacctRow, accounted_jobs
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.squeue import SqueueRow
from tests.support.slurm_samples import DELIMITER, recorded, seen_jobs

USER = Address("0x" + "ab" * 20)
AT_S = 1_795_285_686
OURS, OTHER = JobId("0x" + "1" * 64), JobId("0x" + "2" * 64)
JOB = MatchRequest(job_id=OURS, slurm_id=SlurmId(7), user=USER, submit_s=None)
KNOWN = replace(JOB, submit_s=AT_S)
SEEN = JobRecord(SlurmId(7), "RUNNING", 3, 0, "None", USER, AT_S)
ENDED = replace(SEEN, state="COMPLETED", ended_s=AT_S + 9)
REQUEUED = replace(ENDED, state="REQUEUED", elapsed_s=3, ended_s=AT_S + 60)
SIZE = Size(
    limit_min=0, cpus=2, memory_mb=1, nodes=1, gpus=0, partition="", accounted=True
)
# what accounting has of a next run that was cancelled at once
ROOTS_END = replace(
    ENDED,
    state="CANCELLED",
    elapsed_s=0,
    user="root",
    submit_s=AT_S + 60,
    ended_s=AT_S + 60,
)


def listed(seen: JobRecord = SEEN, name: str = OURS, *, batch: bool = True) -> Record:
    return listed_record(
        SqueueRow(seen.slurm_id, seen.user, name, "", "", seen.submit_s, seen, batch)
    )


def accounted(seen: JobRecord = ENDED, job_id: JobId = OURS) -> Record:
    return accounted_record(
        SacctRow(seen, f"sbatch --parsable --job-name={job_id} --output={job_id}.log")
    )


def recognised(
    wanted: MatchRequest,
    *records: Record,
    scripts: Mapping[SlurmId, JobId | None] | None = None,
) -> MatchResult:
    """`scripts` are what batch scripts say; None is that nothing must
    ask for them.
    """

    def ask(_: Sequence[SlurmId]) -> Mapping[SlurmId, JobId | None]:
        assert scripts is not None, "scripts are not asked for"
        return scripts

    return match_jobs([wanted], records, ask)[wanted.job_id]


def test_match_jobs__known_submit_time__is_ours_with_any_name_and_user() -> None:
    for seen in (SEEN, replace(SEEN, user=""), replace(SEEN, user="renamed")):
        assert recognised(KNOWN, listed(seen, "renamed")) == MatchResult(seen)


def test_match_jobs__another_submit_time__is_a_later_job_despite_same_user_and_name() -> (
    None
):
    assert recognised(KNOWN, listed(replace(SEEN, submit_s=AT_S + 1))) == UNKNOWN


def test_match_jobs__requeued__is_ours_at_a_later_time_by_its_name_or_script() -> None:
    again = replace(SEEN, submit_s=AT_S + 60, restarts=1)
    assert recognised(KNOWN, listed(again)) == MatchResult(again)
    assert recognised(
        KNOWN, listed(again, "renamed"), scripts={SlurmId(7): OURS}
    ) == MatchResult(again)
    assert (
        recognised(KNOWN, listed(again, "his own"), scripts={SlurmId(7): None})
        == UNKNOWN
    )
    assert recognised(KNOWN, listed(replace(again, user="0xcd"))) == UNKNOWN
    assert recognised(KNOWN, listed(replace(again, user=""))) == MatchResult(
        unclear=UNNAMED
    )
    assert (
        recognised(
            replace(KNOWN, id_belongs_to_other=True),
            listed(again),
            scripts={SlurmId(7): OTHER},
        )
        == UNKNOWN
    )
    assert recognised(KNOWN, listed(replace(again, submit_s=AT_S - 60))) == UNKNOWN


@pytest.mark.parametrize("off_s", [-86_400, -1, 0, 3, 86_400])
def test_match_jobs__user_and_name_fit_at_the_first_look__is_ours_at_any_clock_time(
    off_s: int,
) -> None:
    seen = replace(SEEN, submit_s=AT_S + off_s)
    assert recognised(JOB, listed(seen)) == MatchResult(seen)


def test_match_jobs__of_another_user__is_not_ours() -> None:
    assert recognised(JOB, listed(replace(SEEN, user="0x" + "cd" * 20))) == UNKNOWN
    assert recognised(JOB, accounted(replace(ENDED, user="0x" + "cd" * 20))) == UNKNOWN


def test_match_jobs__user_cannot_be_resolved__cannot_be_told() -> None:
    for record in (listed(replace(SEEN, user="")), accounted(replace(ENDED, user=""))):
        assert recognised(JOB, record) == MatchResult(unclear=UNNAMED)


@pytest.mark.parametrize("name", [OTHER, "renamed", ""])
def test_match_jobs__of_another_name__its_script_decides(name: str) -> None:
    assert recognised(
        JOB, listed(name=name), scripts={SlurmId(7): OURS}
    ) == MatchResult(SEEN)
    assert recognised(JOB, listed(name=name), scripts={SlurmId(7): OTHER}) == UNKNOWN
    assert recognised(JOB, listed(name=name), scripts={SlurmId(7): None}) == UNKNOWN
    assert recognised(JOB, listed(name=name), scripts={}) == MatchResult(unclear=UNREAD)


def test_match_jobs__job_without_a_script__is_not_ours_with_any_name() -> None:
    assert recognised(JOB, listed(batch=False)) == UNKNOWN


def test_match_jobs__id_is_a_later_jobs__its_script_decides_and_not_its_name() -> None:
    lost = replace(JOB, id_belongs_to_other=True)
    assert recognised(lost, listed(), scripts={SlurmId(7): OTHER}) == UNKNOWN
    assert recognised(lost, listed(), scripts={SlurmId(7): OURS}) == MatchResult(SEEN)


def test_match_jobs__in_accounting__the_line_of_sbatch_decides() -> None:
    later = replace(ENDED, submit_s=AT_S + 2, state="FAILED")
    for wanted in (JOB, replace(JOB, id_belongs_to_other=True)):
        assert recognised(wanted, accounted(later, OTHER)) == UNKNOWN
        assert recognised(wanted, accounted(later, OTHER), accounted()) == MatchResult(
            ENDED
        )


def test_match_jobs__id_of_a_later_job__only_accountings_older_record_is_ours() -> None:
    lost = replace(KNOWN, id_belongs_to_other=True)
    later = replace(ENDED, submit_s=AT_S + 60, state="FAILED")
    assert recognised(lost, accounted(later, OTHER)) == UNKNOWN
    assert recognised(lost, accounted(), accounted(later, OTHER)) == MatchResult(ENDED)


def test_accounting__runs_of_a_requeued_job__are_told_together_with_the_last_one() -> (
    None
):
    first = replace(ENDED, state="REQUEUED", ended_s=AT_S + 60)
    second = replace(ENDED, state="NODE_FAIL", submit_s=AT_S + 60, ended_s=AT_S + 90)
    third = replace(ENDED, submit_s=AT_S + 91, ended_s=AT_S + 99)
    stranger = replace(ENDED, submit_s=AT_S + 500, state="FAILED")
    last = replace(third, earlier_s=first.elapsed_s + second.elapsed_s, earlier_runs=2)
    records = tuple(map(accounted, (stranger, third, second, first)))
    assert recognised(KNOWN, *records) == MatchResult(last)
    for later in (second, third):  # the ledger may know a later run only
        assert recognised(
            replace(KNOWN, submit_s=later.submit_s), *records
        ) == MatchResult(last)
    others = accounted(stranger, OTHER)
    assert recognised(KNOWN, accounted(first), others) == MatchResult(first)
    # a job that ended by itself is over, also if its owner's next job has its id
    over = replace(ENDED, ended_s=AT_S + 60)
    assert recognised(KNOWN, *map(accounted, (over, second))) == MatchResult(over)
    # as sacct shows one that root has requeued
    waiting = replace(third, state="PENDING", user="root", ended_s=None)
    until = replace(first, ended_s=AT_S + 91)
    assert recognised(KNOWN, accounted(until), accounted(waiting)) == MatchResult(until)


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        ({}, True),
        ({"submit_s": AT_S + 61}, True),
        ({"submit_s": AT_S + 62}, False),
        ({"elapsed_s": 1}, False),
        ({"state": "COMPLETED"}, False),
        ({"ended_s": None}, False),
        ({"user": "0xcd"}, False),
    ],
)
def test_accounting__next_run_was_cancelled_before_it_was_told__it_follows(
    change: dict[str, Any], follows: bool
) -> None:
    """Its record has neither the user nor the command line."""
    changed = replace(ROOTS_END, **change)
    records = accounted(REQUEUED), accounted_record(SacctRow(changed, ""))
    whole = replace(changed, earlier_s=3, earlier_runs=1) if follows else REQUEUED
    assert recognised(KNOWN, *records) == MatchResult(whole)


def test_accounting__roots_end_of_another_job_or_part__does_not_follow() -> None:
    others = accounted(REQUEUED), accounted(ROOTS_END, OTHER)
    assert recognised(KNOWN, *others) == MatchResult(REQUEUED)
    part = replace(REQUEUED, state="RESIZING")
    unnamed = accounted_record(SacctRow(ROOTS_END, ""))
    assert recognised(KNOWN, accounted(part), unnamed) == MatchResult(part)


@pytest.mark.parametrize("state", ["REQUEUED", "NODE_FAIL", "PREEMPTED"])
@pytest.mark.parametrize("gap_s", [5, 30, 3600])
def test_accounting__node_clears_up_after_a_requeue__next_run_follows(
    state: str, gap_s: int
) -> None:
    first = replace(ENDED, state=state, ended_s=AT_S + 60)
    second = replace(ENDED, submit_s=AT_S + 60 + gap_s, ended_s=AT_S + 5000)
    whole = replace(second, earlier_s=first.elapsed_s, earlier_runs=1)
    for wanted in (JOB, KNOWN, replace(KNOWN, submit_s=second.submit_s)):
        assert recognised(wanted, *map(accounted, (second, first))) == MatchResult(
            whole
        )


def test_accounting__id_was_given_again_after_a_requeue__later_job_is_another() -> None:
    first = replace(ENDED, state="REQUEUED", ended_s=AT_S + 60)
    second = replace(ENDED, submit_s=AT_S + 65)
    own = accounted_record(SacctRow(second, "sbatch --parsable own.sh"))
    others = accounted(replace(second, user="0x" + "cd" * 20))
    for later in (own, others, accounted(second, OTHER)):
        for wanted in (JOB, KNOWN):
            assert recognised(wanted, accounted(first), later) == MatchResult(first)
    ours = accounted(second)
    found = recognised(JOB, accounted(first, OTHER), ours)
    assert found == MatchResult(second)


def test_accounting__parts_of_a_job_that_its_owner_shrank__are_one_run() -> None:
    first = replace(ENDED, state="RESIZING", elapsed_s=60, ended_s=AT_S + 100)
    second = replace(first, elapsed_s=7, submit_s=AT_S + 100, ended_s=AT_S + 108)
    third = replace(ENDED, elapsed_s=5, submit_s=AT_S + 108, ended_s=AT_S + 113)
    # as slurmctld shows it, by which it is known from then on
    whole = replace(third, elapsed_s=72, submit_s=AT_S)
    for wanted in (JOB, KNOWN):
        assert recognised(
            wanted, *map(accounted, (third, second, first))
        ) == MatchResult(whole)
    # its second part is on its way
    assert recognised(KNOWN, accounted(first)) == MatchResult(first)
    assert recognised(
        KNOWN, accounted(first), accounted(replace(second, user="0xcd"))
    ) == MatchResult(first)
    again = replace(ENDED, elapsed_s=4, submit_s=AT_S + 114, ended_s=AT_S + 120)
    requeued = replace(third, state="REQUEUED")
    assert recognised(
        KNOWN, *map(accounted, (first, second, requeued, again))
    ) == MatchResult(replace(again, earlier_s=72, earlier_runs=1))


def test_match_jobs__run_again__has_the_size_of_each_run_that_had_seconds_once() -> (
    None
):
    big, paid = SIZE, replace(SIZE, cpus=1)
    runs = [
        replace(REQUEUED, size=big),
        replace(REQUEUED, submit_s=AT_S + 60, ended_s=AT_S + 70, size=big),
        replace(REQUEUED, submit_s=AT_S + 70, ended_s=AT_S + 70, elapsed_s=0, size=big),
        replace(ENDED, submit_s=AT_S + 70, size=paid),
    ]
    record = recognised(KNOWN, *map(accounted, runs)).record
    assert record is not None
    assert (record.size, record.earlier_sizes) == (paid, (big,))


def test_recorded__shrunk_by_its_owner__accounting_comes_to_what_squeue_shows() -> None:
    whole = seen_jobs(recorded("squeue-resized-ended"))[SlurmId(1)]
    job = MatchRequest(
        job_id=JobId(f"0x{1:064}"),
        slurm_id=whole.slurm_id,
        user=USER,
        submit_s=whole.submit_s,
    )

    def matched(name: str) -> tuple[str, int, int]:
        seen = recognised(
            job, *map(accounted_record, accounted_jobs(recorded(name), DELIMITER))
        ).record
        assert seen is not None
        return seen.state, seen.elapsed_s, seen.exit_status

    assert matched("sacct-resized") == ("RUNNING", 10, 0)
    assert (
        matched("sacct-resized-ended")
        == (whole.state, whole.elapsed_s, whole.exit_status)
        == ("FAILED", 13, 3 * 256)
    )


def test_match_jobs__many_jobs__asks_for_scripts_once_and_only_of_the_doubtful() -> (
    None
):
    asked: list[list[SlurmId]] = []

    def ask(slurm_ids: Sequence[SlurmId]) -> Mapping[SlurmId, JobId | None]:
        asked.append(list(slurm_ids))
        return {}

    jobs = [
        replace(JOB, job_id=JobId(f"0x{number:064x}"), slurm_id=SlurmId(number))
        for number in range(100)
    ]
    names = {
        job.slurm_id: job.job_id if job.slurm_id % 50 else "renamed" for job in jobs
    }
    records = [
        listed(replace(SEEN, slurm_id=job.slurm_id), names[job.slurm_id])
        for job in jobs
    ]
    matches = match_jobs(jobs, records, ask)
    assert asked == [[0, 50]]
    assert sum(match.record is not None for match in matches.values()) == 98


def test_match_jobs__two_jobs_of_one_id__the_script_decides_whose_record_it_is() -> (
    None
):
    lost, later = JOB, replace(JOB, job_id=OTHER)
    matches = match_jobs(
        [lost, later], [listed(name="renamed")], lambda _: {SlurmId(7): OTHER}
    )
    assert matches == {OURS: UNKNOWN, OTHER: MatchResult(SEEN)}
