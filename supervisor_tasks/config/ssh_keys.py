"""SSH keys in the form of the settings: a private key's file or its base64, or the line
of a public key's file.

`cryptography` is imported where a key is read: it takes 8 MB, and most processes have
no key.
"""

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.ssh import SSHPrivateKeyTypes

PRIVATE_KEY = "an SSH private key file without a passphrase, or its base64"
_PEM = "-----BEGIN "
PUBLIC_KEY = "the line of an OpenSSH public key file"


def private_key(encoded: str) -> str:
    """Return the key file, in OpenSSH's format. Raises ValueError; a retry does not
    help.
    """
    return _read(encoded)[0].decode()


def public_half(encoded: str) -> str:
    """Return the line of a private key's public key. Raises ValueError; a retry does
    not help.
    """
    from cryptography.hazmat.primitives import serialization

    key = _read(encoded)[1].public_key()
    return key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()


def public_key(text: str) -> str:
    """Return the line of a public key. Raises ValueError, also for several lines: sshd
    would accept each line's key. A retry does not help.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        (line,) = text.strip().splitlines()
        serialization.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(PUBLIC_KEY) from error
    return line


def _read(encoded: str) -> "tuple[bytes, SSHPrivateKeyTypes]":
    """Return the file and the key, from the file's text or its base64. Raises
    ValueError.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        file = _file(encoded)
        if b"-----BEGIN OPENSSH" in file:
            return file, serialization.load_ssh_private_key(file, None)
        # ssh-keygen's format until 2018
        key: Any = serialization.load_pem_private_key(file, None)
        # it rejects key types that SSH does not have
        form = serialization.PrivateFormat.OpenSSH
        return key.private_bytes(
            serialization.Encoding.PEM, form, serialization.NoEncryption()
        ), key
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(PRIVATE_KEY) from error


def _file(encoded: str) -> bytes:
    """Return the file, which ends with a newline. Raises ValueError."""
    if encoded.lstrip().startswith(_PEM):
        return encoded.strip().encode() + b"\n"
    return base64.b64decode("".join(encoded.split()), validate=True)
