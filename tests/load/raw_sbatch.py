"""Submits without a supervisor, to measure SLURM and sshd alone: the same scripts, over
one SSH connection a customer.
"""

import base64
import io
import secrets
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import paramiko

from devgrid.chain.model import Account, JobDefinition
from devgrid.grid import Grid
from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.submit_token import Submission, with_token

CHANNELS = 8  # of a connection
CONNECTIONS = 10  # at once
LIMIT_MIN = 10
# the hooks report jobs whose comment begins with `supervisor`, and no others
COMMENT = "bench"
PARTITION = "main"
TOKEN_S = 600
TIMEOUT_S = 60.0


def submit(
    grid: Grid,
    customers: Sequence[Account],
    jobs_each: int,
    definition: JobDefinition,
    script: str,
) -> tuple[float, list[str]]:
    """Submit the jobs of each customer. Returns the seconds from the first login to the
    last answer, and the SLURM ids.

    Raises RuntimeError when sbatch rejects a job.
    """
    key = paramiko.Ed25519Key.from_private_key(
        io.StringIO(
            base64.b64decode(grid.environment["SLURM_SSH_PRIVATE_KEY"]).decode()
        )
    )
    submit_all = partial(
        _submit_all, grid, key, jobs_each, _definition(definition), script
    )
    began_s = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        ids_by_customer = list(pool.map(submit_all, customers))
    took_s = time.perf_counter() - began_s
    return took_s, [slurm_id for slurm_ids in ids_by_customer for slurm_id in slurm_ids]


def _submit_all(
    grid: Grid,
    key: paramiko.PKey,
    jobs: int,
    definition: Definition,
    script: str,
    customer: Account,
) -> list[str]:
    """Submit all jobs of one customer over one connection."""
    with paramiko.SSHClient() as client:
        client.load_host_keys(grid.environment["SLURM_SSH_KNOWN_HOSTS"])
        host, _, port = grid.environment["SLURM_SSH_ADDRESS"].rpartition(":")
        client.connect(
            host,
            int(port),
            customer.address,
            pkey=key,
            timeout=TIMEOUT_S,
            auth_timeout=TIMEOUT_S,
            banner_timeout=TIMEOUT_S,
            allow_agent=False,
            look_for_keys=False,
        )
        submit_one = partial(_submit_one, client, grid, customer, definition, script)
        with ThreadPoolExecutor(min(CHANNELS, jobs)) as pool:
            return list(pool.map(submit_one, range(jobs)))


def _submit_one(
    client: paramiko.SSHClient,
    grid: Grid,
    customer: Account,
    definition: Definition,
    script: str,
    _: int,
) -> str:
    job_id = JobId(f"0x{secrets.token_hex(32)}")
    argv = commands.sbatch(
        "/usr/bin/sbatch",
        job_id,
        definition,
        limit_min=LIMIT_MIN,
        partition=PARTITION,
        comment=_comment(grid, customer, definition, job_id),
    )
    stdin, stdout, stderr = client.exec_command(shlex.join(argv), timeout=TIMEOUT_S)
    # supervisor_submit.lua requires the job id in its header
    stdin.write(commands.batch_script(job_id, script))
    stdin.channel.shutdown_write()
    slurm_id, error = stdout.read().decode().strip(), stderr.read().decode().strip()
    if not slurm_id.isdigit():
        raise RuntimeError(f"sbatch printed {slurm_id!r}, and on stderr {error!r}")
    return slurm_id


def _comment(
    grid: Grid, customer: Account, definition: Definition, job_id: JobId
) -> str:
    """The comment with the submission token: slurmctld rejects a customer's job without
    one.
    """
    submission = Submission(
        job_id=job_id,
        user=customer.address,
        definition=definition,
        limit_min=LIMIT_MIN,
        partition=PARTITION,
        comment=COMMENT,
        number=1,
        expires_s=int(time.time()) + TOKEN_S,
    )
    return with_token(submission, grid.environment["SLURM_SUBMIT_KEY"])


def _definition(definition: JobDefinition) -> Definition:
    return Definition(
        gpus=definition.gpus,
        mem_per_cpu_mb=definition.mem_per_cpu_mb,
        cpus_per_task=definition.cpus_per_task,
        ntasks=definition.ntasks,
        batch_location_hash=definition.batch_location_hash,
    )
