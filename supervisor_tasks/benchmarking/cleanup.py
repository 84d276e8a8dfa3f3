"""Old benchmarks: after a worker's start, cancel our jobs that an ended run or a lost
ledger has left in SLURM.
"""

import structlog

from supervisor_tasks.benchmarking.benchmark_run import is_named, name_beginning
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.ledger.benchmarks import BenchmarkStore
from supervisor_tasks.ledger.facts import FLAG, PROVIDER, Fact
from supervisor_tasks.slurm.interface import Control
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import SlurmRejectedError
from supervisor_tasks.slurm.squeue import SqueueRow

log = structlog.get_logger()

# a worker has started: they must be cancelled
BENCHMARK_CLEANUP_REQUESTED = Fact("benchmark.cleanup_requested", FLAG)


def cancel_old_benchmarks(context: WorkerContext) -> None:
    """If a worker has started since the last time, cancel the jobs in SLURM that have
    our benchmarks' names. This looks at the jobs of the users that benchmarks run as or
    have run as, and leaves out the jobs of the current run. Until a worker of the chain
    queue has stored the provider's address, it does nothing; a later call does it.
    Raises SlurmUnavailableError or SshUnavailableError; a retry helps.
    """
    ledger, slurm = context.ledger, context.slurm
    wanted = ledger.facts.get(BENCHMARK_CLEANUP_REQUESTED)
    provider = ledger.facts.get(PROVIDER)
    if wanted is None or provider is None:
        return
    beginning = name_beginning(provider, ledger.cluster)
    store = BenchmarkStore(ledger.engine, ledger.cluster)
    users = store.users() | {slurm.benchmark_user}
    benchmarks = list[SqueueRow]()
    for job in slurm.cluster.queries.list_all().values():
        is_ours = job.user in users and is_named(job.name, beginning)
        if is_ours and job.record.phase is not Phase.ENDED:
            benchmarks.append(job)
    # Read after SLURM's list: a name is in the ledger before SLURM gets it.
    current = store.names_under_way() if benchmarks else frozenset()
    for job in benchmarks:
        if job.name not in current:
            _cancel(slurm.cluster.control, job)
    ledger.facts.clear(BENCHMARK_CLEANUP_REQUESTED)


def _cancel(control: Control, job: SqueueRow) -> None:
    about = {"slurm_id": job.slurm_id, "name": job.name, "state": job.record.state}
    try:
        control.cancel(job.slurm_id, job.user)
    except SlurmRejectedError as error:  # it ends by its time limit
        log.error("old_benchmark_not_cancelled", error=str(error), **about)
        return
    log.warning("old_benchmark_cancelled", **about)
