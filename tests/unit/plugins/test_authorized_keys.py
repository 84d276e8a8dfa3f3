"""What the authorized-keys command makes of an answer: the key, or an error; with any
bytes.
"""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plugins import proof
from plugins.authorized_keys import (
    METHOD,
    REQUEST,
    CallError,
    _message,
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
def test_any_bytes__are_a_message_or_an_error(data: bytes) -> None:
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


def test_proof__is_that_of_the_other_programs(tmp_path: Path) -> None:
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
