"""The keyed hash by which callers of the callbacks' port prove themselves."""

import socket
from pathlib import Path

import pytest

from plugins import proof

KEY = b"0123456789abcdef0123456789abcdef"
CALL = {
    "key": KEY,
    "method": "/a.B/C",
    "message": b"said",
    "time_ms": 1_700_000_000_000,
    "node": "node1",
}


def test_seal__same_call__same_hash() -> None:
    assert proof.seal(**CALL) == proof.seal(**CALL)  # type: ignore[arg-type]
    assert len(proof.seal(**CALL)) == 64  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"key": KEY[::-1]},
        {"method": "/a.B/D"},
        {"message": b"sai"},
        {"message": b""},
        {"time_ms": 1_700_000_000_001},
        {"node": "node2"},
        {"node": "node1\n1700000000000"},
    ],
)
def test_seal__any_part_differs__another_hash(changed: dict[str, object]) -> None:
    assert proof.seal(**(CALL | changed)) != proof.seal(**CALL)  # type: ignore[arg-type]


def test_metadata__message_of_this_moment__proves_it() -> None:
    entries = dict(proof.metadata(KEY, "/a.B/C", b"said"))
    time_ms = int(entries[proof.TIME])
    assert entries[proof.PROOF] == proof.seal(
        KEY, "/a.B/C", b"said", time_ms, entries[proof.NODE]
    )


def test_metadata__site_without_a_key__names_this_machine_alone() -> None:
    entries = proof.metadata(None, "/a.B/C", b"said")
    assert entries == ((proof.NODE, socket.gethostname()),)


def test_read_key__file_with_a_line_end__is_its_text_without_that(
    tmp_path: Path,
) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_bytes(KEY + b"\n")
    assert proof.read_key(file) == KEY


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"short\n", 0o600, "found 5 characters; expected 32 or more"),
        (KEY, 0o644, "found mode 644; expected a file that others cannot open"),
        (b"\xff" * 40, 0o600, "found no key"),
        (None, 0, "found no key"),
    ],
)
def test_read_key__cannot_be_used__says_why(
    tmp_path: Path, content: bytes | None, mode: int, said: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.touch(mode=mode)
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(proof.KeyFileError, match=said):
        proof.read_key(file)
