"""Which callbacks about a job can be a trace of it, where SLURM itself has nothing of the job any more.

Everybody who reaches the callbacks' port can name any job and any SLURM id. A job was in SLURM under an id that a callback
names only if SLURM has given that id by now, and to no other job.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from supervisor_tasks.job import JobId, SlurmId
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.output import can_be_given

CLOCKS_APART_S = 5.0  # of the database, the login node and slurmctld
GIVEN_AND_FORGOTTEN = 10_000  # ids that a slurmctld which was killed may have given after it had saved its state


def plausible_ids(
    site: Site, heard: Mapping[JobId, Collection[int]], ago_s: Mapping[JobId, float]
) -> dict[JobId, set[SlurmId]]:
    """Of the SLURM ids under which callbacks named these jobs, those that the jobs may have had; their submissions began so
    long ago. SLURM and accounting were asked for the jobs, in vain: an id that these know is another job's. Raises
    SlurmUnavailableError or SshUnavailableError.
    """
    named = {SlurmId(number) for numbers in heard.values() for number in numbers if can_be_given(number)}
    if not named:
        return {}
    cluster, ledger = site.slurm.cluster, site.ledger
    controller, now_s = cluster.controller(), cluster.now_s()
    named = {number for number in named if can_be_given(number, controller.max_id)}
    runs_for_s = now_s - int(controller.booted) if controller.booted.isdecimal() else 0
    highest = max(controller.next_id - 1, ledger.highest_recognised_id()) if controller.next_id else max(named)
    last = Last(highest, runs_for_s, ledger.recognised_as(named))
    free = named - cluster.known_ids(named)
    return {
        job_id: {number for number in free & {*numbers} if last.may_be(job_id, number, ago_s[job_id])}
        for job_id, numbers in heard.items()
    }


@dataclass(frozen=True, slots=True)
class Last:
    """What is known of the ids that SLURM gave: the highest one, for how long slurmctld has run, whose some of them are. One
    that was killed gives ids again, and may have given some that no look has seen. Pure.
    """

    highest: int
    runs_for_s: float
    owners: Mapping[SlurmId, Collection[JobId]]

    def may_be(self, job_id: JobId, slurm_id: SlurmId, begun_ago_s: float) -> bool:
        """Whether a job whose submission began so long ago may have been given that id."""
        if begun_ago_s + CLOCKS_APART_S >= self.runs_for_s:
            return slurm_id <= self.highest + GIVEN_AND_FORGOTTEN
        return slurm_id <= self.highest and not {*self.owners.get(slurm_id, ())} - {job_id}
