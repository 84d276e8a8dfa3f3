"""What follows from a sweep's view of ledger, contract and SLURM: a row for each rule."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.reconciliation.models import JobSummary, OnChainJob
from supervisor_tasks.reconciliation.snapshot import (
    MIN_LOST_JOBS,
    DiscrepancyKind,
    Snapshot,
    absence_confirmed,
    doubt_key,
    foreign,
    has_our_comment,
    is_active_and_ours,
    is_active_job_of,
    is_behind,
    is_live_row,
    is_row_of,
    listed_id,
    names_with_our_comment,
    never_ran,
    new_among,
    row_of,
    status_of,
    unexplained,
    unlisted,
)
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.squeue import SqueueRow
from tests.support.snapshots import (
    CLAIM,
    CUSTOMER,
    GRACE_S,
    OTHERS,
    OUR_COMMENT,
    POLLED,
    STRANGER,
    US,
    WAITS,
    forgetful,
    gone,
    known,
    name,
    on_chain_job,
    row,
    seeing,
)

CANCELLED = frozenset({EffectKind.CANCEL})
REFUSED = JobRecord(SlurmId(7), "FAILED", 0, 256, "BadConstraints")


def test_missing__another_job_has_the_id__ours_is_missing() -> None:
    for other in (row(user=STRANGER), row(number=5, submit_s=2000)):
        assert [
            job.job_id
            for job in seeing(known(slurm_submit_s=1000), rows=[other]).missing
        ] == [name(1)]
    renamed = row(name="mine", submit_s=1000)
    assert seeing(known(slurm_submit_s=1000), rows=[renamed]).missing == []
    requeued = row(submit_s=2000)
    assert seeing(known(slurm_submit_s=1000), rows=[requeued]).missing == []


def test_missing__unseen_job_whose_id_was_given_again__is_missing() -> None:
    first = known(state=State.QUEUED, open=POLLED)
    assert [job.job_id for job in seeing(first, rows=[row(name=name(2))]).missing] == [
        name(1)
    ]


def test_slurm_lost_state__one_sign_against_it__is_false() -> None:
    lost = forgetful(8, saved=8)
    assert replace(lost, slurm={}).slurm_lost_state
    # accounting has not answered
    assert not replace(lost, confirmed_lookups={}).slurm_lost_state
    ended = JobRecord(SlurmId(1), "COMPLETED", 60, 0)
    assert not replace(
        lost, confirmed_lookups=dict.fromkeys(lost.confirmed_lookups, ended)
    ).slurm_lost_state
    heard = {
        job_id: replace(job, has_unread_callback=True)
        for job_id, job in lost.jobs.items()
    }
    assert not replace(lost, jobs=heard).slurm_lost_state
    many = {**lost.jobs, **{name(n): known(n) for n in range(100, 200)}}
    rows = {SlurmId(n): row(n, number=n) for n in range(100, 200)}
    # less than a tenth
    assert not replace(lost, jobs=many, slurm=rows).slurm_lost_state


def test_slurm_lost_state__none_listed_but_ids_go_on__is_not_lost_for_a_few_jobs() -> (
    None
):
    last = forgetful(2, saved=2, slurm={})
    assert replace(last, first_job_id=2).slurm_lost_state  # the second job had that id
    gone_on = replace(last, first_job_id=3)
    assert not gone_on.slurm_lost_state
    assert not last.slurm_lost_state  # the first id is not known, as over slurmrestd
    assert forgetful(
        MIN_LOST_JOBS + 1, saved=MIN_LOST_JOBS + 1, slurm={}, first_job_id=100
    ).slurm_lost_state


def test_knows_all_it_had_saved__not_looked_up_or_some_missing__is_false() -> None:
    view = forgetful(8, saved=0)
    assert view.knows_all_it_had_saved
    # others were asked for first
    assert not replace(view, persisted_by_slurm=None).knows_all_it_had_saved
    assert not forgetful(8, saved=1).knows_all_it_had_saved
    assert not replace(view, slurm=None).knows_all_it_had_saved


def test_unexplained__batch_jobs_of_the_customer__that_ran_and_belong_to_no_job() -> (
    None
):
    rows = [
        row(7, number=7),
        row(8, number=8, user=STRANGER),
        row(9, number=9, has_script=False),
        row(10, "CANCELLED", number=10),
        row(11, "FAILED", number=11),
        row(12, number=12),
    ]
    view = seeing(
        known(12), rows=rows, claims={name(1): CLAIM}, chain={name(1): on_chain_job()}
    )
    assert [job.slurm_id for job in unexplained(view)] == [7, 11]
    assert unexplained(replace(view, claims={})) == []


@pytest.mark.parametrize(
    ("changes", "is_foreign"),
    [
        ({}, False),  # the ledger's own
        ({"user": STRANGER, "name": "other"}, True),
        ({"name": "other", "submit_s": 99}, False),  # renamed and requeued
        ({"slurm_id": SlurmId(4), "name": name(4)}, False),  # settled, under its name
        # the id of a settled job, given again to a job of the same customer
        ({"slurm_id": SlurmId(4), "name": "other", "submit_s": 99}, True),
        ({"slurm_id": SlurmId(2)}, True),
        ({"slurm_id": SlurmId(2), "user": STRANGER}, True),
        ({"slurm_id": SlurmId(2), "user": "alice"}, False),
        (
            {
                "slurm_id": SlurmId(2),
                "record": JobRecord(SlurmId(2), "COMPLETED", 60, 0),
            },
            True,  # it has run since the last sweep
        ),
        (
            {
                "slurm_id": SlurmId(2),
                "record": JobRecord(SlurmId(2), "CANCELLED", 0, 0),
            },
            False,
        ),
        ({"slurm_id": SlurmId(2), "name": name(3)}, False),  # which is being submitted
        ({"slurm_id": SlurmId(2), "name": name(3), "user": STRANGER}, True),
        ({"slurm_id": SlurmId(2), "comment": "supervisor elsewhere:1"}, True),
        ({"slurm_id": SlurmId(2), "name": name(5)}, False),  # claimed, and new
        ({"slurm_id": SlurmId(2), "name": name(5), "user": STRANGER}, True),
        ({"slurm_id": SlurmId(2), "name": name(6)}, False),  # another ledger's claim
        ({"slurm_id": SlurmId(2), "name": name(6), "user": STRANGER}, True),
        # these names are known to their owners, and nothing submits them now
        ({"slurm_id": SlurmId(2), "name": name(7)}, True),  # waits for its submission
        ({"slurm_id": SlurmId(2), "name": name(8)}, True),  # parked in its submission
        ({"slurm_id": SlurmId(2), "name": name(9)}, True),  # over, and had no id
        ({"slurm_id": SlurmId(2), "name": name(10)}, True),  # a claim that is over
        # over, and cancelled as soon as its submission arrives
        ({"slurm_id": SlurmId(2), "name": name(11)}, False),
        # given back: only its customer may still submit it
        ({"slurm_id": SlurmId(2), "name": name(12)}, True),
        ({"slurm_id": SlurmId(2), "user": "0X" + "C" * 40}, True),
        ({"slurm_id": SlurmId(2), "user": "0x" + "c" * 39}, False),
        ({"slurm_id": SlurmId(2), "user": "0x" + "c" * 41}, False),
    ],
)
def test_foreign__job_of_a_customer__is_found_if_nothing_explains_it(
    changes: dict[str, Any], is_foreign: bool
) -> None:
    listed = replace(row(), **({"user": CUSTOMER} | changes))
    jobs = {
        name(1): known(),
        name(3): known(3, State.SUBMITTING, slurm_id=None),
        name(4): known(4, State.SETTLED, slurm_id=SlurmId(4)),
        name(7): known(7, State.READY, slurm_id=None),
        name(8): known(
            8, State.SUBMITTING, slurm_id=None, parked=frozenset({EffectKind.SUBMIT})
        ),
        name(9): known(9, State.ENDED, slurm_id=None),
        name(11): known(11, State.ENDED, slurm_id=None, open=CANCELLED),
        name(12): known(12, State.REFUSED, slurm_id=None, open=CANCELLED),
    }
    chain = {
        name(5): on_chain_job(),
        name(6): on_chain_job(),
        name(10): on_chain_job(ChainStatus.FINISHED),
    }
    view = Snapshot(
        provider=US,
        comment=OUR_COMMENT,
        jobs=jobs,
        slurm={listed.slurm_id: listed},
        claims={name(n): replace(CLAIM, job_id=name(n)) for n in (5, 10)},
        foreign_claim_tags={name(6): "ab" * 8},
        chain=chain,
    )
    assert bool(foreign(view)) is is_foreign


# --- doubts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "slurm_id", "key"),
    [
        (DiscrepancyKind.MISSING, None, f"missing {name(1)}"),
        (DiscrepancyKind.DUPLICATE, SlurmId(7), f"duplicate {name(1)} 7"),
        (DiscrepancyKind.DUPLICATE, SlurmId(0), f"duplicate {name(1)} 0"),
    ],
)
def test_doubt_key__with_and_without_an_id__names_kind_job_and_id(
    kind: DiscrepancyKind, slurm_id: SlurmId | None, key: str
) -> None:
    assert doubt_key(kind, name(1), slurm_id) == key


@pytest.mark.parametrize(
    ("doubts", "slurm_id", "confirmed"),
    [
        ({}, None, False),
        ({f"missing {name(1)}": 0.0}, None, False),
        ({f"missing {name(1)}": 299.9}, None, False),
        ({f"missing {name(1)}": 300.0}, None, True),
        ({f"missing {name(2)}": 300.0}, None, False),
        ({f"duplicate {name(1)}": 300.0}, None, False),
        ({f"missing {name(1)}": 300.0}, SlurmId(7), False),
        ({f"missing {name(1)} 7": 300.0}, SlurmId(7), True),
        ({f"missing {name(1)} 8": 300.0}, SlurmId(7), False),
    ],
)
def test_confirmed_by_previous_run__each_doubt__is_the_same_one_after_the_grace(
    doubts: dict[str, float], slurm_id: SlurmId | None, confirmed: bool
) -> None:
    view = seeing(previous_doubts=doubts, grace_s=300.0)
    found = view.confirmed_by_earlier_sweep(DiscrepancyKind.MISSING, name(1), slurm_id)
    assert found is confirmed


# --- what is not listed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected_jobs", "absent", "too_many"),
    [
        (1, 0, False),
        (1, 3, False),
        (1, 4, True),
        (30, 3, False),
        (30, 4, True),
        (40, 4, False),
        (40, 5, True),
        (49, 5, True),
        (50, 5, False),
    ],
)
def test_too_many__jobs_of_many_that_slurm_lacks__is_more_than_three_and_a_tenth(
    expected_jobs: int, absent: int, too_many: bool
) -> None:
    running = [known(number) for number in range(1, expected_jobs + 1)]
    # jobs that SLURM need not have do not count
    others = [known(number, State.READY) for number in range(1000, 1100)]
    assert seeing(*running, *others).too_many(absent) is too_many


@pytest.mark.parametrize("slurm", [None, {}])
def test_too_many__slurm_lists_no_job__is_true_for_any_number(
    slurm: dict[SlurmId, SqueueRow] | None,
) -> None:
    assert seeing(known(), slurm=slurm).too_many(0)


@pytest.mark.parametrize(
    ("job", "missing", "parked"),
    [
        (known(), True, False),
        (known(state=State.QUEUED), True, False),
        (known(parked=POLLED), False, True),
        (known(parked=frozenset({EffectKind.CANCEL})), True, False),
        (known(slurm_id=None), True, False),
        (known(state=State.CLAIMED), False, False),
        (known(state=State.READY), False, False),
        (known(state=State.SUBMITTING), False, False),
        (known(state=State.ENDED), False, False),
        (known(state=State.REFUSED), False, False),
        (known(state=State.SETTLED), False, False),
    ],
)
def test_missing__job_that_slurm_does_not_list__is_so_only_if_slurm_should_have_it(
    job: JobSummary, missing: bool, parked: bool
) -> None:
    view = seeing(job)
    assert view.missing == [job] * missing
    assert view.parked_and_absent == [job] * parked
    away = replace(view, slurm=None)
    assert (away.missing, away.parked_and_absent, away.rows) == ([], [], {})


@pytest.mark.parametrize(
    ("changes", "lookups", "unknown"),
    [
        ({}, {name(1): None}, True),
        ({}, {}, False),
        ({}, {name(1): JobRecord(SlurmId(1), "RUNNING", 60, 0)}, False),
        ({}, {name(2): None}, False),
        ({"has_unread_callback": True}, {name(1): None}, False),
        ({"parked": POLLED}, {name(1): None}, False),
        ({"state": State.ENDED}, {name(1): None}, False),
    ],
    ids=[
        "asked, and not known",
        "not asked",
        "known",
        "another one was asked for",
        "a callback came",
        "parked",
        "not expected in SLURM",
    ],
)
def test_unknown__missing_job__is_so_if_slurm_and_accounting_were_asked(
    changes: dict[str, Any], lookups: dict[JobId, JobRecord | None], unknown: bool
) -> None:
    job = known(**changes)
    view = seeing(job, confirmed_lookups=lookups, persisted_by_slurm={name(1)})
    assert view.unknown == [job] * unknown
    assert view.forgotten == [name(1)] * unknown


@pytest.mark.parametrize(
    ("persisted", "forgotten"),
    [
        (None, []),
        (set(), []),
        ({name(2), name(9)}, [name(2)]),
        ({name(1), name(2)}, [name(1), name(2)]),
    ],
)
def test_forgotten__unknown_jobs__are_those_that_slurmctld_had_on_its_disk(
    persisted: set[JobId] | None, forgotten: list[JobId]
) -> None:
    view = gone(known(1), known(2), persisted_by_slurm=persisted)
    assert view.forgotten == forgotten


def test_changed__each_field__is_followed_by_all_that_depends_on_it() -> None:
    jobs = (known(1), known(2))
    view = gone(*jobs)
    assert (view.missing, view.unknown) == ([*jobs], [*jobs])
    asked = view.changed(confirmed_lookups={name(2): None})
    assert (asked.missing, asked.unknown) == ([*jobs], [jobs[1]])
    listed = view.changed(slurm={SlurmId(1): row(1)})
    assert (listed.missing, listed.unknown) == ([jobs[1]], [jobs[1]])
    fewer = view.changed(jobs={name(1): jobs[0]})
    assert (fewer.missing, fewer.unknown) == ([jobs[0]], [jobs[0]])
    away = view.changed(slurm=None, block=7)
    assert (away.missing, away.block, away.grace_s) == ([], 7, GRACE_S)
    assert (view.missing, view.block) == ([*jobs], 100)


# --- whose row it is ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "is_ours"),
    [
        (row(), True),
        (row(submit_s=2000), True),
        (row(name="renamed"), True),
        (row(name="renamed", submit_s=2000), False),
        (row(user=STRANGER), False),
        (row(user=""), False),
        (row(state="COMPLETED"), True),
    ],
    ids=[
        "name, user and time",
        "requeued",
        "renamed",
        "another name and time",
        "another user",
        "a user without a name",
        "ended",
    ],
)
def test_is_row_of__row_under_the_id__is_ours_if_the_user_and_one_more_sign_fit(
    listed: SqueueRow, is_ours: bool
) -> None:
    job = known(slurm_submit_s=1000)
    assert is_row_of(listed, job) is is_ours
    assert row_of(job, {SlurmId(1): listed}) == (listed if is_ours else None)


def test_row_of__job_without_id_or_an_id_that_is_not_listed__is_none() -> None:
    assert row_of(known(slurm_id=None), {SlurmId(1): row()}) is None
    assert row_of(known(), {SlurmId(2): row(2, number=1)}) is None
    assert not is_row_of(row(name="renamed"), known(slurm_submit_s=None))


def test_jobs_of_id__id_that_was_given_again__has_all_its_jobs() -> None:
    first, again = known(1), known(2, slurm_id=SlurmId(1))
    without_id, another = known(3, slurm_id=None), known(4)
    assert seeing(first, without_id, again, another).jobs_of_id == {
        SlurmId(1): [first, again],
        None: [without_id],
        SlurmId(4): [another],
    }


def test_named__several_of_one_name__has_live_ones_first_and_then_the_oldest() -> None:
    rows = [
        row(3, "COMPLETED", number=1),
        row(9, "PENDING", number=1),
        row(5, number=1),
        row(4, "COMPLETING", number=1),
        row(2, number=1, user=STRANGER),
        row(8, number=2),
    ]
    found = {}
    for key, listed_rows in seeing(rows=rows).named.items():
        found[key] = [listed.slurm_id for listed in listed_rows]
    assert found == {
        (name(1), CUSTOMER): [5, 9, 3, 4],
        (name(1), STRANGER): [2],
        (name(2), CUSTOMER): [8],
    }


@pytest.mark.parametrize(
    ("submit_s", "is_named"),
    [(1000, False), (2000, True), (None, True), (0, True)],
    ids=["the other job's", "an older job's", "not known", "no time"],
)
def test_named__id_of_another_job_of_the_ledger__is_left_out_if_the_time_fits(
    submit_s: int | None, is_named: bool
) -> None:
    other = known(2, slurm_submit_s=submit_s)
    view = seeing(other, rows=[row(2, number=1)])
    assert ((name(1), CUSTOMER) in view.named) is is_named


@pytest.mark.parametrize(
    ("rows", "slurm_id"),
    [
        ([], None),
        ([row(7, number=1)], 7),
        ([row(7, "PENDING", number=1)], 7),
        ([row(7, "COMPLETED", number=1)], 7),
        ([row(7, "TIMEOUT", number=1)], 7),
        ([row(7, "CANCELLED", number=1)], None),
        ([row(7, "FAILED", number=1, record=REFUSED)], None),
        ([row(7, "COMPLETING", number=1)], None),
        ([row(7, number=1, user=STRANGER)], None),
        ([row(7, number=2)], None),
        ([row(6, "CANCELLED", number=1), row(7, "COMPLETED", number=1)], 7),
        ([row(6, "COMPLETED", number=1), row(7, number=1)], 7),
    ],
)
def test_listed_id__jobs_with_name_and_user__is_one_that_runs_or_ran(
    rows: list[SqueueRow], slurm_id: int | None
) -> None:
    assert listed_id(name(1), CUSTOMER, seeing(rows=rows)) == slurm_id


@pytest.mark.parametrize(
    ("state", "active"),
    [
        ("PENDING", True),
        ("REQUEUED", True),
        ("RUNNING", True),
        ("SUSPENDED", True),
        ("COMPLETING", False),
        ("SPLENDID", False),
        ("COMPLETED", False),
        ("CANCELLED", False),
    ],
)
def test_is_live_row__each_state__is_true_while_it_runs_or_will_run(
    state: str, active: bool
) -> None:
    assert is_live_row(row(1, state)) is active


@pytest.mark.parametrize(
    ("listed", "is_marked"),
    [
        (row(1), True),
        (row(1, "PENDING"), True),
        (row(1, user=STRANGER), True),
        (row(1, "COMPLETED"), False),
        (row(1, comment=""), False),
        (row(1, comment=f"{OUR_COMMENT} "), False),
        (row(1, name="renamed"), False),
        (row(1, name="0x" + "A" * 64), False),
        (row(1, name="0x" + "a" * 63), False),
        (row(1, name="0x" + "a" * 65), False),
        (row(1, name="0x" + "a" * 64 + "\n"), False),
    ],
)
def test_has_our_comment__each_row__is_live_with_our_comment_and_a_job_id_as_name(
    listed: SqueueRow, is_marked: bool
) -> None:
    assert has_our_comment(listed, OUR_COMMENT) is is_marked
    assert names_with_our_comment([listed], OUR_COMMENT) == (
        {listed.name} if is_marked else set()
    )


# --- the contract's side --------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_chain", "active"),
    [
        (None, False),
        (on_chain_job(ChainStatus.PENDING), False),
        (on_chain_job(ChainStatus.META_SCHEDULED), False),
        (on_chain_job(ChainStatus.SCHEDULED), True),
        (on_chain_job(ChainStatus.RUNNING), True),
        (on_chain_job(ChainStatus.CANCELLED), False),
        (on_chain_job(ChainStatus.FINISHED), False),
        (on_chain_job(ChainStatus.PANICKED), False),
        (on_chain_job(ChainStatus.RUNNING, OTHERS), False),
        (on_chain_job(ChainStatus.SCHEDULED, OTHERS), False),
    ],
)
def test_is_active_job_of__each_status__is_true_only_while_it_is_ours_and_active(
    on_chain: OnChainJob | None, active: bool
) -> None:
    assert is_active_job_of(on_chain, US) is active
    chain = {} if on_chain is None else {name(1): on_chain}
    view = seeing(chain=chain)
    assert is_active_and_ours(name(1), view) is active
    assert new_among([name(1)], view) == [name(1)] * active
    assert new_among([name(1)], replace(view, jobs={name(1): known()})) == []


def test_status_of__contract_knows_the_job_or_not__is_its_status_or_none() -> None:
    view = seeing(known(), chain={name(1): on_chain_job(ChainStatus.FINISHED)})
    assert status_of(name(1), view) is ChainStatus.FINISHED
    assert status_of(name(2), view) is None
    away = replace(view, chain=None)
    assert (status_of(name(1), away), away.on_chain(name(1))) == (None, None)
    assert not is_active_and_ours(name(1), away)


@pytest.mark.parametrize(
    ("state", "status", "behind"),
    [
        (State.CLAIMED, ChainStatus.RUNNING, True),
        (State.READY, ChainStatus.RUNNING, True),
        (State.SUBMITTING, ChainStatus.RUNNING, True),
        (State.QUEUED, ChainStatus.RUNNING, False),
        (State.RUNNING, ChainStatus.RUNNING, False),
        (State.ENDED, ChainStatus.RUNNING, False),
        (State.READY, ChainStatus.SCHEDULED, False),
        (State.READY, ChainStatus.FINISHED, False),
    ],
)
def test_is_behind__not_submitted_yet__is_true_if_the_contract_has_it_running(
    state: State, status: ChainStatus, behind: bool
) -> None:
    job = known(state=state, slurm_id=None)
    view = seeing(job, chain={name(1): on_chain_job(status)})
    assert is_behind(job, view) is behind
    assert unlisted(view) == ({name(1): CUSTOMER} if behind else {})


def test_unlisted__claimed_or_behind_and_listed_or_not__are_those_that_are_not() -> (
    None
):
    behind = known(2, State.READY, slurm_id=None)
    view = seeing(
        behind,
        rows=[],
        claims={name(1): replace(CLAIM, customer=Address(STRANGER))},
        chain={name(1): on_chain_job(), name(2): on_chain_job()},
    )
    assert unlisted(view) == {name(1): STRANGER, name(2): CUSTOMER}
    first = row(7, number=1, user=STRANGER)
    assert unlisted(replace(view, slurm={SlurmId(7): first})) == {name(2): CUSTOMER}
    others = row(7, number=2, user=STRANGER)
    assert unlisted(replace(view, slurm={SlurmId(7): others})) == {
        name(1): STRANGER,
        name(2): CUSTOMER,
    }
    assert unlisted(replace(view, slurm=None)) == {}
    assert unlisted(replace(view, chain=None)) == {}


# --- when an absence counts -----------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "never"),
    [
        (WAITS, True),
        (WAITS | {"slurm_id": None}, False),
        (WAITS | {"chain_status": ChainStatus.RUNNING}, False),
        (WAITS | {"chain_status": ChainStatus.PENDING}, False),
        (WAITS | {"state": State.RUNNING}, False),
        (WAITS | {"state": State.SUBMITTING}, False),
    ],
)
def test_never_ran__each_job__is_true_if_it_waited_in_slurm_and_for_the_contract(
    changes: dict[str, Any], never: bool
) -> None:
    assert never_ran(known(**changes)) is never


@pytest.mark.parametrize(
    ("age_s", "changes", "confirmed"),
    [
        (GRACE_S, {}, True),
        (GRACE_S - 0.1, {}, False),
        (None, {}, False),
        (GRACE_S, {"slurmctld_uptime_s": GRACE_S}, True),
        (GRACE_S, {"slurmctld_uptime_s": GRACE_S - 0.1}, False),
        (GRACE_S, {"continuous_uptime_s": GRACE_S}, True),
        (GRACE_S, {"continuous_uptime_s": GRACE_S - 0.1}, False),
        (GRACE_S, {"continuous_uptime_s": 0.0}, False),
        # a source is missing: the operator decides, and need not wait for it
        (GRACE_S, {"continuous_uptime_s": None}, True),
        (GRACE_S - 0.1, {"continuous_uptime_s": None}, False),
    ],
)
def test_absence_confirmed__each_time__is_true_after_the_grace_of_all_that_report(
    age_s: float | None, changes: dict[str, Any], confirmed: bool
) -> None:
    job = known()
    assert absence_confirmed(job, gone(job, age_s=age_s, **changes)) is confirmed
