"""The cluster: what the journey asks of SLURM, in one command each."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.job import Address, Definition, JobId, SlurmId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.identity import Sight, Wanted, recognise_all
from supervisor_tasks.slurm.listing import Listed, listed_jobs, squeue_all, squeue_format
from supervisor_tasks.slurm.output import (
    Answer,
    Seen,
    SlurmUnavailableError,
    accounted_jobs,
    boot_time,
    has_accounting,
    require_done,
    seen_jobs,
    submitted_id,
)
from supervisor_tasks.slurm.ssh import Ssh


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the site keeps SLURM's commands. `sacct` is None at a site without accounting."""

    sbatch: str
    scancel: str
    scontrol: str
    squeue: str
    sacct: str | None


@dataclass(frozen=True, slots=True)
class Controller:
    """A slurmctld that answers: since when it runs, in its own words, which are others after each restart; and whether it keeps
    an accounting database that we do not ask.
    """

    booted: str
    accounting_unused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """SLURM behind the login node. Threads may share it."""

    ssh: Ssh
    paths: Paths
    admin: str
    partition: str
    public_address: str

    def submit(self, user: Address, job_id: JobId, definition: Definition, limit_min: int, script: str) -> SlurmId:
        """Hand a job to SLURM as the customer. Raises SlurmRejectedError, SlurmUnavailableError or SshUnavailableError
        (nothing was taken), or OutcomeUnknownError (look before doing anything).
        """
        argv = commands.sbatch(
            self.paths.sbatch,
            job_id,
            definition,
            limit_min=limit_min,
            partition=self.partition,
            public_address=self.public_address,
        )
        return submitted_id(self.ssh.run(user, argv, commands.batch_script(script)))

    def find(self, user: Address, job_id: JobId) -> list[Seen]:
        """All that SLURM has, or had, under that name for that user."""
        found = seen_jobs(self._ask(commands.squeue_by_name(self.paths.squeue, user, job_id)))
        if not found and self.paths.sacct:
            records = accounted_jobs(self._ask(commands.sacct_by_name(self.paths.sacct, user, job_id)))
            found = {record.slurm_id: record for record in records}  # of one that was requeued, the last run
        return list(found.values())

    def list_all(self, user: str | None = None) -> dict[SlurmId, Listed]:
        """All jobs (of one user) that slurmctld remembers, with what their owners may have written, in one question."""
        mark = secrets.token_hex(16)
        return listed_jobs(self._ask(squeue_all(self.paths.squeue, user), squeue_format(mark)), mark)

    def look(self, wanted: Sequence[Wanted]) -> dict[JobId, Sight]:
        """What can be said of each of these jobs, whatever their number: in one question to slurmctld, and one to the
        accounting database about those that slurmctld does not know. Raises SlurmUnavailableError or SshUnavailableError
        when slurmctld does not answer; while accounting does not, nothing is said of the jobs that only it can know.
        """
        sights = recognise_all(wanted, self._listed(wanted), self._named)
        missing = [job for job in wanted if sights[job.job_id].unknown]
        if missing and self.paths.sacct:
            try:
                sights |= self._accounted(self.paths.sacct, missing)
            except TransientError as error:
                sights |= {job.job_id: Sight(unclear=str(error)) for job in missing}
        return sights

    def _listed(self, wanted: Sequence[Wanted]) -> Iterator[Seen]:
        for ids in commands.batches(_ids(wanted)):
            yield from seen_jobs(self._ask(commands.squeue_by_id(self.paths.squeue, ids))).values()

    def _named(self, job_ids: Sequence[JobId]) -> Iterator[Seen]:
        for names in commands.batches(job_ids):
            yield from seen_jobs(self._ask(commands.squeue_named(self.paths.squeue, names))).values()

    def _accounted(self, sacct: str, wanted: Sequence[Wanted]) -> dict[JobId, Sight]:
        batches = list(commands.batches(_ids(wanted)))

        def named(job_ids: Sequence[JobId]) -> Iterator[Seen]:
            for names in commands.batches(job_ids):
                for ids in batches:
                    yield from accounted_jobs(self._ask(commands.sacct_named(sacct, names, ids)))

        records = [record for ids in batches for record in accounted_jobs(self._ask(commands.sacct_by_id(sacct, ids)))]
        return recognise_all(wanted, records, named)

    def cancel(self, slurm_id: SlurmId) -> None:
        """Ask SLURM to end a job; one that has ended is fine."""
        require_done(self._ask(commands.scancel(self.paths.scancel, slurm_id)), "scancel")

    def set_time_limit(self, slurm_id: SlurmId, limit_min: int) -> None:
        """Give a job an absolute time limit; one that has ended is fine."""
        require_done(self._ask(commands.set_time_limit(self.paths.scontrol, slurm_id, limit_min)), "scontrol update")

    def controller(self) -> Controller:
        """How slurmctld runs. Raises SlurmUnavailableError or SshUnavailableError when it does not answer."""
        answer = self._ask(commands.show_config(self.paths.scontrol))
        return Controller(boot_time(answer), has_accounting(answer) and self.paths.sacct is None)

    def _ask(self, argv: Sequence[str], stdin: bytes = b"") -> Answer:
        """Run something that may be run twice, as the admin user."""
        try:
            return self.ssh.run(self.admin, argv, stdin)
        except OutcomeUnknownError as error:
            raise SlurmUnavailableError(str(error)) from error


def _ids(wanted: Iterable[Wanted]) -> list[str]:
    return [str(slurm_id) for slurm_id in sorted({job.slurm_id for job in wanted})]
