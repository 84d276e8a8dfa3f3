"""When Flower's login check refuses the FLOWER_ variables of an environment."""

import pytest
from pydantic import SecretStr

from supervisor_tasks.observability.flower_login import FlowerOpenError, check_login

EVERYWHERE = {"FLOWER_ADDRESS": "0.0.0.0"}  # noqa: S104  only an address to refuse


@pytest.mark.parametrize(
    ("variables", "password"),
    [
        ({}, None),
        ({"FLOWER_ADDRESS": ""}, None),
        ({"FLOWER_ADDRESS": "::1"}, None),
        (EVERYWHERE, "operator:secret"),
        (EVERYWHERE | {"FLOWER_AUTH": ".*@example.com"}, None),
        (EVERYWHERE | {"FLOWER_UNIX_SOCKET": "/run/flower"}, None),
    ],
)
def test_check_login__of_a_flower_that_is_not_open__passes(
    variables: dict[str, str], password: str | None
) -> None:
    check_login(variables, None if password is None else SecretStr(password))


def test_check_login__beyond_this_machine_and_no_login__is_refused() -> None:
    with pytest.raises(FlowerOpenError, match=r"FLOWER_ADDRESS: found '0\.0\.0\.0'"):
        check_login(EVERYWHERE, None)
