"""The login node, on which the supervisor runs SLURM's commands."""

import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the site keeps SLURM's commands. `sacct` is None at a site without
    accounting.
    """

    sbatch: str
    scancel: str
    scontrol: str
    squeue: str
    sacct: str | None


def new_delimiter() -> str:
    """Return a random delimiter, which cannot be guessed, to separate the parts of one
    answer.
    """
    return secrets.token_hex(16)
