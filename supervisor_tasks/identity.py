"""The directory (LDAP) in which customers get their accounts: interfaces.md, section 7.

An account that exists (result 68) and a member that exists (result 20) are success, so that twice is the same as once.
"""

import re
import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ldap3 import BASE, MODIFY_ADD, NONE, SUBTREE, Connection, Server, Tls
from ldap3.core.exceptions import LDAPBindError, LDAPCommunicationError, LDAPException
from ldap3.core.results import (
    RESULT_ATTRIBUTE_OR_VALUE_EXISTS,
    RESULT_ENTRY_ALREADY_EXISTS,
    RESULT_NO_SUCH_OBJECT,
    RESULT_SUCCESS,
)

from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import DirectoryRefusedError, DirectoryUnavailableError
from supervisor_tasks.job import Address

TIMEOUT_S = 10
TRIES = 10  # to get a number that nobody else takes at the same moment
NUMBERS_APART = 50
ADDRESS = re.compile("0x[0-9a-f]{40}")
ASSIGNED_BY_THE_SERVER = -1  # 389ds's DNA plugin puts a free number in its place
BUSY = {3, 11, 51, 52, 80}  # time limit, administrative limit, busy, unavailable, other: it may go by
SURNAMED = {"person", "organizationalperson", "inetorgperson"}  # classes that ask for `sn`


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountForm:
    """What the accounts of a site look like. Without a first number, the server assigns uid numbers."""

    people_dn: str
    group_dn: str
    object_classes: tuple[str, ...]
    gid_number: int
    home_directory: str
    first_uid_number: int | None

    def dn(self, customer: Address) -> str:
        """The account's name in the directory. An address has no character that means anything there."""
        if not ADDRESS.fullmatch(customer):
            raise ValueError(f"{customer!r} is no address of 0x and 40 lowercase hex digits")
        return f"uid={customer},{self.people_dn}"

    def attributes(self, customer: Address, uid_number: int) -> dict[str, object]:
        """The account's attributes, but for its object classes."""
        names = ["uid", "cn", "displayName"]
        if SURNAMED & {name.lower() for name in self.object_classes}:
            names.append("sn")
        numbers = {"uidNumber": uid_number, "gidNumber": self.gid_number}
        return dict.fromkeys(names, customer) | numbers | {"homeDirectory": self.home_directory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory and how to reach it. Over ldaps://, and over ldap:// when an authority is named (StartTLS), its certificate
    is verified, unless the operator does not want that.
    """

    url: str
    bind_dn: str
    bind_password: str
    ca_path: Path | None
    verified: bool
    form: AccountForm

    @property
    def name(self) -> str:
        """Where uid numbers are assigned: one at a time may do that, whichever cluster he works for."""
        return f"directory {self.url} {self.form.people_dn}"

    @contextmanager
    def open(self) -> Iterator["Session"]:
        """A connection, bound. Raises DirectoryUnavailableError or DirectoryRefusedError."""
        server = Server(self.url, tls=self._tls(), get_info=NONE, connect_timeout=TIMEOUT_S)
        connection = Connection(server, self.bind_dn, self.bind_password, receive_timeout=TIMEOUT_S)
        try:
            with _translated(f"{self.url} as {self.bind_dn}"):
                self._bind(connection)
            yield Session(connection, self.form)
        finally:
            _close(connection)

    def _bind(self, connection: Connection) -> None:
        connection.open()
        if self.ca_path is not None and not connection.server.ssl:
            connection.start_tls()
        if not connection.bind():
            _raise_for(connection, f"bind as {self.bind_dn!r}")

    def _tls(self) -> Tls:
        ca = None if self.ca_path is None else str(self.ca_path)
        return Tls(validate=ssl.CERT_REQUIRED if self.verified else ssl.CERT_NONE, ca_certs_file=ca)


@dataclass(slots=True)
class Session:
    """A bound connection. One at a time may assign uid numbers."""

    connection: Connection
    form: AccountForm
    _highest: int | None = None
    _skipped: int = 0  # numbers that are left out, so that two who collide part

    def ensure(self, customer: Address) -> None:
        """The customer has an account with a number of its own and is a member of the group. An account that is no member yet
        was never used. Raises DirectoryUnavailableError or DirectoryRefusedError.
        """
        dn = self.form.dn(customer)
        with _translated(f"account {dn}"):
            if self._exists(dn) and not self._is_member(dn) and self._shares_number(dn):
                self._delete(dn)  # whoever added it ended before he had looked
            if not self._exists(dn):
                self._add_with_own_number(dn, customer)
            with around(Point.LDAP_MEMBER):
                self.connection.modify(self.form.group_dn, {"member": [(MODIFY_ADD, [dn])]})  # type: ignore[no-untyped-call]
            self._require(f"member {dn} of {self.form.group_dn}", RESULT_ATTRIBUTE_OR_VALUE_EXISTS)

    def _exists(self, dn: str) -> bool:
        return bool(self.connection.search(dn, "(objectClass=*)", BASE, attributes=["1.1"]))

    def _is_member(self, dn: str) -> bool:
        return bool(self.connection.compare(self.form.group_dn, "member", dn))  # type: ignore[no-untyped-call]

    def _add_with_own_number(self, dn: str, customer: Address) -> None:
        """Others may assign numbers here too, with another ledger: so the number is looked for after it was taken. Two that
        took the same one both give it back, and take others at random distances.
        """
        for _ in range(TRIES):
            self._add(dn, customer)
            if not self._shares_number(dn):
                return
            self._delete(dn)
            self._highest = None
            self._skipped += secrets.randbelow(NUMBERS_APART)
        raise DirectoryUnavailableError(f"entry {dn}: others took the same uid number {TRIES} times")

    def _shares_number(self, dn: str) -> bool:
        """Whether another entry has the number of this one. Where the server assigns them, it is the server that sees to it."""
        if self.form.first_uid_number is None:
            return False
        self.connection.search(dn, "(uidNumber=*)", BASE, attributes=["uidNumber"])
        numbers = [int(value) for entry in self.connection.response or [] for value in _values(entry)]
        return any(self._entries_with(number) > 1 for number in numbers)

    def _entries_with(self, number: int) -> int:
        self.connection.search(self.form.people_dn, f"(uidNumber={number})", SUBTREE, attributes=["1.1"])
        self._require(f"entries with uidNumber {number}")
        return sum(entry["type"] == "searchResEntry" for entry in self.connection.response or [])

    def _delete(self, dn: str) -> None:
        self.connection.delete(dn)  # type: ignore[no-untyped-call]
        self._require(f"delete {dn}", RESULT_NO_SUCH_OBJECT)

    def _add(self, dn: str, customer: Address) -> None:
        attributes = self.form.attributes(customer, self._free_number())
        with around(Point.LDAP_ADD):
            self.connection.add(dn, list(self.form.object_classes), attributes)  # type: ignore[no-untyped-call]
        self._require(f"entry {dn}", RESULT_ENTRY_ALREADY_EXISTS)

    def _free_number(self) -> int:
        """One more than the highest that is taken, so that the number of an account that was deleted is not given again
        while there is a later one.
        """
        first = self.form.first_uid_number
        if first is None:
            return ASSIGNED_BY_THE_SERVER
        if self._highest is None:
            found = self.connection.extend.standard.paged_search(
                self.form.people_dn, "(uidNumber=*)", SUBTREE, attributes=["uidNumber"], paged_size=500, generator=True
            )
            taken = [int(value) for entry in found for value in _values(entry)]
            self._highest = max([first - 1, *taken]) + self._skipped
        self._highest += 1
        return self._highest

    def _require(self, what: str, *also: int) -> None:
        if self.connection.result["result"] not in (RESULT_SUCCESS, *also):
            _raise_for(self.connection, what)


def _close(connection: Connection) -> None:
    """Also the socket of a connection that was refused half-way, which ldap3 2.9.1 forgets."""
    with suppress(LDAPException):
        connection.unbind()
    if connection.socket is not None:
        connection.socket.close()


def _values(entry: dict[str, Any]) -> list[bytes]:
    """The uid numbers of an entry; a referral to another server has none."""
    values: list[bytes] = entry.get("raw_attributes", {}).get("uidNumber", [])
    return values


def _raise_for(connection: Connection, what: str) -> None:
    result = connection.result
    said = f"{what}: {result['description']} ({result['result']}) {result['message']}".rstrip()
    raise (DirectoryUnavailableError if result["result"] in BUSY else DirectoryRefusedError)(said)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """ldap3's errors as ours. A certificate that does not hold is a matter of settings, and no outage."""
    try:
        yield
    except LDAPBindError as error:
        raise DirectoryRefusedError(f"{what}: {error}") from error
    except LDAPCommunicationError as error:
        kind = DirectoryRefusedError if "certificate" in str(error).lower() else DirectoryUnavailableError
        raise kind(f"{what}: {error}") from error
    except LDAPException as error:
        raise DirectoryRefusedError(f"{what}: {error!r}") from error
