"""What the rules of the registration and of the benchmark runs decide by: offers, what
the contract has, and what was measured.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from supervisor_tasks.provider.offer import (
    Machine,
    Offer,
    Prices,
    machines_digest,
    sorted_labels,
)
from supervisor_tasks.provider.registration_rules import (
    CompletedRun,
    MeasuredState,
    OnChainOffers,
    RegistrationInput,
    RegistrationRecord,
    Results,
    TransactionStatus,
    still_measured,
    updated_record,
)

NODE, BIG = Machine(2, 8, 16_000), Machine(8, 128, 512_000)
PRICES, DEARER = Prices(80, 10, 1), Prices(80, 12, 1)
MEASURED = {"cpu": "epyc", "compute.gflops": "100.00"}
MINED = TransactionStatus(mined_block=5)


def offer(
    *machines: Machine,
    prices: Prices = PRICES,
    operator: dict[str, str] | None = None,
    **measured: str,
) -> Offer:
    """An offer of these machines, one small node if none are given, with these labels."""
    return Offer(
        machines or (NODE,),
        prices,
        sorted_labels({"name": "here"} | MEASURED | measured | (operator or {})),
    )


OFFER = offer()


def chain(
    registered: Offer | None = None, waiting: Offer | None = None, banned: bool = False
) -> OnChainOffers:
    """What the contract has: the offer in force, and the one that waits for approval."""
    return OnChainOffers(registered, waiting, banned, block=10)


def inputs(on_chain: OnChainOffers, **also: Any) -> RegistrationInput:
    """OFFER is what the provider has to offer, without benchmarks, unless `also` says
    otherwise.
    """
    usual: dict[str, Any] = {
        "on_chain": on_chain,
        "record": RegistrationRecord(operator={"name": "here"}),
        "last_transaction": TransactionStatus(),
        "confirmations": 0,
        "machines": (NODE,),
        "is_hardware_stable": True,
        "prices": PRICES,
        "operator": {"name": "here"},
        "override": frozenset(),
        "benchmarks": MeasuredState(enabled=False),
    }
    return RegistrationInput(**(usual | also))


def told(found: RegistrationInput) -> RegistrationInput:
    """With what follows for the record."""
    return replace(found, record=updated_record(found))


def with_runs(**also: Any) -> MeasuredState:
    """What is known of benchmark runs where they are enabled."""
    return MeasuredState(enabled=True, **also)


def ended(
    asked: RegistrationInput, *machines: Machine, **labels: str
) -> RegistrationInput:
    """The run that was asked for has ended: it was of these machines, of those that
    SLURM shows if none are given.
    """
    before, known = asked.benchmarks, labels or MEASURED
    name = machines_digest(machines or asked.machines)
    results = {**before.results_by_machines, name: Results(known)}
    measured_machines = before.measured_machines | {name}
    return replace(
        asked,
        benchmarks=replace(
            before,
            under_way=False,
            labels=known,
            results_by_machines=results,
            measured_machines=measured_machines,
        ),
    )


HALF = {"cpu": "epyc", "compute.gflops": "50.00"}
ALL = (NODE, NODE)


def of_all(*, measured_days_ago: float | None = None, **also: Any) -> RegistrationInput:
    """Two nodes are registered, which were measured then, if ever, and never by this
    ledger where that is unknown.
    """
    runs = (
        []
        if measured_days_ago is None
        else [
            CompletedRun(machines_digest(ALL), measured_days_ago * 86_400, forced=False)
        ]
    )
    results = {run.hardware_digest: Results(MEASURED) for run in runs}
    found = inputs(chain(offer(*ALL)), machines=ALL)
    labels = MEASURED if runs else {}
    known = frozenset(labels)
    benchmarks = with_runs(
        results_by_machines=results,
        labels=labels,
        measured_keys=known,
        measured_machines=still_measured(runs),
        pricing_digest=found.pricing_digest,
    )
    return replace(found, benchmarks=benchmarks, **also)


offers = st.sampled_from(
    [None, OFFER, offer(prices=DEARER), offer(BIG), offer(cpu="zen")]
)
situations = st.builds(
    RegistrationInput,
    on_chain=st.builds(OnChainOffers, offers, offers, st.booleans(), st.just(10)),
    record=st.builds(
        RegistrationRecord,
        sent=st.sampled_from(["", OFFER.digest, offer(prices=DEARER).digest]),
        tries=st.integers(0, 4),
        accepted=st.booleans(),
        approved=st.sampled_from(["", OFFER.digest]),
        rejected=st.sampled_from([(), (OFFER.digest,)]),
    ),
    last_transaction=st.sampled_from(
        [
            TransactionStatus(),
            TransactionStatus(open=True),
            MINED,
            TransactionStatus(mined_block=11),
        ]
    ),
    confirmations=st.integers(0, 2),
    machines=st.sampled_from([(), (NODE,), (BIG,)]),
    is_hardware_stable=st.booleans(),
    prices=st.sampled_from([PRICES, DEARER]),
    operator=st.just({"name": "here"}),
    override=st.just(frozenset()),
    benchmarks=st.builds(
        MeasuredState,
        enabled=st.booleans(),
        under_way=st.booleans(),
        labels=st.sampled_from([{}, MEASURED]),
        results_by_machines=st.sampled_from(
            [{}, {machines_digest((NODE,)): Results(MEASURED)}]
        ),
        measured_machines=st.sampled_from(
            [frozenset(), frozenset({machines_digest((NODE,))})]
        ),
        pricing_digest=st.sampled_from(["", "others"]),
    ),
    asked=st.sampled_from(["", "now"]),
    asked_to_measure=st.sampled_from(["", "now"]),
)
