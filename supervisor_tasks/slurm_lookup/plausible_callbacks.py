"""Which callbacks can be a trace of a job that SLURM itself does not have any more.

Any caller that reaches the callbacks' port can name any job and any SLURM id. A job can
have been in SLURM under the id in a callback only if SLURM has given that id by now,
and to no other job.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.jobs.runs import CLOCKS_APART_S
from supervisor_tasks.slurm.parsers import can_be_given

# ids that a killed slurmctld may have given after it last saved its state
GIVEN_AND_FORGOTTEN = 10_000


def plausible_ids(
    context: WorkerContext,
    called_ids: Mapping[JobId, Collection[int]],
    ago_s: Mapping[JobId, float],
) -> dict[JobId, set[SlurmId]]:
    """The SLURM ids that these jobs may have had, out of those in the callbacks
    (`called_ids`).

    `ago_s` is how many seconds ago each submission began. The caller has asked SLURM
    and accounting for the jobs, and they know none of them: so an id that they know
    belongs to another job. Raises SlurmUnavailableError or SshUnavailableError; a retry
    helps.
    """
    numbers_called = set[int]().union(*called_ids.values())
    named = {SlurmId(number) for number in numbers_called if can_be_given(number)}
    if not named:
        return {}
    cluster, ledger = context.slurm.cluster, context.ledger
    controller, now_s = cluster.site.controller(), cluster.clock.now_s()
    named = {number for number in named if can_be_given(number, controller.max_id)}
    listed: Collection[SlurmId] = ()
    if not controller.next_id:
        listed = cluster.queries.list_all()
    identified_id = ledger.highest_identified_id()
    highest = highest_given(controller.next_id, identified_id, listed)
    given_ids = GivenIds(
        highest, controller.runs_for_s(now_s), ledger.identified_as(named)
    )
    free = named - cluster.queries.known_ids(named)
    plausible = dict[JobId, set[SlurmId]]()
    for job_id, numbers in called_ids.items():
        plausible[job_id] = set()
        for number in free & {*numbers}:
            if given_ids.may_have_been_given(job_id, number, ago_s[job_id]):
                plausible[job_id].add(number)
    return plausible


def highest_given(next_id: int, identified_id: int, listed: Collection[SlurmId]) -> int:
    """The highest id that SLURM is known to have given. `next_id` is slurmctld's next
    one, 0 where it is not shown, as over slurmrestd: then `listed` has the ids of all
    jobs that slurmctld remembers. `identified_id` is the highest id under which a look
    has identified a job. Pure.
    """
    return max(next_id - 1, identified_id, *listed)


@dataclass(frozen=True, slots=True)
class GivenIds:
    """What is known about the ids that SLURM gave: the highest one, how long slurmctld
    has run, and the jobs that own some ids. A slurmctld that was killed gives ids
    again, and may have given ids that no look has seen. Pure.
    """

    highest: int
    runs_for_s: float
    owners: Mapping[SlurmId, Collection[JobId]]

    def may_have_been_given(
        self, job_id: JobId, slurm_id: SlurmId, begun_ago_s: float
    ) -> bool:
        """Whether SLURM may have given that id to a job whose submission began
        `begun_ago_s` ago.
        """
        if begun_ago_s + CLOCKS_APART_S >= self.runs_for_s:
            return slurm_id <= self.highest + GIVEN_AND_FORGOTTEN
        other_owners = {*self.owners.get(slurm_id, ())} - {job_id}
        return slurm_id <= self.highest and not other_owners
