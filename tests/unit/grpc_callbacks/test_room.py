"""Bounds of the callbacks' port: which connection goes, how one begins, how much is
kept; and for whom a certificate is.
"""

from ipaddress import ip_address

import pytest

from grpc_callbacks.callers import Caller, Callers, Proof, StrangerError
from grpc_callbacks.connections import (
    CallerConnection,
    Connections,
    UnreadCalls,
    address_of,
)
from grpc_callbacks.front import PREFACE, Beginning, beginning
from grpc_callbacks.room import CallbackOrigin, LedgerJob, origin_of, scope_of
from grpc_callbacks.tls import is_for
from plugins import proof
from supervisor_tasks.config.validators import is_loopback


def connection(last: int, **more: bool) -> CallerConnection:
    made = CallerConnection(ip_address(f"10.0.0.{last}"), 1)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_admit__too_many_of_a_peer__its_oldest_that_never_had_an_answer_goes() -> None:
    held = Connections(most=10, most_of_a_peer=3)
    proven, answered, silent = (
        connection(1, proven=True),
        connection(1, answered=True),
        connection(1),
    )
    assert [held.admit(one) for one in (proven, answered, silent)] == [None] * 3
    assert held.admit(connection(1)) is silent
    assert len(held) == 3


def test_admit__too_many_of_a_peer__a_call_under_way_is_not_broken_off() -> None:
    held = Connections(most=10, most_of_a_peer=2)
    busy, idle = connection(1), connection(1)
    held.admit(busy)
    held.admit(idle)
    held.begin_call(busy)
    assert held.admit(connection(1)) is idle


def test_admit__too_many_of_all__the_peer_with_most_gives_one_up() -> None:
    held = Connections(most=4, most_of_a_peer=3)
    many = [connection(1) for _ in range(3)]
    for one in (connection(2), *many):
        assert held.admit(one) is None
    assert held.admit(connection(3)) is many[0]
    assert len(held) == 4


def test_admit__of_all_that_were_proven__the_oldest_goes_and_never_the_new_one() -> (
    None
):
    held = Connections(most=10, most_of_a_peer=2)
    first, second, new = (
        connection(1, proven=True),
        connection(1, proven=True),
        connection(1),
    )
    held.admit(first)
    held.admit(second)
    assert held.admit(new) is first


def test_remove__twice__counts_once() -> None:
    held, one = Connections(), connection(1)
    held.admit(one)
    held.remove(one)
    held.remove(one)
    assert len(held) == 0


def test_calls_of_peer__counts_those_of_all_its_connections_that_are_held() -> None:
    held, first, second, other = (
        Connections(),
        connection(1),
        connection(1),
        connection(2),
    )
    for one in (first, second, other):
        held.admit(one)
    for one in (first, second, second, other):
        held.begin_call(one)
    assert (held.calls_of_peer(first), held.calls_of_peer(other)) == (3, 1)
    held.remove(second)
    assert held.calls_of_peer(first) == 1
    held.end_call(second)
    assert held.calls_of_peer(first) == 1
    held.end_call(first)
    assert held.calls_of_peer(first) == 0


def test_origin__one_ipv6_network__is_one_peer() -> None:
    one, other, far = (
        CallerConnection(ip_address(text), 1)
        for text in ("fd00::1", "fd00::2", "fd00:0:0:1::1")
    )
    assert one.origin == other.origin
    assert one.origin != far.origin


@pytest.mark.parametrize(
    ("told", "peer"),
    [
        ("10.0.0.1", "ipv4:10.0.0.1:5"),
        ("::ffff:10.0.0.1", "ipv4:10.0.0.1:5"),
        ("::1", "ipv6:[::1]:5"),
    ],
)
def test_peer__as_grpc_writes_it(told: str, peer: str) -> None:
    assert CallerConnection(address_of(told), 5).peer == peer


@pytest.mark.parametrize(
    ("first", "tls", "found"),
    [
        (PREFACE, False, Beginning.GOOD),
        (PREFACE + b"more", False, Beginning.GOOD),
        (PREFACE[:5], False, Beginning.SHORT),
        (b"GET / HTTP/1.1", False, Beginning.WRONG),
        (b"\x16\x03\x01", False, Beginning.TLS),
        (b"\x16", True, Beginning.SHORT),
        (b"\x16\x03", True, Beginning.GOOD),
        (PREFACE, True, Beginning.WRONG),
        (b"\x00" * 100, True, Beginning.WRONG),
    ],
)
def test_beginning(first: bytes, tls: bool, found: Beginning) -> None:
    assert beginning(first, tls=tls) is found


@pytest.mark.parametrize(
    ("job", "origin"),
    [
        (None, CallbackOrigin.UNKNOWN_JOB),
        (LedgerJob(7, "RUNNING"), CallbackOrigin.OURS),
        (LedgerJob(7, "SETTLED"), CallbackOrigin.OURS),
        (LedgerJob(8, "RUNNING"), CallbackOrigin.UNKNOWN_JOB),
        (LedgerJob(None, "CLAIMED"), CallbackOrigin.EARLY),
        (LedgerJob(None, "SETTLED"), CallbackOrigin.UNKNOWN_JOB),
        (LedgerJob(None, "REFUSED"), CallbackOrigin.UNKNOWN_JOB),
    ],
)
def test_origin_of(job: LedgerJob | None, origin: CallbackOrigin) -> None:
    assert origin_of(7, job) is origin


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize(
    ("job", "counted_together"),
    [
        (LedgerJob(7, "RUNNING"), ("0x1", 7)),
        (LedgerJob(None, "CLAIMED"), ("0x1", 0)),  # under all ids
        (LedgerJob(8, "RUNNING"), ("", 0)),  # of all jobs
        (None, ("", 0)),
    ],
)
def test_scope_of__callbacks_that_are_counted_together__are_bounded_together(
    job: LedgerJob | None, counted_together: tuple[str, int], proven: bool
) -> None:
    origin, *counted, is_proven = scope_of("0x1", 7, job, proven=proven)
    assert (origin, tuple(counted)) == (origin_of(7, job), counted_together)
    assert is_proven is proven


@pytest.mark.parametrize(
    ("host", "names", "right"),
    [
        ("a.example.org", ["a.example.org"], True),
        ("A.Example.org.", ["a.example.ORG"], True),
        ("a.example.org", ["*.example.org"], True),
        ("a.b.example.org", ["*.example.org"], False),
        ("10.0.0.1", ["10.0.0.1"], True),
        ("10.0.0.1", ["*.0.0.1"], False),
        ("[::1]", ["::1"], True),
        ("a.example.org", [], False),
    ],
)
def test_is_for(host: str, names: list[str], right: bool) -> None:
    assert is_for(host, names) is right


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        (":3000", False),
        ("0.0.0.0:1", False),
        ("127.0.0.5:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("a.b:1", False),
    ],
)
def test_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    "time_text",
    ["", "-1", "1e9", "\u0661", "\u00b2", " 1", "1\n", "9" * 16, "9" * 5_000],
)
def test_admit__time_that_is_no_time__is_a_stranger(time_text: str) -> None:
    """Python makes no number of more than 4,300 digits: a stranger's call was a
    traceback in the log.
    """
    key = b"k" * 32
    seal = proof.seal(key, "/a.B/C", b"said", -1, "node1")
    told = [(proof.NODE, "node1"), (proof.TIME, time_text), (proof.PROOF, seal)]
    with pytest.raises(StrangerError):
        Callers(key).admit(ip_address("10.0.0.1"), "/a.B/C", b"said", told)


@pytest.mark.parametrize(
    ("calls", "counted"),
    [
        pytest.param([(Proof.NO_KEY, "", -1)] * 2, [True, True], id="no key"),
        pytest.param([(Proof.UNPROVEN, "", -1)], [False], id="a stranger"),
        pytest.param([(Proof.PROVEN, "a", 5001)] * 2, [True, False], id="repeated"),
        pytest.param(
            [(Proof.PROVEN, "a", 5002), (Proof.PROVEN, "a", 5001)],
            [True, False],
            id="an older one after a newer one",
        ),
        pytest.param(
            [(Proof.PROVEN, "a", 5002), (Proof.PROVEN, "b", 5001)],
            [True, True],
            id="of two nodes",
        ),
        pytest.param(
            [(Proof.PROVEN, "a", 4999), (Proof.PROVEN, "a", 5000)],
            [False, False],
            id="made before this process began",
        ),
    ],
)
def test_counts_as_heartbeat__callers_of_a_process_that_began_at_5_s(
    calls: list[tuple[Proof, str, int]], counted: list[bool]
) -> None:
    callers = Callers(b"k" * 32, now_s=lambda: 5.0)
    assert [callers.counts_as_heartbeat(Caller(*call)) for call in calls] == counted


def test_unread_calls__one_too_many__its_connection_with_most_is_given_up() -> None:
    unread = UnreadCalls(most=4)
    assert [unread.begin(name) for name in ("good", "liar", "liar", "liar")] == [
        None
    ] * 4
    assert unread.begin("another") == "liar"
    assert len(unread) == 2


def test_unread_calls__that_end__make_room() -> None:
    unread = UnreadCalls(most=2)
    for _ in range(10):
        assert unread.begin("good") is None
        unread.end("good")
    assert len(unread) == 0


def test_unread_calls__that_end_with_their_connection__count_once() -> None:
    unread = UnreadCalls(most=2)
    for name in ("liar", "liar", "good"):
        unread.begin(name)
    unread.end("liar")
    assert len(unread) == 1
    unread.end("good")
    assert len(unread) == 0
