"""What a task says of the jobs that it changed."""

from dataclasses import replace

from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    Job,
    JobId,
    Outcome,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.task_summary import (
    JOB_FAILED,
    MAX_CHARACTERS,
    MAX_JOBS,
    summary,
    with_news,
)

JOB = Job(
    job_id=JobId("0x" + "a" * 64),
    customer=Address("0x" + "c" * 40),
    provider=Address("0x" + "d" * 40),
    claim_key="claim",
    definition=Definition(
        gpus=0, mem_per_cpu_mb=1, cpus_per_task=1, ntasks=1, batch_location_hash="h"
    ),
    time_limit_min=10,
)


def job(number: int, status: ChainStatus | None = None) -> Job:
    outcome = None if status is None else Outcome(status=status, reason="<script>")
    state = State.RUNNING if status is None else State.ENDED
    return replace(
        JOB,
        job_id=JobId(f"0x{number:064x}"),
        slurm_id=SlurmId(number),
        state=state,
        outcome=outcome,
    )


def test_summary__no_job__is_none() -> None:
    assert summary([]) is None


def test_summary__a_job__has_what_one_searches_for() -> None:
    assert summary([job(7)]) == f"RUNNING 0x{7:064x} slurm:7 customer:0x{'c' * 40}"


def test_summary__a_failure__comes_first_and_says_so_without_its_owners_words() -> None:
    line = summary([job(1, ChainStatus.FINISHED), job(2, ChainStatus.FAILED)]) or ""
    assert line.startswith(f"{JOB_FAILED} 0x{2:064x}")
    assert "ENDED FINISHED" in line
    assert "script" not in line


def test_summary__a_panicked_job__has_failed() -> None:
    assert (summary([job(1, ChainStatus.PANICKED)]) or "").startswith(
        f"{JOB_FAILED} (PANICKED) 0x"
    )


def test_summary__a_finished_job__is_no_failure() -> None:
    assert JOB_FAILED not in (
        summary([job(1, ChainStatus.FINISHED), job(2, ChainStatus.CANCELLED)]) or ""
    )


def test_summary__more_jobs_than_fit__are_counted() -> None:
    line = summary(job(number) for number in range(MAX_JOBS + 5)) or ""
    assert line.endswith("; and 5 more")
    assert len(line) < MAX_CHARACTERS


def test_with_news__only_looked_at_again__is_no_news() -> None:
    before = {JOB.job_id: JOB}
    assert with_news(before, {JOB.job_id: replace(JOB, poll_count=9)}) == []
    assert with_news({}, before) == [JOB]
    assert with_news(before, {JOB.job_id: replace(JOB, state=State.READY)}) == [
        replace(JOB, state=State.READY)
    ]
