"""The spool: events that SLURM's hooks wrote, one file each. Reading is pure but for the files themselves."""

import re
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"\d+-\d+-(start|end)")

# JobStatus of supervisor.v1alpha1, as the completion plugin of the field maps SLURM's end states.
RUNNING, CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS = 4, 6, 7, 8, 9
STATUS = {"FAILED": FAILED, "TIMEOUT": OUT_OF_CREDITS, "CANCELLED": CANCELLED}


class MalformedEventError(ValueError):
    """A file that no hook of ours wrote."""


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """What the supervisor is told; `exit_code` is a raw wait(2) status."""

    file: Path
    job_id: str
    slurm_id: int
    status: int
    duration_s: int = 0
    exit_code: int = 0


def pending(folder: Path) -> list[Path]:
    """The events to be delivered, oldest first."""
    named = [file for file in folder.iterdir() if NAME.fullmatch(file.name)]
    return sorted(named, key=lambda file: int(file.name.split("-")[0]))


def read(file: Path) -> SpooledEvent:
    """An event. Raises MalformedEventError."""
    try:
        fields = dict(line.split("=", 1) for line in file.read_text().splitlines())
        if fields["event"] == "started":
            return SpooledEvent(file, fields["job_id"], int(fields["slurm_id"]), RUNNING)
        exit_code, _, signal = fields["exit"].partition(":")
        return SpooledEvent(
            file,
            fields["job_id"],
            int(fields["slurm_id"]),
            STATUS.get(fields["state"], FINISHED),
            max(int(fields["end_s"]) - int(fields["start_s"]), 0),
            int(exit_code) * 256 + int(signal or 0),
        )
    except (ValueError, KeyError) as error:
        raise MalformedEventError(f"{file}: {error!r}; expected the lines that plugins/*.sh write") from error
