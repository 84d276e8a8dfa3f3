"""The directory (LDAP) in which customers get their accounts:
docs/explanation/accounts.md.

An existing account (result 68) and an existing member (result 20) count as success, so
a repeated call has the same effect as one call.
"""

import re
import secrets
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ldap3 import (
    BASE,
    MODIFY_ADD,
    MODIFY_REPLACE,
    NONE,
    SUBTREE,
    Connection,
    Server,
    Tls,
)
from ldap3.core.exceptions import LDAPBindError, LDAPCommunicationError, LDAPException
from ldap3.core.results import (
    RESULT_ATTRIBUTE_OR_VALUE_EXISTS,
    RESULT_ENTRY_ALREADY_EXISTS,
    RESULT_NO_SUCH_OBJECT,
    RESULT_SUCCESS,
)

from supervisor_tasks.crash_points import CrashPoint, crash_point
from supervisor_tasks.errors import (
    DirectoryBusyError,
    DirectoryRejectedError,
    DirectoryUnavailableError,
)
from supervisor_tasks.jobs.model import Address

TIMEOUT_S = 10
MAX_NUMBER_TRIES = 10  # to get a number that no other process takes at the same moment
# below this are the random distances between the numbers of two tries
NUMBERS_APART = 50
# the overflow uid of Linux, to which NFS and containers map strangers; -1 in 16 bits
RESERVED_NUMBERS = (65534, 65535)
# lower case only: it becomes the name of an entry, and the ledger's are in lower case
ADDRESS = re.compile("0x[0-9a-f]{40}")
ASSIGNED_BY_THE_SERVER = -1  # 389ds's DNA plugin replaces it with a free number
BUSY = {3, 51, 52, 80}  # time limit, busy, unavailable, other: a retry may help
# classes that require `sn`
SURNAMED = {"person", "organizationalperson", "inetorgperson"}


class Member(StrEnum):
    """The attribute that names the members in the group of the users who may use the
    cluster.
    """

    DN = "member"
    UNIQUE_DN = "uniqueMember"
    UID = "memberUid"  # a posixGroup's


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountForm:
    """The form of a site's accounts. Without `first_uid_number`, the server assigns uid
    numbers. Without `gid_number`, each account has its own group, with the account's
    number. `{address}` in a home or an attribute stands for the customer's address.
    """

    people_dn: str
    group_dn: str
    member_attribute: Member
    object_classes: tuple[str, ...]
    gid_number: int | None
    own_groups_dn: str
    own_group_classes: tuple[str, ...]
    home_directory: str
    login_shell: str
    attributes: Mapping[str, tuple[str, ...]]
    first_uid_number: int | None

    def dn(self, customer: Address) -> str:
        """Return the account's name in the directory. No character of an address has a
        special meaning there.
        """
        return f"uid={_checked(customer)},{self.people_dn}"

    def own_group_dn(self, customer: Address) -> str:
        """Return the name of the customer's own group."""
        return f"cn={_checked(customer)},{self.own_groups_dn}"

    def member(self, customer: Address) -> str:
        """Return the customer's name in the group of the users who may use the
        cluster.
        """
        if self.member_attribute is Member.UID:
            return customer
        return self.dn(customer)

    def of_account(self, customer: Address, uid_number: int) -> dict[str, object]:
        """Return the account's attributes without its object classes. The site's own
        attributes override the usual ones.
        """
        names = ["uid", "cn", "displayName"]
        if SURNAMED & _lower(self.object_classes):
            names.append("sn")
        gid_number = self.gid_number
        if gid_number is None:
            gid_number = uid_number
        usual: dict[str, object] = {
            **dict.fromkeys(names, customer),
            "uidNumber": uid_number,
            "gidNumber": gid_number,
            "homeDirectory": _filled(self.home_directory, customer),
            "loginShell": self.login_shell,
        }
        own = dict[str, object]()
        for name, texts in self.attributes.items():
            own[name] = [_filled(text, customer) for text in texts]
        replaced = _lower(own)
        kept = {
            name: value for name, value in usual.items() if name.lower() not in replaced
        }
        return kept | own

    def of_own_group(self, customer: Address, gid_number: int) -> dict[str, object]:
        """Return the attributes of the customer's own group without its object
        classes.
        """
        attributes: dict[str, object] = {"cn": customer, "gidNumber": gid_number}
        if "groupofnames" in _lower(self.own_group_classes):
            attributes["member"] = self.dn(customer)
        return attributes


def _checked(customer: Address) -> str:
    if not ADDRESS.fullmatch(customer):
        raise ValueError(
            f"{customer!r} is not an address of 0x and 40 lowercase hex digits"
        )
    return customer


def _filled(template: str, customer: Address) -> str:
    return template.replace("{address}", customer)


def _lower(names: Iterable[str]) -> set[str]:
    """Return the names in lower case, because a directory ignores the case of names."""
    return {name.lower() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory and its connection settings. The server's certificate is verified
    over ldaps://, and over ldap:// if an authority is set (StartTLS), unless the
    operator disables that.
    """

    url: str
    bind_dn: str
    bind_password: str
    ca_path: Path | None
    verified: bool
    form: AccountForm

    @property
    def name(self) -> str:
        """The name under which uid numbers are assigned. Only one worker of all
        clusters may assign them at a time.
        """
        return f"directory {self.url} {self.form.people_dn}"

    @contextmanager
    def open(self) -> Iterator["Session"]:
        """Open a bound connection. Raises DirectoryUnavailableError, when the
        directory does not answer; a retry helps. Raises DirectoryRejectedError, when it
        rejects the login; a retry helps once the settings or its rights are corrected.
        """
        server = Server(
            self.url, tls=self._tls(), get_info=NONE, connect_timeout=TIMEOUT_S
        )
        connection = Connection(
            server, self.bind_dn, self.bind_password, receive_timeout=TIMEOUT_S
        )
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
        validate, ca = ssl.CERT_NONE, None
        if self.verified:
            validate = ssl.CERT_REQUIRED
        if self.ca_path is not None:
            ca = str(self.ca_path)
        return Tls(validate=validate, ca_certs_file=ca)


@dataclass(slots=True)
class Session:
    """A bound connection. Only one session at a time may assign uid numbers."""

    connection: Connection
    form: AccountForm
    _highest: int | None = None
    # numbers to skip, so that two processes that collided take different ones
    _skipped: int = 0

    def ensure(self, customer: Address) -> None:
        """Make sure that the customer has an account with its own number, and is a
        member of the group of the users who may use the cluster. If the site wants one
        group for each customer, make sure of that group, too. An account that is not a
        member yet was never used. Raises DirectoryBusyError, or another
        DirectoryUnavailableError when the connection is lost; a retry helps. Raises
        DirectoryRejectedError, when the directory rejects the account; a retry helps
        once the settings or its rights are corrected.
        """
        dn = self.form.dn(customer)
        with _translated(f"account {dn}"):
            is_unused = self._exists(dn) and not self._is_member(customer)
            if is_unused and self._shares_number(customer):
                self._delete(dn)  # the process that added it ended before its check
            if not self._exists(dn):
                self._add_with_own_number(dn, customer)
            if self.form.gid_number is None:
                self._ensure_own_group(dn, customer)
            self._ensure_member(customer)

    def _ensure_member(self, customer: Address) -> None:
        group, member = self.form.group_dn, self.form.member(customer)
        change = {self.form.member_attribute.value: [(MODIFY_ADD, [member])]}
        with crash_point(CrashPoint.LDAP_MEMBER):
            self.connection.modify(group, change)  # type: ignore[no-untyped-call]
        self._require(f"member {member} of {group}", RESULT_ATTRIBUTE_OR_VALUE_EXISTS)

    def _ensure_own_group(self, dn: str, customer: Address) -> None:
        """Make sure that the account has its own group. An account made with another
        group keeps that group.
        """
        uid_number, gid_number = self._numbers(dn)
        # the server assigns only the uid number
        if gid_number == ASSIGNED_BY_THE_SERVER:
            self._set_gid_number(dn, uid_number)
        elif gid_number != uid_number:
            return
        group = self.form.own_group_dn(customer)
        classes = list(self.form.own_group_classes)
        self.connection.add(
            group, classes, self.form.of_own_group(customer, uid_number)
        )  # type: ignore[no-untyped-call]
        self._require(f"group {group}", RESULT_ENTRY_ALREADY_EXISTS)
        if self.connection.result["result"] == RESULT_ENTRY_ALREADY_EXISTS:
            # It may be the group of an earlier account, which had another number.
            self._set_gid_number(group, uid_number)

    def _set_gid_number(self, dn: str, number: int) -> None:
        self.connection.modify(dn, {"gidNumber": [(MODIFY_REPLACE, [number])]})  # type: ignore[no-untyped-call]
        self._require(f"gidNumber {number} of {dn}")

    def _numbers(self, dn: str) -> tuple[int, int]:
        """Return an account's uid number and gid number."""
        self.connection.search(
            dn, "(uidNumber=*)", BASE, attributes=["uidNumber", "gidNumber"]
        )
        self._require(f"numbers of {dn}")
        entry = next(iter(self._entries), dict[str, Any]())
        (uid_number,), (gid_number,) = (
            _values(entry, name) for name in ("uidNumber", "gidNumber")
        )
        return int(uid_number), int(gid_number)

    @property
    def _entries(self) -> list[dict[str, Any]]:
        """The entries and referrals that the last search found."""
        return self.connection.response or []

    def _exists(self, dn: str) -> bool:
        return bool(
            self.connection.search(dn, "(objectClass=*)", BASE, attributes=["1.1"])
        )

    def _is_member(self, customer: Address) -> bool:
        group = self.form.group_dn
        attribute = self.form.member_attribute.value
        member = self.form.member(customer)
        return bool(self.connection.compare(group, attribute, member))  # type: ignore[no-untyped-call]

    def _add_with_own_number(self, dn: str, customer: Address) -> None:
        """Add the account with its own uid number. Processes with another ledger may
        assign numbers in this directory, too. So this checks the number after it took
        it. Two processes that took the same number both give it back, and take other
        numbers at random distances. A server that assigns the numbers does not look at
        those of groups: it is asked for another number.
        """
        for _ in range(MAX_NUMBER_TRIES):
            self._add(dn, customer)
            if not self._shares_number(customer):
                return
            self._delete(dn)
            self._highest = None
            self._skipped += secrets.randbelow(NUMBERS_APART)
        if self.form.first_uid_number is None:
            groups = self.form.own_groups_dn
            raise DirectoryRejectedError(
                f"entry {dn}: the server assigned numbers of groups below {groups} {MAX_NUMBER_TRIES} times,"
                " expected a range of its own for accounts (389ds: dnaNextValue, dnaMaxValue)"
            )
        raise DirectoryBusyError(
            f"entry {dn}: other processes took the same uid number {MAX_NUMBER_TRIES} times"
        )

    def _shares_number(self, customer: Address) -> bool:
        """Whether another account has this account's number; where each account has its
        own group, also whether another group has it.
        """
        self.connection.search(
            self.form.dn(customer), "(uidNumber=*)", BASE, attributes=["uidNumber"]
        )
        numbers = [
            int(value)
            for entry in self._entries
            for value in _values(entry, "uidNumber")
        ]
        return any(self._another_has(number, customer) for number in numbers)

    def _another_has(self, number: int, customer: Address) -> bool:
        """Whether another account, or another group below that of the own groups, has
        the number. A server that assigns the numbers gives none to two accounts.
        """
        of_accounts = f"(&(uidNumber={number})(!(uid={customer})))"
        assigned_here = self.form.first_uid_number is not None
        if assigned_here and self._has(of_accounts, self.form.people_dn):
            return True
        if self.form.gid_number is not None:
            return False
        return self._has(
            f"(&(gidNumber={number})(!(cn={customer})))", self.form.own_groups_dn
        )

    def _has(self, wanted: str, where: str) -> bool:
        self.connection.search(where, wanted, SUBTREE, attributes=["1.1"])
        self._require(f"entries {wanted} in {where}")
        return any(entry["type"] == "searchResEntry" for entry in self._entries)

    def _delete(self, dn: str) -> None:
        self.connection.delete(dn)  # type: ignore[no-untyped-call]
        self._require(f"delete {dn}", RESULT_NO_SUCH_OBJECT)

    def _add(self, dn: str, customer: Address) -> None:
        attributes = self.form.of_account(customer, self._free_number())
        with crash_point(CrashPoint.LDAP_ADD):
            self.connection.add(dn, list(self.form.object_classes), attributes)  # type: ignore[no-untyped-call]
        self._require(f"entry {dn}", RESULT_ENTRY_ALREADY_EXISTS)

    def _free_number(self) -> int:
        """Return one more than the highest number in use. So the number of a deleted
        account is not given again while a later one exists.
        """
        first = self.form.first_uid_number
        if first is None:
            return ASSIGNED_BY_THE_SERVER
        if self._highest is None:
            taken = self._taken("uidNumber", self.form.people_dn)
            if self.form.gid_number is None:
                taken += self._taken("gidNumber", self.form.own_groups_dn)
            self._highest = max([first - 1, *taken]) + self._skipped
        self._highest += 1
        if self._highest in RESERVED_NUMBERS:
            self._highest = max(RESERVED_NUMBERS) + 1
        return self._highest

    def _taken(self, attribute: str, where: str) -> list[int]:
        """Return all numbers in use. A directory's limit may end the list early, and
        ldap3 does not raise for that.
        """
        search = self.connection.extend.standard.paged_search
        entries = search(
            where,
            f"({attribute}=*)",
            SUBTREE,
            attributes=[attribute],
            paged_size=500,
            generator=True,
        )
        numbers = [
            int(value) for entry in entries for value in _values(entry, attribute)
        ]
        self._require(f"every {attribute} below {where}", RESULT_NO_SUCH_OBJECT)
        return numbers

    def _require(self, what: str, *also: int) -> None:
        if self.connection.result["result"] not in (RESULT_SUCCESS, *also):
            _raise_for(self.connection, what)


def _close(connection: Connection) -> None:
    """Close the connection, and also the socket of a connection that was rejected
    half-way, which ldap3 2.9.1 leaves open.
    """
    with suppress(LDAPException):
        connection.unbind()
    if connection.socket is not None:
        connection.socket.close()


def _values(entry: dict[str, Any], attribute: str) -> list[bytes]:
    """Return the numbers of an entry; a referral to another server has none."""
    values: list[bytes] = entry.get("raw_attributes", {}).get(attribute, [])
    return values


def _raise_for(connection: Connection, what: str) -> None:
    result = connection.result
    text = f"{what}: {result['description']} ({result['result']}) {result['message']}".rstrip()
    if result["result"] in BUSY:
        raise DirectoryBusyError(text)
    raise DirectoryRejectedError(text)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise ldap3's errors as ours. An invalid certificate is an error of the settings,
    not an outage.
    """
    try:
        yield
    except LDAPBindError as error:
        raise DirectoryRejectedError(f"{what}: {error}") from error
    except LDAPCommunicationError as error:
        if "certificate" in str(error).lower():
            raise DirectoryRejectedError(f"{what}: {error}") from error
        raise DirectoryUnavailableError(f"{what}: {error}") from error
    except LDAPException as error:
        raise DirectoryRejectedError(f"{what}: {error!r}") from error
