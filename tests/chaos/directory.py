"""Checks the LDAP directory of a grid: each customer has one account, a number of its
own, and is a member of the group.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ldap3 import SUBTREE, Connection, Server, Tls

from devgrid.cluster.ldap import ADMIN, GROUP, PEOPLE
from devgrid.grid import Grid


def wrong_accounts(grid: Grid, customers: Sequence[str]) -> list[str]:
    """What is wrong with the accounts of these customers."""
    people = _found(grid, PEOPLE, "(uid=*)")
    entries = Counter(str(name).lower() for entry in people for name in entry["uid"])
    numbers = Counter(entry["uidNumber"] for entry in people)
    members = Counter(
        str(member).lower()
        for group in _found(grid, GROUP, "(cn=*)")
        for member in group["member"]
    )
    wrong = [
        f"{customer} has {entries[customer]} accounts"
        for customer in customers
        if entries[customer] != 1
    ]
    wrong += [
        f"{customer} is not a member"
        for customer in customers
        if members[f"uid={customer},{PEOPLE}".lower()] != 1
    ]
    return wrong + [
        f"uid number {number} is given {count} times"
        for number, count in numbers.items()
        if count > 1
    ]


def _found(grid: Grid, base: str, search: str) -> list[dict[str, Any]]:
    settings = grid.environment
    server = Server(
        settings["LDAP_URL"], tls=Tls(ca_certs_file=settings["LDAP_CA_PATH"])
    )
    with Connection(server, ADMIN, settings["LDAP_BIND_PASSWORD"]) as connection:
        entries = connection.extend.standard.paged_search(
            base, search, SUBTREE, attributes=["*"], paged_size=50
        )
        return [dict(entry["attributes"]) for entry in entries]
