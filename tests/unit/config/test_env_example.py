"""docker/.env.example: every setting with its default, and none of it stale."""

import re

import pytest

from supervisor_tasks.config.settings import SECRETS, Settings, load
from tests.support import env_example

LINES = env_example.FILE.read_text().splitlines()
SHOWN = dict(
    re.findall(r"^(?:# )?([A-Z][A-Z0-9_]*)=(.*)$", "\n".join(LINES), re.MULTILINE)
)


def test_file__as_committed__is_what_the_settings_say() -> None:
    """Stale: `make env-example` writes it."""
    assert env_example.FILE.read_text() == env_example.rendered()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_setting__each__is_named_once(name: str) -> None:
    named = [
        line for line in LINES if re.match(rf"(# )?{name.upper()}(_FILE)?[=:]", line)
    ]
    assert len(named) == 1


def test_defaults__all_of_them_said__are_those_of_the_program() -> None:
    said = {
        name: value
        for name, value in SHOWN.items()
        if name.lower() not in env_example.SITE_SETTINGS
    }
    assert load(environment=said).model_dump() == load(environment={}).model_dump()


def test_values_of_the_site__loaded_as_settings__are_well_formed() -> None:
    load(
        environment={
            name.upper(): value for name, value in env_example.SITE_SETTINGS.items()
        }
    )


def test_secrets__all_of_them__have_no_line_in_the_file() -> None:
    assert not {name.upper() for name in SECRETS} & SHOWN.keys()
