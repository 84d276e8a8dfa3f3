"""Writes docker/.env.example from the settings and the compose files: `make
env-example`.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from devgrid import REPOSITORY
from supervisor_tasks.config import settings
from supervisor_tasks.config.settings import IN_FILES, SECRETS, Settings

DOCKER = REPOSITORY / "docker"
FILE = DOCKER / ".env.example"
# The settings that a site must choose, each with a value to begin with. The other
# settings have a default.
SITE_SETTINGS = {
    "cluster_name": "main",
    "public_address": "supervisor.example.com:3000",
    "sbatch_endpoint": "sbatch.example.com:443",
    "slurm_ssh_address": "login.example.com:22",
    "slurm_ssh_admin_user": "root",
    "slurm_ssh_public_key": "",
    "slurm_partition": "main",
}
HEAD = """\
# Every setting of the supervisor and of docker/compose.yaml, with its default. Copy this file to .env and edit the first block.
# Written by `make env-example`. A line that is a comment shows the default: change the value and remove the #.
# No secret belongs here: secrets are files (new-secrets.sh).
"""


def rendered() -> str:
    """The file's text."""
    parts = [
        HEAD,
        "# --- what the site must say",
        *(f"{name.upper()}={value}" for name, value in SITE_SETTINGS.items()),
    ]
    parts += [
        "",
        "# --- docker/compose.yaml: images, published ports, limits",
        *_of_compose(),
    ]
    for section, lines in _sections():
        parts += ["", f"# --- {section}", *lines]
    return "\n".join(parts) + "\n"


def compose(name: str) -> Any:
    """A compose file."""
    return yaml.safe_load((DOCKER / name).read_text())


def set_by_compose() -> set[str]:
    """The settings that compose.yaml itself gives its containers: their values in .env
    do not count.
    """
    environment = dict[str, str]()
    for service in compose("compose.yaml")["services"].values():
        environment |= service.get("environment", {})
    return {
        name.removesuffix("_FILE").lower()
        for name, value in environment.items()
        if f"${{{name}:-" not in value
    }


def _of_compose() -> Iterator[str]:
    """A line for each variable of the compose files that is no setting."""
    texts = [
        (DOCKER / name).read_text()
        for name in ("compose.yaml", "compose.clusters.yaml")
    ]
    found: Mapping[str, str] = dict(
        re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", "".join(texts))
    )
    for name, default in found.items():
        if name.lower() not in Settings.model_fields:
            yield f"# {name}={default}"


def _sections() -> Iterator[tuple[str, list[str]]]:
    """The settings, under their headings in settings.py."""
    heading_of = headings()
    by_compose, lines = set_by_compose(), dict[str, list[str]]()
    for name, field in Settings.model_fields.items():
        if name not in SITE_SETTINGS:
            lines.setdefault(heading_of[name], []).append(
                _line(name, field, by_compose)
            )
    yield from lines.items()


@cache
def headings() -> dict[str, str]:
    """The heading of each field: the comment above its group in settings.py."""
    found = dict[str, str]()
    for group in re.split(r"\n\n    # ", inspect.getsource(settings.Settings))[1:]:
        heading, _, fields = group.partition("\n")
        found |= dict.fromkeys(
            re.findall(r"^    ([a-z0-9_]+): ", fields, re.MULTILINE), heading
        )
    return found


def _line(name: str, field: FieldInfo, by_compose: set[str]) -> str:
    if name in SECRETS and name not in by_compose:
        return f"# {name.upper()}_FILE: a secret; compose.yaml has no file for it"
    if name in SECRETS:
        return f"# {name.upper()}: the file secrets/{name}"
    written = f"# {name.upper()}={default_text(field)}"
    if name in IN_FILES and name in by_compose:
        return f"{written}\n#   with a key in it: the file secrets/{name}"
    if name in by_compose:
        return f"# {name.upper()}: compose.yaml says it"
    return written


def default_text(field: FieldInfo) -> str:
    """A default, as it would be written in an environment variable."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    if value in (None, {}, (), frozenset()):
        return ""
    if isinstance(value, dict | tuple):
        return json.dumps(value)
    return f"{value:g}s" if "_go_duration_s" in repr(field.metadata) else str(value)


if __name__ == "__main__":
    FILE.write_text(rendered())
