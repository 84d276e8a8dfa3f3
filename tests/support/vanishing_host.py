"""A database whose host vanishes without ending its connections, as when it loses its
power or its network.

    unshare --net python -m tests.support.vanishing_host URL

The program is alone in a network of its own, which it takes down and up: packets are
lost, and no kernel acknowledges them, as one behind a proxy would. It asks the database
before, meanwhile and after, and prints for how many seconds the answer took each time.
"""

import fcntl
import json
import socket
import struct
import sys
import time

import psycopg
from sqlalchemy import make_url

from devgrid.faults.network_proxy import Proxy
from supervisor_tasks.observability.checks import DatabaseAnswers

SIOCSIFFLAGS = 0x8914  # linux/sockios.h: set the flags of a network interface
IFF_UP = 1  # linux/if.h


def set_network(*, up: bool) -> None:
    """Set the loopback interface of this network namespace up or down."""
    request = struct.pack("16sh14x", b"lo", IFF_UP if up else 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def asked(check: DatabaseAnswers) -> tuple[bool, float]:
    """Return whether the database answers, and after how many seconds that is known."""
    began_s = time.monotonic()
    try:
        check()
    except psycopg.OperationalError:
        return False, time.monotonic() - began_s
    return True, time.monotonic() - began_s


def main(url: str) -> None:
    """Ask the database at a Unix socket, through a network."""
    server = make_url(url)
    set_network(up=True)
    with Proxy.start(f"{server.query['host']}/.s.PGSQL.5432") as proxy:
        login = f"postgresql://{server.username}@{proxy.address}"
        check = DatabaseAnswers(f"{login}/{server.database}")
        answers = [asked(check)]
        set_network(up=False)
        answers.append(asked(check))
        set_network(up=True)
        answers.append(asked(check))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
