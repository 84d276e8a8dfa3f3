"""The guard: one SSH command that submits one customer's jobs, each job whole and in
time, or not at all. Pure.

A worker's data may arrive in part: when the connection is cut, standard input ends
early. It may also arrive late: the worker, sshd or the network stood still, and another
worker holds the effect by now. So a guard runs in front of sbatch. It reads one
submission after the other from standard input: the number of words and bytes, the words
of sbatch's command line, the script, and the delimiter. The delimiter shows the guard
that the submission is complete. The guard runs this sbatch before it reads the next
submission, and never after the deadline. `timeout` ends an sbatch that takes longer,
and the guard does not start an sbatch after the deadline. The guard prints each answer
as soon as its sbatch has ended, with the delimiter, on standard output and on standard
error. The delimiter cannot be guessed, so the supervisor does not take the output of
the customer's start-up files for an answer.

The deadline is a time on the login node's clock. The guard reads that clock once, when
it begins. From then on it counts the seconds of /proc/uptime: no process sets that
counter, and a shell reads it without another process.

The guard uses the admin's SLURM configuration (SLURM_CONF), even if a start-up file of
the customer sets another one. Another SLURM would accept the job, and the supervisor
would not find it here.

The guard is one line of POSIX sh without ' ! \\ or line feeds, so that any login shell,
csh too, passes it on unchanged. It writes no file. So a full disk does not matter, and
the customer's script never appears in a process list. `head -c` counts the bytes of a
script, because the shell may count characters.

The guard runs on top of the environment that a login shell leaves after its start-up
files. It then reads the site's own file (SLURM_ENVIRONMENT_FILE). The job inherits that
environment: modules, PATH. The guard removes the variables that sbatch would read as
options (SBATCH_GPUS, SBATCH_ARRAY_INX, SLURM_NTASKS_PER_NODE ...), because they would
change what the customer paid for. It also removes the customer's functions, and avoids
the customer's programs, that have the names of the guard's own tools. The guard's
variables have names that no environment has, so that the shell does not export them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError, TransientError
from supervisor_tasks.jobs.effect_timing import KILL_GRACE_S, SUBMIT_TIMEOUT_S
from supervisor_tasks.slurm.client_variables import OF_SBATCH, without_variables
from supervisor_tasks.slurm.parsers import CommandAnswer

ANSWERED_AFTER_S = 15.0  # the worker stops waiting for the answer after this time
NOT_RUN = (126, 127)  # a shell's status for a command that it cannot run
# the user's own variable; sbatch reads no options from it
OF_THE_CUSTOMER = ("SLURM_JWT",)
MAX_DIGITS = 6  # of a command's number, and of a status
# bytes that one sbatch prints; an id and its warnings have less than 1 kB
MAX_ANSWER_BYTES = 2**20
# the guard's last line, if it has not run all commands: the input was not whole, or the
# deadline had passed
TRUNCATED, EXPIRED = "truncated", "expired"

_NO_FUNCTIONS = "unset -f [ command date echo head printf read test; "
# The site's file runs in a function, so that its parameters are not the guard's. Its
# standard input is not the script.
_SITES_FILE = (
    'sites_file() { . "$1" </dev/null; }; if [ "$4" ]; then if [ -r "$4" ]; then sites_file "$4"; '
    'else echo "SLURM_ENVIRONMENT_FILE: the login node cannot read $4" >&2; exit 127; fi; fi; '
)
_OUR_PATH = "guard_path=$PATH; PATH=/usr/bin:/bin; "
_WITHOUT_OPTIONS = without_variables("guard_name", OF_SBATCH, OF_THE_CUSTOMER)
_SECONDS_LEFT = "IFS=. read -r guard_now guard_rest </proc/uptime || exit 127; guard_left=$((guard_over - guard_now)); "
# One second less than the two clocks show, because the guard reads both in whole
# seconds.
_DEADLINE = (
    "guard_over=0; guard_date=$(date +%s) || exit 127; "
    f"{_SECONDS_LEFT}guard_over=$((guard_now + guard_until - guard_date - 1)); "
)
_READ_ONE = (
    'IFS=" " read -r guard_words guard_bytes || break; set --; '
    'while [ "$#" -lt "$guard_words" ]; do IFS= read -r guard_word || break 2; set -- "$@" "$guard_word"; done; '
    'guard_script=$(head -c "$guard_bytes"; echo .); '
    'IFS= read -r guard_word && [ "$guard_word" = "$guard_nonce" ] || break; '
)
_RUN_ONE = (
    'printf %s "${guard_script%.}" | '
    f'(PATH=$guard_path; exec "$guard_timeout" -k {KILL_GRACE_S} "$guard_left" "$@"); guard_status=$?; '
    'echo "$guard_nonce" >&2; echo "$guard_nonce $guard_job $guard_status"; guard_job=$((guard_job + 1)); '
)
_GUARD = (
    f"{_NO_FUNCTIONS}{_SITES_FILE}{_NO_FUNCTIONS}{_OUR_PATH}{_WITHOUT_OPTIONS}"
    'guard_jobs=$1 guard_until=$2; if [ "$3" ]; then export SLURM_CONF="$3"; fi; '
    "guard_timeout=/usr/bin/timeout; [ -x $guard_timeout ] || guard_timeout=/bin/timeout; "
    f'IFS= read -r guard_nonce || exit 127; {_DEADLINE}echo "$guard_nonce" >&2; echo "$guard_nonce"; '
    f'guard_job=0 guard_end={TRUNCATED}; while [ "$guard_job" -lt "$guard_jobs" ]; do '
    f'{_READ_ONE}{_SECONDS_LEFT}if [ "$guard_left" -le 0 ]; then guard_end={EXPIRED}; break; fi; {_RUN_ONE}done; '
    '[ "$guard_job" -eq "$guard_jobs" ] || echo "$guard_nonce $guard_end"'
)
_CLOCK = f'{_NO_FUNCTIONS}PATH=/usr/bin:/bin; echo "$1 $(date +%s) $SLURM_CONF"'


class TooLateError(TransientError):
    """The guard did not run the command: it arrived after the deadline. Retry."""


class GuardNotBegunError(TransientError):
    """The login shell answered that it cannot run the guard: the login node lacks a
    program, or the customer's start-up file says so. Retry, later each time.
    """


@dataclass(frozen=True, slots=True)
class LoginClock:
    """The login node's clock at one reading: it showed `login_s` (Unix time, whole
    seconds) when our clock showed `our_s`. `slurm_conf` is the path of SLURM's
    configuration (SLURM_CONF); it is empty where SLURM's commands find it themselves.
    """

    login_s: int
    our_s: float
    slurm_conf: str = ""

    def at(self, our_s: float) -> int:
        """Return the time on the login node's clock when ours shows `our_s`, or a
        moment earlier; never later.
        """
        return self.login_s + int(our_s - self.our_s)

    def ahead_of_s(self, other: "LoginClock") -> int:
        """Return by how many seconds this clock is ahead of another one; negative when
        it is behind.
        """
        return round((self.login_s - other.login_s) - (self.our_s - other.our_s))


@dataclass(frozen=True, slots=True)
class Order:
    """One submission: the words of sbatch's command line, without line feeds, and its
    script, of any bytes but NUL.
    """

    argv: Sequence[str]
    script: bytes = field(repr=False)


def guard_command(
    jobs: int, until_login_s: int, slurm_conf: str = "", environment_file: str = ""
) -> list[str]:
    """Build the command line of the guard, which reads the output of `framed` from
    standard input. The guard runs `jobs` commands, one after the other. It runs each
    only with its whole script, only until `until_login_s` (Unix time of the login
    node), and with no options but its own. It sets SLURM_CONF to `slurm_conf` if that
    is not empty, and reads the site's `environment_file` if the site has one.
    """
    return [
        "/bin/sh",
        "-c",
        _GUARD,
        "guard",
        str(jobs),
        str(until_login_s),
        slurm_conf,
        environment_file,
    ]


def framed(delimiter: str, orders: Sequence[Order]) -> bytes:
    """Build the guard's standard input: first the delimiter, then each command with its
    script and the delimiter again. The second delimiter shows that the submission is
    complete. The delimiter is not in the command line, because a start-up file could
    read it there.
    """
    frames = [_frame(delimiter, order) for order in orders]
    return b"".join([_line(delimiter), *frames])


def _frame(delimiter: str, order: Order) -> bytes:
    if b"\0" in order.script:
        raise ValueError("a shell cannot hold a script with NUL bytes")
    sizes = _line(f"{len(order.argv)} {len(order.script)}")
    return b"".join([sizes, *map(_line, order.argv), order.script, _line(delimiter)])


def _line(word: str) -> bytes:
    if "\n" in word or "\0" in word:
        raise ValueError(
            "a word of a guarded command must be one line without NUL bytes"
        )
    return word.encode() + b"\n"


def ask_clock(delimiter: str) -> list[str]:
    """Build the command that prints the login node's time and the user's SLURM_CONF."""
    return ["/bin/sh", "-c", _CLOCK, "clock", delimiter]


def parse_clock(answer: CommandAnswer, delimiter: str, our_s: float) -> LoginClock:
    """Read the login node's clock from the answer, which arrived at `our_s`. A
    customer's start-up file may have printed it: `SshClock.of` compares it with the
    admin's. Raises TransientError when it shows no time; a retry helps.
    """
    found = re.search(rf"{delimiter} (\d{{1,12}}) (.*)\n", answer.stdout)
    if found is None:
        raise TransientError(
            f"the login node does not show the time (status {answer.status}): {answer.stderr[:200]!r}"
        )
    return LoginClock(int(found[1]), our_s, found[2])


class AnswerTooLongError(OutcomeUnknownError):
    """A command printed more than the worker keeps. Its outcome is unknown."""


@dataclass(slots=True)
class Answers:
    """The guard's output, received piece by piece. `on_answer` is called with a
    command's number and its answer as soon as both streams have it; its exceptions are
    passed on. `now_s` is the clock for `first_s`, the time of the first answer.
    """

    delimiter: str
    jobs: int
    on_answer: Callable[[int, CommandAnswer], None]
    now_s: Callable[[], float]
    first_s: float | None = None
    # number of commands whose answer `on_answer` got; the answers come in the commands'
    # order
    answered: int = 0
    _end: str = ""
    _begun: bool = False
    # status and output that wait for standard error
    _ended: list[tuple[int, bytes]] = field(default_factory=list)
    # the first part came before the guard began
    _complaints: list[bytes] = field(default_factory=list)
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _searched: int = 0

    @property
    def waits_for_stderr(self) -> bool:
        """Whether only the standard error of the next answer is missing."""
        return bool(self._ended)

    @property
    def came_late(self) -> bool:
        """Whether the guard began after the deadline."""
        return self._end == EXPIRED and not self.answered

    def stdout(self, piece: bytes) -> None:
        """Add a piece of standard output. Raises AnswerTooLongError: the caller must
        search SLURM, and not retry.
        """
        self._stdout += piece
        self._begin()
        while self._begun:
            found = self._answer_pattern().search(self._stdout, self._searched)
            if found is None:
                break
            printed = bytes(self._stdout[: found.start()])
            job, status, end = found.group("job", "status", "end")
            del self._stdout[: found.end()]
            self._searched = 0
            next_job = self.answered + len(self._ended)
            if end:
                self._end = end.decode()
            elif next_job < self.jobs and int(job) == next_job:
                self._ended.append((int(status), printed))
        self._searched = max(
            len(self._stdout) - len(self.delimiter) - 2 * MAX_DIGITS, 0
        )
        self._require_short(self._stdout)
        self._pass_on()

    def stderr(self, piece: bytes) -> None:
        """Add a piece of standard error. Raises AnswerTooLongError: the caller must
        search SLURM, and not retry.
        """
        self._stderr += piece
        *parts, rest = bytes(self._stderr).split(self.delimiter.encode() + b"\n")
        # what came before the first command, and one for each; a start-up file can
        # print more without an end
        self._complaints += parts[: self.jobs + 1 - len(self._complaints)]
        self._stderr = bytearray(rest)
        self._require_short(self._stderr)
        self._pass_on()

    def ended(self, status: int) -> SupervisorError:
        """Record that the guard has ended with this status; call it after all output
        was added. Returns the reason why the commands from `answered` on have no
        answer: TooLateError or another TransientError when they certainly did not run,
        OutcomeUnknownError when they may have run.
        """
        missing = (
            self.answered + 1 + len(self._ended) - len(self._complaints)
        )  # all, if a start-up file closed standard error
        self._complaints += [bytes(self._stderr)] * missing
        self._pass_on()
        shown = _text(b"".join([*self._complaints[:1], self._stderr]))[:200]
        complaint = f"(status {status}): {shown!r}"
        if self._end == TRUNCATED:
            return TransientError("the script did not arrive whole; nothing was run")
        if self._end == EXPIRED:
            return TooLateError(
                f"its turn came more than {SUBMIT_TIMEOUT_S:g} s after the submission began; nothing was run"
            )
        if not self._begun and status in NOT_RUN:
            return GuardNotBegunError(
                f"the login node cannot begin the submission {complaint}"
            )
        return OutcomeUnknownError(f"the guard did not report its end {complaint}")

    def _begin(self) -> None:
        if self._begun:
            return
        _, found, rest = self._stdout.partition(self.delimiter.encode() + b"\n")
        if found:
            self._begun = True
            self._stdout = rest
            self._searched = 0  # it was a place in what came before

    def _answer_pattern(self) -> re.Pattern[bytes]:
        digits = rf"\d{{1,{MAX_DIGITS}}}"
        return re.compile(
            rf"{self.delimiter} (?:(?P<job>{digits}) (?P<status>{digits})|(?P<end>{TRUNCATED}|{EXPIRED}))\n".encode()
        )

    def _pass_on(self) -> None:
        while self._ended and len(self._complaints) > self.answered + 1:
            status, printed = self._ended.pop(0)
            complaint = self._complaints[self.answered + 1]
            if self.first_s is None:
                self.first_s = self.now_s()
            number, self.answered = self.answered, self.answered + 1
            self.on_answer(
                number, CommandAnswer(status, _text(printed), _text(complaint))
            )

    def _require_short(self, kept: bytearray) -> None:
        if len(kept) > MAX_ANSWER_BYTES:
            raise AnswerTooLongError(
                f"the guard printed more than {MAX_ANSWER_BYTES} bytes without an answer"
            )


def _text(printed: bytes) -> str:
    return printed.decode(errors="replace")
