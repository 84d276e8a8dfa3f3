"""An id is not a job: whose record is it?"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from supervisor_tasks.job import Address, JobId, SlurmId
from supervisor_tasks.slurm.identity import UNKNOWN, UNLIKE, UNNAMED, Sight, Wanted, recognise_all
from supervisor_tasks.slurm.output import Seen

USER = Address("0x" + "ab" * 20)
AT_S = 1_795_285_686
JOB = Wanted(
    job_id=JobId("0x" + "1" * 64),
    slurm_id=SlurmId(7),
    user=USER,
    submit_s=None,
    called_s=AT_S - 0.4,
    answered_s=AT_S + 0.6,
)
KNOWN = replace(JOB, submit_s=AT_S)
RECORD = Seen(SlurmId(7), "RUNNING", 3, 0, "None", USER, AT_S)
ENDED = replace(RECORD, state="COMPLETED", ended_s=AT_S + 9)
HOUR_S = 3600


def recognised(wanted: Wanted, *records: Seen, named: Iterable[Seen] = ()) -> Sight:
    return recognise_all([wanted], records, lambda _: named)[wanted.job_id]


def test_known_time__same__is_ours_whoever_slurm_says_that_the_user_is() -> None:
    for record in (RECORD, replace(RECORD, user=""), replace(RECORD, user="renamed")):
        assert recognised(KNOWN, record) == Sight(record)


def test_known_time__another__is_a_later_job_of_the_same_id_even_of_the_same_user() -> None:
    assert (
        recognised(KNOWN, replace(RECORD, submit_s=AT_S + 60), named=[replace(RECORD, submit_s=AT_S + 60)]) == UNKNOWN
    )


def test_known_time__requeued__is_ours_at_a_later_time() -> None:
    again = replace(RECORD, submit_s=AT_S + 60, restarts=1)
    assert recognised(KNOWN, again) == Sight(again)
    assert recognised(KNOWN, replace(again, user="0xcd")) == UNKNOWN
    assert recognised(replace(KNOWN, id_is_anothers=True), again) == UNKNOWN


def test_first_look__user_and_time_fit__is_ours_without_a_question_about_names() -> None:
    def no_question(_: Sequence[JobId]) -> Iterable[Seen]:
        raise AssertionError("names are not asked for")

    assert recognise_all([JOB], [RECORD], no_question) == {JOB.job_id: Sight(RECORD)}


def test_first_look__of_another_user__is_not_ours() -> None:
    assert recognised(JOB, replace(RECORD, user="0x" + "cd" * 20)) == UNKNOWN


def test_first_look__user_cannot_be_resolved__cannot_be_told() -> None:
    assert recognised(JOB, replace(RECORD, user="")) == Sight(unclear=UNNAMED)


@pytest.mark.parametrize("off_s", [-HOUR_S, -20, 20, HOUR_S])
def test_first_look__clocks_disagree__the_name_decides(off_s: int) -> None:
    record = replace(RECORD, submit_s=AT_S + off_s)
    assert recognised(JOB, record, named=[record]) == Sight(record)
    assert recognised(JOB, record) == Sight(unclear=UNLIKE)


def test_first_look__days_away__is_a_job_from_before_the_ids_wrapped() -> None:
    old = replace(ENDED, submit_s=AT_S - 100 * 86_400, ended_s=AT_S - 99 * 86_400)
    assert recognised(JOB, old) == UNKNOWN
    assert recognised(JOB, old, ENDED) == Sight(ENDED)


def test_id_of_a_job_submitted_later__is_not_ours_but_in_accountings_older_record() -> None:
    assert recognised(replace(JOB, id_is_anothers=True), RECORD) == UNKNOWN
    lost = replace(KNOWN, id_is_anothers=True)
    later = replace(ENDED, submit_s=AT_S + 60, state="FAILED")
    assert recognised(lost, later) == UNKNOWN
    assert recognised(lost, ENDED, later) == Sight(ENDED)


def test_accounting__runs_of_a_requeued_job__end_with_the_last_one() -> None:
    first = replace(ENDED, state="REQUEUED", ended_s=AT_S + 60)
    second = replace(ENDED, state="NODE_FAIL", submit_s=AT_S + 60, ended_s=AT_S + 90)
    third = replace(ENDED, submit_s=AT_S + 91, ended_s=AT_S + 99)
    stranger = replace(ENDED, submit_s=AT_S + 500, state="FAILED")
    assert recognised(KNOWN, stranger, third, second, first) == Sight(third)
    assert recognised(KNOWN, first, stranger) == Sight(first)
    waiting = replace(third, state="PENDING", user="root", ended_s=None)  # as sacct shows one that root has requeued
    assert recognised(KNOWN, replace(first, ended_s=AT_S + 91), waiting) == Sight(replace(first, ended_s=AT_S + 91))


def test_many_jobs__names_are_asked_for_once_and_only_of_the_doubtful() -> None:
    asked: list[list[JobId]] = []

    def ask(job_ids: Sequence[JobId]) -> Iterable[Seen]:
        asked.append(list(job_ids))
        return []

    jobs = [replace(JOB, job_id=JobId(f"0x{number:064x}"), slurm_id=SlurmId(number)) for number in range(100)]
    records = [replace(RECORD, slurm_id=job.slurm_id, submit_s=AT_S + 50 * (job.slurm_id % 50 == 0)) for job in jobs]
    sights = recognise_all(jobs, records, ask)
    assert asked == [[jobs[0].job_id, jobs[50].job_id]]
    assert sum(sight.seen is not None for sight in sights.values()) == 98
