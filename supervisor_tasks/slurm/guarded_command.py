"""A command that the login node runs whole, in time, or not at all. Pure.

What a worker sends may arrive in part (the connection was cut: standard input ends early) or late (the worker, sshd or the
network stood still, and the effect has another holder by now). So a guard in front of sbatch counts the bytes of the script,
looks at the login node's own clock, and gives sbatch no more time than is left. Its answer stands behind a mark that nobody
can guess: whatever the customer's start-up files print is not taken for it.

SLURM's configuration is the admin's (SLURM_CONF), whatever a start-up file of the customer says: another SLURM would take a job
that is looked for here in vain.

The guard is one line of POSIX sh without ' ! \\ or line feeds, so that any login shell, csh too, hands it on unchanged. It
writes no file: a full disk does not matter, and the script, which is the customer's, is never seen in a process list.

It runs in the environment that the site's own file makes (SLURM_ENVIRONMENT_FILE), on top of what a login shell that reads
start-up files leaves, and the job inherits that environment: modules, PATH. What
sbatch itself would read there as options (SBATCH_GPUS, SBATCH_ARRAY_INX, SLURM_NTASKS_PER_NODE ...) is taken out, as it would
change what was paid for, and so are functions and programs of the customer's that have the names of the guard's own tools.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.effects import IN_TIME_S, KILLED_AFTER_S
from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.slurm.output import Answer

ANSWERED_AFTER_S = 15.0  # then nobody waits for the answer any more
NOT_RUN = (126, 127)  # what a shell says of a command that it cannot run
TO_REACH_SLURM = ("SLURM_JWT",)  # the user's own; sbatch reads no options from it

_NO_FUNCTIONS = "unset -f [ awk cat date echo env printf read test timeout wc; "
# In a function, so that the file's own parameters are not the guard's; its input is not the script.
_SITES_FILE = (
    'sites_file() { . "$1" </dev/null; }; if [ "$4" ]; then if [ -r "$4" ]; then sites_file "$4"; '
    'else echo "SLURM_ENVIRONMENT_FILE: the login node cannot read $4" >&2; exit 127; fi; fi; '
)
_OUR_PATH = "path=$PATH; PATH=/usr/bin:/bin; "
# Without awk nothing is run: SLURM would be asked for whatever the environment says.
_WITHOUT_OPTIONS = (
    'names=$(awk "BEGIN {for (n in ENVIRON) if (n ~ /^S(BATCH|LURM)_[A-Za-z0-9_]+$/) print n}") || exit 127; '
    f"for name in $names; do case $name in {'|'.join(TO_REACH_SLURM)}) ;; *) unset $name;; esac; done; "
)
_GUARD = (
    f"{_NO_FUNCTIONS}{_SITES_FILE}{_NO_FUNCTIONS}{_OUR_PATH}{_WITHOUT_OPTIONS}"
    'n=$1 until=$2; if [ "$3" ]; then export SLURM_CONF="$3"; fi; shift 4; '
    'IFS= read -r m; s=$(cat; echo .); s=${s%.}; printf %s "$m"; '
    'if [ "$(printf %s "$s" | wc -c)" -ne "$n" ]; then echo " cut"; exit 0; fi; '
    'left=$((until - $(date +%s))); if [ "$left" -le 0 ]; then echo " late"; exit 0; fi; '
    f'echo " runs"; printf %s "$s" | timeout -k {KILLED_AFTER_S} "$left" env PATH="$path" "$@"; r=$?; echo "$m ended $r"'
)
_CLOCK = f'{_NO_FUNCTIONS}{_OUR_PATH}echo "$1 $(date +%s) $SLURM_CONF"'


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


def guarded(
    argv: Sequence[str], script: bytes, until_login_s: int, slurm_conf: str = "", environment_file: str = ""
) -> list[str]:
    """Run `argv` only with the whole of `script`, only until then, with no option but its own, and with that SLURM_CONF or
    none, in the environment that the site's file, if there is one, makes. It reads `marked` from standard input.
    """
    given = [str(len(script)), str(until_login_s), slurm_conf, environment_file]
    return ["/bin/sh", "-c", _GUARD, "guard", *given, *argv]


def marked(mark: str, script: bytes) -> bytes:
    """The mark, which a start-up file could read in a command line, and the script."""
    return mark.encode() + b"\n" + script


def ask_clock(mark: str) -> list[str]:
    """Ask what time it is at the login node, and for the user's SLURM_CONF."""
    return ["/bin/sh", "-c", _CLOCK, "clock", mark]


def clock_told(answer: Answer, mark: str, our_s: float) -> LoginClock:
    """The login node's clock; `our_s` is when the answer was there. Raises TransientError."""
    found = re.search(rf"{mark} (\d{{1,12}}) (.*)\n", answer.stdout)
    if found is None:
        raise TransientError(f"the login node does not tell the time (status {answer.status}): {answer.stderr[:200]!r}")
    return LoginClock(int(found[1]), our_s, found[2])


def came_late(answer: Answer, mark: str) -> bool:
    """Whether the guard began when the time was over."""
    return f"{mark} late\n" in answer.stdout


def guards_answer(answer: Answer, mark: str) -> Answer:
    """What the command that was guarded ended with. Raises TooLateError or TransientError when it was certainly not run,
    and OutcomeUnknownError when nobody knows.
    """
    _, begun, said = answer.stdout.partition(mark)
    word, _, rest = said.partition("\n")
    if word == " cut":
        raise TransientError("the script did not arrive whole; nothing was run")
    if word == " late":
        raise TooLateError(f"it arrived more than {IN_TIME_S:g} s after it was begun; nothing was run")
    if not begun and answer.status in NOT_RUN:
        raise TransientError(
            f"the login node cannot begin the submission (status {answer.status}): {answer.stderr[:200]!r}"
        )
    stdout, ended, status = rest.partition(f"{mark} ended ")
    if word != " runs" or not ended or not re.fullmatch(r"\d{1,3}\n", status):
        raise OutcomeUnknownError(f"the guard's end was not seen (status {answer.status}): {answer.stderr[:200]!r}")
    return Answer(int(status), stdout, answer.stderr)
