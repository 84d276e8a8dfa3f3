"""The homes of customers on the login node. No session begins as a customer whose home
other users can change.

A shell that sshd starts may read files of the user's home. If another customer can
write them, he decides what the supervisor's next session runs as this customer. So the
admin user checks the account, the home and the folders above it before the customer's
own session begins. The customer's own session cannot check the home, because a start-up
file may forge its output.
"""

import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from supervisor_tasks.errors import TransientError
from supervisor_tasks.slurm.parsers import CommandAnswer

# the error of a submission that was rejected for this begins so
UNSAFE = "unsafe home: "
SAFE_FOR_S = 60.0
UNSAFE_FOR_S = 10.0  # the operator may have repaired it
USERS_OF_A_LOOK = 20
# a look waits while a home's server does not answer, and the admin's other commands
# need sessions too
LOOKS_AT_ONCE = 2
TURN_WITHIN_S = 10.0
LOOK_TIMEOUT_S = 5  # on the login node
TIMED_OUT = ("124", "137")  # the status of `timeout`, the second one after SIGKILL
# a customer's Linux user; a site may write the hex digits in any case
CUSTOMER = re.compile("0x[0-9a-fA-F]{40}")
ROOT = 0

# Looks at one user after the other, each within LOOK_TIMEOUT_S, and ends after the
# first one that takes longer.
_LOOKS = (
    f'l=$1 m=$2; shift 2; for u do timeout -k 1 {LOOK_TIMEOUT_S} /bin/sh -c "$l" home "$m$u" "$u"; s=$?; '
    'echo "$m$u status $s"; case $s in 124|137) break;; esac; done'
)
# One line for any login shell. It prints the account, the home's real path, and each
# folder on both paths to it.
_LOOK = (
    'm=$1 u=$2; PATH=/usr/bin:/bin; e=$(getent passwd "$u") || { echo "$m unknown"; echo "$m whole"; exit 0; }; '
    'set -f; IFS=:; set -- $e; unset IFS; n=$3 h=$6; r=$(realpath -m -- "$h"); e=$(getent passwd "$n"); '
    'echo "$m account $n ${e%%:*} $h"; echo "$m real $r"; set --; '
    'if [ "$h" = "$r" ]; then r=; fi; for p in "$h" "$r"; do while [ "$p" ]; do '
    'if [ -e "$p" ] || [ -L "$p" ]; then set -- "$@" "$p"; '
    'else d=${p%/*}; if [ -x "${d:-/}" ] || [ ! -e "${d:-/}" ]; then echo "$m missing $p"; else echo "$m unseen $p"; fi; fi; '
    'case $p in /*) p=${p%/*};; *) p=;; esac; done; done; stat -c "$m at %u %U %g %f %n" -- "$@" /; echo "$m whole"'
)


class SlowHomeError(TransientError):
    """The login node does not show the user's home in time. A retry helps when the
    home's server answers again.
    """


class UnsafeHomeError(TransientError):
    """No session begins as this customer, because another user may decide what it runs.
    Retry when the operator has repaired the home.
    """


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder, file or link on the way to a home, as lstat shows it."""

    path: str
    uid: int
    owner: str
    gid: int
    mode: int

    @property
    def permissions(self) -> str:
        """The permissions in chmod's form."""
        return f"{stat.S_IMODE(self.mode):o}"


@dataclass(frozen=True, slots=True)
class Home:
    """The admin's view of a user's account: its number, the first account with that
    number, its home, and the home's real path.
    """

    uid: int
    first_of_number: str
    path: str
    real_path: str
    places: dict[str, FolderFacts]
    missing: frozenset[str] = field(default=frozenset())
    unseen: frozenset[str] = field(default=frozenset())

    @property
    def is_missing(self) -> bool:
        """Whether the home does not exist."""
        return self.real_path in self.missing

    @property
    def made_in(self) -> str:
        """The folder in which a missing home, or the first missing folder on the way to
        it, would be made; empty if the home exists.
        """
        if not self.is_missing:
            return ""
        home = PurePosixPath(self.real_path)
        return max(filter(home.is_relative_to, self.places), key=len, default="")


def look_command(delimiter: str, users: Sequence[str]) -> list[str]:
    """Build the command that the admin user runs to see the homes of users."""
    return ["/bin/sh", "-c", _LOOKS, "homes", _LOOK, delimiter, *users]


def home_seen(answer: CommandAnswer, delimiter: str, user: str) -> Home:
    """Read a user's home from the answer. Raises TransientError for an incomplete
    answer or an unknown user, and SlowHomeError when this user's home took too long. A
    retry helps.
    """
    lines = _after(f"{delimiter}{user} ", answer.stdout.splitlines())
    facts, statuses = list[str](), list[str]()
    for line in lines:
        if line.startswith("status "):
            statuses.append(line.removeprefix("status "))
        else:
            facts.append(line)
    if statuses and statuses[0] in TIMED_OUT:
        raise SlowHomeError(
            f"the login node does not show the home of {user} within {LOOK_TIMEOUT_S} s"
        )
    if "unknown" in facts:
        raise TransientError(
            f"the login node knows no user {user}; expected an account: see LDAP and SSSD on the login node"
        )
    account = _account(facts)
    if account is None or facts[-1] != "whole":
        shown = answer.stderr[:200]
        raise TransientError(
            f"the login node does not show the home of {user} (status {answer.status}): {shown!r}"
        )
    uid, first_of_number, path = account.groups()
    return Home(
        uid=int(uid),
        first_of_number=first_of_number,
        path=path,
        real_path=next(iter(_after("real ", facts)), ""),
        places=_places(facts),
        missing=frozenset(_after("missing ", facts)),
        unseen=frozenset(_after("unseen ", facts)),
    )


def _after(prefix: str, lines: Iterable[str]) -> list[str]:
    """Return the rest of each line that begins with the prefix."""
    found = list[str]()
    for line in lines:
        if line.startswith(prefix):
            found.append(line.removeprefix(prefix))
    return found


def _account(facts: Sequence[str]) -> re.Match[str] | None:
    """Return the account's number, the first account with that number, and the home."""
    for line in facts:
        if found := re.fullmatch(r"account (\d+) (\S*) (.*)", line):
            return found
    return None


def _places(facts: Sequence[str]) -> dict[str, FolderFacts]:
    """Return what lstat shows of each folder, file and link, by path."""
    places = dict[str, FolderFacts]()
    for line in facts:
        if found := re.fullmatch(r"at (\d+) (\S+) (\d+) ([0-9a-f]+) (.*)", line):
            uid, owner, gid, mode, path = found.groups()
            places[path] = FolderFacts(path, int(uid), owner, int(gid), int(mode, 16))
    return places


def home_fault(user: str, home: Home) -> str | None:
    """Return why another user may decide what a session of this user runs, and how to
    repair it; None when no other user may.
    """
    if home.first_of_number != user:
        return f"the account has the number {home.uid} of {home.first_of_number}; give it a uidNumber of its own"
    if not home.path.startswith("/"):
        return f"the account's home is {home.path!r}; set its homeDirectory to a folder of its own"
    if home.unseen:
        return f"{home.path}: the admin user may not look into {min(home.unseen)}'s folder; chmod a+x that folder"
    for path, place in home.places.items():
        if path == home.real_path:
            continue
        found = _fault_on_the_way(user, home, place)
        if found is not None:
            return found
    return _fault_of_home(home)


def _fault_on_the_way(user: str, home: Home, place: FolderFacts) -> str | None:
    """Return the fault of a folder, file or link on the way to the home."""
    if place.uid not in (ROOT, home.uid):
        is_customers = CUSTOMER.fullmatch(place.owner) is not None
        if is_customers or stat.S_ISLNK(place.mode):
            return f"{home.path}: {place.path} on the way to it belongs to {place.owner}; chown -h root {place.path}"
    if not stat.S_ISDIR(place.mode):
        return None
    is_sticky = bool(place.mode & stat.S_ISVTX)
    # only the owner of an entry can replace it, but others can make one that is missing
    if is_sticky and place.path != home.made_in:
        return None
    writers = stat.S_IWOTH
    if place.gid != ROOT:
        writers |= stat.S_IWGRP
    if not place.mode & writers:
        return None
    if is_sticky:
        return (
            f"{home.path} does not exist, and others can make it, as {place.path} has the mode {place.permissions};"
            f" make it for {user}, or give {user} another homeDirectory"
        )
    return (
        f"{home.path}: other users can put another folder in its place, as {place.path} has the mode {place.permissions};"
        f" chmod go-w {place.path}, or give {user} another homeDirectory"
    )


def _fault_of_home(home: Home) -> str | None:
    if home.is_missing:
        return f"{home.path} does not exist; make it, or let sshd's PAM session make it (pam_mkhomedir)"
    place = home.places.get(home.real_path)
    if place is None or not stat.S_ISDIR(place.mode):
        return f"{home.path} is no folder; set the account's homeDirectory to a folder of its own"
    if place.uid != home.uid:
        return f"{home.path} belongs to {place.owner}; set the account's homeDirectory to a folder of its own"
    if place.mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{home.path}: its group or others can write to it (mode {place.permissions}); chmod go-w {home.path}"
    return None


@dataclass(frozen=True, slots=True)
class _CheckedHome:
    why: str | None
    until_s: float


See = Callable[[Sequence[str]], dict[str, Home | Exception]]


class Homes:
    """A worker's knowledge of the customers' homes. Threads may share it. With
    `shared_allowed` (ALLOW_SHARED_HOMES_WHERE_CUSTOMERS_CAN_RUN_CODE_AS_EACH_OTHER) it
    checks no home.

    Threads that want to see homes at the same time share a look: the login node begins
    one session for all of them. A user whose home took too long is seen alone, until it
    answers.
    """

    def __init__(
        self,
        *,
        shared_allowed: bool = False,
        safe_for_s: float = SAFE_FOR_S,
        unsafe_for_s: float = UNSAFE_FOR_S,
    ) -> None:
        self._shared_allowed = shared_allowed
        self._safe_for_s, self._unsafe_for_s = safe_for_s, unsafe_for_s
        self._checked_homes: dict[str, _CheckedHome] = {}
        self._changed = threading.Condition()
        # homes that no look has taken yet
        self._wanted: list[tuple[str, Future[Home]]] = []
        self._looks = 0  # the looks that run now
        self._slow = set[str]()  # users whose home took too long

    def require_own(self, user: str, see: See, log_in: Callable[[], object]) -> None:
        """Raise UnsafeHomeError unless the user's home is his own. `see` asks the login
        node for the homes of users. If the home does not exist, `log_in` runs, because
        a login may make the home and finds no file to read there. Then the home is
        checked again. Raises TransientError when the login node gives no answer; a
        retry helps.
        """
        if self._shared_allowed:
            return
        checked = self._recently_checked(user)
        if checked is None:
            checked = self._judge(user, see, log_in)
        if checked.why is not None:
            raise UnsafeHomeError(f"{UNSAFE}{user}: {checked.why}")

    def _judge(self, user: str, see: See, log_in: Callable[[], object]) -> _CheckedHome:
        home = self._seen(user, see)
        why = home_fault(user, home)
        if home.is_missing and why == _fault_of_home(home):
            log_in()
            why = home_fault(user, self._seen(user, see))
        for_s = self._safe_for_s
        if why is not None:
            for_s = self._unsafe_for_s
        checked = _CheckedHome(why, time.monotonic() + for_s)
        with self._changed:
            self._checked_homes[user] = checked
        return checked

    def _recently_checked(self, user: str) -> _CheckedHome | None:
        """Return a recent check's result, and delete all older ones."""
        now_s = time.monotonic()
        with self._changed:
            for name, checked in list(self._checked_homes.items()):
                if checked.until_s <= now_s:
                    del self._checked_homes[name]
            return self._checked_homes.get(user)

    def _seen(self, user: str, see: See) -> Home:
        """Return the user's home, as a look of this thread shows it, or a look of
        another thread that begins from now on.
        """
        home = Future[Home]()
        until_s = time.monotonic() + TURN_WITHIN_S
        with self._changed:
            self._wanted.append((user, home))
            while not home.done():
                if self._wanted and self._looks < LOOKS_AT_ONCE:
                    self._look(see)
                    continue
                left_s = max(until_s - time.monotonic(), 0.0)
                if not self._changed.wait(left_s):
                    if (user, home) in self._wanted:
                        self._wanted.remove((user, home))
                    raise TransientError(
                        "other threads wait for the login node to show customers' homes"
                    )
        return home.result()

    def _look(self, see: See) -> None:
        """Look at homes that are wanted. Other threads may take the lock meanwhile."""
        chosen = self._chosen()
        users = list(dict.fromkeys(user for user, _ in chosen))
        self._looks += 1
        self._changed.release()
        try:
            found = see(users)
        except Exception as error:  # noqa: BLE001  the result for each chosen user
            found = dict.fromkeys(users, error)
        finally:
            self._changed.acquire()
            self._looks -= 1
        for user, home in chosen:
            self._answer_waiting(user, home, found[user])
        self._changed.notify_all()

    def _chosen(self) -> list[tuple[str, Future[Home]]]:
        """Take the first home that is wanted, with others unless it is slow."""
        first, *others = self._wanted
        chosen, self._wanted = [first], []
        is_alone = first[0] in self._slow
        for entry in others:
            is_slow = entry[0] in self._slow
            is_full = len(chosen) == USERS_OF_A_LOOK
            if is_alone or is_slow or is_full:
                self._wanted.append(entry)
            else:
                chosen.append(entry)
        return chosen

    def _answer_waiting(
        self, user: str, home: "Future[Home]", found: Home | Exception
    ) -> None:
        """Pass what a look has found to the thread that waits for it."""
        if isinstance(found, Home):
            self._slow.discard(user)
            home.set_result(found)
            return
        if isinstance(found, SlowHomeError):
            self._slow.add(user)
        home.set_exception(found)
