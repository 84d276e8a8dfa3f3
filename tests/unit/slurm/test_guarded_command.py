"""The guard's input, byte by byte, and what its output means; integration/slurm runs
the guard in real shells.
"""

import pytest

from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError, TransientError
from supervisor_tasks.slurm.guarded_command import (
    MAX_ANSWER_BYTES,
    Answers,
    AnswerTooLongError,
    GuardNotBegunError,
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
# what the guard prints when it begins, and after a command on standard error
BEGUN = f"{DELIMITER}\n".encode()


def ended_line(job: int, status: int) -> bytes:
    """What the guard prints after a command on standard output."""
    return f"{DELIMITER} {job} {status}\n".encode()


class AnswerRecord:
    """Answers, and what was taken from them; the clock shows another time at each
    reading.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.taken = list[tuple[int, CommandAnswer]]()
        self.now_s = 5.0
        self.answers = Answers(DELIMITER, jobs, self.take, self.clock)

    def take(self, number: int, answer: CommandAnswer) -> None:
        self.taken.append((number, answer))

    def clock(self) -> float:
        self.now_s += 1.0
        return self.now_s


# --- the guard's input ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("orders", "stdin"),
    [
        ([], b"DELIMITER\n"),
        ([Order([], b"")], b"DELIMITER\n0 0\nDELIMITER\n"),
        ([Order(["sbatch"], b"true\n")], b"DELIMITER\n1 5\nsbatch\ntrue\nDELIMITER\n"),
        ([Order(["sbatch"], b"true")], b"DELIMITER\n1 4\nsbatch\ntrueDELIMITER\n"),
        (
            [Order(["sbatch", "", "a b"], b"\n")],
            b"DELIMITER\n3 1\nsbatch\n\na b\n\nDELIMITER\n",
        ),
        # the bytes of the script are counted, and not its characters
        (
            [Order(["é"], "é\n".encode())],
            b"DELIMITER\n1 3\n\xc3\xa9\n\xc3\xa9\nDELIMITER\n",
        ),
        ([Order(["x"], b"\xff\x01")], b"DELIMITER\n1 2\nx\n\xff\x01DELIMITER\n"),
        (
            [Order(["a"], b"1\n"), Order(["b", "c"], b"22\n")],
            b"DELIMITER\n1 2\na\n1\nDELIMITER\n2 3\nb\nc\n22\nDELIMITER\n",
        ),
    ],
    ids=[
        "no order",
        "empty order",
        "one order",
        "no line feed at the end",
        "empty word and a space",
        "two bytes for a letter",
        "bytes that are no text",
        "two orders",
    ],
)
def test_framed__each_number_of_orders__has_sizes_words_script_and_delimiter(
    orders: list[Order], stdin: bytes
) -> None:
    assert framed("DELIMITER", orders) == stdin


@pytest.mark.parametrize("delimiter", ["a\nb", "a\0b"])
def test_framed__delimiter_that_is_more_than_a_line__is_an_error(
    delimiter: str,
) -> None:
    with pytest.raises(ValueError, match="one line"):
        framed(delimiter, [])


def test_order__shown_in_a_log__does_not_show_its_script() -> None:
    assert repr(Order(["sbatch"], b"secret")) == "Order(argv=['sbatch'])"


@pytest.mark.parametrize(
    ("command", "parameters"),
    [
        (guard_command(3, 1_800_000_000), ["guard", "3", "1800000000", "", ""]),
        (
            guard_command(1, 5, "/a b/slurm.conf", "/etc/env.sh"),
            ["guard", "1", "5", "/a b/slurm.conf", "/etc/env.sh"],
        ),
        (ask_clock(DELIMITER), ["clock", DELIMITER]),
    ],
)
def test_guard_command__or_ask_clock__runs_a_shell_with_these_parameters(
    command: list[str], parameters: list[str]
) -> None:
    assert command[:2] == ["/bin/sh", "-c"]
    assert command[3:] == parameters


# --- the login node's clock -----------------------------------------------------------


@pytest.mark.parametrize(
    ("our_s", "login_s"),
    [(50.0, 1000), (50.9, 1000), (51.0, 1001), (59.99, 1009), (3650.0, 4600)],
)
def test_at__each_time_of_ours__is_the_login_nodes_in_whole_seconds_or_earlier(
    our_s: float, login_s: int
) -> None:
    assert LoginClock(1000, our_s=50.0).at(our_s) == login_s


@pytest.mark.parametrize(
    ("clock", "other", "ahead_s"),
    [
        (LoginClock(1000, 50.0), LoginClock(1000, 50.0), 0),
        (LoginClock(1060, 50.0), LoginClock(1000, 50.0), 60),
        (LoginClock(1060, 50.0), LoginClock(1000, -10.0), 0),
        (LoginClock(1000, 50.0), LoginClock(1060, 50.0), -60),
        (LoginClock(1001, 50.0), LoginClock(1000, 49.4), 0),
        (LoginClock(1001, 50.0), LoginClock(1000, 49.6), 1),
        (LoginClock(1000, 50.0), LoginClock(1000, 49.4), -1),
    ],
)
def test_ahead_of_s__two_clocks_read_at_any_time__is_rounded_to_seconds(
    clock: LoginClock, other: LoginClock, ahead_s: int
) -> None:
    assert clock.ahead_of_s(other) == ahead_s


@pytest.mark.parametrize(
    ("stdout", "login_s", "slurm_conf"),
    [
        (f"{DELIMITER} 1800000000 \n", 1_800_000_000, ""),
        (f"{DELIMITER} 1800000000 /etc/slurm.conf\n", 1_800_000_000, "/etc/slurm.conf"),
        (f"{DELIMITER} 1800000000 /a b/slurm.conf\n", 1_800_000_000, "/a b/slurm.conf"),
        (f"welcome\n{DELIMITER} 7 \nbye\n", 7, ""),
        (f"welcome{DELIMITER} 7 \n", 7, ""),
        (f"4f1d0c9ab2 6 \n{DELIMITER} 7 \n", 7, ""),
        (f"{DELIMITER} 999999999999 \n", 999_999_999_999, ""),
    ],
)
def test_parse_clock__answer_with_a_time__is_the_clock_when_the_answer_came(
    stdout: str, login_s: int, slurm_conf: str
) -> None:
    found = parse_clock(CommandAnswer(0, stdout, ""), DELIMITER, 50.0)
    assert found == LoginClock(login_s, 50.0, slurm_conf)


@pytest.mark.parametrize(
    "stdout",
    [f"{DELIMITER} 1000000000000 \n", f"{DELIMITER} -1 \n", f"{DELIMITER} 1.5 \n"],
)
def test_parse_clock__answer_without_a_time__names_status_and_complaint(
    stdout: str,
) -> None:
    answer = CommandAnswer(3, stdout, "no date" + "x" * 1000)
    with pytest.raises(TransientError, match=r"\(status 3\): 'no datex{193}'$"):
        parse_clock(answer, DELIMITER, 50.0)


# --- the guard's output ---------------------------------------------------------------


def test_answers__two_commands__each_has_its_output_of_both_streams() -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stderr(b"welcome\n" + BEGUN)
    record.answers.stdout(b"welcome\n" + BEGUN + b"12\n" + ended_line(0, 0))
    assert (record.taken, record.answers.waits_for_stderr) == ([], True)
    record.answers.stderr(b"slow\n" + BEGUN)
    assert record.taken == [(0, CommandAnswer(0, "12\n", "slow\n"))]
    assert not record.answers.waits_for_stderr
    record.answers.stderr(b"refused" + BEGUN)
    assert len(record.taken) == 1
    record.answers.stdout(b"no line feed" + ended_line(1, 1))
    assert record.taken[1:] == [(1, CommandAnswer(1, "no line feed", "refused"))]
    assert record.answers.answered == 2


GREETING = b"welcome to the cluster\n" * 4
STDOUT = GREETING + BEGUN + b"12\n" + ended_line(0, 0) + b"13\n" + ended_line(1, 0)


@pytest.mark.parametrize("first", range(len(STDOUT) + 1))
def test_answers__output_in_two_pieces__are_heard_wherever_it_is_cut(
    first: int,
) -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stderr(BEGUN * 3)
    record.answers.stdout(STDOUT[:first])
    record.answers.stdout(STDOUT[first:])
    assert record.taken == [
        (0, CommandAnswer(0, "12\n", "")),
        (1, CommandAnswer(0, "13\n", "")),
    ]


def test_answers__output_in_single_bytes__are_heard_behind_a_greeting() -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stderr(BEGUN * 3)
    for byte in STDOUT:
        record.answers.stdout(bytes([byte]))
    assert [answer.stdout for _, answer in record.taken] == ["12\n", "13\n"]


def test_answers__several_in_turn__first_s_is_the_time_of_the_first_one() -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stderr(BEGUN * 3)
    record.answers.stdout(BEGUN)
    assert record.answers.first_s is None
    record.answers.stdout(ended_line(0, 0))
    record.answers.stdout(ended_line(1, 0))
    assert record.answers.first_s == 6.0


def test_answers__bytes_that_are_no_text__are_replaced() -> None:
    record = AnswerRecord()
    record.answers.stdout(BEGUN + b"\xff1" + ended_line(0, 255))
    record.answers.stderr(BEGUN + b"\xfe2" + BEGUN)
    assert record.taken == [(0, CommandAnswer(255, "\ufffd1", "\ufffd2"))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (ended_line(1, 0), []),
        (ended_line(0, 1_000_000), []),
        (f"{DELIMITER} 0\n".encode(), []),
        (f"{DELIMITER} 0 -1\n".encode(), []),
        (f"{DELIMITER} 0 0 \n".encode(), []),
        (f"{DELIMITER} expired".encode(), []),
        (f"{DELIMITER[:-1]} 0 0\n".encode(), []),
        (ended_line(0, 999_999), [(0, CommandAnswer(999_999, "12\n", ""))]),
    ],
    ids=[
        "the next number",
        "too many digits",
        "no status",
        "a sign",
        "a space at the end",
        "no line feed",
        "part of the delimiter",
        "six digits",
    ],
)
def test_answers__line_like_the_guards__is_an_answer_only_if_it_fits(
    line: bytes, expected: list[tuple[int, CommandAnswer]]
) -> None:
    record = AnswerRecord()
    record.answers.stderr(BEGUN * 2)
    record.answers.stdout(BEGUN + b"12\n" + line)
    assert record.taken == expected


def test_answers__another_number_comes_first__the_right_one_is_still_heard() -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stderr(BEGUN * 3)
    record.answers.stdout(BEGUN + b"x" + ended_line(1, 0) + b"12\n" + ended_line(0, 0))
    assert record.taken == [(0, CommandAnswer(0, "12\n", ""))]


def test_answers__the_receiver_raises__its_error_is_passed_on() -> None:
    def refuse(number: int, answer: CommandAnswer) -> None:
        raise KeyError(number)

    answers = Answers(DELIMITER, 1, refuse, lambda: 0.0)
    answers.stderr(BEGUN * 2)
    with pytest.raises(KeyError):
        answers.stdout(BEGUN + ended_line(0, 0))
    assert answers.answered == 1


def test_answers__as_long_as_is_kept__are_heard_and_one_byte_more_is_unknown() -> None:
    record = AnswerRecord()
    record.answers.stderr(BEGUN * 2)
    record.answers.stdout(BEGUN + b"x" * (MAX_ANSWER_BYTES - 1))
    record.answers.stdout(b"x")
    with pytest.raises(AnswerTooLongError):
        record.answers.stdout(b"x")
    whole = AnswerRecord()
    whole.answers.stderr(BEGUN * 2)
    whole.answers.stdout(BEGUN + b"x" * MAX_ANSWER_BYTES + ended_line(0, 0))
    assert len(whole.taken[0][1].stdout) == MAX_ANSWER_BYTES


def test_answers__start_up_file_prints_without_end__are_unknown() -> None:
    record = AnswerRecord()
    record.answers.stdout(b"x" * MAX_ANSWER_BYTES)
    with pytest.raises(AnswerTooLongError):
        record.answers.stdout(b"x")


@pytest.mark.parametrize(
    ("stdout", "status", "kind", "said", "came_late"),
    [
        (
            BEGUN + f"{DELIMITER} truncated\n".encode(),
            0,
            TransientError,
            "not arrive whole",
            False,
        ),
        (
            BEGUN + f"{DELIMITER} expired\n".encode(),
            0,
            TooLateError,
            "more than 10 s",
            True,
        ),
        (b"", 127, GuardNotBegunError, r"\(status 127\): 'no sh", False),
        (b"welcome\n", 126, GuardNotBegunError, r"\(status 126\): 'no sh", False),
        (b"", 0, OutcomeUnknownError, r"\(status 0\): 'no sh", False),
        (b"", 125, OutcomeUnknownError, r"\(status 125\)", False),
        (b"", 128, OutcomeUnknownError, r"\(status 128\)", False),
        (BEGUN, 127, OutcomeUnknownError, r"\(status 127\)", False),
        (BEGUN + b"12\n", 255, OutcomeUnknownError, r"\(status 255\)", False),
    ],
    ids=[
        "the input was cut",
        "it came late",
        "no program",
        "no program after a greeting",
        "no beginning and no error",
        "125 can be any program's",
        "128 can be any program's",
        "begun, and 127 is the command's",
        "cut off while it ran",
    ],
)
def test_ended__no_command_has_an_answer__says_whether_one_may_have_run(
    stdout: bytes, status: int, kind: type[SupervisorError], said: str, came_late: bool
) -> None:
    record = AnswerRecord()
    record.answers.stdout(stdout)
    record.answers.stderr(b"no sh\n")
    rest = record.answers.ended(status)
    assert type(rest) is kind
    with pytest.raises(kind, match=said):
        raise rest
    assert record.answers.came_late is came_late
    assert (record.taken, record.answers.answered) == ([], 0)


@pytest.mark.parametrize(
    ("end", "kind"), [("truncated", TransientError), ("expired", TooLateError)]
)
def test_ended__one_of_two_has_its_answer__is_about_the_other_one(
    end: str, kind: type[SupervisorError]
) -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stdout(BEGUN + ended_line(0, 0) + f"{DELIMITER} {end}\n".encode())
    record.answers.stderr(BEGUN * 2)
    assert type(record.answers.ended(0)) is kind
    assert not record.answers.came_late
    assert record.answers.answered == 1


@pytest.mark.parametrize(
    ("stderr", "complaints"),
    [(b"", ["", ""]), (b"lost", ["lost", "lost"]), (BEGUN + b"a", ["a", "a"])],
    ids=["closed", "without a delimiter", "closed after the beginning"],
)
def test_ended__standard_error_is_not_whole__passes_on_the_answers_all_the_same(
    stderr: bytes, complaints: list[str]
) -> None:
    record = AnswerRecord(jobs=2)
    record.answers.stdout(
        BEGUN + b"12\n" + ended_line(0, 0) + b"13\n" + ended_line(1, 1)
    )
    record.answers.stderr(stderr)
    assert record.taken == []
    record.answers.ended(0)
    assert record.taken == [
        (0, CommandAnswer(0, "12\n", complaints[0])),
        (1, CommandAnswer(1, "13\n", complaints[1])),
    ]
