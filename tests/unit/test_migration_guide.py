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
    assert variable.lower() in Settings.model_fields or variable in {
        name for name, _ in OTHER_FORMS.values()
    }


def test_memory_of_hpl__its_default_in_the_guide__is_ours() -> None:
    (named,) = re.findall(r"Without either, the\s+share is ([0-9.]+[0-9])", GUIDE)
    assert float(named) == Settings.model_fields["benchmark_hpl_memory_share"].default


def test_flags__what_is_needed_beside_them__is_named() -> None:
    """The Go program has no flag for these, and `supervisor run` does not work without
    them.
    """
    section = GUIDE.partition("## Flags\n")[2].partition("\n## ")[0]
    _, _, needed = section.partition("Also needed are:")
    assert all(
        f"`{name}`" in needed
        for name in (
            "DATABASE_URL",
            "BROKER_URL",
            "--embedded",
            "SLURM_SSH_KNOWN_HOSTS",
        )
    )
    assert {"DATABASE_URL", "BROKER_URL", "SLURM_SSH_KNOWN_HOSTS"}.isdisjoint(
        FLAGS.values()
    )
