"""How a connection begins that the acceptor passes on."""

import pytest

from grpc_callbacks.connection_acceptor import PREFACE, Beginning, beginning


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
        (b"\x16\x00", True, Beginning.WRONG),
    ],
)
def test_beginning__first_bytes_of_a_connection__is_good_short_wrong_or_tls(
    first: bytes, tls: bool, found: Beginning
) -> None:
    assert beginning(first, tls=tls) is found
