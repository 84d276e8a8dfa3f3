"""What the ledger knows of the provider's registration: facts that one worker writes, and another one or the operator reads."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.facts import DOCUMENT, TEXT, Codec, Fact, Facts, dataclass_codec
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.rows import storable
from supervisor_tasks.offer import Machine
from supervisor_tasks.registration import Memory, Standing

Machines = tuple[Machine, ...]

NODES = "nodes"  # the tick that is there while somebody looks and SLURM answers


@dataclass(frozen=True, slots=True)
class Permission:
    """What the contract lets the provider do."""

    valid: bool
    waiting: bool
    banned: bool


def _machines(stored: str) -> Machines:
    return tuple(Machine(*numbers) for numbers in json.loads(stored))


def _stored_machines(machines: Machines) -> str:
    return json.dumps([[machine.gpus, machine.cpus, machine.mem_mb] for machine in machines])


def _memory(stored: str) -> Memory:
    document = json.loads(stored)
    return Memory(**{**document, "rejected": tuple(document["rejected"])})


HARDWARE = Fact("provider.hardware", Codec(_stored_machines, _machines))  # what SLURM shows
WHY_NOT_SEEN = Fact("provider.why_nodes_not_seen", TEXT)
PERMISSION = Fact("provider.permission", dataclass_codec(Permission))  # as the claims saw it last
STANDING = Fact("provider.standing", Codec(str, Standing))
MEMORY = Fact("provider.registration_memory", Codec(lambda memory: json.dumps(asdict(memory), sort_keys=True), _memory))
REGISTRATION = Fact("provider.registration", DOCUMENT)  # how it stands, for the operator
WANTED = Fact("provider.registration_wanted", TEXT)  # the operator asks, and why
RUN_WANTED = Fact("provider.measurement_wanted", TEXT)


class Registrations:
    """The registration of one cluster. One worker at a time writes the memory."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._not_seen = Duration(facts, AlarmName.NODES_NOT_SEEN.value)

    def learn_hardware(self, machines: tuple[Machine, ...]) -> bool:
        """Write down what SLURM shows; True when it is something else than before."""
        return self._facts.set(HARDWARE, machines)

    def forget_hardware(self) -> None:
        """Nobody has looked for a while: however long it was so, that begins anew."""
        self._facts.clear(HARDWARE)

    def hardware(self) -> tuple[tuple[Machine, ...], float]:
        """What SLURM shows, and for how many seconds it has been so; nothing as long as nobody has looked."""
        known = self._facts.read(HARDWARE)
        return ((), 0.0) if known is None else (known.value, known.age_s)

    def forget_missed(self) -> None:
        """A look has found nodes that work; or SLURM does not work, and nobody can look."""
        self._not_seen.update(False)
        if self._facts.get(WHY_NOT_SEEN) is not None:
            self._facts.clear(WHY_NOT_SEEN)

    def learn_why_not_seen(self, why: str) -> None:
        """Write down why a look has found none, or has failed."""
        self._facts.set(WHY_NOT_SEEN, storable(why))

    def why_no_nodes(self) -> tuple[str, float] | None:
        """Why the last look has found no node that works, and for how many seconds none has; None when it has found some."""
        why = self._facts.get(WHY_NOT_SEEN)
        return None if why is None or self._not_seen.subject() is None else (why, self._not_seen.seconds())

    def learn_permission(self, valid: bool, waiting: bool, banned: bool) -> bool:
        """Write down what the contract lets the provider do; True when it is something else than before."""
        seen = Permission(valid, waiting, banned)
        return self._facts.get(PERMISSION) != seen and self._facts.set(PERMISSION, seen)

    def learn_standing(self, standing: Standing) -> str | None:
        """Write down how the provider stands; what it was, if that is another word: empty where there was none."""
        known = self._facts.get(STANDING)
        if not self._facts.set(STANDING, standing):
            return None
        return "" if known is None else known.value

    def standing(self) -> tuple[Standing, float] | None:
        """How the provider stands, and for how many seconds."""
        known = self._facts.read(STANDING)
        return None if known is None else (known.value, known.age_s)

    def memory(self) -> Memory:
        """What is remembered."""
        return self._facts.get(MEMORY) or Memory()

    def keep(self, memory: Memory) -> None:
        """Remember."""
        self._facts.set(MEMORY, memory)

    def tell(self, document: dict[str, Any]) -> None:
        """Write down how it stands, for the operator."""
        self._facts.set(REGISTRATION, document)

    def told(self) -> dict[str, Any] | None:
        """How it stands; None before anybody has looked."""
        return self._facts.get(REGISTRATION)

    def ask(self, what: Fact[str], why: str) -> None:
        """Have it done soon. Asking twice is asking once."""
        self._facts.set(what, why)

    def asked(self, what: Fact[str]) -> str:
        """Why somebody asks for it; empty when nobody does."""
        return self._facts.get(what) or ""

    def served(self, what: Fact[str], why: str, connection: Connection | None = None) -> None:
        """What was asked is done, unless somebody has asked anew; with a connection as part of its transaction."""
        if why:
            self._facts.clear_if(what, why, connection)
