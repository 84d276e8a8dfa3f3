"""What was paid for a job: what SLURM may give it. Pure."""

from dataclasses import dataclass, replace

from supervisor_tasks.job import Definition, Job


@dataclass(frozen=True, slots=True)
class Paid:
    """What was paid for. `limit_min` is for the present run. `most_memory_per_cpu_mb` is the site's own limit (MaxMemPerCPU):
    SLURM gives a job that asks for more memory so many more CPUs. An empty partition is not compared,
    and CPUs, memory, nodes, account and QOS only where the site's SLURM adds none of its own (`compares_sizes`). `account` and
    `qos` are what the job had at the first look, by the site's choice; empty ones are not compared.
    """

    definition: Definition
    limit_min: int
    partition: str
    most_memory_per_cpu_mb: int | None = None
    compares_sizes: bool = True
    account: str = ""
    qos: str = ""

    @property
    def cpus(self) -> int:
        """CPUs of the whole job, as SLURM counts them."""
        most_mb = self.most_memory_per_cpu_mb
        more = 1 if most_mb is None else max(-(-self.definition.mem_per_cpu_mb // most_mb), 1)
        return self.definition.cpus * more

    @property
    def memory_mb(self) -> int:
        """Memory of the whole job; a CPU more than asked for may round it up."""
        rounded = 0 if self.most_memory_per_cpu_mb is None else self.cpus
        return self.definition.memory_mb + rounded


def paid_for(job: Job, partition: str, *, compares_sizes: bool) -> Paid:
    """What was paid for a job, as its present run may have it."""
    paid = Paid(job.definition, job.run_limit_min, partition, compares_sizes=compares_sizes)
    return replace(paid, account=job.runs[0].account, qos=job.runs[0].qos) if job.runs else paid
