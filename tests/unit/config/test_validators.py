"""Formats of settings."""

import pytest

from supervisor_tasks.config.validators import is_loopback


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        (":3000", False),
        ("0.0.0.0:1", False),
        ("127.0.0.5:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("a.b:1", False),
    ],
)
def test_is_loopback__address_of_any_form__is_true_only_for_this_host(
    address: str, loopback: bool
) -> None:
    assert is_loopback(address) is loopback
