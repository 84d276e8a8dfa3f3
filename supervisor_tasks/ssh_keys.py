"""SSH keys as the settings hold them: base64 of a private key's file, the line of a public one's."""

import base64
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization.ssh import SSHPrivateKeyTypes

PRIVATE_KEY = "base64 of an SSH private key file without a passphrase, on one line"
PUBLIC_KEY = "the line of an OpenSSH public key file"


def private_key(encoded: str) -> str:
    """The key file, from its base64, in OpenSSH's own form. Raises ValueError."""
    return _read(encoded)[0].decode()


def public_half(encoded: str) -> str:
    """The line of the public key that belongs to a private one. Raises ValueError."""
    key = _read(encoded)[1].public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def public_key(text: str) -> str:
    """One line: more of them would let more keys in. Raises ValueError."""
    try:
        (line,) = text.strip().splitlines()
        serialization.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(PUBLIC_KEY) from error
    return line


def _read(encoded: str) -> tuple[bytes, SSHPrivateKeyTypes]:
    """The file and the key in its base64. Raises ValueError."""
    try:
        file = base64.b64decode("".join(encoded.split()), validate=True)
        if b"-----BEGIN OPENSSH" in file:
            return file, serialization.load_ssh_private_key(file, None)
        key: Any = serialization.load_pem_private_key(file, None)  # as ssh-keygen wrote it until 2018
        form = serialization.PrivateFormat.OpenSSH  # which refuses keys that are none of SSH's
        return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()), key
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(PRIVATE_KEY) from error
