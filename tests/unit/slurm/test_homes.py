import pwd
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from devgrid.machine import deadline
from supervisor_tasks.errors import TransientError
from supervisor_tasks.slurm.homes import (
    FolderFacts,
    Home,
    Homes,
    SlowHomeError,
    home_seen,
    look,
)
from supervisor_tasks.slurm.parsers import CommandAnswer

MARK = "0123abcd"
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
        look(MARK, users),
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
        home = home_seen(answer, MARK, name)
        assert (home.uid, home.first_of_number, home.path) == (
            entry.pw_uid,
            name,
            entry.pw_dir,
        )
    with pytest.raises(TransientError, match="knows no user no-such-user"):
        home_seen(answer, MARK, "no-such-user")


def test_home_seen__look_that_took_too_long__next_home_is_not_told() -> None:
    answer = CommandAnswer(0, f"{MARK}{USERS[0]} status 124\n", "")
    with pytest.raises(SlowHomeError):
        home_seen(answer, MARK, USERS[0])
    with pytest.raises(TransientError, match="does not show the home") as refused:
        home_seen(answer, MARK, USERS[1])
    assert not isinstance(refused.value, SlowHomeError)


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
