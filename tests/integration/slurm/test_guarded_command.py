"""The guard in front of sbatch, as any shell runs it: each command whole, in time, or
not at all.
"""

import random
import shlex
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from devgrid.machine import deadline
from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError, TransientError
from supervisor_tasks.jobs.effect_timing import (
    BEFORE_SECOND_SEARCH_S,
    submission_window_s,
)
from supervisor_tasks.slurm.guarded_command import (
    MAX_ANSWER_BYTES,
    Answers,
    AnswerTooLongError,
    LoginClock,
    Order,
    TooLateError,
    ask_clock,
    framed,
    guard_command,
    parse_clock,
)
from supervisor_tasks.slurm.parsers import CommandAnswer

DELIMITER = "4f1d0c9ab3"
SCRIPT = "#!/bin/bash\necho é '$x' \"!\" \\ `a` $(b) %s\n\n\n".encode()
# not UTF-8, and no line feed at the end
ANY_BYTES = bytes(range(1, 256)) * 40 + b"\xff\xfe\xc3"
SHELLS = ["sh", "bash", "dash"]
# leaves what it was given, and prints both ways
JOB = '#!/bin/sh\ncat >>"$1.script"; echo "of $1" >&2; echo "$1"\n'


def run(
    shell: str,
    command: list[str],
    stdin: bytes,
    noise: str = "",
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> CommandAnswer:
    """As sshd does: the login shell is given one text."""
    argv = [shell, "-c", noise + shlex.join(command)]
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        timeout=deadline(60),
        env=environment,
        cwd=folder,
    )
    return CommandAnswer(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def in_s(seconds: int) -> int:
    return int(time.time()) + seconds


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a reader makes of all that came, and why the commands without an answer have
    none.
    """

    answers: list[CommandAnswer]
    rest: SupervisorError
    came_late: bool


def verdicts(printed: CommandAnswer, number: int = 1) -> Verdicts:
    heard = list[CommandAnswer]()

    def take(index: int, answer: CommandAnswer) -> None:
        assert index == len(heard)
        heard.append(answer)

    answers = Answers(DELIMITER, number, take, time.monotonic)
    answers.stdout(printed.stdout.encode())
    answers.stderr(printed.stderr.encode())
    rest = answers.ended(printed.status)
    assert answers.answered == len(heard)
    return Verdicts(heard, rest, answers.came_late)


def only(printed: CommandAnswer) -> CommandAnswer:
    """The answer of the only command."""
    found = verdicts(printed)
    if not found.answers:
        raise found.rest
    return found.answers[0]


def guarded_run(
    argv: Sequence[str],
    script: bytes = SCRIPT,
    shell: str = "sh",
    noise: str = "",
    environment: dict[str, str] | None = None,
    seconds: int = 60,
) -> CommandAnswer:
    """One command behind the guard."""
    return run(
        shell,
        guard_command(1, in_s(seconds)),
        framed(DELIMITER, [Order(argv, script)]),
        noise,
        environment,
    )


def jobs(number: int, script: bytes = SCRIPT) -> list[Order]:
    """Commands that leave their scripts in the folder of `run_in`, and print their
    numbers.
    """
    return [Order(["./job", str(job)], script) for job in range(number)]


def run_in(
    folder: Path, stdin: bytes, number: int, shell: str = "sh", seconds: int = 60
) -> Verdicts:
    """So many commands behind the guard, in a folder that has `./job`, with that shell
    as /bin/sh.
    """
    if not (folder / "job").exists():
        (folder / "job").write_text(JOB)
        (folder / "job").chmod(0o755)
        sh_called_so(folder, shell)
    return verdicts(
        run(
            shell,
            sh_of(folder, guard_command(number, in_s(seconds))),
            stdin,
            folder=folder,
        ),
        number,
    )


def ran(folder: Path) -> dict[int, bytes]:
    """What the commands were given that ran."""
    return {int(file.stem): file.read_bytes() for file in folder.glob("*.script")}


def assert_right(
    folder: Path, found: Verdicts, expected: int, script: bytes = SCRIPT
) -> None:
    """What ran had its whole script, once; each answer is its own; and what ran is not
    called certainly not run.
    """
    done = ran(folder)
    assert all(got == script for got in done.values())
    for number, answer in enumerate(found.answers):
        assert answer == CommandAnswer(0, f"{number}\n", f"of {number}\n")
        assert number in done
    if isinstance(found.rest, TransientError):
        assert not set(range(len(found.answers), expected)) & done.keys()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "script", [SCRIPT, ANY_BYTES, b"", b"\n", DELIMITER.encode(), b"x" * 300_000]
)
def test_guard_command__whole_and_in_time__the_command_gets_every_byte(
    shell: str, script: bytes, tmp_path: Path
) -> None:
    argv = ["sh", "-c", 'cat >"$1/script"', "command", str(tmp_path)]
    assert only(guarded_run(argv, script, shell)) == CommandAnswer(0, "", "")
    assert (tmp_path / "script").read_bytes() == script


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("number", [1, 2, 50])
def test_guard_command__batch__each_has_its_script_its_words_and_its_answer(
    shell: str, number: int, tmp_path: Path
) -> None:
    found = run_in(tmp_path, framed(DELIMITER, jobs(number, ANY_BYTES)), number, shell)
    assert_right(tmp_path, found, number, ANY_BYTES)
    assert len(found.answers) == number


HOSTILE_WORDS = [
    "",
    " ",
    "a b",
    "$(id)",
    "`id`",
    "'",
    '"',
    "\\",
    "!",
    "*",
    "~",
    "-n",
    "é",
    "$x",
    "\t",
    "a;b",
    "\\n",
    "%s",
]


@pytest.mark.parametrize("shell", SHELLS)
def test_guard_command__words_of_the_command__are_given_as_they_are(shell: str) -> None:
    answer = only(guarded_run(["printf", "%s\\n", *HOSTILE_WORDS], SCRIPT, shell))
    assert answer.stdout == "".join(f"{word}\n" for word in HOSTILE_WORDS)


@pytest.mark.parametrize("word", ["a\nb", "a\0b"])
def test_framed__word_that_is_more_than_a_line__is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        framed(DELIMITER, [Order(["echo", word], b"")])


def test_framed__script_with_nul__is_an_error() -> None:
    with pytest.raises(ValueError, match="NUL"):
        framed(DELIMITER, [Order(["echo"], b"a\0b")])


# --- the input is cut -----------------------------------------------------------------


def cut_input(folder: Path, number: int, kept: int, shell: str = "sh") -> None:
    """The guard is given the first bytes alone."""
    found = run_in(folder, framed(DELIMITER, jobs(number))[:kept], number, shell)
    assert_right(folder, found, number)
    whole = sum(len(framed(DELIMITER, jobs(one + 1))) <= kept for one in range(number))
    assert sorted(ran(folder)) == list(range(whole))
    assert len(found.answers) == whole
    assert not found.came_late
    for file in folder.glob("*.script"):
        file.unlink()


@pytest.mark.parametrize(
    "kept", range(len(framed(DELIMITER, [Order(["echo", "ran"], SCRIPT)])))
)
def test_guard_command__one_cut_at_each_byte__nothing_is_run(kept: int) -> None:
    answer = run(
        "sh",
        guard_command(1, in_s(60)),
        framed(DELIMITER, [Order(["echo", "ran"], SCRIPT)])[:kept],
    )
    assert "ran" not in answer.stdout
    with pytest.raises((TransientError, OutcomeUnknownError)):
        only(answer)


def test_guard_command__two_cut_at_each_byte__only_what_came_whole_is_run(
    tmp_path: Path,
) -> None:
    for kept in range(len(framed(DELIMITER, jobs(2)))):
        cut_input(tmp_path, 2, kept)


@pytest.mark.parametrize("shell", SHELLS)
def test_guard_command__fifty_cut_somewhere__only_what_came_whole_is_run(
    shell: str, tmp_path: Path
) -> None:
    for kept in random.Random(22_05).sample(range(len(framed(DELIMITER, jobs(50)))), 8):
        cut_input(tmp_path, 50, kept, shell)


@pytest.mark.parametrize("counted", [-1, 1])
def test_guard_command__script_is_not_where_its_length_says__nothing_is_run(
    counted: int, tmp_path: Path
) -> None:
    """As with a `head` that reads more than it was asked for."""
    size = len(SCRIPT)
    stdin = framed(DELIMITER, jobs(2)).replace(
        f" {size}\n".encode(), f" {size + counted}\n".encode()
    )
    found = run_in(tmp_path, stdin, 2)
    assert ran(tmp_path) == {}
    assert isinstance(found.rest, TransientError)


# --- the output is cut ----------------------------------------------------------------


def heard_until(printed: bytes, complaints: bytes, number: int) -> list[CommandAnswer]:
    heard = list[CommandAnswer]()
    answers = Answers(
        DELIMITER, number, lambda _, answer: heard.append(answer), time.monotonic
    )
    answers.stdout(printed)
    answers.stderr(complaints)
    assert answers.answered == len(heard)
    return heard


def printed(folder: Path, number: int) -> tuple[bytes, bytes]:
    """What the guard prints of so many commands."""
    assert (
        len(run_in(folder, framed(DELIMITER, jobs(number)), number).answers) == number
    )
    answer = run(
        "sh",
        guard_command(number, in_s(60)),
        framed(DELIMITER, jobs(number)),
        folder=folder,
    )
    return answer.stdout.encode(), answer.stderr.encode()


@pytest.mark.parametrize("number", [1, 2, 50])
def test_answers__output_cut_at_each_byte__whole_answers_are_heard_and_no_other(
    number: int, tmp_path: Path
) -> None:
    stdout, stderr = printed(tmp_path, number)
    for kept in range(len(stdout) + 1):
        whole = stdout[:kept].count(b" 0\n")
        expected = [CommandAnswer(0, f"{one}\n", f"of {one}\n") for one in range(whole)]
        assert heard_until(stdout[:kept], stderr, number) == expected
    for kept in range(len(stderr) + 1):
        whole = max(stderr[:kept].count(DELIMITER.encode() + b"\n") - 1, 0)
        assert len(heard_until(stdout, stderr[:kept], number)) == whole


@pytest.mark.parametrize("size", [1, 2, 7])
def test_answers__in_pieces__each_is_told_as_soon_as_both_parts_are_there(
    size: int, tmp_path: Path
) -> None:
    stdout, stderr = printed(tmp_path, 3)
    heard = list[CommandAnswer]()
    answers = Answers(
        DELIMITER, 3, lambda _, answer: heard.append(answer), time.monotonic
    )
    for first in range(0, len(stdout), size):
        answers.stdout(stdout[first : first + size])
        while answers.waits_for_stderr:
            piece, stderr = stderr[:size], stderr[size:]
            assert piece
            answers.stderr(piece)
        assert len(heard) == stdout[: first + size].count(b" 0\n")
    assert [one.stderr for one in heard] == ["of 0\n", "of 1\n", "of 2\n"]


def test_answers__longer_than_is_kept__are_unknown() -> None:
    answers = Answers(DELIMITER, 1, lambda *_: None, time.monotonic)
    answers.stdout(f"{DELIMITER}\n".encode())
    with pytest.raises(AnswerTooLongError):
        answers.stdout(b"x" * (MAX_ANSWER_BYTES + 1))
    with pytest.raises(AnswerTooLongError):
        answers.stderr(b"x" * (MAX_ANSWER_BYTES + 1))


def test_answers__parts_of_standard_error_without_an_end__are_not_kept() -> None:
    """A start-up file knows the delimiter, and may print it again and again."""
    answers = Answers(DELIMITER, 2, lambda *_: None, time.monotonic)
    tracemalloc.start()
    try:
        for _ in range(300):
            answers.stderr(b"x" * 100_000 + f"{DELIMITER}\n".encode())
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 2_000_000


# --- time -----------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_guard_command__too_late__nothing_is_run(shell: str) -> None:
    found = verdicts(guarded_run(["echo", "ran"], SCRIPT, shell, seconds=-1))
    assert found.answers == []
    assert isinstance(found.rest, TooLateError)
    assert found.came_late
    assert not verdicts(guarded_run(["echo", f"{DELIMITER} expired"])).came_late


def test_guard_command__command_does_not_end__is_ended_and_the_rest_is_too_late(
    tmp_path: Path,
) -> None:
    begun, seconds = time.monotonic(), int(deadline(3))
    found = run_in(
        tmp_path,
        framed(DELIMITER, [Order(["sleep", "60"], b""), *jobs(2)]),
        3,
        seconds=seconds,
    )
    assert time.monotonic() - begun < seconds + deadline(17)
    assert [answer.status for answer in found.answers] == [124]
    assert isinstance(found.rest, TooLateError)
    assert not found.came_late
    assert ran(tmp_path) == {}


def test_guard_command__command_ignores_sigterm__is_killed_soon_after(
    tmp_path: Path,
) -> None:
    stubborn = Order(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], b"")
    begun, seconds = time.monotonic(), int(deadline(3))
    found = run_in(
        tmp_path, framed(DELIMITER, [stubborn, *jobs(1)]), 2, seconds=seconds
    )
    assert time.monotonic() - begun < seconds + deadline(17)
    assert [answer.status for answer in found.answers] == [137]
    assert isinstance(found.rest, TooLateError)
    assert ran(tmp_path) == {}


def test_guard_command__input_that_comes_slowly__is_too_late_when_the_time_is_over(
    tmp_path: Path,
) -> None:
    run_in(tmp_path, b"", 1)
    stdin, first, pipe = (
        framed(DELIMITER, jobs(2)),
        len(framed(DELIMITER, jobs(1))),
        subprocess.PIPE,
    )
    seconds = int(deadline(5))
    with subprocess.Popen(
        guard_command(2, in_s(seconds)),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=tmp_path,
    ) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        assert guard.stderr is not None
        guard.stdin.write(stdin[:first])
        guard.stdin.flush()
        # the delimiter, a number, its answer
        lines = b"".join(guard.stdout.readline() for _ in range(3))
        assert ran(tmp_path).keys() == {0}
        time.sleep(seconds + 0.5)  # nothing tells that time has passed but the clock
        guard.stdin.write(stdin[first:])
        guard.stdin.close()
        lines += guard.stdout.read()
        found = verdicts(
            CommandAnswer(
                guard.wait(deadline(60)), lines.decode(), guard.stderr.read().decode()
            ),
            2,
        )
    assert len(found.answers) == 1
    assert isinstance(found.rest, TooLateError)
    assert ran(tmp_path).keys() == {0}


# --- what is printed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "stdout"), [(0, "12\n"), (1, ""), (3, "no line feed")]
)
def test_guard_command__any_end_of_the_command__its_status_and_output_are_the_answer(
    status: int, stdout: str
) -> None:
    argv = [
        "sh",
        "-c",
        'printf "$1"; echo why >&2; exit "$2"',
        "command",
        stdout.replace("\n", "\\n"),
        str(status),
    ]
    assert only(guarded_run(argv)) == CommandAnswer(status, stdout, "why\n")


GARBAGE = [
    'head -c 100000 /dev/urandom | tr -d "\\0"; head -c 60000 /dev/urandom >&2',
    "cat >/dev/null; echo 7 0; echo truncated; echo expired",
    "exec >&- 2>&-; exit 5",
    "printf 'no line feed'; printf 'nor here' >&2",
    "kill -9 $$",
    "echo x | cat >/dev/null",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_guard_command__command_that_prints_garbage__spoils_no_other_answer(
    garbage: str, tmp_path: Path
) -> None:
    between = Order(["sh", "-c", garbage], SCRIPT)
    zero, _, two = jobs(3)
    found = run_in(tmp_path, framed(DELIMITER, [zero, between, two]), 3)
    assert found.answers[0] == CommandAnswer(0, "0\n", "of 0\n")
    assert found.answers[2] == CommandAnswer(0, "2\n", "of 2\n")
    assert ran(tmp_path) == {0: SCRIPT, 2: SCRIPT}


@pytest.mark.parametrize(
    "noise",
    [
        "echo welcome; ",
        "echo 13; ",
        "printf '7;cluster'; ",
        "echo 0 0; echo truncated; ",
        "echo fatal >&2; ",
        "printf '4f1d0c9ab2 0 0\\n'; printf '4f1d0c9ab2\\n' >&2; ",
    ],
)
def test_guard_command__what_start_up_files_print__is_no_answer(noise: str) -> None:
    assert only(guarded_run(["echo", "12"], SCRIPT, "bash", noise)) == CommandAnswer(
        0, "12\n", ""
    )


def test_guard_command__start_up_file_closes_stderr__the_answers_are_heard() -> None:
    stdin = framed(DELIMITER, [Order(["echo", "12"], b""), Order(["echo", "13"], b"")])
    found = verdicts(
        run("bash", guard_command(2, in_s(60)), stdin, "exec 2>/dev/null; "), 2
    )
    assert [answer.stdout for answer in found.answers] == ["12\n", "13\n"]


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "12\n",
        f"{DELIMITER}\n",
        f"{DELIMITER}\n12\n",
        f"{DELIMITER}\n12\n{DELIMITER} 0 ",
        f"{DELIMITER}\n12\n{DELIMITER} 0 0",
        f"{DELIMITER}\n12\n{DELIMITER} 1 0\n",
        f"12\n{DELIMITER} 0 0\n",
        f"{DELIMITER} expired\n",
        DELIMITER,
    ],
)
def test_answers__end_not_seen__are_unknown(stdout: str) -> None:
    with pytest.raises(OutcomeUnknownError):
        only(CommandAnswer(0, stdout, f"{DELIMITER}\n{DELIMITER}\n"))


def test_answers__more_than_were_asked_for__are_not_heard() -> None:
    printed = CommandAnswer(
        0,
        f"{DELIMITER}\n1\n{DELIMITER} 0 0\n2\n{DELIMITER} 1 0\n",
        f"{DELIMITER}\n" * 3,
    )
    assert [answer.stdout for answer in verdicts(printed, 1).answers] == ["1\n"]


def test_answers__no_sh__nothing_was_run() -> None:
    with pytest.raises(TransientError):
        only(CommandAnswer(127, "", "bash: /bin/sh: No such file"))


def test_guard_command__text__has_nothing_that_csh_or_fish_would_change() -> None:
    guard = guard_command(1, 1)[2]
    assert not set(guard) & set("'!\\\n")
    assert DELIMITER not in shlex.join(guard_command(1, 1))


OPTIONS = {
    "SBATCH_GPUS": "8",
    "SBATCH_ARRAY_INX": "0-99",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_WHATEVER_COMES_NEXT": "x\nSLURM_CONF=/forged",
    "SLURM_HINT": "",
    "SLURM_CONF": "/of/another/cluster",
    "SBATCH_COMMENT": 'it\'s "quoted" * `id` $(id) \\ SLURM_no/name=1 SBATCH_=',
}
KEPT = {
    "SLURM_JWT": "token",
    "MODULEPATH": "/a:/b",
    "MY_SBATCH_GPUS": "8",
    "LINES": "a\nb",
    "QUOTES": 'it\'s "quoted" * $(id) `id` \\ SLURM_no/name=1 SBATCH_ SBATCH_1-2\nSLURM_=3',
} | dict.fromkeys(
    ("m", "s", "n", "r", "path", "left", "word", "until"), "the customer's own"
)


def environment_of_the_command(
    folder: Path, shell: str, environment: dict[str, str], slurm_conf: str = ""
) -> dict[str, str]:
    """With that shell as login shell and as /bin/sh."""
    sh_called_so(folder, shell)
    stdin = framed(DELIMITER, [Order(["/usr/bin/env", "-0"], b"")])
    answer = only(
        run(
            shell,
            sh_of(folder, guard_command(1, in_s(60), slurm_conf)),
            stdin,
            environment=environment,
        )
    )
    return dict(word.split("=", 1) for word in answer.stdout.split("\0") if word)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_guard_command__options_in_the_environment__are_taken_out_alone(
    shell: str, tmp_path: Path
) -> None:
    environment = {"PATH": "/home/customer/bin:/usr/bin:/bin"} | KEPT
    found = environment_of_the_command(tmp_path, shell, environment | OPTIONS)
    assert {
        name: value for name, value in found.items() if name in environment
    } == environment
    assert not found.keys() & OPTIONS.keys()


@pytest.mark.parametrize("slurm_conf", ["/etc/slurm.conf", "/a b/$(id)/'", "!", "("])
def test_guard_command__slurm_conf_of_the_admin__replaces_the_customers(
    slurm_conf: str, tmp_path: Path
) -> None:
    assert (
        environment_of_the_command(tmp_path, "sh", OPTIONS, slurm_conf)["SLURM_CONF"]
        == slurm_conf
    )


TOOLS = (
    "awk cat command date echo env export head printf read set test timeout wc unset ["
)


def sh_called_so(folder: Path, program: str) -> None:
    """As on the sites where /bin/sh is that program: bash takes functions from the
    environment.
    """
    (folder / "sh").symlink_to(shutil.which(program) or program)


def sh_of(folder: Path, argv: list[str]) -> list[str]:
    assert argv[0] == "/bin/sh"
    return [str(folder / "sh"), *argv[1:]]


ENVIRONMENT = framed(DELIMITER, [Order(["/usr/bin/env"], b"")])


def test_guard_command__customers_functions_with_the_names_of_tools__are_not_called(
    tmp_path: Path,
) -> None:
    owned = f'for f in {TOOLS}; do eval "function $f {{ builtin echo owned >&2; }}"; builtin export -f "$f"; done; '
    sh_called_so(tmp_path, "bash")
    command = sh_of(tmp_path, guard_command(1, in_s(60)))
    answer = run(
        "bash", command, ENVIRONMENT, owned, {"PATH": "/usr/bin:/bin", **OPTIONS}
    )
    assert "owned" not in answer.stderr
    assert not any(name in only(answer).stdout for name in OPTIONS)


def test_guard_command__customers_programs_with_the_names_of_tools__are_not_called(
    tmp_path: Path,
) -> None:
    for tool in TOOLS.split():
        (tmp_path / tool).write_text("#!/bin/sh\necho owned >&2\n")
        (tmp_path / tool).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    answer = only(
        run(
            "/bin/sh",
            guard_command(1, in_s(60)),
            ENVIRONMENT,
            "",
            {"PATH": path, **OPTIONS},
        )
    )
    assert answer.stderr == ""
    assert f"PATH={path}\n" in answer.stdout
    told = run("/bin/sh", ask_clock(DELIMITER), b"", "", {"PATH": path})
    assert abs(parse_clock(told, DELIMITER, 0.0).login_s - time.time()) < 30


def test_clock__asked_for__tells_its_time_and_slurm_conf() -> None:
    clock = parse_clock(
        run("sh", ask_clock(DELIMITER), b"", "echo welcome; "), DELIMITER, 1000.0
    )
    assert abs(clock.login_s - time.time()) < 30
    assert clock.at(1010.9) == clock.login_s + 10
    assert clock.slurm_conf == ""
    elsewhere = run(
        "sh",
        ask_clock(DELIMITER),
        b"",
        "",
        {"PATH": "/usr/bin:/bin", "SLURM_CONF": "/a b/slurm.conf"},
    )
    assert parse_clock(elsewhere, DELIMITER, 0.0).slurm_conf == "/a b/slurm.conf"


@pytest.mark.parametrize(
    "stdout", ["", "12\n", f"{DELIMITER} \n", f"{DELIMITER} x\n", f"{DELIMITER} 12 "]
)
def test_clock__not_told__is_an_error_and_not_a_time(stdout: str) -> None:
    with pytest.raises(TransientError):
        parse_clock(CommandAnswer(0, stdout, ""), DELIMITER, 0.0)


def test_clock__ahead_of_another__is_told_whenever_both_were_read() -> None:
    clock, other = LoginClock(1060, our_s=50.0), LoginClock(1000, our_s=20.0)
    assert (clock.ahead_of_s(other), other.ahead_of_s(clock)) == (30, -30)


def test_clock__an_hour_off__deadlines_are_the_login_nodes_own() -> None:
    clock = LoginClock(login_s=int(time.time()) - 3600, our_s=50.0)
    assert abs(clock.at(60.0) - (time.time() - 3590)) < 2


def test_second_search__after_a_submission__comes_when_nothing_can_arrive_any_more() -> (
    None
):
    assert submission_window_s(10.0) == BEFORE_SECOND_SEARCH_S == 23.0


def test_guard_command__tools_that_it_needs__are_here() -> None:
    assert all(shutil.which(tool) for tool in ("sh", "date", "head", "timeout"))


# --- the site's own environment -------------------------------------------------------


def with_sites_file(file: Path, shell: str = "sh") -> CommandAnswer:
    command = guard_command(1, in_s(60), "/the/admins", str(file))
    return run(shell, command, ENVIRONMENT, environment={"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_sites_file__what_it_exports__the_command_inherits_and_no_option(
    shell: str, tmp_path: Path
) -> None:
    file = tmp_path / "modules.sh"
    file.write_text(
        "export MODULEPATH=/sites PATH=/sites/bin:$PATH SBATCH_GPUS=8\nset -- a b c\necho welcome\ncat\n"
    )
    lines = only(with_sites_file(file, shell)).stdout.splitlines()
    assert {
        "MODULEPATH=/sites",
        "PATH=/sites/bin:/usr/bin:/bin",
        "SLURM_CONF=/the/admins",
    } <= set(lines)
    assert not any(line.startswith("SBATCH_GPUS") for line in lines)


def test_sites_file__cannot_be_read__nothing_is_run_and_the_file_is_named(
    tmp_path: Path,
) -> None:
    missing = tmp_path / "missing.sh"
    with pytest.raises(TransientError, match=f"SLURM_ENVIRONMENT_FILE.*{missing}"):
        only(with_sites_file(missing))
