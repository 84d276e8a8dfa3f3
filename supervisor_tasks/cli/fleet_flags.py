"""Flags of `supervisor run`: each names a setting, as the flags of the Go program do.
Pure.

`--slurm.ssh.admin-user root`, `--slurm-ssh-admin-user=root` and the variable
SLURM_SSH_ADMIN_USER=root mean the same. A switch needs no value: `--tls.enable` is
TLS_ENABLE=true.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

EMBEDDED = "EMBEDDED"
# Flags of the Go program whose names are not those of their variables (its usage text).
ALIASES = {
    "GRPC_LISTEN_ADDRESS": "LISTEN_ADDRESS",
    "TLS": "TLS_ENABLE",
    "TLS_KEY_FILE": "TLS_KEY",
    "TLS_CERT_FILE": "TLS_CERT",
    "SBATCH_TLS": "SBATCH_TLS_ENABLE",
    "SBATCH_TLS_CA": "SBATCH_CA",
    "METASCHEDULER_PRIVATE_KEY": "ETH_PRIVATE_KEY",
    "METASCHEDULER_LABEL": "METASCHEDULER_LABELS",
    "LABEL": "METASCHEDULER_LABELS",
    "L": "METASCHEDULER_LABELS",
    "SLURM_BATCH": "SLURM_SBATCH_PATH",
    "SLURM_CANCEL": "SLURM_SCANCEL_PATH",
    "SLURM_SQUEUE": "SLURM_SQUEUE_PATH",
    "SLURM_CONTROL": "SLURM_SCONTROL_PATH",
    "SLURM_INFO": "SLURM_SINFO_PATH",
    "NVIDIA_SMI": "NVIDIA_SMI_PATH",
    "BENCHMARK_INCLUDE_UNRESPONSIVE": "BENCHMARK_UNRESPONSIVE",
}
# a flag for each entry; in the variable, commas between
REPEATED = ("METASCHEDULER_LABELS", "BENCHMARK_ENV")
# the words for a switch, as all settings read them
_SWITCH = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9._-]*)(?:=(.*))?", re.DOTALL)


class FlagError(ValueError):
    """The flags are wrong; each line of the message has what was found and what is
    expected.
    """


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings that flags give, by variable. `embedded`: Postgres and Redis may run
    inside the fleet.
    """

    settings: dict[str, str] = field(default_factory=dict)
    embedded: bool = False


def variable_of(flag: str) -> str:
    """Return the variable that a flag's name stands for."""
    name = re.sub(r"[.-]", "_", flag).upper()
    return ALIASES.get(name, name)


def read_flags(
    words: Sequence[str], variables: Collection[str], switches: Collection[str]
) -> Flags:
    """Return the settings that these words give. `variables` are all that exist, and
    `switches` those that are true or false.

    Raises FlagError with a line for each flag that is wrong; a retry does not help.
    """
    settings, errors, rest = dict[str, str](), list[str](), list(words)
    flags, switches = {*variables, EMBEDDED}, {*switches, EMBEDDED}
    while rest:
        word = rest.pop(0)
        name, value = _name_and_value(word)
        if name not in flags:
            errors.append(_unknown(word.partition("=")[0], name, variables))
            if rest and not _FLAG.fullmatch(rest[0]):
                rest.pop(0)  # the value of the unknown flag
            continue
        if value is None:
            value = _next_value(rest, is_switch=name in switches)
        if value is None:
            errors.append(f"{word}: found no value; expected one, as in {word} VALUE")
            continue
        _set(settings, name, value)
    embedded = settings.pop(EMBEDDED, "false")
    if embedded.lower() not in _SWITCH:
        errors.append(f"--embedded: found {embedded!r}; expected true or false")
    if errors:
        raise FlagError("\n".join(errors))
    return Flags(settings, _SWITCH[embedded.lower()])


def _name_and_value(word: str) -> tuple[str, str | None]:
    """Return the variable that a flag stands for, and the value in the same word; no
    variable for a word that is no flag.
    """
    match = _FLAG.fullmatch(word)
    if match is None:
        return "", None
    return variable_of(match[1]), match[2]


def _next_value(rest: list[str], *, is_switch: bool) -> str | None:
    """Take the value of a flag from the words after it; None if there is none. A switch
    needs no value.
    """
    if is_switch and (not rest or rest[0].lower() not in ("true", "false")):
        return "true"
    if not rest:
        return None
    return rest.pop(0)


def _set(settings: dict[str, str], name: str, value: str) -> None:
    if name in REPEATED and name in settings:
        value = f"{settings[name]},{value}"
    settings[name] = value


def _unknown(word: str, name: str, variables: Collection[str]) -> str:
    nearest, hint = get_close_matches(name, sorted(variables), 1), ""
    if nearest:
        hint = f"; the nearest is --{nearest[0].lower().replace('_', '-')}"
    return f"{word}: found no setting of that name; expected a flag of docs/reference/settings.md{hint}"
