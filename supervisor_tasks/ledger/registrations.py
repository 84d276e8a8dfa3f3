"""The provider's registration in the ledger: facts that one worker writes, and another
worker or the operator reads.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.facts import DOCUMENT, TEXT, Codec, Fact, dataclass_codec
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate
from supervisor_tasks.provider.offer import Machine, Prices, RegisteredPrices
from supervisor_tasks.provider.registration_rules import (
    RegistrationRecord,
    RegistrationStatus,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from supervisor_tasks.ledger.fact_store import Facts

Machines = tuple[Machine, ...]

NODES = "nodes"  # the periodic run of looks at the nodes to which SLURM answered


@dataclass(frozen=True, slots=True)
class Permission:
    """What the contract allows the provider to do."""

    valid: bool
    waiting: bool
    banned: bool


def _machines(stored: str) -> Machines:
    return tuple(Machine(*numbers) for numbers in json.loads(stored))


def _stored_machines(machines: Machines) -> str:
    return json.dumps(
        [[machine.gpus, machine.cpus, machine.mem_mb] for machine in machines]
    )


def _registered_prices(stored: str) -> tuple[RegisteredPrices, ...]:
    return tuple(
        RegisteredPrices(datetime.fromisoformat(since), Prices(*wei))
        for since, *wei in json.loads(stored)
    )


def _stored_prices(seen: tuple[RegisteredPrices, ...]) -> str:
    return json.dumps(
        [[one.since.isoformat(), *one.prices.named().values()] for one in seen]
    )


_RECORD = dataclass_codec(RegistrationRecord)


def _record_of(stored: str) -> RegistrationRecord:
    record = _RECORD.decode(stored)
    given = tuple((key, text) for key, text in record.given)
    return replace(record, rejected=tuple(record.rejected), given=given)


# the machines that SLURM shows
HARDWARE = Fact("provider.hardware", Codec(_stored_machines, _machines))
NO_USABLE_NODES_REASON = Fact("provider.no_usable_nodes_reason", TEXT)
# as the claiming worker last read it
PERMISSION = Fact("provider.permission", dataclass_codec(Permission))
REGISTRATION_STATUS = Fact(
    "provider.registration_status", Codec(str, RegistrationStatus)
)
REGISTRATION_RECORD = Fact(
    "provider.registration_record", Codec(_RECORD.encode, _record_of)
)
# the state of the registration, for the operator
REGISTRATION = Fact("provider.registration", DOCUMENT)
# all, oldest first
REGISTERED_PRICES = Fact(
    "provider.registered_prices", Codec(_stored_prices, _registered_prices)
)
# the operator asks for it; the value is the reason
REGISTRATION_REQUESTED = Fact("provider.registration_requested", TEXT)
MEASUREMENT_REQUESTED = Fact("provider.measurement_requested", TEXT)


class Registrations:
    """The registration of one cluster. One worker at a time writes the record. Its
    methods raise LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self._not_seen = Duration(facts, AlarmName.NO_USABLE_NODES.value)

    def store_hardware(self, machines: tuple[Machine, ...]) -> bool:
        """Store the machines that SLURM shows. True when they differ from those
        before.
        """
        return self._facts.set(HARDWARE, machines)

    def delete_hardware(self) -> None:
        """Delete the machines, because no worker has looked for a while. Their age
        starts again at 0.
        """
        self._facts.clear(HARDWARE)

    def hardware(self) -> tuple[tuple[Machine, ...], float]:
        """The machines that SLURM shows, and for how many seconds it has shown them.
        Empty before the first look.
        """
        stored = self._facts.read(HARDWARE)
        return ((), 0.0) if stored is None else (stored.value, stored.age_s)

    def end_missed(self) -> None:
        """End the time without nodes: a look has found working nodes, or none is
        possible because SLURM does not work.
        """
        self._not_seen.update(False)
        if self._facts.get(NO_USABLE_NODES_REASON) is not None:
            self._facts.clear(NO_USABLE_NODES_REASON)

    def store_no_nodes_reason(self, why: str) -> None:
        """Store why a look has found no nodes, or has failed."""
        self._facts.set(NO_USABLE_NODES_REASON, sanitize_and_truncate(why))

    def why_no_nodes(self) -> tuple[str, float] | None:
        """Why the last look found no working node, and for how many seconds there is
        none; None if it found one.
        """
        why = self._facts.get(NO_USABLE_NODES_REASON)
        if why is None or self._not_seen.subject() is None:
            return None
        return why, self._not_seen.seconds()

    def store_permission(self, valid: bool, waiting: bool, banned: bool) -> bool:
        """Store what the contract allows the provider to do. True when it differs from
        before.
        """
        permission = Permission(valid, waiting, banned)
        if self._facts.get(PERMISSION) == permission:
            return False
        return self._facts.set(PERMISSION, permission)

    def store_status(self, status: RegistrationStatus) -> str | None:
        """Store the status of the registration. Returns the one before, empty if there
        was none; None if it is unchanged.
        """
        before = self._facts.get(REGISTRATION_STATUS)
        if not self._facts.set(REGISTRATION_STATUS, status):
            return None
        return "" if before is None else before.value

    def status(self) -> tuple[RegistrationStatus, float] | None:
        """The status of the registration, and for how many seconds it has been so; None
        before it is known.
        """
        stored = self._facts.read(REGISTRATION_STATUS)
        return None if stored is None else (stored.value, stored.age_s)

    def record(self, registry: str) -> RegistrationRecord:
        """The stored record of the registration; an empty one if none is stored, or
        only one about another registry: on another contract, or for another wallet, the
        provider has sent nothing and the grid has turned nothing down.
        """
        stored = self._facts.get(REGISTRATION_RECORD)
        if stored is None or stored.registry != registry:
            return RegistrationRecord(registry=registry)
        return stored

    def store(self, record: RegistrationRecord) -> None:
        """Store the record of the registration."""
        self._facts.set(REGISTRATION_RECORD, record)

    def record_decision(self, document: dict[str, Any]) -> None:
        """Store the state of the registration, for the operator."""
        self._facts.set(REGISTRATION, document)

    def last_decision(self) -> dict[str, Any] | None:
        """The state of the registration, for the operator; None before a worker has
        stored it.
        """
        return self._facts.get(REGISTRATION)

    def append_prices(self, prices: Prices, now: datetime) -> None:
        """Append the prices that the contract has, if they differ from the last
        ones.
        """
        seen = self.registered_prices()
        if not seen or seen[-1].prices != prices:
            self._facts.set(REGISTERED_PRICES, (*seen, RegisteredPrices(now, prices)))

    def registered_prices(self) -> tuple[RegisteredPrices, ...]:
        """The prices that the contract has had of the provider, in the order of
        time.
        """
        return self._facts.get_or(REGISTERED_PRICES, ())

    def ask(self, what: Fact[str], why: str) -> None:
        """Ask for this work soon, for a reason. Asking twice has the same effect as
        once.
        """
        self._facts.set(what, why)

    def asked(self, what: Fact[str]) -> str:
        """The reason why the operator asks for this work; empty when it is not asked
        for.
        """
        return self._facts.get_or(what, "")

    def served(
        self, what: Fact[str], why: str, connection: "Connection | None" = None
    ) -> None:
        """Delete a request that was carried out. A request with another reason, made
        meanwhile, stays. With a connection, this is part of its transaction.
        """
        if why:
            self._facts.clear_if(what, why, connection)
