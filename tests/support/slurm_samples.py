"""Recorded outputs of SLURM (tests/data/slurm), with the fields that the product
requests today, and what the product reads in them.
"""

import json
from pathlib import Path

from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.slurm.parsers import CommandAnswer, JobRecord
from supervisor_tasks.slurm.rest_answers import RestAnswer, jobs_listed
from supervisor_tasks.slurm.rest_versions import read
from supervisor_tasks.slurm.sacct import FIELDS as SACCT_FIELDS
from supervisor_tasks.slurm.squeue import FIELDS, SqueueRow, listed_jobs

DATA = Path(__file__).parents[1] / "data" / "slurm"
DELIMITER = "4f1d0c9ab3"  # in the recorded samples
# In the samples squeue-listing, sacct-submit-lines and scontrol-write-batch-script,
# SLURM's job 3 is OURS. OTHER is only in text that an owner wrote.
OURS = JobId("0x" + "a" * 64)
OTHER = JobId("0x" + "b" * 64)
# How many fields the samples have: the product did not request the later ones yet.
FIELD_COUNTS = {"squeue-sizes": FIELDS.index("Requeue")}
USUAL_FIELD_COUNT = FIELDS.index("StartTime")
SACCT_FIELD_COUNT = SACCT_FIELDS.index("ReqTRES")
NO_SIZE = ("",) * (len(SACCT_FIELDS) - SACCT_FIELD_COUNT)


def sample(name: str) -> str:
    """What a command printed."""
    return (DATA / f"{name}-slurm-22.05.8.txt").read_text()


def squeue_sample(name: str) -> str:
    """A list that squeue printed. Older samples lack the last fields: they stay
    empty.
    """
    count = FIELD_COUNTS.get(name, USUAL_FIELD_COUNT)
    return _with_all_fields(sample(name), count, len(FIELDS))


def sacct_sample(name: str) -> str:
    """The records that sacct printed. The samples lack the fields of the size: these
    stay empty.
    """
    return with_size_fields(sample(name))


def with_size_fields(printed: str) -> str:
    """The records, as sacct prints them when it is asked for sizes and has none."""
    return _with_all_fields(printed, SACCT_FIELD_COUNT, len(SACCT_FIELDS))


def with_cpu_fields(printed: str) -> str:
    """The jobs that squeue printed before it was asked for CPUs per task and node."""
    return _with_all_fields(printed, FIELDS.index("cpus-per-task"), len(FIELDS))


def _with_all_fields(printed: str, count: int, wanted: int) -> str:
    *fields, rest = printed.split(f"|{DELIMITER}")
    records = [fields[first : first + count] for first in range(0, len(fields), count)]
    missing = [""] * (wanted - count)
    return (
        "".join(
            f"{field}|{DELIMITER}"
            for record in records
            for field in [*record, *missing]
        )
        + rest
    )


def recorded(name: str, status: int = 0) -> CommandAnswer:
    """A command's answer with this status, and with what was recorded of its output and
    its errors.
    """

    def read(kind: str) -> str:
        file = DATA / f"{name}-slurm-22.05.8{kind}.txt"
        return file.read_text() if file.exists() else ""

    printed = read("")
    if printed and name.startswith("squeue-"):
        printed = squeue_sample(name)
    if printed and name.startswith("sacct-"):
        printed = sacct_sample(name)
    return CommandAnswer(status, printed, read(".stderr"))


def seen_jobs(answer: CommandAnswer) -> dict[SlurmId, JobRecord]:
    """What squeue shows."""
    return {
        slurm_id: job.record for slurm_id, job in listed_jobs(answer, DELIMITER).items()
    }


def rest_answer(name: str, slurm: str, api: str) -> RestAnswer:
    """The recorded answer of slurmrestd of that SLURM version, as the worker reads it
    with that version of the API.
    """
    stored = json.loads((DATA / "rest" / f"{name}-slurm-{slurm}.json").read_text())
    return RestAnswer(stored["status"], read(api, stored["body"]))


def rows_by_name(answer: RestAnswer, now_s: int = 2**31) -> dict[str, SqueueRow]:
    """The jobs of an answer, by their names."""
    return {row.name: row for row in jobs_listed(answer.body, now_s).values()}


def printed(*records: tuple[str, ...]) -> str:
    """What sacct or squeue prints of these records."""
    between = f"|{DELIMITER}"
    return "".join(between.join([*record, "\n"]) for record in records)
