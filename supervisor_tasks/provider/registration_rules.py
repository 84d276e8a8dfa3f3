"""Registration: how a provider stands with the grid, and what the worker must do to
register his offer. Pure.

The worker reads the contract each time. `RegistrationRecord` holds the little that the
contract does not show: what was sent, and what the grid has rejected. The runs of the
benchmarks show what the cluster was measured for. measuring_rules.py decides when a run
is due.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor_tasks.provider.offer import (
    Labels,
    Machine,
    Offer,
    Prices,
    differences,
    digest,
    machine_differences,
    machines_digest,
    merged,
    same_machines,
    sorted_labels,
)

MAX_REJECTED_OFFERS = 100  # remembered offers
LOOK_LASTS_S = 150.0  # a look at the nodes, one a minute, counts for so long
# machines that come back within this time need no new measurement
MEASURED_LASTS_S = 7 * 24 * 3600.0
# transactions with one content that were mined and reverted, or lost their nonce
MAX_TRIES = 3
VOLUME = "[a-z0-9][a-z0-9-]*"  # as benchmarks/plan.py has it
BENCHMARK_KEY = re.compile(
    r"os|arch|cpu|cpu\.microarch|gpu|compute\.gflops"
    r"|network\.((upload|download|p2p)\.bw\.mbps|(p2p|all-to-all)\.latency\.us)"
    rf"|storage\.{VOLUME}\.(read|write)\.(bw\.mibps|iops)"
)


class RegistrationStatus(StrEnum):
    """How the provider stands with the grid."""

    UNREGISTERED = "unregistered"
    WAITING = "waiting"  # for the first approval
    APPROVED = "approved"
    CHANGING = "changing"  # approved, and a newer registration waits for approval
    BANNED = "banned"
    REJECTED = "rejected"  # removed before it was approved
    REMOVED = "removed"

    @property
    def claims(self) -> bool:
        """Whether new jobs may be claimed."""
        return self in (RegistrationStatus.APPROVED, RegistrationStatus.CHANGING)


@dataclass(frozen=True, slots=True)
class OnChainOffers:
    """A provider's offers on the contract at a block: the one in force, and the one
    that waits for approval.
    """

    registered: Offer | None
    waiting: Offer | None
    banned: bool
    block: int

    @property
    def newest(self) -> Offer | None:
        """The offer that will be in force unless something is done."""
        return self.waiting or self.registered

    @property
    def digests(self) -> set[str]:
        """The digests of the contract's offers."""
        return {offer.digest for offer in self._offers}

    @property
    def labels(self) -> set[tuple[str, str]]:
        """The labels of the contract's offers. A key may have two values."""
        return {label for offer in self._offers for label in offer.labels}

    @property
    def _offers(self) -> tuple[Offer, ...]:
        return tuple(filter(None, (self.registered, self.waiting)))


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """What became of the transaction that was sent last. If it is neither open nor
    mined, it has reverted or was never signed.
    """

    open: bool = False
    mined_block: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationRecord:
    """What the ledger remembers. `sent` is the digest of the offer that was sent last,
    by `idempotency_key`, for the `tries`th time, with the `operator` labels.
    `accepted` means that this offer has been in force. `approved` is the digest of the
    offer that was last seen in force; it is empty when that is over. `registry` names
    the chain, the provider contract and the provider that all this is about. `given`
    are the labels that the contract has and the operator has given: an offer that was
    sent last may never get there, and then those of an earlier offer are still there.
    """

    sent: str = ""
    idempotency_key: str = ""
    tries: int = 0
    accepted: bool = False
    operator: Mapping[str, str] = field(default_factory=dict)
    approved: str = ""
    rejected: tuple[str, ...] = ()
    registry: str = ""
    given: Labels = ()


@dataclass(frozen=True, slots=True)
class Results:
    """What was measured on some machines. Labels in `stay` were measured, but not on
    these machines: they stay as they were.
    """

    labels: Mapping[str, str]
    stay: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A run that has ended: the digest of its machines, and whether the operator asked
    for it.
    """

    hardware_digest: str
    ended_ago_s: float
    forced: bool


def still_measured(ended: Sequence[CompletedRun]) -> frozenset[str]:
    """Return the machines that need no measurement. `ended` are all runs, the newest
    first. The last run counts, and the others of the last days. Runs before one that
    the operator asked for do not count: he asks because the cluster has changed.
    """
    machines = set[str]()
    for run in ended:
        if machines and run.ended_ago_s > MEASURED_LASTS_S:
            break
        machines.add(run.hardware_digest)
        if run.forced:
            break
    return frozenset(machines)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredState:
    """The state of the benchmarks. `labels` are the latest good results,
    `results_by_machines` those of each set of machines, and `measured_keys` the keys of
    all that the last runs measured; all without those of a run that is under way.
    `measured_machines` are the machines that need no measurement, empty if no run is
    known. `pricing_digest` is that of the last run for which it is known. `every_s` 0
    means no schedule, and `ended_ago_s` None means that there never was a run.
    """

    enabled: bool
    under_way: bool = False
    ended_ago_s: float | None = None
    every_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    results_by_machines: Mapping[str, Results] = field(default_factory=dict)
    measured_keys: frozenset[str] = frozenset()
    measured_machines: frozenset[str] = frozenset()
    pricing_digest: str = ""


@dataclass(frozen=True, slots=True)
class Registrar:
    """Another cluster, which shares the wallet and registers for it. `at_work`: its
    fleet works.
    """

    cluster: str
    at_work: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationInput:
    """Everything that a decision is made from. `machines` are what SLURM shows now,
    none while it is away. `is_hardware_stable` means that they have been the same
    for long enough.
    `asked` is why the operator wants to be registered now, and `asked_to_measure` why
    he wants a run. `registrar` is None if this cluster registers.
    """

    on_chain: OnChainOffers
    record: RegistrationRecord
    last_transaction: TransactionStatus
    confirmations: int
    machines: tuple[Machine, ...]
    is_hardware_stable: bool
    prices: Prices
    operator: Mapping[str, str]
    override: frozenset[str]
    benchmarks: MeasuredState
    asked: str = ""
    asked_to_measure: str = ""
    registrar: Registrar | None = None

    @property
    def kept_labels(self) -> dict[str, str]:
        """The benchmark labels that the contract has. Labels that the operator gave
        himself do not count as such, unless the same was measured.
        """
        newest = self.on_chain.newest
        if newest is None:
            return {}
        given = {*self.record.given, *self.record.operator.items()}
        operators = given - self.benchmarks.labels.items()
        return {
            key: text
            for key, text in newest.labels
            if BENCHMARK_KEY.fullmatch(key) and (key, text) not in operators
        }

    @property
    def machine_labels(self) -> dict[str, str]:
        """The machine's labels. A run's labels count when the run has ended, so that
        one registration carries them all, and only for machines like those that were
        measured. A label that was measured once and is not any more is removed. A label
        that this ledger has never seen measured stays, because the ledger may be new.
        """
        kept, measured_keys = self.kept_labels, self.benchmarks.measured_keys
        results = self._results
        if self.benchmarks.under_way:
            return self._in_place_of_the_operators(kept, results) | kept
        removed = measured_keys - results.stay
        staying = {key: text for key, text in kept.items() if key not in removed}
        return staying | dict(results.labels)

    def _in_place_of_the_operators(
        self, kept: Mapping[str, str], results: Results
    ) -> dict[str, str]:
        """The results of earlier runs for the keys under which the contract has labels
        of the operator. If he takes one back, its key has a label during the run, too.
        """
        newest = self.on_chain.newest
        if newest is None:
            return {}
        operators = dict(newest.labels).keys() - kept
        return {key: text for key, text in results.labels.items() if key in operators}

    @property
    def _results(self) -> Results:
        """What was measured on the offered machines; on any machines, if no run's
        machines are known.
        """
        benchmarks = self.benchmarks
        if not benchmarks.results_by_machines:
            return Results(benchmarks.labels)
        offered, _ = _machines(self)
        nothing = Results({}, stay=frozenset(benchmarks.labels))
        return benchmarks.results_by_machines.get(machines_digest(offered), nothing)

    @property
    def labels(self) -> Labels:
        """All labels, in the form that is registered."""
        return sorted_labels(merged(self.machine_labels, self.operator, self.override))

    @property
    def unmeasured(self) -> bool:
        """Whether these machines still need a measurement."""
        benchmarks = self.benchmarks
        if not benchmarks.enabled:
            return False
        if benchmarks.under_way:
            return True
        return machines_digest(self.machines) not in benchmarks.measured_machines

    @property
    def pricing_digest(self) -> str:
        """A digest of what a run is for besides the machines: prices and the operator's
        labels.
        """
        return digest(
            [
                list(self.prices.named().values()),
                dict(self.operator),
                sorted(self.override),
            ]
        )

    @property
    def too_early(self) -> bool:
        """Whether an offer that the contract does not show may still be under way
        there. Its block may be one that the node does not have yet, or one that may be
        lost.
        """
        mined = self.last_transaction.mined_block
        return mined is not None and self.on_chain.block < mined + self.confirmations


class Action(StrEnum):
    """What the worker does next."""

    NOTHING = "nothing"
    REGISTER = "register"
    MEASURE = "measure first"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class RegistrationDecision:
    """What the worker does, and why. `offer` is the offer that this is about, as far as
    it is known.
    """

    action: Action
    why: str
    offer: Offer | None = None
    turned_down: bool = False  # by the grid
    given_up: bool = False  # its transactions revert
    # another cluster registers, and what the contract has is not what this one offers
    differs: bool = False


# --- what is remembered -------------------------------------------------------------------


def updated_record(inputs: RegistrationInput) -> RegistrationRecord:
    """Return the record after a look at the contract. An offer was turned down if it
    was sent or in force, and is now neither in force nor waiting. An offer that another
    one has replaced was not turned down.
    """
    if _is_replaced(inputs):
        inputs = replace(inputs, record=replace(inputs.record, sent=""))
    record, chain = inputs.record, inputs.on_chain
    there = chain.digests
    turned_down = set[str]()
    if chain.waiting is None and not inputs.too_early:
        turned_down = _taken_back(inputs) - there
    removed = there | turned_down
    rejected = [one for one in record.rejected if one not in removed]
    rejected += sorted(turned_down)
    approved = record.approved
    if chain.registered is not None:
        approved = chain.registered.digest
    elif chain.waiting is not None:
        approved = ""
    tries = record.tries
    if record.sent in there:
        tries = 0
    return replace(
        record,
        tries=tries,
        accepted=_accepted(record, chain),
        approved=approved,
        rejected=tuple(rejected[-MAX_REJECTED_OFFERS:]),
        given=_given(inputs),
    )


def _given(inputs: RegistrationInput) -> Labels:
    """The labels of the contract's offers that the operator has given, as far as they
    are known. He may also have given them to another program, or to a lost ledger: so
    those that he gives now count, too.
    """
    record = inputs.record
    given = {*record.given, *record.operator.items(), *inputs.operator.items()}
    return tuple(sorted(given & inputs.on_chain.labels))


def _is_replaced(inputs: RegistrationInput) -> bool:
    """Whether another program, or another cluster with this wallet, has registered
    since the last offer was sent. The contract then has an offer that is neither that
    one nor the one before it.
    """
    record, newest = inputs.record, inputs.on_chain.newest
    if newest is None or inputs.too_early:
        return False
    if inputs.last_transaction.mined_block is None:
        return False
    return newest.digest not in (record.sent, record.approved)


def _accepted(record: RegistrationRecord, chain: OnChainOffers) -> bool:
    """Whether the offer that was sent last has been in force."""
    if record.sent not in chain.digests:
        return record.accepted
    return chain.registered is not None and chain.registered.digest == record.sent


def _taken_back(inputs: RegistrationInput) -> set[str]:
    """The digests of the offers that the contract would have if the grid had not turned
    them down.
    """
    record, chain = inputs.record, inputs.on_chain
    taken_back = set[str]()
    if inputs.last_transaction.mined_block is not None and not record.accepted:
        taken_back.add(record.sent)
    if chain.registered is None and not inputs.last_transaction.open:
        taken_back.add(record.approved)
    return taken_back - {""}


def registration_status(inputs: RegistrationInput) -> RegistrationStatus:
    """Return how the provider stands. The record must be up to date with the contract:
    see `updated_record`.
    """
    chain, record = inputs.on_chain, inputs.record
    if chain.banned:
        return RegistrationStatus.BANNED
    if chain.registered is not None:
        if chain.waiting is None:
            return RegistrationStatus.APPROVED
        return RegistrationStatus.CHANGING
    if chain.waiting is not None:
        return RegistrationStatus.WAITING
    if record.approved:
        return RegistrationStatus.REMOVED
    if record.rejected:
        return RegistrationStatus.REJECTED
    return RegistrationStatus.UNREGISTERED


def shows_nodes(looked_ago_s: float | None) -> bool:
    """Whether the last look at the nodes still shows what SLURM has now. `looked_ago_s`
    is None if no worker has looked since SLURM is back. The time before such a gap does
    not count for how long the nodes have been the same.
    """
    return looked_ago_s is not None and looked_ago_s <= LOOK_LASTS_S


# --- when to register -----------------------------------------------------------------


def decide(inputs: RegistrationInput) -> RegistrationDecision:
    """Decide what the registration needs. New machines are measured before they are
    registered. New prices and labels of the operator are registered at once, with the
    benchmark labels that exist.
    """
    machines, held_back = _machines(inputs)
    offer = None
    if machines:
        offer = Offer(machines, inputs.prices, inputs.labels)
    obstacle = _obstacle(inputs, offer)
    if obstacle is not None:
        return obstacle
    if offer is None:
        return RegistrationDecision(
            Action.WAIT, "SLURM shows no node of the partition that works"
        )
    if inputs.registrar is not None:
        return _left_to(inputs.registrar, offer, inputs.on_chain.newest)
    return _decide_on(offer, held_back, inputs)


def _decide_on(
    offer: Offer, held_back: str, inputs: RegistrationInput
) -> RegistrationDecision:
    """Decide on an offer that nothing prevents sending. `held_back` is why it is not
    for the machines that SLURM shows.
    """
    newest = inputs.on_chain.newest
    if newest is None:
        if inputs.unmeasured and not inputs.asked:
            why = "nothing is registered, and the cluster is measured first"
            return RegistrationDecision(Action.MEASURE, why, offer)
        news = ["nothing is registered"]
    elif newest.digest == offer.digest:
        why = "what is offered is in force"
        if inputs.on_chain.waiting is not None:
            why = "what is offered waits for approval"
        return RegistrationDecision(Action.NOTHING, _joined(why, held_back), offer)
    else:
        news = differences(newest, offer)
    turned_down = _turned_down(inputs, offer)
    if turned_down is not None:
        return turned_down
    return RegistrationDecision(Action.REGISTER, _joined(*news, held_back), offer)


def registrar_of(cluster: str, partners: Collection[str]) -> str | None:
    """Return which of the clusters with one wallet registers for it; None if this one
    does. `partners` are the others. If each registered what it offers, they would
    replace each other's offers without end.
    """
    first = min({cluster, *partners})
    if first == cluster:
        return None
    return first


def _left_to(
    registrar: Registrar, offer: Offer, newest: Offer | None
) -> RegistrationDecision:
    """Compare this cluster's offer with that of the cluster that registers. Labels that
    benchmarks measure are not compared: no two clusters measure the same numbers.
    """
    why = f"the cluster {registrar.cluster!r} registers for the wallet, which this cluster shares"
    news = list[str]()
    if newest is not None:
        news = differences(_without_measured(newest), _without_measured(offer))
    elif not registrar.at_work:
        news = ["nothing is registered, and the fleet of that cluster is not at work"]
    return RegistrationDecision(
        Action.NOTHING, _joined(why, *news), offer, differs=bool(news)
    )


def _without_measured(offer: Offer) -> Offer:
    kept = [entry for entry in offer.labels if not BENCHMARK_KEY.fullmatch(entry[0])]
    return replace(offer, labels=tuple(kept))


def _joined(*reasons: str) -> str:
    """The reasons that are not empty, in one line."""
    return "; ".join(filter(None, reasons))


def _obstacle(
    inputs: RegistrationInput, offer: Offer | None
) -> RegistrationDecision | None:
    """Return what prevents sending any offer now; None if nothing does."""
    if inputs.last_transaction.open:
        return RegistrationDecision(
            Action.WAIT,
            "a registration is under way: its transaction is not mined yet",
            offer,
        )
    if inputs.on_chain.banned:
        return RegistrationDecision(
            Action.WAIT,
            "the grid has banned this provider: it takes no registration",
            offer,
        )
    if inputs.too_early and inputs.record.sent not in inputs.on_chain.digests:
        return RegistrationDecision(
            Action.WAIT,
            "a registration was mined, and the node does not show it yet",
            offer,
        )
    return None


def _machines(inputs: RegistrationInput) -> tuple[tuple[Machine, ...], str]:
    """Return the machines that are offered, and why those that SLURM shows are not
    offered yet.
    """
    seen, newest = inputs.machines, inputs.on_chain.newest
    if newest is None:
        return seen, ""
    if not seen:
        return newest.machines, "SLURM shows no node of the partition that works"
    if same_machines(seen, newest.machines) or inputs.asked:
        return seen, ""
    news = ", ".join(machine_differences(newest.machines, seen))
    if not inputs.is_hardware_stable:
        why = f"SLURM shows {news}, which counts when it has been so for a while"
        return newest.machines, why
    if inputs.unmeasured:
        return newest.machines, f"SLURM shows {news}, which is measured first"
    return seen, ""


def _turned_down(
    inputs: RegistrationInput, offer: Offer
) -> RegistrationDecision | None:
    """Return what prevents sending an offer again; None if it may be sent, or if the
    operator asked for it.
    """
    if inputs.asked:
        return None
    record = inputs.record
    if offer.digest in record.rejected:
        why = "the grid has turned this offer down: change it, or ask again by `supervisor provider register`"
        return RegistrationDecision(Action.WAIT, why, offer, turned_down=True)
    if record.sent == offer.digest and record.tries >= MAX_TRIES:
        why = f"{record.tries} transactions with it have failed: see `supervisor tx list`, then `supervisor provider register`"
        return RegistrationDecision(Action.WAIT, why, offer, given_up=True)
    return None


def after_sending(
    inputs: RegistrationInput, offer: Offer, idempotency_key: str
) -> RegistrationRecord:
    """Return the record after an offer was sent."""
    record = inputs.record
    tries = 1
    if record.sent == offer.digest and not inputs.asked:
        tries = record.tries + 1
    return replace(
        record,
        sent=offer.digest,
        idempotency_key=idempotency_key,
        tries=tries,
        accepted=False,
        operator=inputs.operator,
    )
