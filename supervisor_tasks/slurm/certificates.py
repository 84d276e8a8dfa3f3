"""SSH certificates. For each connection, the worker signs a new key for one user and
five minutes.

sshd trusts the authority (TrustedUserCAKeys), so the site needs no key that opens every
account for ever. The signed key pair is only in this process's memory. sshd
authenticates once: a connection outlives its certificate. Where the worker's and the
login node's clocks are further apart, sshd rejects new logins.
"""

import io
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    SSHCertificateBuilder,
    SSHCertificateType,
)
from cryptography.hazmat.primitives.serialization.ssh import SSHCertPrivateKeyTypes

from supervisor_tasks.slurm.homes import CUSTOMER
from supervisor_tasks.slurm.ssh import LoginRejectedError

LIFE_S = 300
# the login node's clock may be behind ours by so much; munge allows the same
CERTIFICATE_CLOCKS_APART_S = 300


class NoSuchPrincipalError(LoginRejectedError):
    """The authority signs only for customers and for the users in the settings. A retry
    helps only when the operator has named the user in the settings again.
    """


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A signer for customers and for these users. `name` appears in sshd's log beside
    each login.
    """

    key: SSHCertPrivateKeyTypes = field(repr=False)
    users: Collection[str]
    name: str
    life_s: int = LIFE_S
    clock: Callable[[], float] = time.time

    def key_for(self, user: str) -> paramiko.PKey:
        """Return a new key with a certificate for this user only. The certificate has
        no extension: no terminal, no forwarding, no ~/.ssh/rc. Raises
        NoSuchPrincipalError; a retry helps only with other settings.
        """
        if user not in self.users and not CUSTOMER.fullmatch(user):
            raise NoSuchPrincipalError(
                user,
                f"no certificate is signed for {user!r}: expected a customer or one of {self.users}",
            )
        now_s, pair = int(self.clock()), Ed25519PrivateKey.generate()
        certificate = (
            SSHCertificateBuilder()
            .type(SSHCertificateType.USER)
            .public_key(pair.public_key())
            .valid_principals([user.encode()])
            .valid_after(now_s - CERTIFICATE_CLOCKS_APART_S)
            .valid_before(now_s + self.life_s)
            .serial(secrets.randbits(63))
            .key_id(f"{self.name} for {user}".encode())
            .sign(self.key)
        )
        key: paramiko.PKey = paramiko.Ed25519Key.from_private_key(
            io.StringIO(_file_of(pair))
        )
        key.load_certificate(certificate.public_bytes().decode())
        return key


def _file_of(pair: Ed25519PrivateKey) -> str:
    form = serialization.PrivateFormat.OpenSSH
    return pair.private_bytes(
        serialization.Encoding.PEM, form, serialization.NoEncryption()
    ).decode()


def authority_key(text: str) -> SSHCertPrivateKeyTypes:
    """Read the authority's private key from the text of its file in OpenSSH's format.
    Raises ValueError; the operator must correct the setting.
    """
    key = serialization.load_ssh_private_key(text.encode(), None)
    if not isinstance(key, Ed25519PrivateKey | EllipticCurvePrivateKey | RSAPrivateKey):
        raise ValueError("SLURM_SSH_CA_KEY holds no Ed25519, ECDSA or RSA key")
    return key
