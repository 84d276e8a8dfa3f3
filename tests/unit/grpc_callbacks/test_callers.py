"""Who may call, and whose call is a heartbeat."""

from ipaddress import ip_address, ip_network

import grpc
import pytest

from grpc_callbacks.callers import Caller, Callers, Proof, StrangerError
from plugins import proof


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


def test_admit__proof_that_is_no_ascii__is_a_stranger() -> None:
    with pytest.raises(StrangerError):
        Callers(b"k" * 32).admit(
            ip_address("10.0.0.1"), "/a.B/C", b"said", [(proof.PROOF, "\u00e9")]
        )


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["no key", "a key"])
@pytest.mark.parametrize(
    ("address", "may_call"),
    [
        ("10.1.2.3", True),
        ("10.2.0.1", False),
        ("fd00::17", True),
        ("fe80::17", False),
        ("2001:db8::1", False),
    ],
)
def test_admit__networks_of_the_site__take_callers_without_a_proof_from_them_alone(
    address: str, may_call: bool, key: bytes | None
) -> None:
    networks = [ip_network("10.1.0.0/16"), ip_network("fd00::/8")]
    callers = Callers(key, networks=networks)
    caller = ip_address(address)
    if may_call:
        expected = Proof.NO_KEY if key is None else Proof.UNPROVEN
        assert callers.admit(caller, "/a.B/C", b"said", []) == Caller(expected)
        return
    with pytest.raises(StrangerError, match="CALLBACK_NETWORKS") as caught:
        callers.admit(caller, "/a.B/C", b"said", [])
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED


def test_admit__site_without_a_key__takes_the_name_that_the_caller_gives() -> None:
    address, named = ip_address("10.0.0.1"), [(proof.NODE, "ctl1")]
    admit = Callers(None).admit
    assert admit(address, "/a.B/C", b"", named) == Caller(Proof.NO_KEY, "ctl1")
    assert admit(address, "/a.B/C", b"", []) == Caller(Proof.NO_KEY)
    # a proof would show the node
    assert Callers(b"k" * 32).admit(address, "/a.B/C", b"", named) == Caller(
        Proof.UNPROVEN
    )


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
def test_counts_as_heartbeat__stranger_or_repeated_or_old_proof__does_not_count(
    calls: list[tuple[Proof, str, int]], counted: list[bool]
) -> None:
    callers = Callers(b"k" * 32, now_s=lambda: 5.0)
    assert [callers.counts_as_heartbeat(Caller(*call)) for call in calls] == counted
