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
# STATE_DIR 0.75.
ALIKE = 0.8
# No other program that could run beside us reads variables that begin so: each is meant for us.
OURS = ("METASCHEDULER_", "BENCHMARK_", "LDAP_", "NOTIFY_", "SBATCH_TLS", "SLURM_SSH_", "TLS_", "WALLET_")


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
    beginnings = {name.partition("_")[0] for name in known}
    found = {}
    for name in sorted(set(environment) - known):
        alike = 0.0 if name.startswith(OURS) else ALIKE
        if name.partition("_")[0] in beginnings and (nearest := get_close_matches(name, sorted(known), 1, alike)):
            found[name] = nearest[0]
    return found


@cache
def warn_of_mistyped() -> None:
    """Log a warning for each of them, once in a process."""
    for name, nearest in mistyped(os.environ).items():
        log.warning("variable_not_known", variable=name, nearest=nearest)
