"""The tokens for slurmctld: what one says, how it is signed, and that it hides its
key.
"""

import base64
import hashlib
import hmac
import json

import pytest

from supervisor_tasks.slurm.rest_tokens import TokenMint

KEY = bytes(range(48))  # no text, as slurmctld's key file
MINT = TokenMint(KEY)
NOW_S = 1_800_000_000


def decoded(part: str) -> bytes:
    """The bytes of a part of a token, which has no = at its end."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@pytest.mark.parametrize("user", ["slurm", "0x" + "a" * 40, "0X" + "aB" * 20])
def test_token__linux_user_and_times__says_these_and_nothing_else(user: str) -> None:
    header, claims, _ = MINT.token(user, NOW_S, NOW_S + 60).split(".")
    assert json.loads(decoded(header)) == {"alg": "HS256", "typ": "JWT"}
    assert json.loads(decoded(claims)) == {
        "sun": user,
        "iat": 1_800_000_000,
        "exp": 1_800_000_060,
    }


@pytest.mark.parametrize(
    ("key", "fits"), [(KEY, True), (KEY[:-1] + b"x", False), (KEY[:-1], False)]
)
def test_token__signed_with_the_key__has_the_signature_of_no_other_key(
    key: bytes, fits: bool
) -> None:
    signed, _, signature = MINT.token("slurm", NOW_S, NOW_S + 60).rpartition(".")
    expected = hmac.new(key, signed.encode(), hashlib.sha256).digest()
    assert (decoded(signature) == expected) is fits


def test_repr__of_the_mint__does_not_show_the_key() -> None:
    assert repr(MINT) == "TokenMint()"
