"""Which connections the callbacks' port keeps, and which one it closes when there are
too many.
"""

from ipaddress import ip_address

import pytest

from grpc_callbacks.connections import (
    CallerConnection,
    Connections,
    UnreadCalls,
    address_of,
)


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


def test_admit__peers_with_equally_many__the_one_of_least_worth_goes() -> None:
    held = Connections(most=3)
    reporter, answered, silent = (
        connection(1, proven=True, answered=True),
        connection(2, answered=True),
        connection(3),
    )
    for one in (reporter, answered, silent):
        held.admit(one)
    assert held.admit(connection(4, answered=True)) is silent
    assert held.admit(connection(5, answered=True)) is answered


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


def test_admit__own_connection_among_single_ones__another_goes() -> None:
    held = Connections(most=2)
    own, other = connection(1), connection(2, answered=True)
    held.own.add((own.address, own.port))
    for one in (own, other):
        held.admit(one)
    assert held.admit(connection(3)) is other
    assert len(held) == 2


def test_admit__too_many_of_the_process_own_address__its_own_connection_stays() -> None:
    held = Connections(most=10, most_of_a_peer=3)
    own, others = connection(1), [connection(1, answered=True) for _ in range(2)]
    own.port = 7
    for one in (own, *others):
        held.admit(one)
    held.own.add((own.address, own.port))
    assert held.admit(connection(1)) is others[0]
    held.own.clear()
    assert held.admit(connection(1)) is own


def test_remove__twice__counts_once() -> None:
    held, one = Connections(), connection(1)
    held.admit(one)
    held.remove(one)
    held.remove(one)
    assert len(held) == 0


def test_calls_of_peer__several_connections__counts_those_of_all_that_are_held() -> (
    None
):
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
def test_peer__ipv4_or_ipv6_address__is_as_grpc_writes_it(told: str, peer: str) -> None:
    assert CallerConnection(address_of(told), 5).peer == peer


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
