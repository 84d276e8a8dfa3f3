"""Registration: how a provider stands with the grid, and what is to be done so that the contract has what he offers. Pure.

What the contract says is read anew each time; `Memory` is the little that it does not say: what was sent, and what the grid has
turned down. What the cluster was measured for, the runs tell.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor_tasks.offer import (
    Labels,
    Machine,
    Offer,
    Prices,
    differences,
    digest,
    label_differences,
    machine_differences,
    machines_digest,
    merged,
    price_differences,
    same_machines,
    sorted_labels,
)

MOST_REJECTED = 100  # offers that are remembered
LOOK_LASTS_S = 150.0  # so old a look at the nodes, one a minute, still tells what SLURM shows
MEASURED_LASTS_S = 7 * 24 * 3600.0  # so long machines that come back are what they were when they were measured
MOST_TRIES = 3  # transactions with one content that were mined and reverted, or lost their nonce
VOLUME = "[a-z0-9][a-z0-9-]*"  # as benchmarks/plan.py has it
BENCHMARK_KEY = re.compile(
    r"os|arch|cpu|cpu\.microarch|gpu|compute\.gflops"
    r"|network\.((upload|download|p2p)\.bw\.mbps|(p2p|all-to-all)\.latency\.us)"
    rf"|storage\.{VOLUME}\.(read|write)\.(bw\.mibps|iops)"
)


class Standing(StrEnum):
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
        return self in (Standing.APPROVED, Standing.CHANGING)


@dataclass(frozen=True, slots=True)
class OnOffer:
    """What the contract has of a provider at a block: what is in force, and what waits for approval."""

    registered: Offer | None
    waiting: Offer | None
    banned: bool
    block: int

    @property
    def newest(self) -> Offer | None:
        """What will be in force unless something is done."""
        return self.waiting or self.registered

    @property
    def digests(self) -> set[str]:
        """Of what the contract has."""
        return {offer.digest for offer in (self.registered, self.waiting) if offer is not None}


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the transaction that was sent last; neither open nor mined: it has reverted, or was never signed."""

    open: bool = False
    mined_block: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the ledger remembers. `sent` is the digest of what was sent last, by `intent`, for the `tries`th time, with these
    labels of the `operator`'s; `accepted` once that was in force. `approved` is the digest of what was last seen in force, and
    empty when that is over.
    """

    sent: str = ""
    intent: str = ""
    tries: int = 0
    accepted: bool = False
    operator: Mapping[str, str] = field(default_factory=dict)
    approved: str = ""
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """What was measured on some machines. Labels that are to `stay` as they were are measured, but were not on these ones."""

    labels: Mapping[str, str]
    stay: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended: the digest of its machines, and whether it was made anew."""

    machines: str
    ended_s_ago: float
    anew: bool


def still_measured(ended: Sequence[Ended]) -> frozenset[str]:
    """The machines that need not be measured, of all runs, the newest first: those of the last one, and those of the others of
    the last days; but a run that somebody wanted anew is about a cluster that has changed.
    """
    machines = set[str]()
    for run in ended:
        if machines and run.ended_s_ago > MEASURED_LASTS_S:
            break
        machines.add(run.machines)
        if run.anew:
            break
    return frozenset(machines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmarks:
    """How it stands with benchmarks. `labels` are the latest good results, `of` those of each set of machines, `known` the keys
    of all that the last runs measured. `measured` are the machines that need not be measured, none where no run is known;
    `terms` those of the last run of which they are known. `every_s` 0 is no schedule, and `ended_s_ago` None means that there
    never was a run.
    """

    enabled: bool
    under_way: bool = False
    ended_s_ago: float | None = None
    every_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    of: Mapping[str, Results] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    measured: frozenset[str] = frozenset()
    terms: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a decision is made from. `machines` are what SLURM shows now, none while it is away; `settled` says that they
    have been these for long enough. `asked` is why the operator wants to be registered now, `asked_to_measure` why he wants a
    run.
    """

    on_offer: OnOffer
    memory: Memory
    fate: Fate
    confirmations: int
    machines: tuple[Machine, ...]
    settled: bool
    prices: Prices
    operator: Mapping[str, str]
    override: frozenset[str]
    benchmarks: Benchmarks
    asked: str = ""
    asked_to_measure: str = ""

    @property
    def kept_labels(self) -> dict[str, str]:
        """The benchmark's labels that the contract has: those which the operator gave himself are none."""
        newest = self.on_offer.newest
        labels = {} if newest is None else dict(newest.labels)
        ours = self.memory.operator
        return {key: text for key, text in labels.items() if BENCHMARK_KEY.fullmatch(key) and ours.get(key) != text}

    @property
    def machine_labels(self) -> dict[str, str]:
        """The machine's labels. Those of a run count when it has ended: one registration for all of them; and only for machines
        like those that it was of. Then a label that was measured once and is not any more is gone; one that the ledger has
        never seen measured stays: the ledger may be new.
        """
        kept, known = self.kept_labels, self.benchmarks.known
        if self.benchmarks.under_way:
            return kept
        found = self._results
        return {key: text for key, text in kept.items() if key not in known or key in found.stay} | dict(found.labels)

    @property
    def _results(self) -> Results:
        """What was measured on the machines that are offered; on whatever machines, where of no run they are known."""
        benchmarks = self.benchmarks
        if not benchmarks.of:
            return Results(benchmarks.labels)
        nothing = Results({}, stay=frozenset(benchmarks.labels))
        return benchmarks.of.get(machines_digest(_machines(self)[0]), nothing)

    @property
    def labels(self) -> Labels:
        """All labels, as they are to be registered."""
        return sorted_labels(merged(self.machine_labels, self.operator, self.override))

    @property
    def unmeasured(self) -> bool:
        """Whether these machines are still to be measured."""
        return self.benchmarks.enabled and (
            self.benchmarks.under_way or machines_digest(self.machines) not in self.benchmarks.measured
        )

    @property
    def terms(self) -> str:
        """What a run is for besides the machines: prices and the operator's labels."""
        return digest([list(self.prices.named().values()), dict(self.operator), sorted(self.override)])

    @property
    def too_early(self) -> bool:
        """Whether what the contract does not have may still be under way there: in a block that the node does not have yet, or
        that may be lost.
        """
        mined = self.fate.mined_block
        return mined is not None and self.on_offer.block < mined + self.confirmations


class Action(StrEnum):
    """What is to be done."""

    NOTHING = "nothing"
    REGISTER = "register"
    MEASURE = "measure first"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why; `offer` is what it is about, as far as it is known."""

    action: Action
    why: str
    offer: Offer | None = None
    turned_down: bool = False  # by the grid
    given_up: bool = False  # its transactions revert


# --- what is remembered -------------------------------------------------------------------------------------------------


def remembered(situation: Situation) -> Memory:
    """What follows for the memory from what the contract says. An offer that was sent, or was in force, and is neither in force
    nor waiting any more was turned down; but not an offer that was accepted and that another one has taken the place of.
    """
    memory, chain = situation.memory, situation.on_offer
    there = chain.digests
    gone = set[str]() if chain.waiting is not None or situation.too_early else _taken_back(situation) - there
    rejected = [known for known in memory.rejected if known not in there | gone] + sorted(gone)
    approved = memory.approved
    if chain.registered is not None:
        approved = chain.registered.digest
    elif chain.waiting is not None:
        approved = ""
    tries = 0 if memory.sent in there else memory.tries
    accepted = _accepted(memory, chain)
    return replace(memory, tries=tries, accepted=accepted, approved=approved, rejected=tuple(rejected[-MOST_REJECTED:]))


def _accepted(memory: Memory, chain: OnOffer) -> bool:
    if chain.registered is not None and chain.registered.digest == memory.sent:
        return True
    waits = chain.waiting is not None and chain.waiting.digest == memory.sent
    return memory.accepted and not waits


def _taken_back(situation: Situation) -> set[str]:
    memory, chain = situation.memory, situation.on_offer
    was_sent = memory.sent if situation.fate.mined_block is not None and not memory.accepted else ""
    was_approved = memory.approved if chain.registered is None and not situation.fate.open else ""
    return {was_sent, was_approved} - {""}


def standing(situation: Situation) -> Standing:
    """How the provider stands; with a memory that knows what the contract says."""
    chain, memory = situation.on_offer, situation.memory
    if chain.banned:
        return Standing.BANNED
    if chain.registered is not None:
        return Standing.APPROVED if chain.waiting is None else Standing.CHANGING
    if chain.waiting is not None:
        return Standing.WAITING
    if memory.approved:
        return Standing.REMOVED
    return Standing.REJECTED if memory.rejected else Standing.UNREGISTERED


def shows_nodes(looked_s_ago: float | None) -> bool:
    """Whether what was seen of the nodes is what SLURM shows now; None where nobody has looked since SLURM is back. The time
    before such a gap does not count for how long they have been so either.
    """
    return looked_s_ago is not None and looked_s_ago <= LOOK_LASTS_S


# --- when to measure ----------------------------------------------------------------------------------------------------


def run_due(situation: Situation) -> str:
    """Why a benchmark run is due now; empty when none is. One is for each new set of machines, prices or operator's labels."""
    benchmarks, newest = situation.benchmarks, situation.on_offer.newest
    if not benchmarks.enabled or benchmarks.under_way or not situation.machines:
        return ""
    if situation.asked_to_measure:
        return situation.asked_to_measure
    if situation.on_offer.banned:
        return ""
    if newest is None:
        return "nothing is registered" if situation.unmeasured else ""
    news = _news_of_machines(situation, newest) + _news_of_terms(situation, newest)
    if news:
        return "; ".join(news)
    if benchmarks.every_s and (benchmarks.ended_s_ago is None or benchmarks.ended_s_ago >= benchmarks.every_s):
        return "on schedule"
    return ""


def _news_of_machines(situation: Situation, newest: Offer) -> list[str]:
    """Which machines are to be measured. Those that are registered may not be those that the last run was of."""
    if not (situation.settled and situation.unmeasured):
        return []
    runs_are_known = bool(situation.benchmarks.measured)
    others = ["other nodes work than were measured"] if runs_are_known else []
    return machine_differences(newest.machines, situation.machines) or others


def _news_of_terms(situation: Situation, newest: Offer) -> list[str]:
    """What has changed of prices and operator's labels since the last run; of what is registered, where that is not known. New
    prices do not wait for a run: they may be registered by now.
    """
    terms = situation.benchmarks.terms
    if terms == situation.terms:
        return []
    labels = merged(situation.kept_labels, situation.operator, situation.override)
    news = price_differences(newest.prices, situation.prices) + label_differences(dict(newest.labels), labels)
    return news or (["the prices or the operator's labels are others than when it was measured"] if terms else [])


def after_asking_for_a_run(situation: Situation) -> Situation:
    """The situation once a run was asked for."""
    benchmarks = replace(situation.benchmarks, under_way=True, terms=situation.terms)
    return replace(situation, benchmarks=benchmarks, asked_to_measure="")


# --- when to register ---------------------------------------------------------------------------------------------------


def decide(situation: Situation) -> Decision:
    """What is to be done for the registration. New machines are measured before they are registered; new prices and labels of
    the operator's are registered at once, with the benchmark's labels that there are.
    """
    newest, (machines, held_back) = situation.on_offer.newest, _machines(situation)
    offer = Offer(machines, situation.prices, situation.labels) if machines else None
    obstacle = _obstacle(situation, offer)
    if obstacle is not None:
        return obstacle
    assert offer is not None  # noqa: S101  an obstacle
    if newest is not None and newest.digest == offer.digest:
        waits = "waits for approval" if situation.on_offer.waiting is not None else "is in force"
        return Decision(Action.NOTHING, "; ".join(filter(None, [f"what is offered {waits}", held_back])), offer)
    if not situation.asked and (turned_down := _turned_down(situation, offer)) is not None:
        return turned_down
    news = ["nothing is registered"] if newest is None else differences(newest, offer)
    return Decision(Action.REGISTER, "; ".join(filter(None, [*news, held_back])), offer)


def _obstacle(situation: Situation, offer: Offer | None) -> Decision | None:
    if situation.fate.open:
        return Decision(Action.WAIT, "a registration is under way: its transaction is not mined yet", offer)
    if situation.on_offer.banned:
        return Decision(Action.WAIT, "the grid has banned this provider: it takes no registration", offer)
    if situation.too_early and situation.memory.sent not in situation.on_offer.digests:
        return Decision(Action.WAIT, "a registration was mined, and the node does not show it yet", offer)
    if offer is None:
        return Decision(Action.WAIT, "SLURM shows no node of the partition that works")
    if situation.on_offer.newest is None and situation.unmeasured and not situation.asked:
        return Decision(Action.MEASURE, "nothing is registered, and the cluster is measured first", offer)
    return None


def _machines(situation: Situation) -> tuple[tuple[Machine, ...], str]:
    """The machines that are offered, and why those that SLURM shows are not yet."""
    seen, newest = situation.machines, situation.on_offer.newest
    if newest is None:
        return seen, ""
    if not seen:
        return newest.machines, "SLURM shows no node of the partition that works"
    if same_machines(seen, newest.machines) or situation.asked:
        return seen, ""
    news = ", ".join(machine_differences(newest.machines, seen))
    if not situation.settled:
        return newest.machines, f"SLURM shows {news}, which counts when it has been so for a while"
    if situation.unmeasured:
        return newest.machines, f"SLURM shows {news}, which is measured first"
    return seen, ""


def _turned_down(situation: Situation, offer: Offer) -> Decision | None:
    """What keeps an offer from being sent again; None when it may be."""
    memory = situation.memory
    if offer.digest in memory.rejected:
        why = "the grid has turned this offer down: change it, or ask again by `supervisor provider register`"
        return Decision(Action.WAIT, why, offer, turned_down=True)
    if memory.sent == offer.digest and memory.tries >= MOST_TRIES:
        why = f"it was sent {memory.tries} times in vain: see `supervisor transactions`, then `supervisor provider register`"
        return Decision(Action.WAIT, why, offer, given_up=True)
    return None


def after_sending(situation: Situation, offer: Offer, intent: str) -> Memory:
    """The memory once an offer was sent."""
    memory = situation.memory
    tries = memory.tries + 1 if memory.sent == offer.digest and not situation.asked else 1
    return replace(memory, sent=offer.digest, intent=intent, tries=tries, accepted=False, operator=situation.operator)
