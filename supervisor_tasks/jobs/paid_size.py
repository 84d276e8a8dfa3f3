"""What was paid for a job, and so what SLURM may give it. Pure."""

from dataclasses import dataclass, replace

from supervisor_tasks.jobs.model import Definition, Job
from supervisor_tasks.jobs.runs import Runs


@dataclass(frozen=True, slots=True)
class Paid:
    """What was paid for.

    `limit_min` is for the present run. `most_memory_per_cpu_mb` is the site's limit
    (MaxMemPerCPU): SLURM gives more CPUs to a job that asks for more memory per CPU. An
    empty partition is not compared. CPUs, memory, nodes, account and QOS are compared
    only if the site's SLURM adds none itself (`compares_sizes`). `account`, `qos` and
    `threads` are what the site gave the job (jobs/site_choices.py); empty ones are not
    compared.
    """

    definition: Definition
    limit_min: int
    partition: str
    most_memory_per_cpu_mb: int | None = None
    compares_sizes: bool = True
    account: str = ""
    qos: str = ""
    threads: str = ""

    @property
    def cpus(self) -> int:
        """CPUs of the whole job, as SLURM counts them."""
        limit_mb = self.most_memory_per_cpu_mb
        if limit_mb is None:
            return self.definition.cpus
        times = max(-(-self.definition.mem_per_cpu_mb // limit_mb), 1)
        return self.definition.cpus * times

    @property
    def memory_mb(self) -> int:
        """Memory of the whole job. With MaxMemPerCPU, 1 MB more for each CPU is allowed
        for rounding.
        """
        if self.most_memory_per_cpu_mb is None:
            return self.definition.memory_mb
        return self.definition.memory_mb + self.cpus


def paid_for(job: Job, partition: str, *, compares_sizes: bool) -> Paid:
    """What was paid for a job, as its present run may have it."""
    paid = Paid(
        job.definition, job.run_limit_min, partition, compares_sizes=compares_sizes
    )
    return as_given(paid, job.runs)


def as_given(paid: Paid, runs: Runs) -> Paid:
    """`paid` with the account, QOS and threads that the site gave the job."""
    if not runs:
        return paid
    first = runs[0]
    return replace(paid, account=first.account, qos=first.qos, threads=first.threads)
