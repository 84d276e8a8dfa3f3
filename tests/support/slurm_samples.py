"""What SLURM printed (tests/data/slurm), in the form that is asked for today."""

import json
from pathlib import Path

from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_versions import read
from supervisor_tasks.slurm.squeue import FIELDS

DATA = Path(__file__).parents[1] / "data" / "slurm"
DELIMITER = "4f1d0c9ab3"  # with which the samples were recorded
# The fields of the samples: what is asked for besides was not then.
ASKED = {"squeue-sizes": FIELDS.index("Requeue")}
ASKED_BEFORE = FIELDS.index("StartTime")


def squeue_sample(name: str) -> str:
    """A list that squeue printed. Older samples lack the last fields: they stay empty."""
    printed = (DATA / f"{name}-slurm-22.05.8.txt").read_text()
    asked = ASKED.get(name, ASKED_BEFORE)
    *fields, rest = printed.split(f"|{DELIMITER}")
    records = [fields[first : first + asked] for first in range(0, len(fields), asked)]
    missing = [""] * (len(FIELDS) - asked)
    return "".join(f"{field}|{DELIMITER}" for record in records for field in [*record, *missing]) + rest


def rest_answer(name: str, slurm: str, api: str) -> RestAnswer:
    """The recorded answer of slurmrestd of that SLURM, as the worker reads it from that version of the API."""
    recorded = json.loads((DATA / "rest" / f"{name}-slurm-{slurm}.json").read_text())
    return RestAnswer(recorded["status"], read(api, recorded["body"]))
