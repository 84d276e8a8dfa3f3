"""What the variables of an environment are: settings, their secrets, or names that are
probably misspelled settings.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, partial

import structlog

from supervisor_tasks.config.needs import CHAIN_URLS
from supervisor_tasks.config.other_forms import OTHER_FORMS
from supervisor_tasks.config.settings import IN_FILES, SECRETS, Settings
from supervisor_tasks.config.url_secrets import passwords_in

log = structlog.get_logger()

_HOST = re.compile(r"\w+://[^/?#@,]+/?(,\s*|$)")
# What finds the secret of a URL that may have none: a password, or, of an endpoint, all
# but its host and port.
_SECRET_OF: Mapping[str, Callable[[str], Collection[str]]] = {
    **dict.fromkeys(("database_url", "broker_url", "ldap_url"), passwords_in),
    **dict.fromkeys(
        (*CHAIN_URLS, "otel_exporter_otlp_endpoint"), partial(_HOST.sub, "")
    ),
}

# How similar two names must be, of 1. SLURM_PARTITON and SLURM_PARTITION have 0.97,
# systemd's STATE_DIRECTORY and STATE_DIR 0.75. SLURM's own names come nearer to ours:
# SLURM_ACCOUNT and SLURM_ACCOUNTING have 0.897.
LEAST_SIMILARITY = 0.8
LEAST_SIMILARITY_IN_SLURM = 0.9
SLURMS = frozenset({"SBATCH", "SLURM"})
# Other programs read variables with these first words too. All other first words of
# settings are only ours.
SHARED = SLURMS | {
    *(
        "CLUSTER",
        "DATABASE",
        "ETH",
        "FLOWER",
        "LISTEN",
        "LOG",
        "NVIDIA",
        "OTEL",
        "PUBLIC",
        "STATE",
        "TRACE",
    ),
    "WORKER",  # of compose's .env
}
SLURMS_SECOND = frozenset({"JOB", "SUBMIT"})  # SLURM_JOB_ID, SLURM_SUBMIT_DIR
# Names of systemd and SLURM with a first word that is otherwise only ours.
OF_OTHERS = frozenset({"NOTIFY_SOCKET", "SLURM_JWT"}) | {
    f"SLURMRESTD_{name}"
    for name in ("AUTH_TYPES", "DEBUG", "LISTEN", "OPENAPI_PLUGINS", "SECURITY")
}


def variables() -> set[str]:
    """Return the names of all variables that are read."""
    settings = {name.upper() for name in Settings.model_fields}
    files = {f"{name.upper()}_FILE" for name in IN_FILES}
    return settings | files | {variable for variable, _ in OTHER_FORMS.values()}


def overridden(
    environment: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment with these settings in place of its own. The other
    variables of the same settings go: the file of one, the Go program's form of one.
    """
    gone = {*settings}
    for pair in _same_setting():
        if not settings.keys().isdisjoint(pair):
            gone.update(pair)
    kept = {name: value for name, value in environment.items() if name not in gone}
    return kept | dict(settings)


def _same_setting() -> Iterator[tuple[str, str]]:
    for name in IN_FILES:
        yield name.upper(), f"{name.upper()}_FILE"
    for name, (variable, _) in OTHER_FORMS.items():
        yield name.upper(), variable


def switches() -> set[str]:
    """Return the variables that are true or false."""
    return {
        name.upper()
        for name, field in Settings.model_fields.items()
        if field.annotation is bool
    }


def given_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the texts of an environment that must not be shown, also if other settings
    are malformed.
    """
    texts = list[str]()
    for name in SECRETS:
        text = environment.get(name.upper())
        if text:
            texts.append(text)
    return texts


def variables_with_a_secret(given: Mapping[str, str]) -> list[str]:
    """Return the variables whose value holds a secret. A URL does if it has a password,
    and one of an endpoint if it is more than host and port.
    """
    return sorted(name for name, value in given.items() if _is_secret(name, value))


def _is_secret(variable: str, value: str) -> bool:
    name = variable.lower()
    if name in _SECRET_OF:
        return bool(_SECRET_OF[name](value))
    return name in SECRETS


def mistyped(environment: Collection[str]) -> Mapping[str, str]:
    """Return the variables that begin like a setting and are none, each with the
    nearest setting's name. Those that other programs may read are left out unless they
    resemble a setting.

    It takes only names, because a value can be a secret.
    """
    our_names = variables()
    our_prefixes = {name.partition("_")[0] for name in our_names}
    nearest_of = dict[str, str]()
    for name in sorted(set(environment) - our_names - OF_OTHERS):
        first = name.partition("_")[0]
        if first not in our_prefixes:
            continue
        least_similarity = _least_similarity(name, our_names)
        candidates = our_names
        if least_similarity == 0.0:
            candidates = {ours for ours in our_names if ours.startswith(f"{first}_")}
        nearest = get_close_matches(name, sorted(candidates), 1, least_similarity)
        if nearest:
            nearest_of[name] = nearest[0]
    return nearest_of


def _least_similarity(name: str, our_names: Collection[str]) -> float:
    """Return how similar to one of our names, of 1, a misspelled name must be; 0 if
    only our names begin as it does.
    """
    first, second = _first_two(name)
    if first not in SHARED:
        return 0.0
    if first not in SLURMS:
        return LEAST_SIMILARITY
    if second in SLURMS_SECOND:
        return LEAST_SIMILARITY_IN_SLURM
    if (first, second) in map(_first_two, our_names):
        return 0.0
    return LEAST_SIMILARITY_IN_SLURM


def _first_two(name: str) -> tuple[str, str]:
    first, second, *_ = [*name.split("_"), ""]
    return first, second


@cache
def warn_of_mistyped(environment: Collection[str] = os.environ) -> None:
    """Log a warning for each variable that is probably a misspelled setting, once in a
    process.
    """
    for name, nearest in mistyped(environment).items():
        log.warning("variable_not_known", variable=name, nearest=nearest)
