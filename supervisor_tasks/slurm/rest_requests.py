"""Build the bodies of requests to slurmrestd in the form of v0.0.38 (rest_versions.py
has the other). Pure.

slurmrestd 22.05 ends when a request has `argv`. It takes each `requeue`, also false, as
true; `no_requeue` works. The batch script is the same as over SSH (slurm/commands.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm.commands import batch_script

# The words of `scontrol update` that a job's undo has (jobs/size_rules.py), as
# slurmrestd names them.
_NUMBERS = {
    "NumTasks": "tasks",
    "MinCPUsNode": "minimum_cpus_per_node",
    "MinMemoryCPU": "memory_per_cpu",
    "TimeLimit": "time_limit",
}
_TEXTS = {"Partition": "partition", "Account": "account", "QOS": "qos"}


def submission(
    job_id: JobId,
    definition: Definition,
    script: str,
    *,
    limit_min: int,
    partition: str,
    comment: str,
    folder: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Build the request that submits a job, which begins in `folder` with this
    environment (not empty). `comment` is as for sbatch.
    """
    gpus = dict[str, str]()
    if definition.gpus:
        gpus["gpus"] = str(definition.gpus)
    return {
        "script": batch_script(job_id, script).decode(),
        "job": {
            "name": job_id,
            "comment": comment,
            "partition": partition,
            "tasks": definition.ntasks,
            "cpus_per_task": definition.cpus_per_task,
            "memory_per_cpu": definition.mem_per_cpu_mb,
            **gpus,
            "time_limit": limit_min,
            "standard_output": f"{job_id}.log",
            "no_requeue": True,
            "current_working_directory": folder,
            "environment": dict(environment),
        },
    }


def change(words: Sequence[str]) -> dict[str, Any] | None:
    """Build the change of a job from words of `scontrol update`; None when slurmrestd
    22.05 cannot change one of them.
    """
    body = dict[str, Any]()
    for word in words:
        key, _, value = word.partition("=")
        if key in _NUMBERS:
            body[_NUMBERS[key]] = int(value)
        elif key in _TEXTS:
            body[_TEXTS[key]] = value
        else:
            return None
    return body
