"""Free TCP ports of this machine, each for one program of the project only.

Another program can take a free port before the server that shall have it listens. So
programs take blocks of ports. A program holds a block by a Unix socket with an abstract
name, which the kernel frees at the end of the program. Such a name is visible in one
network namespace, as ports are.
"""

import atexit
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

FIRST_PORT = 10_000
BLOCK_PORTS = 50


class PortAllocator:
    """Gives each port once, as long as there are blocks left, so that a server has its
    port again after a restart. Threads may share it; a forked process takes blocks of
    its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._held: list[socket.socket] = []
        self._left: list[int] = []

    def take(self, in_a_row: int = 1) -> int:
        """A free port, the first of `in_a_row` free ones. Raises OSError when all
        blocks are taken.
        """
        with self._lock:
            if self._process != os.getpid():
                self.close()
                self._process = os.getpid()
            while True:
                while len(self._left) >= in_a_row:
                    ports, self._left = self._left[:in_a_row], self._left[in_a_row:]
                    if all(map(_is_free, ports)):
                        return ports[0]
                first = self._hold_block()
                self._left = list(range(first, first + BLOCK_PORTS))

    def close(self) -> None:
        """Free the blocks for other programs. In a forked process, they stay with the
        parent.
        """
        for holder in self._held:
            holder.close()
        self._held, self._left = [], []

    def _hold_block(self) -> int:
        for first in _blocks():
            holder = socket.socket(socket.AF_UNIX)
            try:
                holder.bind(f"\0devgrid-ports-{first}")
            except OSError:
                holder.close()
                continue
            self._held.append(holder)
            return first
        raise OSError(
            f"found no block of {BLOCK_PORTS} ports that no other program holds; end some of them"
        )


def free_port(in_a_row: int = 1) -> int:
    """A free TCP port of 127.0.0.1, which this function gives to no other process. With
    `in_a_row`, the first of so many. Raises OSError when there is none.
    """
    return _ALLOCATOR.take(in_a_row)


def _blocks() -> Iterator[int]:
    """The blocks' first ports, from a random one on. They are below the ports that the
    kernel gives to connections.
    """
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    number = (below - FIRST_PORT) // BLOCK_PORTS
    begin = secrets.randbelow(number)
    for turn in range(number):
        yield FIRST_PORT + (begin + turn) % number * BLOCK_PORTS


def _is_free(port: int) -> bool:
    """Whether a server could listen there, and be reached: a rule of the firewall, such
    as one for a container that was killed, can lead the port elsewhere.
    """
    with socket.socket() as server, socket.socket() as caller:
        caller.settimeout(1.0)
        try:
            server.bind(("127.0.0.1", port))
            server.listen()
            caller.connect(("127.0.0.1", port))
        except OSError:
            return False
    return True


_ALLOCATOR = PortAllocator()
atexit.register(_ALLOCATOR.close)
