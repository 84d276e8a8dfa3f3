"""Commands that the login node runs whole, in time, or not at all: one customer's submissions, in one SSH command. Pure.

What a worker sends may arrive in part (the connection was cut: standard input ends early) or late (the worker, sshd or the
network stood still, and the effect has another holder by now). So a guard in front of sbatch reads one submission after the
other from standard input: how many words and bytes it has, the words of sbatch's command line, the script, and the mark, by
which the guard sees that all of it is there. It runs that sbatch before it reads the next submission, and never after the
deadline: `timeout` ends an sbatch that takes longer, and what has not begun by then is not run. Each answer is there as soon
as its sbatch has ended, behind a mark that nobody can guess, on standard output and on standard error: what the customer's
start-up files print is not taken for one.

The deadline is told by the login node's clock when the guard begins. From then on the guard counts the seconds of
/proc/uptime, which nobody sets, and which a shell reads without another process.

SLURM's configuration is the admin's (SLURM_CONF), whatever a start-up file of the customer says: another SLURM would take a job
that is looked for here in vain.

The guard is one line of POSIX sh without ' ! \\ or line feeds, so that any login shell, csh too, hands it on unchanged. It
writes no file: a full disk does not matter, and the script, which is the customer's, is never seen in a process list.
`head -c` counts the bytes of a script; the shell, which may count characters, does not.

It runs in the environment that the site's own file makes (SLURM_ENVIRONMENT_FILE), on top of what a login shell that reads
start-up files leaves, and the job inherits that environment: modules, PATH. What
sbatch itself would read there as options (SBATCH_GPUS, SBATCH_ARRAY_INX, SLURM_NTASKS_PER_NODE ...) is taken out, as it would
change what was paid for, and so are functions and programs of the customer's that have the names of the guard's own tools. The
guard's variables have names that no environment has, so that they are not exported.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from supervisor_tasks.effects import IN_TIME_S, KILLED_AFTER_S
from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError, TransientError
from supervisor_tasks.slurm.output import Answer

ANSWERED_AFTER_S = 15.0  # then nobody waits for the answer any more
NOT_RUN = (126, 127)  # what a shell says of a command that it cannot run
TO_REACH_SLURM = ("SLURM_JWT",)  # the user's own; sbatch reads no options from it
MOST_DIGITS = 6  # of a command's number, and of a status
MOST_ANSWER = 2**20  # bytes that one sbatch prints; an id and its warnings have less than 1 kB

_NO_FUNCTIONS = "unset -f [ command date echo head printf read test; "
# In a function, so that the file's own parameters are not the guard's; its input is not the script.
_SITES_FILE = (
    'sites_file() { . "$1" </dev/null; }; if [ "$4" ]; then if [ -r "$4" ]; then sites_file "$4"; '
    'else echo "SLURM_ENVIRONMENT_FILE: the login node cannot read $4" >&2; exit 127; fi; fi; '
)
_OUR_PATH = "guard_path=$PATH; PATH=/usr/bin:/bin; "
# A word of a value that looks like an option's name is unset too, or is no name: then `command` keeps the shell from ending.
_WITHOUT_OPTIONS = (
    "unset IFS; set -f; for guard_name in $(export -p); do case $guard_name in "
    f"{'|'.join(f'{name}=*' for name in TO_REACH_SLURM)}) ;; "
    'SBATCH_*|SLURM_*) command unset -v "${guard_name%%=*}" 2>/dev/null;; esac; done; '
)
_SECONDS_LEFT = "IFS=. read -r guard_now guard_rest </proc/uptime || exit 127; guard_left=$((guard_over - guard_now)); "
# A second less than the two clocks say: both are read in whole seconds.
_DEADLINE = (
    "guard_over=0; guard_date=$(date +%s) || exit 127; "
    f"{_SECONDS_LEFT}guard_over=$((guard_now + guard_until - guard_date - 1)); "
)
_READ_ONE = (
    'IFS=" " read -r guard_words guard_bytes || break; set --; '
    'while [ "$#" -lt "$guard_words" ]; do IFS= read -r guard_word || break 2; set -- "$@" "$guard_word"; done; '
    'guard_script=$(head -c "$guard_bytes"; echo .); '
    'IFS= read -r guard_word && [ "$guard_word" = "$guard_mark" ] || break; '
)
_RUN_ONE = (
    'printf %s "${guard_script%.}" | '
    f'(PATH=$guard_path; exec "$guard_timeout" -k {KILLED_AFTER_S} "$guard_left" "$@"); guard_status=$?; '
    'echo "$guard_mark" >&2; echo "$guard_mark $guard_job $guard_status"; guard_job=$((guard_job + 1)); '
)
_GUARD = (
    f"{_NO_FUNCTIONS}{_SITES_FILE}{_NO_FUNCTIONS}{_OUR_PATH}{_WITHOUT_OPTIONS}"
    'guard_jobs=$1 guard_until=$2; if [ "$3" ]; then export SLURM_CONF="$3"; fi; '
    "guard_timeout=/usr/bin/timeout; [ -x $guard_timeout ] || guard_timeout=/bin/timeout; "
    f'IFS= read -r guard_mark || exit 127; {_DEADLINE}echo "$guard_mark" >&2; echo "$guard_mark"; '
    'guard_job=0 guard_end=cut; while [ "$guard_job" -lt "$guard_jobs" ]; do '
    f'{_READ_ONE}{_SECONDS_LEFT}if [ "$guard_left" -le 0 ]; then guard_end=late; break; fi; {_RUN_ONE}done; '
    '[ "$guard_job" -eq "$guard_jobs" ] || echo "$guard_mark $guard_end"'
)
_CLOCK = f'{_NO_FUNCTIONS}PATH=/usr/bin:/bin; echo "$1 $(date +%s) $SLURM_CONF"'


class TooLateError(TransientError):
    """The guard did not run the command: its time was over when it arrived."""


@dataclass(frozen=True, slots=True)
class LoginClock:
    """The login node's clock as it was read: `login_s` (Unix time, whole seconds) when ours showed `our_s`; and where SLURM's
    configuration is (SLURM_CONF), empty where SLURM's commands know.
    """

    login_s: int
    our_s: float
    slurm_conf: str = ""

    def at(self, our_s: float) -> int:
        """What the login node's clock shows when ours shows that, or a moment earlier; never later."""
        return self.login_s + int(our_s - self.our_s)


@dataclass(frozen=True, slots=True)
class Order:
    """One submission: sbatch's command line, words without line feeds, and its script, of any bytes but NUL."""

    argv: Sequence[str]
    script: bytes = field(repr=False)


def guarded(jobs: int, until_login_s: int, slurm_conf: str = "", environment_file: str = "") -> list[str]:
    """Run so many commands, one after the other, each only with the whole of its script, only until then, with no option but
    its own, and with that SLURM_CONF or none, in the environment that the site's file, if there is one, makes. Reads `framed`
    from standard input.
    """
    return ["/bin/sh", "-c", _GUARD, "guard", str(jobs), str(until_login_s), slurm_conf, environment_file]


def framed(mark: str, orders: Sequence[Order]) -> bytes:
    """The mark, which a start-up file could read in a command line, and each command with its script, behind which the mark
    shows that all of it came.
    """
    return b"".join([_line(mark), *(part for order in orders for part in _frame(mark, order))])


def _frame(mark: str, order: Order) -> Iterator[bytes]:
    if b"\0" in order.script:
        raise ValueError("a shell cannot hold a script with NUL bytes")
    yield _line(f"{len(order.argv)} {len(order.script)}")
    yield from map(_line, order.argv)
    yield order.script
    yield _line(mark)


def _line(word: str) -> bytes:
    if "\n" in word or "\0" in word:
        raise ValueError("a word of a command that is guarded is one line")
    return word.encode() + b"\n"


def ask_clock(mark: str) -> list[str]:
    """Ask what time it is at the login node, and for the user's SLURM_CONF."""
    return ["/bin/sh", "-c", _CLOCK, "clock", mark]


def clock_told(answer: Answer, mark: str, our_s: float) -> LoginClock:
    """The login node's clock; `our_s` is when the answer was there. Raises TransientError."""
    found = re.search(rf"{mark} (\d{{1,12}}) (.*)\n", answer.stdout)
    if found is None:
        raise TransientError(f"the login node does not tell the time (status {answer.status}): {answer.stderr[:200]!r}")
    return LoginClock(int(found[1]), our_s, found[2])


class AnswerTooLongError(OutcomeUnknownError):
    """A command printed more than is kept of it; nobody knows how it ended."""


@dataclass(slots=True)
class Answers:
    """What the guard prints, piece by piece. `heard` is called with a command's number and its answer as soon as both are
    there; what it raises is passed on. `now_s` is a clock for `first_s`, the time of the first answer.
    """

    mark: str
    jobs: int
    heard: Callable[[int, Answer], None]
    now_s: Callable[[], float]
    first_s: float | None = None
    told: int = 0  # commands whose answer was given to `heard`: they are answered in their order
    _end: str = ""
    _begun: bool = False
    _ended: list[tuple[int, bytes]] = field(default_factory=list)  # status and output that wait for their errors
    _complaints: list[bytes] = field(default_factory=list)  # the first is what was printed before the guard began
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _searched: int = 0

    @property
    def waits_for_stderr(self) -> bool:
        """Whether standard error is what is missing of the next answer."""
        return bool(self._ended)

    @property
    def came_late(self) -> bool:
        """Whether the guard began when the time was over."""
        return self._end == "late" and not self.told

    def stdout(self, piece: bytes) -> None:
        """More of standard output. Raises AnswerTooLongError."""
        self._stdout += piece
        self._begin()
        while self._begun and (found := self._answer_pattern().search(self._stdout, self._searched)):
            printed, job, status, end = bytes(self._stdout[: found.start()]), *found.group("job", "status", "end")
            del self._stdout[: found.end()]
            self._searched = 0
            if end:
                self._end = end.decode()
            elif int(job) == self.told + len(self._ended) < self.jobs:
                self._ended.append((int(status), printed))
        self._searched = max(len(self._stdout) - len(self.mark) - 2 * MOST_DIGITS, 0)
        self._require_short(self._stdout)
        self._tell()

    def stderr(self, piece: bytes) -> None:
        """More of standard error. Raises AnswerTooLongError."""
        self._stderr += piece
        *parts, rest = bytes(self._stderr).split(self.mark.encode() + b"\n")
        self._complaints += parts
        self._stderr = bytearray(rest)
        self._require_short(self._stderr)
        self._tell()

    def ended(self, status: int) -> SupervisorError:
        """The guard has ended with this status, and all that it printed was given. Returns why the commands from `told` on have
        no answer: TooLateError or another TransientError when they were certainly not run, and OutcomeUnknownError when
        nobody knows.
        """
        missing = self.told + 1 + len(self._ended) - len(self._complaints)  # all, where a start-up file closed it
        self._complaints += [bytes(self._stderr)] * missing
        self._tell()
        complaint = f"(status {status}): {self._shown()!r}"
        if self._end == "cut":
            return TransientError("the script did not arrive whole; nothing was run")
        if self._end == "late":
            return TooLateError(f"its turn came more than {IN_TIME_S:g} s after it was begun; nothing was run")
        if not self._begun and status in NOT_RUN:
            return TransientError(f"the login node cannot begin the submission {complaint}")
        return OutcomeUnknownError(f"the guard's end was not seen {complaint}")

    def _begin(self) -> None:
        if not self._begun:
            _, begun, rest = self._stdout.partition(self.mark.encode() + b"\n")
            self._begun = bool(begun)
            self._stdout = rest if begun else self._stdout

    def _answer_pattern(self) -> re.Pattern[bytes]:
        digits = rf"\d{{1,{MOST_DIGITS}}}"
        return re.compile(rf"{self.mark} (?:(?P<job>{digits}) (?P<status>{digits})|(?P<end>cut|late))\n".encode())

    def _tell(self) -> None:
        while self._ended and len(self._complaints) > self.told + 1:
            status, printed = self._ended.pop(0)
            complaint = self._complaints[self.told + 1]
            if self.first_s is None:
                self.first_s = self.now_s()
            number, self.told = self.told, self.told + 1
            self.heard(number, Answer(status, _text(printed), _text(complaint)))

    def _shown(self) -> str:
        return _text(b"".join([*self._complaints[:1], self._stderr]))[:200]

    def _require_short(self, kept: bytearray) -> None:
        if len(kept) > MOST_ANSWER:
            raise AnswerTooLongError(f"more than {MOST_ANSWER} bytes came and no answer")


def _text(printed: bytes) -> str:
    return printed.decode(errors="replace")
