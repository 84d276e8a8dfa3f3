"""Which callers may call: with a proof by the site's key (plugins/proof.py), or without
one, for hints only.
"""

import hmac
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network

import grpc

from grpc_callbacks.connections import Address
from plugins import proof

NEVER = -1
TIME = re.compile("[0-9]{1,15}")  # a caller may send more digits than int() accepts
PROOF_ENTRIES = (proof.NODE, proof.TIME, proof.PROOF)  # of a call's metadata


class Proof(StrEnum):
    """Whether a callback has a proof, as the ledger stores it."""

    PROVEN = "proven"
    UNPROVEN = "unproven"  # the site has a key, and the caller did not use it
    NO_KEY = "no key"  # the site has none


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that may call. `node` is the machine that it names: at a site without a
    key, nothing proves that. `time_ms` is when it made its proof, by its own clock.
    """

    proof: Proof
    node: str = ""
    time_ms: int = NEVER


class StrangerError(Exception):
    """The caller may not call; `code` is the status of the answer."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class Callers:
    """The site's rules: the key, whether a proof is `required`, and the networks for
    callers without a proof.

    Without networks, callers without a proof may call from everywhere.
    """

    def __init__(
        self,
        key: bytes | None,
        *,
        required: bool = False,
        networks: Sequence[IPv4Network | IPv6Network] = (),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._required = required
        self._networks = networks
        self._now_s = now_s
        self._began_ms = int(now_s() * 1000)
        self._last_heartbeat_ms: dict[str, int] = {}

    def admit(
        self,
        address: Address,
        method: str,
        message: bytes,
        metadata: Iterable[tuple[str, str | bytes]],
    ) -> Caller:
        """Return the caller of a call, checked by its proof or its address. Raises
        StrangerError; a retry does not help.
        """
        entries = {
            name: str(value) for name, value in metadata if name in PROOF_ENTRIES
        }
        if self._key is not None and proof.PROOF in entries:
            return self._proven(self._key, method, message, entries)
        if self._required:
            raise StrangerError(
                grpc.StatusCode.UNAUTHENTICATED,
                "found no proof; expected one by the site's CALLBACK_KEY",
            )
        if self._networks and not any(address in network for network in self._networks):
            raise StrangerError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"found {address}; expected an address of CALLBACK_NETWORKS, or a proof",
            )
        if self._key is None:
            return Caller(Proof.NO_KEY, entries.get(proof.NODE, ""))
        return Caller(Proof.UNPROVEN)

    def counts_as_heartbeat(self, caller: Caller) -> bool:
        """Return whether a reporter's heartbeat counts. Without a key each counts.

        At a site with a key it must be proven, newer than the last of its node, and
        newer than the start of this process. An older one can be a repeat of a
        heartbeat that another process received.
        """
        if caller.proof is not Proof.PROVEN:
            return caller.proof is Proof.NO_KEY
        if caller.time_ms <= max(
            self._began_ms, self._last_heartbeat_ms.get(caller.node, NEVER)
        ):
            return False
        self._last_heartbeat_ms[caller.node] = caller.time_ms
        return True

    def _proven(
        self, key: bytes, method: str, message: bytes, entries: dict[str, str]
    ) -> Caller:
        """Return the caller that made the proof. Raises StrangerError if the proof is
        of another key, or too old.
        """
        node, time_text = entries.get(proof.NODE, ""), entries.get(proof.TIME, "")
        time_ms = int(time_text) if TIME.fullmatch(time_text) else NEVER
        expected = proof.seal(key, method, message, time_ms, node)
        if not hmac.compare_digest(expected.encode(), entries[proof.PROOF].encode()):
            raise StrangerError(
                grpc.StatusCode.UNAUTHENTICATED,
                "found a proof by another key; expected one by the site's CALLBACK_KEY",
            )
        apart_s = self._now_s() - time_ms / 1000
        if abs(apart_s) > proof.VALID_S:
            raise StrangerError(
                grpc.StatusCode.UNAUTHENTICATED,
                f"found a proof of {apart_s:.0f} s ago by the clock of {node}; expected {proof.VALID_S} s at most",
            )
        return Caller(Proof.PROVEN, node, time_ms)
