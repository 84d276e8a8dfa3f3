"""Flags of `supervisor run`: each names a setting, as the flags of the Go program do. Pure.

`--slurm.ssh.admin-user root`, `--slurm-ssh-admin-user=root` and the variable SLURM_SSH_ADMIN_USER=root mean the same. A
switch needs no value: `--tls.enable` is TLS_ENABLE=true.
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
REPEATED = ("METASCHEDULER_LABELS", "BENCHMARK_ENV")  # given once for each entry; the variable has commas between
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9._-]*)(?:=(.*))?", re.DOTALL)


class FlagError(ValueError):
    """The flags are wrong; each line of the message says what was found and what is expected."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings that flags give, by variable. `embedded`: Postgres and Redis may run inside the fleet."""

    settings: dict[str, str] = field(default_factory=dict)
    embedded: bool = False


def variable_of(flag: str) -> str:
    """Return the variable that a flag's name stands for."""
    name = re.sub(r"[.-]", "_", flag).upper()
    return ALIASES.get(name, name)


def read_flags(words: Sequence[str], known: Collection[str], switches: Collection[str]) -> Flags:
    """Return what these words give. `known` are all variables, and `switches` those that are true or false.

    Raises FlagError with a line for each flag that is wrong.
    """
    settings, lines, left = dict[str, str](), list[str](), list(words)
    switches = {*switches, EMBEDDED}
    while left:
        word = left.pop(0)
        found = _FLAG.fullmatch(word)
        name = variable_of(found[1]) if found else ""
        if found is None or name not in {*known, EMBEDDED}:
            lines.append(_unknown(word.partition("=")[0], name, known))
            left = left[1:] if left and not _FLAG.fullmatch(left[0]) else left  # the value of the unknown flag
        elif found[2] is not None:
            _set(settings, name, found[2])
        elif name in switches and (not left or left[0].lower() not in ("true", "false")):
            settings[name] = "true"
        elif left:
            _set(settings, name, left.pop(0))
        else:
            lines.append(f"{word}: found no value; expected one, as in {word} VALUE")
    if lines:
        raise FlagError("\n".join(lines))
    return Flags(settings, settings.pop(EMBEDDED, "false").lower() == "true")


def _set(settings: dict[str, str], name: str, value: str) -> None:
    has_more = name in REPEATED and name in settings
    settings[name] = f"{settings[name]},{value}" if has_more else value


def _unknown(word: str, name: str, known: Collection[str]) -> str:
    nearest = get_close_matches(name, sorted(known), 1) if name else []
    hint = f"; the nearest is --{nearest[0].lower().replace('_', '-')}" if nearest else ""
    return f"{word}: found no setting of that name; expected a flag of docs/reference/settings.md{hint}"
