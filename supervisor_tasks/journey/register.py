"""Register: the contract gets what the provider offers, and the operator hears how the grid takes it."""

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from supervisor_tasks.chain.contract import register_call
from supervisor_tasks.chain.estimates import NoEstimateError, RevertedError, TooMuchGasError
from supervisor_tasks.chain.rpc import RpcUnavailableError
from supervisor_tasks.chain.wallet import Write
from supervisor_tasks.journey.check_slurm import slurm_works
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.scan import STREAM
from supervisor_tasks.ledger.benchmarks import Measured, labels_of, latest_of, staying_labels
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.provider import NODES, RUN_WANTED, WANTED, Registrations
from supervisor_tasks.offer import far_off, label_texts, machines_digest, overruled
from supervisor_tasks.registration import (
    Action,
    Benchmarks,
    Decision,
    Fate,
    Results,
    Situation,
    Standing,
    after_asking_for_a_run,
    after_sending,
    decide,
    remembered,
    run_due,
    shows_nodes,
    standing,
    still_measured,
)
from supervisor_tasks.settings import USUAL_PRICES
from supervisor_tasks.site import Site

log = structlog.get_logger()

Refused = RevertedError | TooMuchGasError

PURPOSE = "register"
CALLS_FOR_AN_OPERATOR = {
    Standing.BANNED: AlarmName.PROVIDER_BANNED,
    Standing.REJECTED: AlarmName.PROVIDER_REJECTED,
    Standing.REMOVED: AlarmName.PROVIDER_REJECTED,
}


def register(site: Site) -> None:
    """Compare what is offered with what the contract has, and do what follows. One worker at a time does it."""
    drain(site.ledger, "register", lambda: _register(site))


def _register(site: Site) -> bool:
    book = Registrations(site.ledger.facts)
    seen = _situation(site, book)
    situation = _measure(site, book, replace(seen, memory=remembered(seen)))
    book.keep(situation.memory)
    decision = decide(situation)
    write = None if decision.action is not Action.REGISTER else _estimated(site, decision)
    _tell(site, book, situation, decision, write if isinstance(write, Refused) else None)
    if isinstance(write, NoEstimateError):
        raise write
    if isinstance(write, Write):
        _send(site, book, situation, decision, write)
    if seen.asked and (decision.action is Action.NOTHING or isinstance(write, Write)):
        book.served(WANTED, seen.asked)
    return False


def _situation(site: Site, book: Registrations) -> Situation:
    """What there is to know. The transaction is looked at before the contract: what was mined by then, the contract shows."""
    side, memory = site.offer, book.memory()
    fate = site.chain.wallet.book.fate(memory.intent) if memory.intent else Fate()
    on_offer = site.chain.contract.on_offer()
    cursor = site.ledger.cursors.of(STREAM)
    if cursor is not None and on_offer.block < cursor[0]:
        raise RpcUnavailableError(f"the node is at block {on_offer.block}, and {cursor[0]} was read already")
    looked = slurm_works(site.ledger) and shows_nodes(site.ledger.ticks.age_s(NODES))
    machines, known_s = book.hardware() if looked else ((), 0.0)
    return Situation(
        on_offer=on_offer,
        memory=memory,
        fate=fate,
        confirmations=site.chain.confirmations,
        machines=machines,
        settled=known_s >= side.hardware_settled_s,
        prices=side.prices,
        operator=side.operator_labels,
        override=side.labels_override,
        benchmarks=_benchmarks(site),
        asked=book.asked(WANTED),
        asked_to_measure=book.asked(RUN_WANTED),
    )


def _benchmarks(site: Site) -> Benchmarks:
    """How it stands with the benchmarks. Their labels are read last: of a run that ends meanwhile none is missed, and none is
    taken for one that is measured no more.
    """
    side, runs = site.offer, site.ledger.benchmarks
    under_way, last = runs.under_way(), runs.run()
    ended_at = None if last is None else last["ended_at"]
    terms, ended, measured = runs.terms(), still_measured(runs.ended()), runs.measured()
    return Benchmarks(
        enabled=side.benchmarks_enabled,
        under_way=under_way is not None,
        ended_s_ago=None if ended_at is None else (datetime.now(UTC) - ended_at).total_seconds(),
        every_s=side.benchmark_every_s,
        labels=label_texts(labels_of(latest_of(measured))),
        of=_results(measured),
        known=frozenset(label for one in measured for label in one.labels),
        measured=ended,
        terms=terms,
    )


def _results(measured: list[Measured]) -> dict[str, Results]:
    """What was measured of each set of machines."""
    everywhere = latest_of(measured)
    found = dict[str, Results]()
    for machines in {one.machines for one in measured if one.machines is not None}:
        here = latest_of(one for one in measured if one.machines == machines)
        found[machines] = Results(label_texts(labels_of(here)), staying_labels(here, everywhere))
    return found


def _measure(site: Site, book: Registrations, situation: Situation) -> Situation:
    """Ask for a run if one is due. What the operator asks for while a run is under way waits for its end."""
    wanted = situation.asked_to_measure
    if wanted and not situation.benchmarks.enabled:
        log.info("run_not_asked_for", why="BENCHMARK_DISABLE")
        book.served(RUN_WANTED, wanted)
    why = run_due(situation)
    if not why:
        return situation
    run = site.ledger.benchmarks.ask(
        why,
        machines_digest(situation.machines),
        situation.terms,
        anew=bool(wanted),
        also=lambda connection: book.served(RUN_WANTED, wanted, connection),
    )
    if run is not None:
        log.info("run_asked_for", why=why, run=run)
    return after_asking_for_a_run(situation)


def _estimated(site: Site, decision: Decision) -> Write | Refused | NoEstimateError:
    """The call that registers, or why it would be refused, or is not known to be."""
    assert decision.offer is not None  # noqa: S101  there is something to register
    intent = f"{PURPOSE}:{decision.offer.digest}:{secrets.token_hex(8)}"
    write = Write(intent, PURPOSE, register_call(decision.offer), to=site.chain.contract.addresses.providers)
    gas = site.chain.wallet.estimate([write])[0]
    return replace(write, gas=gas) if isinstance(gas, int) else gas


def _send(site: Site, book: Registrations, situation: Situation, decision: Decision, write: Write) -> None:
    """Write it to the chain; its intent is remembered before it is signed, and as a try once it is."""
    assert decision.offer is not None  # noqa: S101
    memory = after_sending(situation, decision.offer, write.intent)
    book.keep(replace(memory, tries=memory.tries - 1))
    site.chain.wallet.send([write])
    book.keep(memory)
    log.info("registration_sent", why=decision.why, digest=decision.offer.digest)
    site.chain.wake_tracker()


def _tell(site: Site, book: Registrations, situation: Situation, decision: Decision, refusal: Refused | None) -> None:
    """Write down how it stands, and call the operator for what he has to know."""
    now = standing(situation)
    was = book.learn_standing(now)
    if was is not None:
        log.info("provider_standing", standing=now.value, was=was or None, claims=now.claims, why=decision.why)
    book.tell(_document(site, situation, decision, refusal))
    wanted = {CALLS_FOR_AN_OPERATOR[now]} if now in CALLS_FOR_AN_OPERATOR else set()
    if decision.turned_down:
        wanted.add(AlarmName.PROVIDER_REJECTED)
    if refusal is not None or decision.given_up:
        wanted.add(AlarmName.REGISTRATION_REFUSED)
    if not situation.benchmarks.enabled:
        site.ledger.alarms.off(AlarmName.BENCHMARK_FAILED)  # the operator knows, and no run is to come
    details = {"standing": now.value, "why": decision.why if refusal is None else str(refusal)}
    for name in (AlarmName.PROVIDER_BANNED, AlarmName.PROVIDER_REJECTED, AlarmName.REGISTRATION_REFUSED):
        if name in wanted:
            site.ledger.alarms.on(name, **details, advice="supervisor provider")
        else:
            site.ledger.alarms.off(name)


def _document(site: Site, situation: Situation, decision: Decision, refusal: Refused | None) -> dict[str, Any]:
    """How it stands, for the operator."""
    chain, side = situation.on_offer, site.offer
    offers = {"registered": chain.registered, "waiting": chain.waiting, "offered": decision.offer}
    refused = "" if refusal is None else f"; it would be refused: {refusal}"
    odd = far_off(side.prices, USUAL_PRICES)
    odd += overruled(situation.machine_labels, side.operator_labels, side.labels_override)
    return {
        "address": site.chain.wallet.address,
        "decision": decision.action.value,
        "why": decision.why + refused,
        "measuring": situation.benchmarks.under_way,
        "odd": odd,
        **{name: None if offer is None else offer.plain() for name, offer in offers.items()},
    }
