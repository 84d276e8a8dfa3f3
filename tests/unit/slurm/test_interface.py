"""The comment of a submitted job."""

from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S
from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm.interface import Request, SlurmSettings
from supervisor_tasks.slurm.submit_token import Submission, expires_s, with_token

JOB = JobId("0x" + "1" * 64)
USER = "0x" + "a" * 40
BEGUN_S = 1_800_000_000
REQUEST = Request(
    definition=Definition(
        gpus=1, mem_per_cpu_mb=512, cpus_per_task=2, ntasks=3, batch_location_hash=""
    ),
    limit_min=40,
    script="#!/bin/sh\n",
    number=5,
)


def test_comment__site_without_job_submit__is_the_plugins_address_alone() -> None:
    settings = SlurmSettings(partition="main", public_address="grid.example:5000")
    comment = REQUEST.comment(USER, JOB, settings, BEGUN_S)
    assert comment == "supervisor grid.example:5000"


def test_comment__site_with_job_submit__has_the_token_of_this_submission() -> None:
    settings = SlurmSettings(
        partition="main",
        public_address="grid.example:5000",
        message_timeout_s=20.0,
        submit_key="k" * 32,
    )
    submission = Submission(
        job_id=JOB,
        user=USER,
        definition=REQUEST.definition,
        limit_min=40,
        partition="main",
        comment="supervisor grid.example:5000",
        number=5,
        expires_s=expires_s(BEGUN_S, SUBMIT_TIMEOUT_S, 20.0),
    )
    comment = REQUEST.comment(USER, JOB, settings, BEGUN_S)
    assert comment == with_token(submission, "k" * 32)
    assert comment.startswith("supervisor grid.example:5000 token=5.")
