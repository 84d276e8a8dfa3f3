"""Recorded outputs of SLURM (tests/data/slurm), with the fields that the product
requests today.
"""

import json
from pathlib import Path

from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_versions import read
from supervisor_tasks.slurm.squeue import FIELDS

DATA = Path(__file__).parents[1] / "data" / "slurm"
DELIMITER = "4f1d0c9ab3"  # in the recorded samples
# How many fields the samples have: the product did not request the later ones yet.
FIELD_COUNTS = {"squeue-sizes": FIELDS.index("Requeue")}
USUAL_FIELD_COUNT = FIELDS.index("StartTime")


def squeue_sample(name: str) -> str:
    """A list that squeue printed. Older samples lack the last fields: they stay
    empty.
    """
    printed = (DATA / f"{name}-slurm-22.05.8.txt").read_text()
    count = FIELD_COUNTS.get(name, USUAL_FIELD_COUNT)
    *fields, rest = printed.split(f"|{DELIMITER}")
    records = [fields[first : first + count] for first in range(0, len(fields), count)]
    missing = [""] * (len(FIELDS) - count)
    return (
        "".join(
            f"{field}|{DELIMITER}"
            for record in records
            for field in [*record, *missing]
        )
        + rest
    )


def rest_answer(name: str, slurm: str, api: str) -> RestAnswer:
    """The recorded answer of slurmrestd of that SLURM version, as the worker reads it
    with that version of the API.
    """
    recorded = json.loads((DATA / "rest" / f"{name}-slurm-{slurm}.json").read_text())
    return RestAnswer(recorded["status"], read(api, recorded["body"]))
