"""docs/how-to/migrate-from-go.md names variables that exist."""

import re

import pytest

from devgrid import REPOSITORY
from supervisor_tasks.config.other_forms import OTHER_FORMS
from supervisor_tasks.config.settings import Settings

GUIDE = (REPOSITORY / "docs" / "how-to" / "migrate-from-go.md").read_text()
FLAGS = dict(re.findall(r"^\| `--([a-z.-]+)`.*? \| `([A-Z_]+)`", GUIDE, re.MULTILINE))


@pytest.mark.parametrize("variable", sorted(set(FLAGS.values())))
def test_variable__that_stands_for_a_flag__is_a_setting(variable: str) -> None:
    assert variable.lower() in Settings.model_fields or variable in {name for name, _ in OTHER_FORMS.values()}
