"""What the ledger knows of the provider's registration: facts that one worker writes, and another one or the operator reads."""

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from supervisor_tasks.ledger.rows import storable
from supervisor_tasks.ledger.sweeps import Sweeps
from supervisor_tasks.offer import Machine
from supervisor_tasks.registration import Memory, Standing

HARDWARE = "hardware"  # what SLURM shows
NODES = "nodes"  # the tick that is there while somebody looks and SLURM answers
NOT_SEEN = "nodes are not seen"  # since when no look has found a node that works
WHY_NOT_SEEN = "why nodes are not seen"
PERMISSION = "permission"  # what the contract lets the provider do, as the claims saw it last
STANDING = "standing"
MEMORY = "registration memory"
DOCUMENT = "registration"  # how it stands, for the operator
WANTED = "registration wanted"  # the operator asks, and why
RUN_WANTED = "measurement wanted"


class Registrations:
    """The registration of one cluster. One worker at a time writes the memory."""

    def __init__(self, facts: Sweeps) -> None:
        self._facts = facts

    def learn_hardware(self, machines: tuple[Machine, ...]) -> bool:
        """Write down what SLURM shows; True when it is something else than before."""
        numbers = [[machine.gpus, machine.cpus, machine.mem_mb] for machine in machines]
        return self._facts.learn(HARDWARE, json.dumps(numbers))

    def forget_hardware(self) -> None:
        """Nobody has looked for a while: however long it was so, that begins anew."""
        known = self._facts.fact(HARDWARE)
        if known is not None:
            self._facts.forget(HARDWARE, known[0])

    def hardware(self) -> tuple[tuple[Machine, ...], float]:
        """What SLURM shows, and for how many seconds it has been so; nothing as long as nobody has looked."""
        known = self._facts.fact(HARDWARE)
        if known is None:
            return (), 0.0
        return tuple(Machine(*numbers) for numbers in json.loads(known[0])), known[1]

    def forget_missed(self) -> None:
        """A look has found nodes that work; or SLURM does not work, and nobody can look."""
        for name in (NOT_SEEN, WHY_NOT_SEEN):
            known = self._facts.fact(name)
            if known is not None:
                self._facts.forget(name, known[0])

    def nodes_not_seen(self, why: str) -> float:
        """A look has found none, or has failed; for how many seconds that has been so."""
        self._facts.learn(WHY_NOT_SEEN, storable(why))
        self._facts.learn(NOT_SEEN, "yes")
        known = self._facts.fact(NOT_SEEN)
        return 0.0 if known is None else known[1]

    def why_no_nodes(self) -> tuple[str, float] | None:
        """Why the last look has found no node that works, and for how many seconds none has; None when it has found some."""
        why, since = self._facts.fact(WHY_NOT_SEEN), self._facts.fact(NOT_SEEN)
        return None if why is None or since is None else (why[0], since[1])

    def learn_permission(self, valid: bool, waiting: bool, banned: bool) -> bool:
        """Write down what the contract lets the provider do; True when it is something else than before."""
        seen = json.dumps({"valid": valid, "waiting": waiting, "banned": banned})
        known = self._facts.fact(PERMISSION)
        return (known is None or known[0] != seen) and self._facts.learn(PERMISSION, seen)

    def learn_standing(self, standing: Standing) -> str | None:
        """Write down how the provider stands; what it was, if that is another word: empty where there was none."""
        known = self._facts.fact(STANDING)
        if not self._facts.learn(STANDING, standing.value):
            return None
        return "" if known is None else known[0]

    def standing(self) -> tuple[Standing, float] | None:
        """How the provider stands, and for how many seconds."""
        known = self._facts.fact(STANDING)
        return None if known is None else (Standing(known[0]), known[1])

    def memory(self) -> Memory:
        """What is remembered."""
        known = self._facts.fact(MEMORY)
        if known is None:
            return Memory()
        document = json.loads(known[0])
        return Memory(**{**document, "rejected": tuple(document["rejected"])})

    def keep(self, memory: Memory) -> None:
        """Remember."""
        self._facts.learn(MEMORY, json.dumps(asdict(memory), sort_keys=True))

    def tell(self, document: dict[str, Any]) -> None:
        """Write down how it stands, for the operator."""
        self._facts.learn(DOCUMENT, json.dumps(document))

    def told(self) -> dict[str, Any] | None:
        """How it stands; None before anybody has looked."""
        known = self._facts.fact(DOCUMENT)
        if known is None:
            return None
        document: dict[str, Any] = json.loads(known[0])
        return document

    def ask(self, what: str, why: str) -> None:
        """Have it done soon. Asking twice is asking once."""
        self._facts.learn(what, why)

    def asked(self, what: str) -> str:
        """Why somebody asks for it; empty when nobody does."""
        known = self._facts.fact(what)
        return "" if known is None else known[0]

    def served(self, what: str, why: str, connection: Connection | None = None) -> None:
        """What was asked is done, unless somebody has asked anew; with a connection as part of its transaction."""
        if why:
            self._facts.forget(what, why, connection)
