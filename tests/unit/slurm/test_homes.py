import pwd
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from devgrid.machine import deadline
from supervisor_tasks.errors import TransientError
from supervisor_tasks.slurm.homes import (
    FolderFacts,
    Home,
    Homes,
    SlowHomeError,
    UnsafeHomeError,
    home_fault,
    home_seen,
    look_command,
)
from supervisor_tasks.slurm.parsers import CommandAnswer

DELIMITER = "0123abcd"
USERS = [f"0x{number:040x}" for number in range(6)]
SAFE = Home(
    1000,
    "",
    "/home/of-one",
    "/home/of-one",
    {"/home/of-one": FolderFacts("/home/of-one", 1000, "", 1000, 0o40755)},
)


def of(user: str) -> Home:
    return Home(SAFE.uid, user, SAFE.path, SAFE.real_path, SAFE.places)


def asked(users: Sequence[str]) -> CommandAnswer:
    done = subprocess.run(
        look_command(DELIMITER, users),
        capture_output=True,
        text=True,
        timeout=deadline(30),
        check=False,
    )
    return CommandAnswer(done.returncode, done.stdout, done.stderr)


# --- the command ----------------------------------------------------------------------


def test_look__several_users__shows_the_home_of_each() -> None:
    entries = {
        entry.pw_name: entry for entry in (pwd.getpwnam("root"), pwd.getpwnam("daemon"))
    }
    answer = asked([*entries, "no-such-user"])
    for name, entry in entries.items():
        home = home_seen(answer, DELIMITER, name)
        assert (home.uid, home.first_of_number, home.path) == (
            entry.pw_uid,
            name,
            entry.pw_dir,
        )
    with pytest.raises(TransientError, match="knows no user no-such-user"):
        home_seen(answer, DELIMITER, "no-such-user")


def test_home_seen__look_that_took_too_long__next_home_is_not_told() -> None:
    answer = CommandAnswer(0, f"{DELIMITER}{USERS[0]} status 124\n", "")
    with pytest.raises(SlowHomeError):
        home_seen(answer, DELIMITER, USERS[0])
    with pytest.raises(TransientError, match="does not show the home") as refused:
        home_seen(answer, DELIMITER, USERS[1])
    assert not isinstance(refused.value, SlowHomeError)


# --- which homes are safe -------------------------------------------------------------

USER, STRANGER = f"0x{7:040x}", f"0x{8:040x}"
HOME = "/srv/homes/of-one"
UID, STRANGERS_UID, SITES_UID = 1000, 1001, 500
FOLDER, LINK, FILE = 0o40755, 0o120777, 0o100644


def place(
    path: str, owner: str = "root", mode: int = FOLDER, gid: int = 0
) -> FolderFacts:
    uids = {"root": 0, USER: UID, STRANGER: STRANGERS_UID, "staff": SITES_UID}
    return FolderFacts(path, uids[owner], owner, gid, mode)


def home(*changed: FolderFacts, **facts: Any) -> Home:
    """A safe home, with some of what is seen on the way to it changed."""
    own = place(HOME, USER, gid=UID)
    places = [place("/"), place("/srv"), place("/srv/homes"), own, *changed]
    safe = Home(UID, USER, HOME, HOME, {one.path: one for one in places})
    return replace(safe, **facts)


def missing(*changed: FolderFacts) -> Home:
    """A home that does not exist yet, with some of what is seen on the way changed."""
    seen = home(*changed)
    del seen.places[HOME]
    return replace(seen, missing=frozenset({HOME}))


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(home(), id="his own"),
        pytest.param(home(place(HOME, USER, 0o42750, gid=7)), id="his group reads it"),
        pytest.param(home(place("/srv", "root", 0o40775)), id="root's group writes"),
        pytest.param(home(place("/srv", "root", 0o41777)), id="sticky"),
        pytest.param(home(place("/srv", "staff")), id="a folder of the site's user"),
        pytest.param(home(place("/srv/homes", USER)), id="a folder of his own"),
        pytest.param(
            home(place("/link", "root", LINK), path="/link"), id="behind root's link"
        ),
    ],
)
def test_home_fault__home_that_no_other_user_can_change__is_none(seen: Home) -> None:
    assert home_fault(USER, seen) is None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (home(first_of_number=STRANGER), "has the number 1000 of"),
        (home(path=""), "home is ''"),
        (home(path="home"), "home is 'home'"),
        (home(unseen=frozenset({"/srv/homes"})), "may not look into /srv/homes"),
        (home(place("/srv/homes", STRANGER)), "on the way to it belongs to"),
        (
            home(place("/link", STRANGER, LINK), path="/link"),
            "/link on the way to it belongs to",
        ),
        (
            home(place("/link", "staff", LINK), path="/link"),
            "/link on the way to it belongs to staff",
        ),
        (home(place("/srv", "root", 0o40757)), "put another folder in its place"),
        (home(place("/srv", "root", 0o40775, gid=7)), "put another folder in its"),
        (home(place(HOME, "root", FILE)), "is no folder"),
        (home(place(HOME, STRANGER)), "belongs to"),
        (home(place(HOME)), "belongs to root"),
        (home(place(HOME, USER, 0o40775, gid=UID)), "its group or others can write"),
        (home(place(HOME, USER, 0o40757, gid=UID)), "its group or others can write"),
        (home(place(HOME, USER, 0o41777, gid=UID)), "its group or others can write"),
        (missing(), "does not exist; make it, or let"),
        (missing(place("/srv", "root", 0o41777)), "does not exist; make it, or let"),
        (missing(place("/srv/homes", "root", 0o41777)), "others can make it, as"),
        (
            missing(place("/srv/homes", "root", 0o41775, gid=7)),
            "others can make it, as /srv/homes has the mode 1775",
        ),
        (home(real_path="/elsewhere"), "is no folder"),
    ],
)
def test_home_fault__home_that_another_user_may_change__is_told(
    seen: Home, said: str
) -> None:
    assert said in (home_fault(USER, seen) or "")


# --- looks together -------------------------------------------------------------------


class LoginNode:
    """It answers a look when it may, and remembers whose homes each look showed."""

    def __init__(self, slow: str = "") -> None:
        self.looks = list[list[str]]()
        self.may_answer = threading.Event()
        self.begun = threading.Semaphore(0)
        self.slow = slow

    def see(self, users: Sequence[str]) -> dict[str, Home | Exception]:
        self.looks.append(list(users))
        self.begun.release()
        assert self.may_answer.wait(deadline(30))
        return {
            user: SlowHomeError(user) if user == self.slow else of(user)
            for user in users
        }


def require(homes: Homes, node: LoginNode, user: str) -> None:
    homes.require_own(user, node.see, lambda: None)


@pytest.mark.parametrize(("mode", "logins"), [(FOLDER, 1), (0o41777, 0)])
def test_require_own__home_is_missing__logs_in_unless_others_can_make_it(
    mode: int, logins: int
) -> None:
    seen, begun = missing(place("/srv/homes", "root", mode)), list[str]()
    with pytest.raises(UnsafeHomeError, match="does not exist"):
        Homes().require_own(
            USER, lambda _: {USER: seen}, lambda: begun.append("a session")
        )
    assert len(begun) == logins


def test_require_own__many_at_once__share_the_looks_that_come_next() -> None:
    homes, node = Homes(), LoginNode()
    with ThreadPoolExecutor(len(USERS)) as pool:
        first = [pool.submit(require, homes, node, user) for user in USERS[:2]]
        for _ in first:
            assert node.begun.acquire(timeout=deadline(30))
        others = [pool.submit(require, homes, node, user) for user in USERS[2:]]
        while len(homes._wanted) < len(others):
            threading.Event().wait(0.01)
        node.may_answer.set()
        for done in [*first, *others]:
            done.result(deadline(30))
    assert sorted(node.looks[:2]) == [[USERS[0]], [USERS[1]]]
    assert sorted(user for users in node.looks[2:] for user in users) == USERS[2:]
    assert len(node.looks) == 3


def test_require_own__home_that_took_too_long__is_seen_alone() -> None:
    homes, node = Homes(safe_for_s=0.0), LoginNode(slow=USERS[0])
    node.may_answer.set()
    with pytest.raises(SlowHomeError):
        require(homes, node, USERS[0])
    homes._wanted = [(user, Future[Home]()) for user in USERS[:3]]
    assert [user for user, _ in homes._chosen()] == [USERS[0]]
    assert [user for user, _ in homes._chosen()] == USERS[1:3]
    node.slow = ""
    require(homes, node, USERS[0])
    homes._wanted = [(user, Future[Home]()) for user in USERS[:3]]
    assert [user for user, _ in homes._chosen()] == USERS[:3]


def test_require_own__look_fails__raises_the_error_and_the_next_look_works() -> None:
    homes, node = Homes(), LoginNode()
    node.may_answer.set()

    def fail(_: Sequence[str]) -> dict[str, Home | Exception]:
        raise TransientError("the login node is away")

    with pytest.raises(TransientError, match="is away"):
        homes.require_own(USERS[0], fail, lambda: None)
    require(homes, node, USERS[0])
