"""For whom the authority signs, and which keys it can have."""

from base64 import b64encode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    SSHCertificate,
    load_ssh_public_identity,
)

from supervisor_tasks.slurm.certificates import (
    CERTIFICATE_CLOCKS_APART_S,
    CertificateAuthority,
    NoSuchPrincipalError,
    authority_key,
)
from supervisor_tasks.slurm.ssh import LoginRejectedError

CUSTOMER = "0x" + "a1" * 20
NOW_S = 1_800_000_000
SSHKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def authority() -> CertificateAuthority:
    return CertificateAuthority(
        Ed25519PrivateKey.generate(),
        ("slurmadmin",),
        "supervisor",
        life_s=60,
        clock=lambda: float(NOW_S),
    )


@pytest.mark.parametrize("user", [CUSTOMER, "slurmadmin"])
def test_key_for__customer_or_user_of_the_settings__is_valid_for_this_user_alone(
    user: str,
) -> None:
    key = authority().key_for(user)
    assert key.public_blob is not None
    kind, blob = key.public_blob.key_type, b64encode(key.public_blob.key_blob)
    shown = load_ssh_public_identity(f"{kind} {blob.decode()}".encode())
    assert isinstance(shown, SSHCertificate)
    assert shown.valid_principals == [user.encode()]
    assert (shown.valid_after, shown.valid_before) == (
        NOW_S - CERTIFICATE_CLOCKS_APART_S,
        NOW_S + 60,
    )
    assert (shown.extensions, shown.key_id) == ({}, f"supervisor for {user}".encode())


def test_key_for__the_same_user_twice__signs_another_key() -> None:
    signer = authority()
    first, second = signer.key_for(CUSTOMER), signer.key_for(CUSTOMER)
    assert first.asbytes() != second.asbytes()


@pytest.mark.parametrize("user", ["root", "", CUSTOMER + "0", f"{CUSTOMER}\n"])
def test_key_for__another_user__signs_nothing(user: str) -> None:
    with pytest.raises(
        NoSuchPrincipalError, match="expected a customer or one of"
    ) as caught:
        authority().key_for(user)
    assert isinstance(caught.value, LoginRejectedError)
    assert caught.value.user == user


SSH_PUBLIC = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@pytest.mark.parametrize(
    "key",
    [
        Ed25519PrivateKey.generate(),
        ec.generate_private_key(ec.SECP256R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["ed25519", "ecdsa", "rsa"],
)
def test_authority_key__kinds_that_sshd_trusts__are_read(key: SSHKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    found = authority_key(pem.decode()).public_key()
    assert found.public_bytes(*SSH_PUBLIC) == key.public_key().public_bytes(*SSH_PUBLIC)
