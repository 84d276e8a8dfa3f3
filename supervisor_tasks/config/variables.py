"""What the variables of an environment are: settings, their secrets, or names that are probably misspelled settings."""

import os
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache

import structlog

from supervisor_tasks.config.other_forms import OTHER_FORMS
from supervisor_tasks.config.settings import IN_FILES, SECRETS, Settings

log = structlog.get_logger()

# How similar two names must be, of 1. SLURM_PARTITON and SLURM_PARTITION have 0.97, systemd's STATE_DIRECTORY and
# STATE_DIR 0.75. SLURM's own names come nearer to ours: SLURM_ACCOUNT and SLURM_ACCOUNTING have 0.897.
ALIKE = 0.8
ALIKE_IN_SLURM = 0.9
SLURMS = frozenset({"SBATCH", "SLURM"})
# Other programs read variables with these first words too. All other first words of settings are only ours.
SHARED = SLURMS | {
    *("CLUSTER", "DATABASE", "ETH", "FLOWER", "LISTEN", "LOG", "NVIDIA", "OTEL", "PUBLIC", "STATE", "TRACE"),
    "WORKER",  # of compose's .env
}
SLURMS_SECOND = frozenset({"JOB", "SUBMIT"})  # SLURM_JOB_ID, SLURM_SUBMIT_DIR
# Names of other programs that begin as only ours do: of systemd, and of SLURM.
OF_OTHERS = frozenset({"NOTIFY_SOCKET", "SLURM_JWT"}) | {
    f"SLURMRESTD_{name}" for name in ("AUTH_TYPES", "DEBUG", "LISTEN", "OPENAPI_PLUGINS", "SECURITY")
}


def variables() -> set[str]:
    """Return the names of all variables that are read."""
    known = {name.upper() for name in Settings.model_fields} | {f"{name.upper()}_FILE" for name in IN_FILES}
    return known | {variable for variable, _ in OTHER_FORMS.values()}


def switches() -> set[str]:
    """Return the variables that are true or false."""
    return {name.upper() for name, field in Settings.model_fields.items() if field.annotation is bool}


def given_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the texts of an environment that must not be shown, also if other settings are malformed."""
    return [value for name in SECRETS if (value := environment.get(name.upper()))]


def mistyped(environment: Collection[str]) -> Mapping[str, str]:
    """Return the variables that begin like a setting and are none, each with the nearest setting's name. Those that other
    programs may read are left out unless they resemble a setting.

    It takes only names, because a value can be a secret.
    """
    known = variables()
    beginnings, found = {name.partition("_")[0] for name in known}, {}
    for name in sorted(set(environment) - known - OF_OTHERS):
        alike, first = _alike(name, known), name.partition("_")[0]
        near = known if alike else {setting for setting in known if setting.startswith(f"{first}_")}
        nearest = get_close_matches(name, sorted(near), 1, alike)
        if first in beginnings and nearest:
            found[name] = nearest[0]
    return found


def _alike(name: str, known: Collection[str]) -> float:
    """Return how similar a name must be to a setting's to be meant for us: not at all if it begins as only ours do."""
    first, second = _first_two(name)
    if first not in SHARED:
        return 0.0
    if first not in SLURMS:
        return ALIKE
    ours = {_first_two(setting) for setting in known}
    return 0.0 if (first, second) in ours and second not in SLURMS_SECOND else ALIKE_IN_SLURM


def _first_two(name: str) -> tuple[str, str]:
    first, second, *_ = [*name.split("_"), ""]
    return first, second


@cache
def warn_of_mistyped() -> None:
    """Log a warning for each of them, once in a process."""
    for name, nearest in mistyped(os.environ).items():
        log.warning("variable_not_known", variable=name, nearest=nearest)
