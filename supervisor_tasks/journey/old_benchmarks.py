"""Old benchmarks: jobs of ours that a run which is over, or a ledger that is lost, has left in SLURM are cancelled at start."""

import structlog

from supervisor_tasks.benchmark_run import is_named, name_beginning
from supervisor_tasks.ledger.benchmarks import Benchmarks
from supervisor_tasks.ledger.facts import FLAG, PROVIDER, Fact
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import SlurmRejectedError
from supervisor_tasks.slurm.states import Phase

log = structlog.get_logger()

OLD_BENCHMARKS = Fact("benchmark.old_wanted", FLAG)  # a worker has started: they must be cancelled


def cancel_old_benchmarks(site: Site) -> None:
    """If a worker has started since the last time: cancel what SLURM has under the names of our benchmarks, of the users that
    they run as or have run as, but for those of a run that is under way. Until the workers of the chain queue have told who
    we are, it is left for later. Raises SlurmUnavailableError or SshUnavailableError.
    """
    ledger, slurm = site.ledger, site.slurm
    wanted, provider = ledger.facts.get(OLD_BENCHMARKS), ledger.facts.get(PROVIDER)
    if wanted is None or provider is None:
        return
    beginning, book = name_beginning(provider, ledger.cluster), Benchmarks(ledger.engine, ledger.cluster)
    users = book.users() | {slurm.benchmark_user}
    found = [
        job
        for job in slurm.cluster.list_all().values()
        if job.user in users and is_named(job.name, beginning) and job.seen.phase is not Phase.ENDED
    ]
    # Read after SLURM was: a name is in the ledger before SLURM hears it.
    keep = book.names_under_way() if found else frozenset()
    for job in found:
        if job.name not in keep:
            _cancel(slurm.cluster, job)
    ledger.facts.clear(OLD_BENCHMARKS)


def _cancel(cluster: Cluster, job: Listed) -> None:
    about = {"slurm_id": job.slurm_id, "name": job.name, "state": job.seen.state}
    try:
        cluster.cancel(job.slurm_id, job.user)
    except SlurmRejectedError as error:  # it ends by its time limit
        log.error("old_benchmark_not_cancelled", error=str(error), **about)
    else:
        log.warning("old_benchmark_cancelled", **about)
