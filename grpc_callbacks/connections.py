"""Which connections the acceptor keeps, and which one it closes when too many are open.
Pure.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain, count, filterfalse
from operator import attrgetter

Address = IPv4Address | IPv6Address

MAX_CONNECTIONS_OF_A_PEER = 256  # the upstream plugins open a connection for each event
MAX_CONNECTIONS = 4096
CALLS_OF_A_PEER = 256  # at the same time
IPV6_NETWORK_BITS = 64  # a machine can use any address of its network

_ARRIVALS = count()
_PROVEN, _ANSWERED = attrgetter("proven"), attrgetter("answered")


@dataclass(eq=False)
class CallerConnection:
    """A caller's connection. `address` and `port` are the caller's own."""

    address: Address
    port: int
    arrived: int = field(default_factory=lambda: next(_ARRIVALS))
    calls: int = 0  # under way
    answered: bool = False  # one of its calls had an answer other than a refusal
    proven: bool = False  # one of its calls had a valid proof

    @cached_property
    def peer(self) -> str:
        """The caller's address and port, as gRPC writes them."""
        shown = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"ipv{self.address.version}:{shown}:{self.port}"

    @cached_property
    def origin(self) -> int | Address:
        """The unit that counts as one peer: an IPv4 address, or the IPv6 network of one
        machine.
        """
        if isinstance(self.address, IPv6Address):
            return int(self.address) >> IPV6_NETWORK_BITS
        return self.address

    @property
    def worth(self) -> tuple[bool, bool, bool, int]:
        """The order of closing, the lowest first: no proof, never an answer, no call
        under way, the oldest.
        """
        return self.proven, self.answered, self.calls > 0, self.arrived


class Connections:
    """The connections that are held. Those from `own`, addresses and ports of this
    process, are never closed for others.
    """

    def __init__(
        self,
        most: int = MAX_CONNECTIONS,
        most_of_a_peer: int = MAX_CONNECTIONS_OF_A_PEER,
    ) -> None:
        self.own = set[tuple[Address, int]]()
        self._most = most
        self._most_of_a_peer = most_of_a_peer
        self._held: defaultdict[int | Address, set[CallerConnection]] = defaultdict(set)
        # of the connections that are held
        self._calls: Counter[int | Address] = Counter()
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def admit(self, new: CallerConnection) -> CallerConnection | None:
        """Add a connection; returns the one that the caller must close for it, if any.

        That one is of the same peer if the peer has too many, else of a peer with
        most. It is never the new one, so that no peer locks out another caller of its
        address.
        """
        of_peer = self._held[new.origin]
        given_up = None
        if len(of_peer) >= self._most_of_a_peer:
            given_up = self._least_worth(of_peer)
        elif self._number >= self._most:
            given_up = self._least_worth(self._largest_peer())
        of_peer.add(new)
        self._number += 1
        if given_up is not None:
            self.remove(given_up)
        return given_up

    def remove(self, held: CallerConnection) -> None:
        """Remove a connection. Removing it again changes nothing."""
        of_peer = self._held.get(held.origin, set())
        if held in of_peer:
            of_peer.remove(held)
            self._number -= 1
            self._calls[held.origin] -= held.calls
        if not of_peer:
            self._held.pop(held.origin, None)
            self._calls.pop(held.origin, None)

    def begin_call(self, connection: CallerConnection) -> None:
        """Count a call that begins on the connection."""
        self._count(connection, 1)

    def end_call(self, connection: CallerConnection) -> None:
        """Count a call that has ended."""
        self._count(connection, -1)

    def calls_of_peer(self, held: CallerConnection) -> int:
        """Return how many calls of the connection's peer are under way, on all
        connections that are held.
        """
        return self._calls[held.origin]

    def _count(self, connection: CallerConnection, change: int) -> None:
        connection.calls += change
        if connection in self._held.get(connection.origin, ()):
            self._calls[connection.origin] += change

    def _largest_peer(self) -> set[CallerConnection]:
        """Return the connections of a peer with most. Of several such peers, prefer one
        with a connection that never had an answer, then one with a connection that is
        not proven.

        The search stops at the first such peer: to compare all connections took 14 ms
        for each one that a flood opened. Connections of this process count for none:
        they are never closed.
        """
        of_others = [*filterfalse(self._are_our_own, self._held.values())]
        most = max(map(len, of_others), default=0)
        largest = [of_peer for of_peer in of_others if len(of_peer) == most]
        unanswered = filterfalse(lambda of_peer: all(map(_ANSWERED, of_peer)), largest)
        unproven = filterfalse(lambda of_peer: all(map(_PROVEN, of_peer)), largest)
        return next(chain(unanswered, unproven, largest), set())

    def _are_our_own(self, connections: set[CallerConnection]) -> bool:
        return all((one.address, one.port) in self.own for one in connections)

    def _least_worth(
        self, connections: set[CallerConnection]
    ) -> CallerConnection | None:
        others = [one for one in connections if (one.address, one.port) not in self.own]
        return min(others, key=lambda connection: connection.worth, default=None)


class UnreadCalls:
    """Counts the calls whose message has not arrived, by connection. A caller can begin
    many calls and send nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls = dict[str, int]()  # the oldest connection first
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def begin(self, name: str) -> str | None:
        """Count a call; with too many, returns the connection to close: the one with
        most. Its calls count no more.
        """
        given_up = None
        if self._number >= self._most:
            given_up = max(self._calls, key=self._calls.__getitem__)
            self._number -= self._calls.pop(given_up)
        self._calls[name] = self._calls.get(name, 0) + 1
        self._number += 1
        return given_up

    def end(self, name: str) -> None:
        """Count a call no more: its message has arrived, or it has ended."""
        if name not in self._calls:
            return
        self._number -= 1
        self._calls[name] -= 1
        if not self._calls[name]:
            del self._calls[name]


def address_of(text: str) -> Address:
    """Parse an address from the kernel; an IPv4 address that is mapped into IPv6
    becomes IPv4.
    """
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
