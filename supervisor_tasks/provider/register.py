"""Register: send the provider's offer to the contract, and report to the operator
whether the grid accepts it.
"""

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import register_call
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.benchmarks import (
    StoredMeasurement,
    labels_missing_here,
    labels_of,
    latest_of,
)
from supervisor_tasks.ledger.clusters import is_at_work
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.registrations import (
    MEASUREMENT_REQUESTED,
    NODES,
    REGISTRATION_REQUESTED,
    Registrations,
)
from supervisor_tasks.ledger.transaction_names import Purpose
from supervisor_tasks.monitoring.slurm_health import slurm_is_healthy
from supervisor_tasks.provider.measuring_rules import after_asking_for_a_run, run_due
from supervisor_tasks.provider.offer import (
    USUAL_PRICES,
    Machine,
    Offer,
    label_texts,
    machines_digest,
    price_warnings,
    shadowed_labels,
)
from supervisor_tasks.provider.registration_rules import (
    Action,
    MeasuredState,
    Registrar,
    RegistrationDecision,
    RegistrationInput,
    RegistrationStatus,
    Results,
    TransactionStatus,
    after_sending,
    decide,
    registrar_of,
    registration_status,
    shows_nodes,
    still_measured,
    updated_record,
)
from supervisor_tasks.wallet.gas import NoEstimateError, RevertedError, TooMuchGasError
from supervisor_tasks.wallet.transaction_writer import Write

log = structlog.get_logger()

Rejected = RevertedError | TooMuchGasError

ALARM_OF_STATUS = {
    RegistrationStatus.BANNED: AlarmName.PROVIDER_BANNED,
    RegistrationStatus.REJECTED: AlarmName.PROVIDER_REJECTED,
    RegistrationStatus.REMOVED: AlarmName.PROVIDER_REJECTED,
}


def register(context: WorkerContext) -> None:
    """Compare the offer with the contract, and do what follows. One worker at a time
    does it. Raises RpcUnavailableError or LedgerUnavailableError, when an endpoint or
    the database does not answer; a retry helps.
    """
    run_exclusive(context.ledger, "register", lambda: _register(context))


def _register(context: WorkerContext) -> bool:
    registrations = Registrations(context.ledger.facts)
    seen = _inputs(context, registrations)
    if seen.on_chain.registered is not None:
        registrations.append_prices(seen.on_chain.registered.prices, datetime.now(UTC))
    inputs = _measure(
        context, registrations, replace(seen, record=updated_record(seen))
    )
    registrations.store(inputs.record)
    decision = decide(inputs)
    write = None
    if decision.action is Action.REGISTER:
        write = _estimated(context, decision)
    rejection = write if isinstance(write, Rejected) else None
    _store_and_update_alarms(context, registrations, inputs, decision, rejection)
    if isinstance(write, NoEstimateError):
        raise write
    is_served = decision.action is Action.NOTHING
    if isinstance(write, Write):
        _send(context, registrations, inputs, decision, write)
        is_served = True
    if seen.asked and is_served:
        registrations.served(REGISTRATION_REQUESTED, seen.asked)
    return False


def _inputs(context: WorkerContext, registrations: Registrations) -> RegistrationInput:
    """Collect what the decision needs. The worker looks at the transaction before the
    contract, so the contract shows all that was mined by then.
    """
    offer, record = context.offer, registrations.record(_registry(context))
    last_transaction = TransactionStatus()
    if record.idempotency_key:
        last_transaction = context.chain.account.transactions.status_of(
            record.idempotency_key
        )
    on_chain = context.chain.contract.on_offer()
    cursor = context.ledger.cursors.of(CONTRACT_STREAM)
    if cursor is not None and on_chain.block < cursor[0]:
        raise RpcUnavailableError(
            f"the node is at block {on_chain.block}, and {cursor[0]} was read already"
        )
    machines, known_s = tuple[Machine, ...](), 0.0
    is_healthy = slurm_is_healthy(context.ledger)
    if is_healthy and shows_nodes(context.ledger.periodic_runs.age_s(NODES)):
        machines, known_s = registrations.hardware()
    return RegistrationInput(
        on_chain=on_chain,
        record=record,
        last_transaction=last_transaction,
        confirmations=context.chain.confirmations,
        machines=machines,
        is_hardware_stable=known_s >= offer.hardware_stable_s,
        prices=offer.prices,
        operator=offer.operator_labels,
        override=offer.labels_override,
        benchmarks=_benchmarks(context),
        asked=registrations.asked(REGISTRATION_REQUESTED),
        asked_to_measure=registrations.asked(MEASUREMENT_REQUESTED),
        registrar=_registrar(context),
    )


def _registry(context: WorkerContext) -> str:
    contract = context.chain.contract
    return f"{contract.chain_id}:{contract.addresses.providers}:{contract.provider}"


def _registrar(context: WorkerContext) -> Registrar | None:
    contract, ledger = context.chain.contract, context.ledger
    partners = ledger.wallets.partners(contract.chain_id, contract.provider)
    cluster = registrar_of(ledger.cluster, partners)
    if cluster is None:
        return None
    return Registrar(cluster, at_work=is_at_work(ledger.engine, cluster))


def _benchmarks(context: WorkerContext) -> MeasuredState:
    """Collect the state of the benchmarks. Labels are read last: if a run ends
    meanwhile, none of its labels is missed, and no label counts as no longer measured.
    """
    offer, runs = context.offer, context.ledger.benchmarks
    under_way, last = runs.under_way(), context.ledger.benchmark_queries.run()
    pricing_digest = runs.pricing_digest()
    measured_machines = still_measured(runs.ended())
    measured = runs.measured()
    if under_way is not None:
        measured = [one for one in measured if one.run_id != under_way.id]
    ended_ago_s = None
    if last is not None and last["ended_at"] is not None:
        ended_ago_s = (datetime.now(UTC) - last["ended_at"]).total_seconds()
    return MeasuredState(
        enabled=offer.benchmarks_enabled,
        under_way=under_way is not None,
        ended_ago_s=ended_ago_s,
        every_s=offer.benchmark_every_s,
        labels=label_texts(labels_of(latest_of(measured))),
        results_by_machines=_results(measured),
        measured_keys=frozenset[str]().union(*(one.labels for one in measured)),
        measured_machines=measured_machines,
        pricing_digest=pricing_digest,
    )


def _results(measured: list[StoredMeasurement]) -> dict[str, Results]:
    """Return what was measured on each set of machines, by its digest."""
    everywhere = latest_of(measured)
    of_machines = dict[str, list[StoredMeasurement]]()
    for one in measured:
        if one.hardware_digest is not None:
            of_machines.setdefault(one.hardware_digest, []).append(one)
    results = dict[str, Results]()
    for hardware_digest, measurements in of_machines.items():
        here = latest_of(measurements)
        results[hardware_digest] = Results(
            label_texts(labels_of(here)), labels_missing_here(here, everywhere)
        )
    return results


def _measure(
    context: WorkerContext, registrations: Registrations, inputs: RegistrationInput
) -> RegistrationInput:
    """Request a run if one is due. A run that the operator requests waits until the
    current run has ended.
    """
    wanted = inputs.asked_to_measure
    if wanted and not inputs.benchmarks.enabled:
        log.info("benchmark_run_not_requested", why="BENCHMARK_DISABLE")
        registrations.served(MEASUREMENT_REQUESTED, wanted)
    why = run_due(inputs)
    if not why:
        return inputs
    run = context.ledger.benchmarks.ask(
        why,
        machines_digest(inputs.machines),
        inputs.pricing_digest,
        forced=bool(wanted),
        also=lambda connection: registrations.served(
            MEASUREMENT_REQUESTED, wanted, connection
        ),
    )
    if run is not None:
        log.info("benchmark_run_requested", why=why, run=run)
    return after_asking_for_a_run(inputs)


def _estimated(
    context: WorkerContext, decision: RegistrationDecision
) -> Write | Rejected | NoEstimateError:
    """Return the call that registers, or why the contract would reject it, or why that
    is not known.
    """
    assert decision.offer is not None  # noqa: S101  there is something to register
    idempotency_key = (
        f"{Purpose.REGISTER}:{decision.offer.digest}:{secrets.token_hex(8)}"
    )
    write = Write(
        idempotency_key,
        Purpose.REGISTER,
        register_call(decision.offer),
        to=context.chain.contract.addresses.providers,
    )
    gas = context.chain.transaction_writer.estimate([write])[0]
    if not isinstance(gas, int):
        return gas
    return replace(write, gas=gas)


def _send(
    context: WorkerContext,
    registrations: Registrations,
    inputs: RegistrationInput,
    decision: RegistrationDecision,
    write: Write,
) -> None:
    """Send the registration. Its idempotency key is stored before it is signed, and
    the try is counted once it is signed.
    """
    assert decision.offer is not None  # noqa: S101
    record = after_sending(inputs, decision.offer, write.idempotency_key)
    registrations.store(replace(record, tries=record.tries - 1))
    context.chain.transaction_writer.send([write])
    registrations.store(record)
    log.info("registration_sent", why=decision.why, digest=decision.offer.digest)
    context.dispatch("collect_receipts")


def _wanted_alarms(
    now: RegistrationStatus, decision: RegistrationDecision, rejection: Rejected | None
) -> set[AlarmName]:
    wanted = set[AlarmName]()
    if now in ALARM_OF_STATUS:
        wanted.add(ALARM_OF_STATUS[now])
    if decision.turned_down:
        wanted.add(AlarmName.PROVIDER_REJECTED)
    if rejection is not None or decision.given_up:
        wanted.add(AlarmName.REGISTRATION_REJECTED)
    if decision.differs:
        wanted.add(AlarmName.SHARED_OFFER_DIFFERS)
    return wanted


def _store_and_update_alarms(
    context: WorkerContext,
    registrations: Registrations,
    inputs: RegistrationInput,
    decision: RegistrationDecision,
    rejection: Rejected | None,
) -> None:
    """Store the registration's status and the decision, and raise or clear the alarms
    about them.
    """
    now = registration_status(inputs)
    was = registrations.store_status(now)
    if was is not None:
        log.info(
            "registration_status_changed",
            status=now.value,
            was=was or None,
            claims=now.claims,
            why=decision.why,
        )
    registrations.record_decision(_document(context, inputs, decision, rejection))
    # the operator has disabled benchmarks: no run will clear this alarm
    if not inputs.benchmarks.enabled:
        context.ledger.alarms.off(AlarmName.BENCHMARK_FAILED)
    wanted = _wanted_alarms(now, decision, rejection)
    why = decision.why if rejection is None else str(rejection)
    details = {"registration_status": now.value, "why": why}
    for name in (
        AlarmName.PROVIDER_BANNED,
        AlarmName.PROVIDER_REJECTED,
        AlarmName.REGISTRATION_REJECTED,
        AlarmName.SHARED_OFFER_DIFFERS,
    ):
        if name in wanted:
            context.ledger.alarms.on(name, **details, advice="supervisor provider show")
        else:
            context.ledger.alarms.off(name)


def _document(
    context: WorkerContext,
    inputs: RegistrationInput,
    decision: RegistrationDecision,
    rejection: Rejected | None,
) -> dict[str, Any]:
    """Return the state of the registration for the operator."""
    chain, offer, why = inputs.on_chain, context.offer, decision.why
    if rejection is not None:
        why += f"; it would be rejected: {rejection}"
    warnings = price_warnings(offer.prices, USUAL_PRICES)
    warnings += shadowed_labels(
        inputs.machine_labels, offer.operator_labels, offer.labels_override
    )
    return {
        "address": context.chain.account.address,
        "decision": decision.action.value,
        "why": why,
        "measuring": inputs.benchmarks.under_way,
        "registrar": inputs.registrar and inputs.registrar.cluster,
        "warnings": warnings,
        "registered": _plain(chain.registered),
        "waiting": _plain(chain.waiting),
        "offered": _plain(decision.offer),
    }


def _plain(offer: Offer | None) -> dict[str, Any] | None:
    if offer is None:
        return None
    return offer.plain()
