"""What the authorized-keys command makes of its options and of an answer: the key, or
an error; with any bytes.
"""

import argparse
import ast
import socket
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plugins import authorized_keys, proof
from plugins.authorized_keys import (
    MAX_BYTES,
    METHOD,
    REQUEST,
    CallError,
    Http2Connection,
    _frame,
    _host_and_port,
    _message,
    _now_s,
    _options,
    _proof,
    _sized,
    keys_in,
)
from protos.supervisor.v1alpha1.supervisor_pb2 import FetchAuthorizedKeysResponse


@given(st.text(max_size=500))
@example("\u20ac" * 20_000)  # the length takes three bytes
def test_keys_in__message_of_the_real_library__is_its_text(text: str) -> None:
    assert (
        keys_in(FetchAuthorizedKeysResponse(authorized_keys=text).SerializeToString())
        == text
    )


@given(st.binary(max_size=300))
def test_answer__any_bytes__is_a_message_or_an_error(data: bytes) -> None:
    for read in (keys_in, _message):
        try:
            read(data)
        except (CallError, UnicodeDecodeError):
            continue


@pytest.mark.parametrize(
    ("length", "prefix"),
    [
        (0, b"\x00"),
        (126, b"\x7e"),
        (127, b"\x7f\x00"),
        (254, b"\x7f\x7f"),
        (255, b"\x7f\x80\x01"),
        (1464, b"\x7f\xb9\x0a"),
    ],
)
def test_sized__lengths__as_hpack_has_them(length: int, prefix: bytes) -> None:
    """RFC 7541, 5.1."""
    assert _sized(b"x" * length) == prefix + b"x" * length


def test_proof__key_file__is_that_of_the_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text("0123456789abcdef" * 2 + "\n")
    entries = dict(_proof(file))
    node, time_ms = entries[proof.NODE], int(entries[proof.TIME])
    assert entries[proof.PROOF] == proof.seal(
        proof.read_key(file), METHOD, REQUEST, time_ms, node
    )


@pytest.mark.parametrize(
    ("content", "mode"),
    [(b"short\n", 0o600), (b"k" * 40, 0o644), (b"\xff" * 40, 0o600)],
)
def test_proof__key_that_cannot_be_used__says_what_the_other_programs_say(
    tmp_path: Path, content: bytes, mode: int
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ValueError, match="found") as ours:
        _proof(file)
    with pytest.raises(proof.KeyFileError) as theirs:
        proof.read_key(file)
    assert str(ours.value) == str(theirs.value)


# --- one call over HTTP/2 -------------------------------------------------------------

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
END, ACK, PADDED = 0x1, 0x1, 0x8
ANSWER = b"\0\0\0\0\x03key"
OF_THE_CALL = _frame(DATA, END, 1, ANSWER)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def call(*frames: bytes, left_s: float = 30.0) -> tuple[bytes, bytes]:
    """Make a call that a server answers with these frames before it closes. Returns the
    message, and what the server received.
    """
    ours, servers = socket.socketpair()
    with ours, servers:
        servers.sendall(b"".join(frames))
        servers.shutdown(socket.SHUT_WR)
        message = Http2Connection(ours, _now_s() + left_s).call(
            "http", "127.0.0.1:3000", b"", [("supervisor-node", "login1")]
        )
        ours.close()
        return message, servers.makefile("rb").read()


@pytest.mark.parametrize(
    "frames",
    [
        [OF_THE_CALL],
        [_frame(HEADERS, 0, 1, b"\x88"), OF_THE_CALL],
        [_frame(DATA, 0, 1, ANSWER[:2]), _frame(DATA, END, 1, ANSWER[2:])],
        [_frame(DATA, 0, 1, ANSWER), _frame(HEADERS, END, 1, b"\x88")],
        [_frame(DATA, END | PADDED, 1, b"\x02" + ANSWER + b"\0\0")],
        [_frame(DATA, END, 3, b"of another stream"), OF_THE_CALL],
        [_frame(HEADERS, END, 3, b"\x88"), _frame(RST_STREAM, 0, 3, b""), OF_THE_CALL],
    ],
)
def test_call__frames_of_an_answer__returns_its_message(frames: list[bytes]) -> None:
    message, received = call(*frames)
    assert message == b"key"
    assert received.startswith(PREFACE + _frame(SETTINGS, 0, 0, b""))
    assert received.endswith(_frame(DATA, END, 1, bytes(5)))
    for value in (METHOD, "login1", "127.0.0.1:3000", "application/grpc"):
        assert _sized(value.encode()) in received


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (_frame(SETTINGS, 0, 0, b"\0\3\0\0\0\7"), _frame(SETTINGS, ACK, 0, b"")),
        (_frame(PING, 0, 0, b"12345678"), _frame(PING, ACK, 0, b"12345678")),
        (_frame(SETTINGS, ACK, 0, b""), b""),
        (_frame(PING, ACK, 0, b"12345678"), b""),
    ],
    ids=["settings", "ping", "acknowledged settings", "acknowledged ping"],
)
def test_call__settings_and_pings_of_the_server__are_acknowledged_once(
    asked: bytes, answered: bytes
) -> None:
    message, received = call(asked, OF_THE_CALL)
    request = call(OF_THE_CALL)[1]
    assert (message, received) == (b"key", request + answered)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([_frame(GOAWAY, 0, 0, bytes(8))], "broke the call off"),
        ([_frame(RST_STREAM, 0, 1, bytes(4))], "broke the call off"),
        ([_frame(HEADERS, END, 1, b"\x88")], "refuses the call"),
        ([], "closed the connection"),
        ([OF_THE_CALL[:-1]], "closed the connection"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "no gRPC server"),
        ([_frame(DATA, END, 1, b"\1" + ANSWER[1:])], "not one uncompressed message"),
        ([_frame(DATA, END, 1, ANSWER * 2)], "not one uncompressed message"),
        ([_frame(DATA, 0, 1, bytes(2**14))] * 5, f"more than {MAX_BYTES} bytes"),
    ],
)
def test_call__answer_without_a_message__says_what_the_server_did(
    frames: list[bytes], reason: str
) -> None:
    with pytest.raises(CallError, match=reason):
        call(*frames)


def test_call__deadline_has_passed__waits_no_longer() -> None:
    with pytest.raises(TimeoutError, match="timed out"):
        call(OF_THE_CALL, left_s=0.0)


@pytest.mark.parametrize(
    "message",
    [
        b"\x12\x01k",  # another field
        b"\x0a\x02k",  # shorter than it says
        b"\x0a\x01kk",  # more than it says
        b"\x0a\xff\xff\xff\xffk",  # a length of more than four bytes
    ],
)
def test_keys_in__bytes_of_another_message__is_an_error(message: bytes) -> None:
    with pytest.raises(CallError, match="no FetchAuthorizedKeysResponse"):
        keys_in(message)


def test_proof__no_key_file__is_no_metadata() -> None:
    assert _proof(None) == ()


def test_proof__file_that_is_not_there__says_what_it_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the text of CALLBACK_KEY"):
        _proof(tmp_path / "key")


# --- options --------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["host:1", "10.0.0.1:65535", "[::1]:3000"])
def test_host_and_port__both__is_the_text(text: str) -> None:
    assert _host_and_port(text) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":3000", "host:x", "host:0", "host:65536", "host:-1"]
)
def test_host_and_port__one_is_missing_or_wrong__says_what_it_found(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected host:port") as error:
        _host_and_port(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("supervisor", "words", "plain"),
    [
        ("192.0.2.1:3000", [], False),
        ("127.0.0.1:3000", ["--plain-text"], True),
        ("127.8.9.10:3000", ["--plain-text"], True),
        ("[::1]:3000", ["--plain-text"], True),
        ("localhost:3000", ["--plain-text"], True),
        ("192.0.2.1:3000", ["--plain-text-beyond-loopback"], True),
        ("192.0.2.1:3000", ["--plain-text", "--plain-text-beyond-loopback"], True),
    ],
)
def test_options__supervisor__is_spoken_to_in_plain_text_only_when_told(
    monkeypatch: pytest.MonkeyPatch, supervisor: str, words: list[str], plain: bool
) -> None:
    argv = ["authorized_keys", "--supervisor", supervisor, *words, "user"]
    monkeypatch.setattr("sys.argv", argv)
    assert _options().plain_text is plain


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "127.0.0.1.example.org", "localhost.example.org"]
)
def test_options__plain_text_to_another_machine__names_the_option_that_allows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    argv = ["authorized_keys", "--supervisor", f"{host}:3000", "--plain-text", "user"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit, match="2"):
        _options()
    shown = capsys.readouterr().err
    assert f"found {host!r}" in shown
    assert "--plain-text-beyond-loopback" in shown


def test_source__python_of_a_login_node__can_read_and_call_it() -> None:
    """RHEL 9 has Python 3.9, Ubuntu 20.04 has 3.8: annotations are texts there, and a
    number's bytes need an order.
    """
    tree = ast.parse(Path(authorized_keys.__file__).read_text(), feature_version=(3, 8))
    future = next(node for node in tree.body if isinstance(node, ast.ImportFrom))
    assert (future.module, future.names[0].name) == ("__future__", "annotations")
    orders = list[list[str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # which Python 3.8 does not have
            assert node.func.attr not in ("removeprefix", "removesuffix")
            if node.func.attr in ("to_bytes", "from_bytes"):
                orders.append([ast.unparse(node.args[-1]), str(len(node.args))])
    assert orders
    assert all(order == ["'big'", "2"] for order in orders)
