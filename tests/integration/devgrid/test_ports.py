"""Ports for servers: each is given once, to one process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from devgrid import REPOSITORY, ports
from devgrid.ports import BLOCK_PORTS, PortAllocator, free_port

ASKS = "from devgrid.ports import free_port; print(*(free_port() for _ in range({number}))); input()"


@pytest.fixture
def allocator() -> Iterator[PortAllocator]:
    with closing(PortAllocator()) as allocator:
        yield allocator


def test_free_port__asked_by_threads_and_processes__gives_each_port_once() -> None:
    argv = [sys.executable, "-c", ASKS.format(number=200)]
    others = [
        subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(lambda _: free_port(), range(200)))
    for other in others:
        assert other.stdout is not None
        given += map(int, other.stdout.readline().split())
    for other in others:
        other.communicate("\n")
    assert (len(given), len(set(given))) == (800, 800)


def test_free_port__in_a_row__are_free_and_given_to_no_other(
    allocator: PortAllocator,
) -> None:
    rows = [allocator.take(in_a_row=7) for _ in range(20)]
    singles = {allocator.take() for _ in range(2 * BLOCK_PORTS)}
    reserved = {first + more for first in rows for more in range(7)}
    assert (len(reserved), reserved & singles) == (140, set())


def test_free_port__server_could_listen_and_not_be_reached__is_given_to_none() -> None:
    asked = "from devgrid.ports import free_port; print(free_port())"
    script = (
        f"sysctl -qw net.ipv4.ip_nonlocal_bind=1; exec {sys.executable} -c '{asked}'"
    )
    # without its loopback device, the network reaches no address
    ended = subprocess.run(
        ["unshare", "--net", "sh", "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == ""
    assert "found no block of 50 ports" in ended.stderr


def test_free_port__forked__gives_other_ports(allocator: PortAllocator) -> None:
    allocator.take()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(allocator.take()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    forked = int(os.read(read, 10))
    assert forked not in {allocator.take() for _ in range(BLOCK_PORTS - 1)}


def test_free_port__all_blocks_are_held__is_an_error_until_the_holder_has_ended(
    allocator: PortAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = PortAllocator()
    first = holder.take(in_a_row=BLOCK_PORTS)
    monkeypatch.setattr(ports, "_blocks", lambda: iter([first]))
    with pytest.raises(OSError, match="no block of"):
        allocator.take()
    holder.close()
    assert allocator.take() == first
