"""Customers' accounts in a real slapd: made once, despite all failures, and never with
a number twice.
"""

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ldap3 import SUBTREE, Connection, Server, Tls
from sqlalchemy import create_engine, text

from devgrid.chain.model import JobDefinition
from devgrid.cluster.ldap import ADMIN, FIRST_UID, GROUP, GROUPS, PEOPLE, Ldap
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from supervisor_tasks import bootstrap
from supervisor_tasks.accounts.sync import MAX_BUSY_IN_A_ROW, make_due
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.errors import DirectoryRejectedError, DirectoryUnavailableError
from supervisor_tasks.jobs.model import Address, EffectKind
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import request
from supervisor_tasks.site_services.directory import AccountForm, Directory, Member
from tests.support.commands import supervisor
from tests.support.grid_assertions import rows
from tests.support.ledger import migrated

FORM = AccountForm(
    people_dn=PEOPLE,
    group_dn=GROUP,
    member_attribute=Member.DN,
    object_classes=("inetOrgPerson", "posixAccount"),
    gid_number=None,
    own_groups_dn=GROUPS,
    own_group_classes=("posixGroup",),
    home_directory="/home/{address}",
    login_shell="/bin/sh",
    attributes={},
    first_uid_number=FIRST_UID,
)


@pytest.fixture(scope="module")
def ldap() -> Iterator[Ldap]:
    with private_processes() as processes:
        yield Ldap.start(processes, make_certificates(processes.folder / "tls"))


def directory_of(ldap: Ldap, **changes: Any) -> Directory:
    known = Directory(
        url=ldap.url,
        bind_dn=ADMIN,
        bind_password=ldap.password,
        ca_path=ldap.certificates.ca,
        verified=True,
        form=FORM,
    )
    return replace(known, **changes)


def customer() -> Address:
    return Address("0x" + secrets.token_hex(20))


def ensure(directory: Directory, *customers: Address) -> None:
    with directory.open() as session:
        for one in customers:
            session.ensure(one)


def found(
    url: str, password: str, ca: Path, base: str, search: str
) -> list[dict[str, Any]]:
    """What a search brings, by a connection that is none of ours."""
    server = Server(url, tls=Tls(ca_certs_file=str(ca)))
    with Connection(server, ADMIN, password) as connection:
        entries = connection.extend.standard.paged_search(
            base, search, SUBTREE, attributes=["*"], paged_size=50
        )
        return [dict(entry["attributes"]) for entry in entries]


def entries(ldap: Ldap, search: str, base: str = PEOPLE) -> list[dict[str, Any]]:
    return found(ldap.url, ldap.password, ldap.certificates.ca, base, search)


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


# --- what is due ----------------------------------------------------------------------


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with migrated() as (engine, _):
        ledger = Ledger(engine, "here", lambda _: None)
        yield ledger
        ledger.holder.close()


@contextmanager
def busy(ldap: Ldap, *customers: Address) -> Iterator[None]:
    """slapd answers 52 (unavailable) for these entries: it passes what is asked about
    them on to a server that is away.
    """
    conf = ldap.processes.folder / "ldap" / "slapd.conf"
    before = conf.read_text()
    elsewhere = [
        "moduleload back_ldap",
        "database ldap",
        *(f'suffix "{FORM.dn(one)}"' for one in customers),
        "uri ldap://127.0.0.1:1",
    ]
    text_of_it = "\n".join([*elsewhere, "database mdb"])
    start_again(ldap, before.replace("database mdb", text_of_it, 1))
    try:
        yield
    finally:
        start_again(ldap, before)


def start_again(ldap: Ldap, conf: str) -> None:
    ldap.processes.stop(ldap.processes.find("slapd"))
    (ldap.processes.folder / "ldap" / "slapd.conf").write_text(conf)
    ldap.start_server()


def ask_for(ledger: Ledger, *customers: Address) -> None:
    """They need accounts, the first of them first."""
    for one in customers:
        with ledger.engine.begin() as connection:
            request(connection, ledger.cluster, EffectKind.ACCOUNT, [one])


def left(ledger: Ledger) -> dict[str, Any]:
    """The effects that are open, by customer, in the order in which they are due."""
    query = "SELECT subject, last_error, due_at FROM effects WHERE done_at IS NULL ORDER BY due_at"
    with ledger.engine.connect() as connection:
        return {row.subject: row for row in connection.execute(text(query))}


def test_make_due__directory_is_busy_for_one__others_get_their_accounts(
    ldap: Ldap, ledger: Ledger
) -> None:
    unlucky, others = customer(), [customer() for _ in range(3)]
    ask_for(ledger, others[0], unlucky, *others[1:])
    with busy(ldap, unlucky):
        assert make_due(ledger, directory_of(ldap))
        assert list(left(ledger)) == [unlucky]
        assert "unavailable (52)" in left(ledger)[unlucky].last_error
        assert not make_due(ledger, directory_of(ldap))
    for one in others:
        assert entries(ldap, f"(uid={one})")


def test_make_due__directory_is_busy_for_all__asks_for_a_few_only(
    ldap: Ldap, ledger: Ledger
) -> None:
    """Those that it was not asked for come first the next time."""
    unlucky, other = [customer() for _ in range(MAX_BUSY_IN_A_ROW)], customer()
    ask_for(ledger, *unlucky, other)
    with busy(ldap, *unlucky):
        assert make_due(ledger, directory_of(ldap))
        assert not entries(ldap, f"(uid={other})")
        assert next(iter(left(ledger))) == other
        assert set(left(ledger)) == {other, *unlucky}
        wait_until(
            lambda: make_due(ledger, directory_of(ldap)), "the next try", 10.0, 0.1
        )
    assert set(left(ledger)) == set(unlucky)
    assert entries(ldap, f"(uid={other})")


# --- the fleet ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=0.25, ldap=True))
    try:
        running.fleet.start(flower=False)
        running.fleet.start_worker("second-worker")
        wait_until(lambda: listening(running), "the fleet to listen", 60.0, 0.1)
        yield running
    finally:
        running.stop()


def accounts(grid: Grid, search: str = "(uidNumber=*)") -> list[dict[str, Any]]:
    environment = grid.environment
    ca = Path(environment["LDAP_CA_PATH"])
    return found(
        environment["LDAP_URL"], environment["LDAP_BIND_PASSWORD"], ca, PEOPLE, search
    )


def change(grid: Grid, statement: str) -> None:
    engine = create_engine(grid.environment["DATABASE_URL"])
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


OPEN = "SELECT 1 FROM effects WHERE kind = 'account' AND done_at IS NULL"
ADD = """
    INSERT INTO effects (cluster, kind, subject, due_at, attempts, last_error, failing_since)
    SELECT cluster, 'account', {subject}, {due_at}, 1, {error}, now() FROM effects WHERE kind = 'account' LIMIT 1"""


def request_jobs(grid: Grid, number: int) -> list[str]:
    """That many customers ask for a job each that no provider here has room for."""
    customers = [grid.chain.new_account() for _ in range(number)]
    wanted = JobDefinition(gpus=10**6, batch_location_hash="f" * 64)
    for one in customers:
        grid.chain.admin.mint_credits(one.address, 10**18)
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda one: grid.chain.customers.request_job(one, wanted, 10**18),
                customers,
            )
        )
    return [one.address for one in customers]


def listening(grid: Grid) -> bool:
    """The first look of a new ledger begins at the present block."""
    return bool(rows(grid, "SELECT 1 FROM cursors WHERE stream = 'customers'"))


def test_fleet__directory_is_away__customers_get_accounts_with_unique_numbers_later(
    grid: Grid,
) -> None:
    slapd = grid.processes.find("slapd")
    grid.processes.kill(slapd)
    customers = request_jobs(grid, 8)
    left = "SELECT 1 FROM effects WHERE kind = 'account' AND done_at IS NULL AND failing_since IS NOT NULL"
    wait_until(
        lambda: bool(rows(grid, left)),
        "the fleet to find the directory away",
        60.0,
        0.1,
    )
    change(
        grid,
        "UPDATE effects SET failing_since = now() - interval '4 min' WHERE kind = 'account' AND done_at IS NULL",
    )
    alarm = "SELECT details FROM alarms WHERE name = 'ldap_unavailable'"
    wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 60.0, 0.1)
    grid.processes.start_again("slapd")
    wait_until(
        lambda: {entry["uid"][0] for entry in accounts(grid)} >= set(customers),
        "all accounts",
        60.0,
        0.2,
    )
    numbers = [entry["uidNumber"] for entry in accounts(grid)]
    assert len(numbers) == len(set(numbers))
    wait_until(lambda: not rows(grid, OPEN), "the ledger to know", 30.0, 0.1)
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 30.0, 0.1)


def test_fleet__one_is_refused_and_others_are_not__the_alarm_stays(grid: Grid) -> None:
    words = "'the directory rejects: no'"
    change(
        grid,
        ADD.format(subject="'another'", due_at="now() + interval '1 h'", error=words),
    )
    alarm = "SELECT raised_at, details FROM alarms WHERE name = 'ldap_request_rejected'"
    wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 60.0, 0.1)
    before = rows(grid, alarm)
    assert before[0].details == {
        "effects": 1,
        "errors": ["the directory rejects: no"],
        "subjects": ["another"],
    }
    (one,) = request_jobs(grid, 1)
    wait_until(
        lambda: bool(accounts(grid, f"(uid={one})")), "another's account", 60.0, 0.1
    )
    done = "SELECT 1 FROM effects WHERE kind = 'account' AND subject = :one AND done_at IS NOT NULL"
    wait_until(lambda: bool(rows(grid, done, one=one)), "the ledger to know", 60.0, 0.1)
    assert rows(grid, alarm) == before
    change(grid, "DELETE FROM effects WHERE subject = 'another'")
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 60.0, 0.1)


def test_fleet__one_fails_unexpectedly_each_time__is_parked_and_others_are_made(
    grid: Grid,
) -> None:
    """No address can be made of it: an error of our own, and not of the directory."""
    change(grid, ADD.format(subject="'no address'", due_at="now()", error="NULL"))
    of_it = "SELECT id, attempts, last_error, parked_at FROM effects WHERE subject = 'no address'"
    wait_until(
        lambda: rows(grid, of_it)[0].parked_at is not None,
        "the effect to be parked",
        60.0,
        0.1,
    )
    (one,) = request_jobs(grid, 1)
    wait_until(
        lambda: bool(accounts(grid, f"(uid={one})")), "another's account", 60.0, 0.1
    )
    alarm = "SELECT 1 FROM alarms WHERE name = 'effect_parked'"
    wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 30.0, 0.1)
    parked = rows(grid, of_it)[0]
    shown = supervisor(
        "effect",
        "list",
        "--state",
        "parked",
        "--kind",
        "account",
        "-o",
        "json",
        env=grid.environment,
    )
    (row,) = json.loads(shown.stdout)
    assert (row["effect"], row["subject"], row["state"]) == (
        parked.id,
        "no address",
        None,
    )
    assert "is not an address" in row["last_error"]
    refused = supervisor(
        "effect",
        "abandon",
        str(parked.id),
        "--reason",
        "?",
        "--yes",
        env=grid.environment,
    )
    assert "expected an effect of a job" in refused.stderr
    retried = supervisor(
        "job",
        "retry",
        "--effect",
        str(parked.id),
        "--yes",
        "-o",
        "json",
        env=grid.environment,
    )
    assert [again["subject"] for again in json.loads(retried.stdout)] == ["no address"]
    wait_until(
        lambda: rows(grid, of_it)[0].parked_at not in (None, parked.parked_at),
        "it to be parked again",
        60.0,
        0.1,
    )
    change(grid, "DELETE FROM effects WHERE subject = 'no address'")
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 30.0, 0.1)


@pytest.mark.chaos
def test_fleet__directory_rejects__alarm_until_it_does_not(grid: Grid) -> None:
    """The group is gone: an alarm is raised. Once it is back and the time has come, the
    alarm is off.
    """
    server = Server(
        grid.environment["LDAP_URL"],
        tls=Tls(ca_certs_file=grid.environment["LDAP_CA_PATH"]),
    )
    with Connection(
        server, ADMIN, grid.environment["LDAP_BIND_PASSWORD"]
    ) as connection:
        connection.delete(GROUP)  # type: ignore[no-untyped-call]
        (one,) = request_jobs(grid, 1)
        alarm = "SELECT details FROM alarms WHERE name = 'ldap_request_rejected'"
        wait_until(lambda: bool(rows(grid, alarm)), "the alarm", 60.0, 0.1)
        details = rows(grid, alarm)[0].details
        assert details["subjects"] == [one]
        assert (
            f"member uid={one},{PEOPLE} of {GROUP}: noSuchObject (32)"
            in details["errors"][0]
        )
        connection.add(GROUP, ["groupOfNames"], {"member": ADMIN})  # type: ignore[no-untyped-call]
    wait_until(lambda: not rows(grid, alarm), "the alarm to be off", 90.0, 0.2)
    assert len(accounts(grid, f"(uid={one})")) == 1
