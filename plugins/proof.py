"""The proof that a caller of the supervisor has the site's callback key: HMAC-SHA256 of
method, message, time and node.

The proof travels in three entries of gRPC's metadata. `grpc_callbacks/callers.py`
checks it. The module imports only the standard library, because sshd waits for a
program that uses the same proof.
"""

import hashlib
import hmac
import socket
import stat
import time
from pathlib import Path

NODE, TIME, PROOF = "supervisor-node", "supervisor-time-ms", "supervisor-proof"
VALID_S = 300  # the clocks must agree; munge, which SLURM needs, requires that too
LEAST_KEY_CHARACTERS = 32

# so that an attacker cannot use a hash of another protocol with the same key
_FORM = "supervisor callback, form 1"


class KeyFileError(ValueError):
    """The key file is unusable; the message names the file, what was found and what was
    expected.
    """


def read_key(file: Path) -> bytes:
    """Read the site's callback key (CALLBACK_KEY). Raises KeyFileError; a retry does
    not help.
    """
    try:
        text, mode = file.read_text(encoding="ascii").strip(), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(
            f"{file}: found no key ({error}); expected the text of CALLBACK_KEY"
        ) from error
    if mode & stat.S_IRWXO:
        raise KeyFileError(
            f"{file}: found mode {stat.S_IMODE(mode):o}; expected a file that others cannot open (chmod o=)"
        )
    if len(text) < LEAST_KEY_CHARACTERS:
        raise KeyFileError(
            f"{file}: found {len(text)} characters; expected {LEAST_KEY_CHARACTERS} or more"
        )
    return text.encode("ascii")


def seal(key: bytes, method: str, message: bytes, time_ms: int, node: str) -> str:
    """Return the keyed hash, as 64 hex digits.

    `method` is gRPC's path (/package.Service/Method), `message` the bytes that travel.
    """
    lines = (_FORM, method, node, str(time_ms), hashlib.sha256(message).hexdigest())
    return hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()


def metadata(
    key: bytes | None, method: str, message: bytes
) -> tuple[tuple[str, str], ...]:
    """Return the metadata entries that prove this message, with this machine's name and
    the current time. Without a key, they only name this machine.
    """
    node, time_ms = socket.gethostname(), time.time_ns() // 1_000_000
    if key is None:
        return ((NODE, node),)
    return (
        (NODE, node),
        (TIME, str(time_ms)),
        (PROOF, seal(key, method, message, time_ms, node)),
    )
