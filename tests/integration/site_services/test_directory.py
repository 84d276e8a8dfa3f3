"""Customers' accounts in a real slapd: made once, despite all failures, and never with a
number twice.
"""

import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Any

import pytest

from devgrid.cluster.ldap import ADMIN, FIRST_UID, GROUP, GROUPS, PEOPLE, Ldap
from supervisor_tasks import bootstrap
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.errors import DirectoryRejectedError, DirectoryUnavailableError
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.site_services.directory import (
    ASSIGNED_BY_THE_SERVER,
    AccountForm,
    Directory,
    Member,
)
from tests.support.ldap_accounts import (
    FORM,
    customer,
    directory_of,
    entries,
    running_slapd,
)


@pytest.fixture(scope="module")
def ldap() -> Iterator[Ldap]:
    with running_slapd() as ldap:
        yield ldap


def ensure(directory: Directory, *customers: Address) -> None:
    with directory.open() as session:
        for one in customers:
            session.ensure(one)


def members(ldap: Ldap) -> list[str]:
    (group,) = entries(ldap, "(cn=cluster-users)", GROUP)
    return [str(member) for member in group["member"]]


def test_ensure__new_customer__entry_and_membership_as_configured(ldap: Ldap) -> None:
    one = customer()
    ensure(directory_of(ldap), one)
    (entry,) = entries(ldap, f"(uid={one})")
    assert {
        name: entry[name]
        for name in ("uid", "cn", "displayName", "homeDirectory", "loginShell")
    } == {
        "uid": [one],
        "cn": [one],
        "displayName": one,
        "homeDirectory": f"/home/{one}",
        "loginShell": "/bin/sh",
    }
    assert entry["uidNumber"] >= FIRST_UID
    assert set(entry["objectClass"]) == {"inetOrgPerson", "posixAccount"}
    assert members(ldap).count(f"uid={one},{PEOPLE}") == 1
    (group,) = entries(ldap, f"(cn={one})", GROUPS)
    assert entry["gidNumber"] == group["gidNumber"] == entry["uidNumber"]
    assert group["objectClass"] == ["posixGroup"]


def test_ensure__one_group_for_all__as_the_field_has_it(ldap: Ldap) -> None:
    one = customer()
    ensure(directory_of(ldap, form=replace(FORM, gid_number=1600)), one)
    (entry,) = entries(ldap, f"(uid={one})")
    assert entry["gidNumber"] == 1600
    assert not entries(ldap, f"(cn={one})", GROUPS)
    # a site that changes its mind leaves the accounts that it has as they are
    ensure(directory_of(ldap), one)
    assert entries(ldap, f"(uid={one})") == [entry]
    assert not entries(ldap, f"(cn={one})", GROUPS)


def test_ensure__sites_own_attributes__are_added_and_count_more_than_the_usual(
    ldap: Ldap,
) -> None:
    one = customer()
    sites = {
        "gecos": ("customer {address}",),
        "LoginShell": ("/bin/dash",),
        "mail": ("a@b.c", "{address}@b.c"),
    }
    ensure(directory_of(ldap, form=replace(FORM, attributes=sites)), one)
    (entry,) = entries(ldap, f"(uid={one})")
    assert entry["gecos"] == f"customer {one}"
    assert entry["loginShell"] == "/bin/dash"
    assert entry["mail"] == ["a@b.c", f"{one}@b.c"]


GROUP_FORMS = {
    Member.DN: ("groupOfNames", {"member": ADMIN}),
    Member.UNIQUE_DN: ("groupOfUniqueNames", {"uniqueMember": ADMIN}),
    Member.UID: ("posixGroup", {"gidNumber": 1601}),
}


def new_group(ldap: Ldap, attribute: Member) -> str:
    """A group for the users of the cluster, which names its members so; its dn."""
    group_class, needed = GROUP_FORMS[attribute]
    group = f"cn=users-{secrets.token_hex(4)},{GROUPS}"
    with directory_of(ldap).open() as session:
        session.connection.add(group, [group_class], needed)  # type: ignore[no-untyped-call]
    return group


@pytest.mark.parametrize("attribute", list(Member))
def test_ensure__group_of_any_class__the_customer_is_a_member_once(
    ldap: Ldap, attribute: Member
) -> None:
    group, one = new_group(ldap, attribute), customer()
    form = replace(FORM, group_dn=group, member_attribute=attribute)
    ensure(directory_of(ldap, form=form), one)
    ensure(directory_of(ldap, form=form), one)
    (found_group,) = entries(ldap, f"({attribute.value}=*)", group)
    expected = one if attribute is Member.UID else f"uid={one},{PEOPLE}"
    assert [str(member) for member in found_group[attribute.value]].count(expected) == 1


@pytest.mark.parametrize("attribute", list(Member))
def test_ensure__member_whose_number_another_has__keeps_the_account(
    ldap: Ldap, attribute: Member
) -> None:
    """A member may have files already: only an account without membership is made
    again.
    """
    one, two = customer(), customer()
    form = replace(
        FORM, group_dn=new_group(ldap, attribute), member_attribute=attribute
    )
    ensure(directory_of(ldap, form=form), one)
    (entry,) = entries(ldap, f"(uid={one})")
    same = FORM.of_account(two, entry["uidNumber"])
    with directory_of(ldap).open() as session:
        session.connection.add(FORM.dn(two), list(FORM.object_classes), same)  # type: ignore[no-untyped-call]
        try:
            ensure(directory_of(ldap, form=form), one)
            assert entries(ldap, f"(uid={one})") == [entry]
        finally:
            session.connection.delete(FORM.dn(two))  # type: ignore[no-untyped-call]


def test_directory_of__settings_of_a_site__make_the_accounts_that_they_say(
    ldap: Ldap,
) -> None:
    """From the environment to the entries. extensibleObject lets a groupOfNames have
    the gidNumber, which OpenLDAP's posixGroup, a class of its own, cannot.
    """
    one, group = customer(), new_group(ldap, Member.UID)
    settings = {
        **ldap.settings(),
        "ETH_PRIVATE_KEY": "0x" + "4c" * 32,
        "LDAP_PEOPLE_DN": PEOPLE,
        "LDAP_GROUP_DN": group,
        "LDAP_MEMBER_ATTRIBUTE": "memberUid",
        "LDAP_ATTRIBUTES": '{"gecos": "customer {address}"}',
        "LDAP_OWN_GROUP_OBJECT_CLASSES": "groupOfNames,extensibleObject",
        "LDAP_HOME_DIRECTORY": "/srv/{address}",
        "LDAP_LOGIN_SHELL": "/bin/dash",
    }
    directory = bootstrap.directory_of(load(Need.WALLET, environment=settings))
    assert directory is not None
    ensure(directory, one)
    (entry,) = entries(ldap, f"(uid={one})")
    told = [entry[name] for name in ("gecos", "homeDirectory", "loginShell")]
    assert told == [f"customer {one}", f"/srv/{one}", "/bin/dash"]
    (users,) = entries(ldap, "(memberUid=*)", group)
    assert users["memberUid"] == [one]
    (own,) = entries(ldap, f"(cn={one})", GROUPS)
    assert set(own["objectClass"]) == {"groupOfNames", "extensibleObject"}
    assert own["member"] == [f"uid={one},{PEOPLE}"]


def test_ensure__number_of_a_group_of_the_sites__is_given_to_no_customer(
    ldap: Ldap,
) -> None:
    highest = max(entry["uidNumber"] for entry in entries(ldap, "(uidNumber=*)"))
    with directory_of(ldap).open() as session:
        session.connection.add(
            f"cn=staff,{GROUPS}", ["posixGroup"], {"gidNumber": highest + 1}
        )  # type: ignore[no-untyped-call]
        one = customer()
        session.ensure(one)
    (entry,) = entries(ldap, f"(uid={one})")
    assert entry["gidNumber"] == entry["uidNumber"] > highest + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedNumbers(AccountForm):
    """The uid numbers are those that a server with DNA would assign, one after the
    other.
    """

    numbers: Iterator[int]

    def of_account(self, customer: Address, uid_number: int) -> dict[str, object]:
        """The account's attributes, as the server stores them."""
        assert uid_number == ASSIGNED_BY_THE_SERVER
        usual = super(AssignedNumbers, self).of_account(customer, uid_number)
        return usual | {"uidNumber": next(self.numbers)}


def assigned_by_the_server(numbers: Iterable[int]) -> AssignedNumbers:
    usual = {one.name: getattr(FORM, one.name) for one in fields(FORM)}
    return AssignedNumbers(**usual | {"first_uid_number": None}, numbers=iter(numbers))


@pytest.fixture
def sites_group(ldap: Ldap) -> Iterator[int]:
    """A group of the site, which is no customer's; its number."""
    number = 900_000
    dn = f"cn=staff-{number},{GROUPS}"
    with directory_of(ldap).open() as session:
        session.connection.add(dn, ["posixGroup"], {"gidNumber": number})  # type: ignore[no-untyped-call]
        yield number
        session.connection.delete(dn)  # type: ignore[no-untyped-call]


def remove(ldap: Ldap, one: Address) -> None:
    """Remove an account and its group: other tests go on at the highest number."""
    with directory_of(ldap).open() as session:
        for dn in (FORM.dn(one), FORM.own_group_dn(one)):
            session.connection.delete(dn)  # type: ignore[no-untyped-call]


def test_ensure__server_assigns_the_number_of_a_group__asks_for_another_one(
    ldap: Ldap, sites_group: int
) -> None:
    one = customer()
    form = assigned_by_the_server([sites_group, sites_group + 1])
    try:
        ensure(directory_of(ldap, form=form), one)
        (entry,) = entries(ldap, f"(uid={one})")
        assert entry["uidNumber"] == entry["gidNumber"] == sites_group + 1
        (group,) = entries(ldap, f"(gidNumber={sites_group})", GROUPS)
        assert group["cn"] == [f"staff-{sites_group}"]
        assert f"uid={one},{PEOPLE}" in members(ldap)
    finally:
        remove(ldap, one)


def test_ensure__server_assigns_numbers_of_groups_only__is_refused_and_says_why(
    ldap: Ldap, sites_group: int
) -> None:
    one = customer()
    form = assigned_by_the_server(repeat(sites_group))
    with pytest.raises(
        DirectoryRejectedError, match="expected a range of its own for accounts"
    ):
        ensure(directory_of(ldap, form=form), one)
    assert f"uid={one},{PEOPLE}" not in members(ldap)
    assert not entries(ldap, f"(uid={one})")
    assert not entries(ldap, f"(cn={one})", GROUPS)


def test_ensure__number_65534_is_next__is_given_to_no_customer(ldap: Ldap) -> None:
    few, one, two = f"ou=few,{PEOPLE}", customer(), customer()
    form = replace(FORM, people_dn=few, own_groups_dn=few, first_uid_number=65533)
    with directory_of(ldap, form=form).open() as session:
        session.connection.add(few, ["organizationalUnit"])  # type: ignore[no-untyped-call]
        session.ensure(one)
        session.ensure(two)
        try:
            numbers = {
                entry["cn"][0]: entry["uidNumber"]
                for entry in entries(ldap, "(uidNumber=*)", few)
            }
        finally:
            for each in (one, two):
                for dn in (form.dn(each), f"cn={each},{few}"):
                    session.connection.delete(dn)  # type: ignore[no-untyped-call]
    assert numbers == {one: 65533, two: 65536}


def test_ensure__died_before_the_account_had_its_group__gets_it(ldap: Ldap) -> None:
    one = customer()
    with pytest.raises(DirectoryRejectedError, match="noSuchObject"):
        ensure(
            directory_of(
                ldap,
                form=replace(
                    FORM, own_groups_dn="ou=missing,dc=hpc,dc=deepsquare,dc=run"
                ),
            ),
            one,
        )
    ensure(directory_of(ldap), one)
    (entry,) = entries(ldap, f"(uid={one})")
    (group,) = entries(ldap, f"(cn={one})", GROUPS)
    assert group["gidNumber"] == entry["gidNumber"]


def test_ensure__twice__is_once(ldap: Ldap) -> None:
    one = customer()
    ensure(directory_of(ldap), one)
    before = entries(ldap, f"(uid={one})")
    ensure(directory_of(ldap), one, one)
    assert entries(ldap, f"(uid={one})") == before
    assert members(ldap).count(f"uid={one},{PEOPLE}") == 1


def test_ensure__entry_without_membership__becomes_a_member(ldap: Ldap) -> None:
    """As after a death between the two."""
    one = customer()
    with pytest.raises(DirectoryRejectedError, match="noSuchObject"):
        ensure(
            directory_of(ldap, form=replace(FORM, group_dn=f"cn=unknown,{PEOPLE}")), one
        )
    assert len(entries(ldap, f"(uid={one})")) == 1
    ensure(directory_of(ldap), one)
    assert f"uid={one},{PEOPLE}" in members(ldap)


def test_ensure__more_accounts_than_the_server_lists_at_once__numbers_stay_unique(
    ldap: Ldap,
) -> None:
    ensure(directory_of(ldap), *(customer() for _ in range(120)))
    ensure(directory_of(ldap), *(customer() for _ in range(3)))
    numbers = [entry["uidNumber"] for entry in entries(ldap, "(uidNumber=*)")]
    assert len(numbers) == len(set(numbers)) > 120


def test_ensure__server_keeps_numbers_back__is_refused_and_says_why(ldap: Ldap) -> None:
    """slapd gives a user with a limit only 100 entries, in all pages. The highest
    number may be among the others.
    """
    limited = customer()
    ensure(
        directory_of(ldap, form=replace(FORM, attributes={"userPassword": ("words",)})),
        limited,
    )
    ensure(directory_of(ldap), *(customer() for _ in range(100)))
    with pytest.raises(
        DirectoryRejectedError, match=r"uidNumber .*: sizeLimitExceeded \(4\)"
    ):
        ensure(
            directory_of(ldap, bind_dn=FORM.dn(limited), bind_password="words"),
            customer(),
        )


def test_ensure__two_processes_assign_numbers_at_once__never_the_same(
    ldap: Ldap,
) -> None:
    """As two clusters of one site do, each with a ledger of its own."""
    first, second = directory_of(ldap), directory_of(ldap)
    earlier = {entry["uid"][0] for entry in entries(ldap, "(uidNumber=*)")}
    with first.open() as one, second.open() as other:
        for _ in range(5):  # each remembers the highest number that it has seen
            one.ensure(customer())
            other.ensure(customer())
    with ThreadPoolExecutor(3) as pool:
        list(
            pool.map(
                lambda directory: ensure(directory, *(customer() for _ in range(8))),
                [first, second, first],
            )
        )
    numbers = [entry["uidNumber"] for entry in entries(ldap, "(uidNumber=*)")]
    assert len(numbers) == len(set(numbers))
    made = {entry["uid"][0] for entry in entries(ldap, "(uidNumber=*)")} - earlier
    assert len(made) == 2 * 5 + 3 * 8
    assert {f"uid={one},{PEOPLE}" for one in made} <= set(members(ldap))


def test_ensure__died_before_it_had_looked_for_the_number__gets_another_one(
    ldap: Ldap,
) -> None:
    one, two = customer(), customer()
    ensure(directory_of(ldap), one)
    (entry,) = entries(ldap, f"(uid={one})")
    with directory_of(ldap).open() as session:
        session.connection.add(  # type: ignore[no-untyped-call]
            FORM.dn(two),
            list(FORM.object_classes),
            FORM.of_account(two, entry["uidNumber"]),
        )
    ensure(directory_of(ldap), two)
    (other,) = entries(ldap, f"(uid={two})")
    assert other["uidNumber"] != entry["uidNumber"]
    assert entries(ldap, f"(uid={one})") == [entry]


@pytest.mark.parametrize(
    "name",
    [
        "0x12",
        "0x" + "G" * 40,
        "x,dc=run",
        "0x" + "A" * 40,
        "0x" + "1" * 40 + "\n",
        "*)(uid=*",
    ],
)
def test_ensure__what_is_no_address__is_never_sent(ldap: Ldap, name: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        ensure(directory_of(ldap), Address(name))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bind_password": "wrong"}, "invalidCredentials"),
        (
            {"form": replace(FORM, people_dn="ou=nowhere,dc=run")},
            "(noSuchObject|unwillingToPerform)",
        ),
        (
            {"form": replace(FORM, object_classes=("nsPerson",))},
            "(invalidAttributeSyntax|objectClass)",
        ),
        ({"ca_path": None}, "certificate"),
    ],
    ids=["password", "people", "classes", "authority"],
)
def test_ensure__wrong_settings__says_what_and_is_no_outage(
    ldap: Ldap, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DirectoryRejectedError, match=said):
        ensure(directory_of(ldap, **changes), customer())


def test_ensure__certificate_verification_off__makes_the_account(
    ldap: Ldap,
) -> None:
    ensure(directory_of(ldap, ca_path=None, verified=False), customer())


def test_ensure__slapd_stopped__is_an_outage_and_goes_on_after_it(ldap: Ldap) -> None:
    ldap.processes.stop(ldap.processes.find("slapd"))
    one = customer()
    with pytest.raises(DirectoryUnavailableError):
        ensure(directory_of(ldap), one)
    ldap.start_server()
    ensure(directory_of(ldap), one)
    assert len(entries(ldap, f"(uid={one})")) == 1
