"""What follows from what is offered and what the contract has."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from benchmarks.plan import VolumeName
from supervisor_tasks.provider.measuring_rules import after_asking_for_a_run, run_due
from supervisor_tasks.provider.offer import Offer, machines_digest, sorted_labels
from supervisor_tasks.provider.registration_rules import (
    BENCHMARK_KEY,
    LOOK_LASTS_S,
    MAX_TRIES,
    MEASURED_LASTS_S,
    Action,
    CompletedRun,
    MeasuredState,
    OnChainOffers,
    Registrar,
    RegistrationInput,
    RegistrationRecord,
    RegistrationStatus,
    Results,
    TransactionStatus,
    after_sending,
    decide,
    registrar_of,
    registration_status,
    shows_nodes,
    still_measured,
)
from tests.support.registration_inputs import (
    ALL,
    BIG,
    DEARER,
    HALF,
    MEASURED,
    MINED,
    NODE,
    OFFER,
    PRICES,
    chain,
    ended,
    inputs,
    of_all,
    offer,
    situations,
    told,
    with_runs,
)

# --- what is registered as offered ----------------------------------------------------


@pytest.mark.parametrize(
    "on_offer", [chain(OFFER), chain(None, OFFER), chain(offer(prices=DEARER), OFFER)]
)
def test_decide__registered_or_waiting_as_offered__nothing(
    on_offer: OnChainOffers,
) -> None:
    found = inputs(on_offer)
    assert decide(found).action is Action.NOTHING
    assert run_due(replace(found, benchmarks=with_runs())) == ""


@pytest.mark.parametrize(
    ("cluster", "partners", "registrar"),
    [
        ("west", set(), None),
        ("west", {"east"}, "east"),
        ("east", {"west"}, None),
        ("north", {"west", "east"}, "east"),
    ],
)
def test_registrar_of__shared_wallet__is_the_first_cluster_by_name(
    cluster: str, partners: set[str], registrar: str | None
) -> None:
    assert registrar_of(cluster, partners) == registrar


@pytest.mark.parametrize(
    ("on_chain", "differences"),
    [
        (chain(), ""),
        (chain(OFFER), ""),
        (chain(offer(cpu="xeon")), ""),
        (chain(offer(prices=DEARER)), "the cpu price was"),
        (chain(OFFER, offer(prices=DEARER)), "the cpu price was"),
        (chain(offer(BIG)), "1 nodes less with"),
        (chain(offer(operator={"name": "there"})), "the label name was 'there'"),
        (chain(offer(operator={"zone": "ch"})), "the label zone was 'ch', is absent"),
    ],
)
@pytest.mark.parametrize("asked", ["", "by the operator"])
def test_decide__another_cluster_registers__compares_and_sends_nothing(
    on_chain: OnChainOffers, differences: str, asked: str
) -> None:
    registrar = Registrar("east", at_work=True)
    found = decide(inputs(on_chain, registrar=registrar, asked=asked))
    assert found.action is Action.NOTHING
    assert found.differs is bool(differences)
    assert found.why.startswith("the cluster 'east' registers")
    assert differences in found.why


@pytest.mark.parametrize("at_work", [True, False])
def test_decide__the_cluster_that_registers_has_not__differs_if_its_fleet_is_down(
    at_work: bool,
) -> None:
    found = decide(inputs(chain(), registrar=Registrar("east", at_work)))
    assert (found.action, found.differs) == (Action.NOTHING, not at_work)


def test_decide__in_force_as_offered_and_another_one_waits__registered_again() -> None:
    decision = decide(inputs(chain(OFFER, offer(prices=DEARER))))
    assert decision.action is Action.REGISTER
    assert (
        decision.why
        == "the cpu price was 0.000000000000000012 credits a minute, is 0.00000000000000001"
    )


def test_decide__benchmarks_off__keeps_old_benchmark_labels_and_registers_the_rest() -> (
    None
):
    decision = decide(inputs(chain(OFFER), prices=DEARER, operator={"name": "there"}))
    assert decision.action is Action.REGISTER
    assert decision.offer == offer(prices=DEARER, operator={"name": "there"})


def test_decide__labels_of_the_operator_that_he_takes_back__are_not_kept_as_measured() -> (
    None
):
    known = Offer(
        (NODE,), PRICES, sorted_labels({"name": "here", "gpu": "mine"} | MEASURED)
    )
    given_before = RegistrationRecord(operator={"name": "here", "gpu": "mine"})
    assert decide(inputs(chain(known), record=given_before)).offer == OFFER


def with_gpu(gpu: str | None) -> dict[str, str]:
    """The operator's labels with this GPU, or without one."""
    return {"name": "here"} if gpu is None else {"name": "here", "gpu": gpu}


def offer_with(gpu: str | None) -> Offer:
    return offer(operator=with_gpu(gpu))


@pytest.mark.parametrize("gpu", ["h100", None])
@pytest.mark.parametrize(
    ("on_chain", "given_before"),
    [
        (chain(offer_with("a100")), ["a100"]),
        (chain(None, offer_with("a100")), ["a100"]),
        (chain(offer_with("a100"), offer_with("v100")), ["a100", "v100"]),
    ],
)
def test_decide__changed_label_does_not_reach_the_contract__is_sent_again(
    on_chain: OnChainOffers, given_before: list[str], gpu: str | None
) -> None:
    """The wallet is empty, say, or the transaction reverts."""
    found = inputs(on_chain)
    for before in given_before:
        sent = inputs(on_chain, operator=with_gpu(before), record=found.record)
        record = after_sending(sent, offer_with(before), "i")
        found = told(replace(sent, record=record))
    found = told(replace(found, operator=with_gpu(gpu)))
    for _ in range(MAX_TRIES):
        decision = decide(found)
        assert (decision.action, decision.offer) == (Action.REGISTER, offer_with(gpu))
        assert decision.offer is not None
        found = told(replace(found, record=after_sending(found, decision.offer, "i")))
    in_force = told(replace(found, on_chain=chain(decision.offer)))
    assert decide(in_force).action is Action.NOTHING
    assert dict(in_force.record.given).get("gpu") == gpu


@pytest.mark.parametrize("gpu", ["h100", None])
def test_decide__change_of_a_label_turned_down__the_old_one_is_still_the_operators(
    gpu: str | None,
) -> None:
    old, new = chain(offer_with("a100")), offer_with(gpu)
    found = told(inputs(old, operator=with_gpu("a100")))
    sent = replace(
        found,
        operator=with_gpu(gpu),
        record=after_sending(replace(found, operator=with_gpu(gpu)), new, "i"),
        last_transaction=MINED,
    )
    waiting = told(replace(sent, on_chain=replace(old, waiting=new)))
    assert decide(waiting).action is Action.NOTHING
    turned_down = decide(told(replace(waiting, on_chain=old)))
    assert (turned_down.turned_down, turned_down.offer) == (True, new)


@pytest.mark.parametrize("gpu", ["h100", None])
def test_decide__labels_that_another_program_registered__can_be_changed(
    gpu: str | None,
) -> None:
    """It had the same labels of the operator, as the Go program or a lost ledger."""
    found = inputs(
        chain(offer_with("a100")),
        operator=with_gpu("a100"),
        record=RegistrationRecord(),
    )
    found = told(found)
    assert decide(found).action is Action.NOTHING
    changed = decide(told(replace(found, operator=with_gpu(gpu))))
    assert (changed.action, changed.offer) == (Action.REGISTER, offer_with(gpu))


def test_decide__label_taken_back_that_was_measured_alike__stays() -> None:
    measured = MEASURED | {"gpu": "a100"}
    stay = {machines_digest((NODE,)): Results(MEASURED, stay=frozenset({"gpu"}))}
    found = inputs(
        chain(offer_with("a100")),
        record=RegistrationRecord(operator=with_gpu("a100")),
        benchmarks=with_runs(labels=measured, results_by_machines=stay),
    )
    assert decide(told(found)).action is Action.NOTHING


def test_decide__label_under_a_measured_key__counts_only_with_the_override() -> None:
    mine = {"name": "here", "cpu": "fast"}
    assert decide(inputs(chain(OFFER), operator=mine)).action is Action.NOTHING
    decision = decide(inputs(chain(OFFER), operator=mine, override=frozenset({"cpu"})))
    assert decision.offer == offer(cpu="fast")


@pytest.mark.parametrize("operator", [with_gpu("mine"), with_gpu(None)])
@pytest.mark.parametrize("is_known_by_machines", [True, False])
def test_decide__override_taken_back__measured_label_is_registered_during_the_run(
    operator: dict[str, str], is_known_by_machines: bool
) -> None:
    """And not once without the label, and once more with it after the run."""
    measured = MEASURED | {"gpu": "a100"}
    by_machines = {machines_digest((NODE,)): Results(measured)}
    found = inputs(
        chain(offer_with("mine")),
        operator=operator,
        record=RegistrationRecord(operator=with_gpu("mine")),
        benchmarks=with_runs(
            labels=measured,
            results_by_machines=by_machines if is_known_by_machines else {},
            measured_machines=frozenset(by_machines),
            pricing_digest="before",
        ),
    )
    assert run_due(told(found))
    asked = after_asking_for_a_run(told(found))
    decision = decide(asked)
    assert (decision.action, decision.offer) == (Action.REGISTER, offer_with("a100"))
    registered = told(replace(asked, on_chain=chain(offer_with("a100"))))
    assert decide(registered).action is Action.NOTHING
    assert decide(ended(registered, **measured)).action is Action.NOTHING
    overrides = replace(asked, operator=with_gpu("mine"), override=frozenset({"gpu"}))
    assert decide(overrides).action is Action.NOTHING


def test_decide__a_label_that_is_measured_no_more__is_registered_no_more() -> None:
    """The operator took a volume out, say. A new ledger knows less, and keeps what the
    contract has.
    """
    found = inputs(
        chain(offer(gpu="a100")),
        benchmarks=with_runs(
            labels=MEASURED, measured_keys=frozenset({*MEASURED, "gpu"})
        ),
    )
    assert decide(found).offer == OFFER
    assert run_due(found) == "", "it is a result of a run, and none is due for it"
    half_way = replace(
        found, benchmarks=replace(found.benchmarks, under_way=True, labels={})
    )
    assert decide(half_way).action is Action.NOTHING
    new_ledger = replace(
        found, benchmarks=replace(found.benchmarks, measured_keys=frozenset(MEASURED))
    )
    assert decide(new_ledger).action is Action.NOTHING


@given(st.from_regex(TypeAdapter(VolumeName).json_schema()["pattern"], fullmatch=True))
def test_benchmark_key__of_any_volume_that_a_plan_takes__is_kept(volume: str) -> None:
    label = f"storage.{volume}.read.iops"
    found = inputs(
        chain(Offer((NODE,), PRICES, sorted_labels({"name": "here", label: "9.00"})))
    )
    assert found.kept_labels == {label: "9.00"}


def test_benchmark_key__each_label_of_the_page__is_one_of_a_measurement() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("* `")]
    labels = [label for line in lines for label in re.findall(r"`([^`]+)`", line)]
    assert "compute.gflops" in labels
    for label in labels:
        whole = f"storage.<volume>{label}" if label.startswith(".") else label
        assert BENCHMARK_KEY.fullmatch(whole.replace("<volume>", "home"))


# --- measuring first, measuring after -------------------------------------------------


def test_decide__nothing_registered__measures_first_and_registers_after_the_run() -> (
    None
):
    found = inputs(chain(), benchmarks=with_runs())
    assert run_due(found) == "nothing is registered"
    asked = after_asking_for_a_run(found)
    assert decide(asked).action is Action.MEASURE
    assert run_due(asked) == ""
    done = ended(asked)
    assert run_due(done) == ""
    assert decide(done).action is Action.REGISTER
    assert decide(done).offer == OFFER


def test_decide__price_changed__registers_with_the_old_labels_and_measures_after() -> (
    None
):
    found = inputs(chain(OFFER), prices=DEARER, benchmarks=with_runs(labels=MEASURED))
    assert (
        run_due(found)
        == "the cpu price was 0.00000000000000001 credits a minute, is 0.000000000000000012"
    )
    asked = after_asking_for_a_run(found)
    assert decide(asked).action is Action.REGISTER
    assert decide(asked).offer == offer(prices=DEARER)
    registered = replace(asked, on_chain=chain(OFFER, offer(prices=DEARER)))
    assert decide(registered).action is Action.NOTHING
    half_way = replace(
        registered,
        benchmarks=with_runs(under_way=True, labels=MEASURED | {"cpu": "zen"}),
    )
    assert decide(half_way).action is Action.NOTHING, (
        "one registration for all results of a run"
    )
    done = ended(registered, **MEASURED | {"cpu": "zen"})
    assert decide(done).offer == offer(prices=DEARER, cpu="zen")
    assert run_due(done) == ""


def test_run_due__hardware_changed__counts_when_settled_and_measured() -> None:
    found = inputs(
        chain(OFFER),
        machines=(NODE, BIG),
        is_hardware_stable=False,
        benchmarks=with_runs(),
    )
    assert run_due(found) == ""
    assert decide(found).action is Action.NOTHING
    assert "counts when it has been so for a while" in decide(found).why
    is_hardware_stable = replace(found, is_hardware_stable=True)
    assert (
        run_due(is_hardware_stable) == "1 nodes more with 128 CPUs, 8 GPUs, 512000 MB"
    )
    asked = after_asking_for_a_run(is_hardware_stable)
    assert decide(asked).action is Action.NOTHING
    assert "measured first" in decide(asked).why
    assert decide(replace(asked, prices=DEARER)).offer == offer(prices=DEARER), (
        "prices do not wait"
    )
    done = ended(asked)
    assert decide(done).offer == offer(NODE, BIG)
    assert run_due(done) == ""


HALF_OFFER = Offer((NODE,), PRICES, sorted_labels({"name": "here"} | HALF))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"machines": (NODE,)}, "1 nodes less"),
        (
            {"machines": (NODE,), "is_hardware_stable": False, "prices": DEARER},
            "the cpu price",
        ),
        (
            {
                "machines": (NODE,),
                "is_hardware_stable": False,
                "asked_to_measure": "new cooling",
            },
            "new cooling",
        ),
    ],
)
def test_decide__node_away_while_it_is_measured__results_are_not_registered_for_all(
    change: dict[str, Any], why: str
) -> None:
    before = of_all()
    found = replace(before, **change)
    assert run_due(found).startswith(why)
    asked = after_asking_for_a_run(found)
    back = replace(
        ended(asked, NODE, **HALF),
        machines=ALL,
        is_hardware_stable=False,
        on_chain=chain(decide(asked).offer),
    )
    assert run_due(back) == ""
    assert decide(back).action is Action.NOTHING, (
        "the labels stay until these nodes are measured"
    )
    is_hardware_stable = replace(back, is_hardware_stable=True)
    assert decide(is_hardware_stable).action is Action.NOTHING
    assert run_due(is_hardware_stable) == "other nodes work than were measured"
    done = ended(
        after_asking_for_a_run(is_hardware_stable), *ALL, **MEASURED | {"cpu": "zen"}
    )
    assert run_due(done) == ""
    assert decide(done).offer == offer(*ALL, prices=found.prices, cpu="zen")


def test_run_due__node_comes_and_goes__is_due_once_and_its_labels_are_used_again() -> (
    None
):
    fewer = of_all(measured_days_ago=1, machines=(NODE,))
    assert run_due(fewer) == "1 nodes less with 8 CPUs, 2 GPUs, 16000 MB"
    done = ended(after_asking_for_a_run(fewer), NODE, **HALF)
    assert run_due(done) == ""
    assert decide(done).offer == HALF_OFFER
    back = replace(done, on_chain=chain(HALF_OFFER), machines=ALL)
    assert run_due(back) == ""
    assert decide(back).offer == offer(*ALL)
    gone = replace(back, on_chain=chain(offer(*ALL)), machines=(NODE,))
    assert run_due(gone) == ""
    assert decide(gone).offer == HALF_OFFER
    assert decide(replace(gone, is_hardware_stable=False)).action is Action.NOTHING, (
        "the labels are those of what is offered"
    )


def test_decide__label_not_measured_on_these_machines__stays_as_it_was() -> None:
    found = of_all(measured_days_ago=1)
    failed = Results({"cpu": "zen"}, stay=frozenset({"compute.gflops"}))
    without = replace(
        found,
        benchmarks=replace(
            found.benchmarks, results_by_machines={machines_digest(ALL): failed}
        ),
    )
    assert decide(without).offer == offer(*ALL, cpu="zen")
    measured_no_more = replace(
        without.benchmarks,
        results_by_machines={machines_digest(ALL): Results({"cpu": "zen"})},
    )
    assert dict(replace(without, benchmarks=measured_no_more).labels) == {
        "name": "here",
        "cpu": "zen",
    }


LAST, OTHER = (
    CompletedRun("last", 0.0, forced=False),
    CompletedRun("other", MEASURED_LASTS_S, forced=False),
)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], set()),
        ([LAST, OTHER], {"last", "other"}),
        ([LAST, replace(OTHER, ended_ago_s=MEASURED_LASTS_S + 1)], {"last"}),
        ([replace(LAST, ended_ago_s=2 * MEASURED_LASTS_S)], {"last"}),
        ([replace(LAST, forced=True), OTHER], {"last"}),
        ([LAST, replace(OTHER, forced=True)], {"last", "other"}),
    ],
)
def test_still_measured__completed_runs__are_the_last_and_those_of_the_last_days(
    runs: list[CompletedRun], expected: set[str]
) -> None:
    assert still_measured(runs) == expected


def test_decide__price_changed_while_slurm_is_away__registers_and_measures_later() -> (
    None
):
    away = of_all(measured_days_ago=30, machines=(), prices=DEARER)
    assert run_due(away) == ""
    registered = replace(away, on_chain=chain(offer(*ALL, prices=DEARER)))
    assert decide(registered).action is Action.NOTHING
    back = replace(registered, machines=ALL)
    assert (
        run_due(back)
        == "the prices or the operator's labels are others than when it was measured"
    )
    assert run_due(ended(after_asking_for_a_run(back))) == ""
    for labels in ({"operator": {"name": "there"}}, {"override": frozenset({"cpu"})}):
        assert run_due(replace(of_all(measured_days_ago=30), **labels)), labels


def test_decide__hardware_changed_without_benchmarks__counts_when_settled() -> None:
    found = inputs(chain(OFFER), machines=(BIG,))
    assert decide(replace(found, is_hardware_stable=False)).action is Action.NOTHING
    assert decide(found).offer == offer(BIG)


def test_decide__hardware_unknown__registers_prices_with_the_contracts_hardware() -> (
    None
):
    assert decide(inputs(chain(OFFER), machines=(), prices=DEARER)).offer == offer(
        prices=DEARER
    )
    assert decide(inputs(chain(), machines=())).action is Action.WAIT


@pytest.mark.parametrize(
    ("looked_ago_s", "shown"),
    [(None, False), (0.0, True), (LOOK_LASTS_S, True), (LOOK_LASTS_S + 1, False)],
)
def test_shows_nodes__read_recently_or_not__each_case(
    looked_ago_s: float | None, shown: bool
) -> None:
    assert shows_nodes(looked_ago_s) is shown


# --- no nagging -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed", [{"prices": DEARER}, {"prices": DEARER, "asked": "now"}]
)
def test_decide__a_registration_under_way__waits(changed: dict[str, Any]) -> None:
    assert (
        decide(
            inputs(
                chain(OFFER), last_transaction=TransactionStatus(open=True), **changed
            )
        ).action
        is Action.WAIT
    )


def test_decide__mined_in_a_block_that_the_node_lacks__waits_and_forgets_nothing() -> (
    None
):
    late = TransactionStatus(mined_block=11)
    found = told(
        inputs(
            chain(), record=RegistrationRecord(sent=OFFER.digest), last_transaction=late
        )
    )
    assert found.record.rejected == ()
    assert decide(found).action is Action.WAIT
    may_be_lost = replace(
        found, last_transaction=TransactionStatus(mined_block=9), confirmations=2
    )
    assert told(may_be_lost).record.rejected == ()


def sent_and(on_offer: OnChainOffers, **record: Any) -> RegistrationInput:
    """A registration that was mined, and what the contract says after it."""
    known = RegistrationRecord(
        sent=OFFER.digest, tries=1, operator={"name": "here"}, **record
    )
    return told(
        inputs(
            on_offer,
            record=known,
            last_transaction=MINED,
            benchmarks=MeasuredState(enabled=False, labels=MEASURED),
        )
    )


def test_decide__rejected__does_not_register_the_same_content_again() -> None:
    found = sent_and(chain())
    assert registration_status(found) is RegistrationStatus.REJECTED
    decision = decide(found)
    assert (decision.action, decision.turned_down) == (Action.WAIT, True)
    assert decide(replace(found, asked="please")).action is Action.REGISTER
    other = decide(replace(found, prices=DEARER))
    assert other.action is Action.REGISTER
    assert other.offer is not None
    after = told(
        replace(found, record=after_sending(found, other.offer, "i"), on_chain=chain())
    )
    assert decide(after).action is Action.WAIT, "the first one stays rejected as well"


def test_registration_status__removed_after_approval__is_told_apart_and_turned_down() -> (
    None
):
    approved = sent_and(chain(OFFER))
    assert registration_status(approved) is RegistrationStatus.APPROVED
    removed = told(replace(approved, on_chain=chain()))
    assert registration_status(removed) is RegistrationStatus.REMOVED
    assert decide(removed).turned_down


def test_decide__registered_by_another_program_and_removed__does_not_register_again() -> (
    None
):
    before = told(inputs(chain(OFFER)))
    assert decide(told(replace(before, on_chain=chain()))).action is Action.REGISTER, (
        "labels were lost with it"
    )
    measured = MeasuredState(enabled=False, labels=MEASURED)
    assert decide(
        told(replace(before, on_chain=chain(), benchmarks=measured))
    ).turned_down


def test_registration_status__change_turned_down__the_old_one_stays_approved() -> None:
    old = offer(prices=DEARER)
    found = sent_and(chain(old), approved=old.digest)
    assert registration_status(found) is RegistrationStatus.APPROVED
    assert decide(found).turned_down


@pytest.mark.parametrize("approved", ["", OFFER.digest])
def test_remembered__another_cluster_replaces_what_waits__was_not_turned_down(
    approved: str,
) -> None:
    sent, others = offer(prices=DEARER), offer(operator={"name": "there"})
    record = RegistrationRecord(
        sent=sent.digest, idempotency_key="register:1", tries=1, approved=approved
    )
    found = inputs(
        chain(None, sent), record=record, last_transaction=MINED, prices=DEARER
    )
    for on_chain in (chain(None, sent), chain(None, others), chain(others)):
        found = told(replace(found, on_chain=on_chain))
        assert found.record.rejected == ()
    assert decide(found).action is Action.REGISTER


def test_approved__another_offer_takes_its_place__was_not_turned_down() -> None:
    """Another program with the provider's key registers, and the grid approves that:
    ours is offered again.
    """
    found = sent_and(chain(OFFER))
    for on_offer in (
        chain(OFFER, offer(prices=DEARER)),
        chain(offer(prices=DEARER)),
        chain(offer(prices=DEARER)),
    ):
        found = told(replace(found, on_chain=on_offer))
    assert found.record.rejected == ()
    assert decide(found).action is Action.REGISTER
    again = told(
        replace(
            found,
            record=after_sending(found, OFFER, "i"),
            on_chain=chain(offer(prices=DEARER)),
        )
    )
    assert decide(again).turned_down, "what is sent again can be turned down"
    removed = told(replace(sent_and(chain(OFFER)), on_chain=chain()))
    assert decide(removed).turned_down


def test_approved__lost_with_its_block_and_turned_down_then__is_turned_down() -> None:
    waits_again = told(replace(sent_and(chain(OFFER)), on_chain=chain(None, OFFER)))
    assert decide(told(replace(waits_again, on_chain=chain()))).turned_down


def test_rejected__approved_after_all__is_forgiven() -> None:
    again = told(replace(sent_and(chain()), on_chain=chain(OFFER)))
    assert again.record.rejected == ()
    assert decide(again).action is Action.NOTHING


def test_decide__reverted_again_and_again__gives_up_until_requested() -> None:
    found = replace(
        sent_and(chain()),
        last_transaction=TransactionStatus(),
        record=RegistrationRecord(),
    )
    for _ in range(MAX_TRIES):
        decision = decide(found)
        assert decision.action is Action.REGISTER
        assert decision.offer is not None
        found = told(replace(found, record=after_sending(found, decision.offer, "i")))
    assert decide(found).given_up
    assert decide(replace(found, asked="please")).action is Action.REGISTER


@pytest.mark.parametrize(
    ("on_offer", "expected"),
    [
        (chain(), RegistrationStatus.UNREGISTERED),
        (chain(None, OFFER), RegistrationStatus.WAITING),
        (chain(OFFER), RegistrationStatus.APPROVED),
        (chain(OFFER, offer(prices=DEARER)), RegistrationStatus.CHANGING),
        (chain(OFFER, None, True), RegistrationStatus.BANNED),
    ],
)
def test_registration_status__nothing_sent_by_the_fleet__is_as_the_contract_says(
    on_offer: OnChainOffers, expected: RegistrationStatus
) -> None:
    found = told(inputs(on_offer))
    assert registration_status(found) is expected
    if expected is RegistrationStatus.BANNED:
        assert decide(replace(found, prices=DEARER)).action is Action.WAIT


# --- any sequence of situations -------------------------------------------------------


@given(situations)
def test_decide__what_was_registered_and_is_seen_so__is_not_registered_again(
    found: RegistrationInput,
) -> None:
    found = told(found)
    decision = decide(found)
    if decision.action is not Action.REGISTER:
        return
    assert decision.offer is not None
    assert not found.on_chain.banned
    record = after_sending(found, decision.offer, "key")
    under_way = replace(
        found, record=record, last_transaction=TransactionStatus(open=True)
    )
    assert decide(told(under_way)).action is Action.WAIT
    mined = replace(
        found,
        record=record,
        last_transaction=MINED,
        on_chain=chain(found.on_chain.registered, decision.offer),
        asked="",
    )
    assert decide(told(mined)).action is Action.NOTHING
    turned_down = replace(mined, on_chain=chain(found.on_chain.registered))
    again = decide(told(turned_down))
    assert again.action is not Action.REGISTER or again.offer != decision.offer
