"""What a sweep has seen of ledger, contract and SLURM, and what can be said of it side by side. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from supervisor_tasks.events import Claimed
from supervisor_tasks.job import Address, ChainStatus, JobId, Kind, SlurmId, State
from supervisor_tasks.known import Known, OnChain
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase

CUSTOMER = re.compile("0[xX][0-9a-fA-F]{40}")  # the Linux user of a customer
JOB_NAME = re.compile(r"0x[0-9a-f]{64}")
IN_SLURM = (State.QUEUED, State.RUNNING)
BEFORE_SLURM = (State.CLAIMED, State.READY, State.SUBMITTING)
FEW = 3  # jobs that SLURM may lose at once without it being SLURM's memory that is lost
MANY = 0.1  # and so may this part of those that it should have
_NOT_ASKED = object()


class Found(StrEnum):
    """What a sweep can find."""

    COLD_ON_CHAIN = "cold_on_chain"  # the contract has decided, and nobody told the ledger
    NOT_OURS = "not_ours"  # the contract has it pending, or with another provider
    AHEAD_ON_CHAIN = "ahead_on_chain"  # the contract has it running, the ledger does not know that
    NOT_ON_CHAIN = "not_on_chain"  # the contract has no such job: nothing is done
    LOST_END = "lost_end"  # SLURM has ended it, and nobody told the ledger
    LIMIT_LOST = "limit_lost"  # SLURM has a time limit from before a top-up
    RUNS_AGAIN = "runs_again"  # SLURM has requeued it, and no look has shown that
    MORE_THAN_PAID = "more_than_paid"  # SLURM gives it, or is about to give it, more than was paid for
    MISSING = "missing"  # SLURM does not know it; asked again in a while
    LOST = "lost"  # SLURM did not know it before either: panicked
    FORGOTTEN = "forgotten"  # slurmctld was killed before it had saved it, and it never ran: submitted again
    HELD = "held"  # too many are lost at once, SLURM knows nothing at all, or who tells of ends is away: the operator decides
    CONTRADICTED = "contradicted"  # accounting has it running, slurmctld does not know it: the operator decides
    ADOPTED = "adopted"  # SLURM had it before the ledger knew
    ANOTHERS = "anothers"  # another ledger claimed it with our key: the operator may take it over
    NEVER_SEEN = "never_seen"  # claimed, and the ledger had never heard of it
    NOBODY_AT_WORK = "nobody_at_work"  # an effect that should be open is not
    RUNS_AFTER_END = "runs_after_end"  # SLURM has requeued it after the end that the ledger knows
    RUNS_ON = "runs_on"  # SLURM still has it, the contract is cold: cancelled
    DOUBLE = "double"  # a second SLURM job: cancelled when it is seen again
    STRAY = "stray"  # looks like ours, and is not known well enough to be cancelled


class Trace(StrEnum):
    """What is left of a job that waited, and that SLURM does not know any more."""

    NONE = "none"  # slurmctld began anew after it was submitted, and nothing of it was ever seen anywhere
    SOME = "some"  # it may have run
    UNSURE = "unsure"  # nobody can tell, or it was forgotten too often


@dataclass(frozen=True, kw_only=True)
class View:
    """What was seen. `jobs` are the ledger's hot jobs and those that SLURM's list points to, `claims` are old ones that were
    read from the chain's logs, or taken over; `others` are those of other ledgers, with the ledger's mark. None stands for a
    side that did not answer. `scanned`: the scan goes on, and would have told of blocks that are lost. `saved` are jobs that
    SLURM does not list, and that slurmctld had on its disk when it was started; None when that was not looked up. `asked` is
    what SLURM and accounting said when asked for those that SLURM does not list: None is that nobody knows it, and a job of
    which nothing could be said is left out. `traces` are those of jobs that `waited`, as far as they were looked for. `told`
    are jobs of which an end came in meanwhile, or not long ago: the witness has the word. `in_touch_s` is for how long those
    who tell of ends have been heard without a gap, None while they are away, and endless where accounting can be asked.
    `remembered` is what scripts and accounting say of those that are `unlisted`; None when they did not answer. `suspects` are
    earlier doubts with the seconds since then, `steady_s` is how long slurmctld has been up, `first_id` the id with which it
    began, or 0.
    """

    provider: Address
    comment: str
    jobs: Mapping[JobId, Known]
    claims: Mapping[JobId, Claimed] = field(default_factory=dict)
    others: Mapping[JobId, str] = field(default_factory=dict)
    chain: Mapping[JobId, OnChain] | None = None
    block: int = 0
    scanned: bool = True
    slurm: Mapping[SlurmId, Listed] | None = None
    saved: Collection[JobId] | None = None
    asked: Mapping[JobId, Seen | None] = field(default_factory=dict)
    traces: Mapping[JobId, Trace] = field(default_factory=dict)
    told: Collection[JobId] = frozenset()
    in_touch_s: float | None = float("inf")
    remembered: Mapping[JobId, SlurmId] | None = field(default_factory=dict)
    suspects: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 300.0
    steady_s: float = float("inf")
    first_id: int = 0

    def again(self, kind: Found, job_id: JobId, slurm_id: SlurmId | None = None) -> bool:
        """Whether the same was in doubt long enough ago."""
        return self.suspects.get(doubt(kind, job_id, slurm_id), -1.0) >= self.grace_s

    def too_many(self, absent: int) -> bool:
        """Whether more are missing, or all, than may be lost at once without it being SLURM's memory that is lost."""
        return not self.slurm or self._many(absent)

    def _many(self, absent: int) -> bool:
        expected = sum(job.state in IN_SLURM for job in self.jobs.values())
        return absent > max(FEW, MANY * expected)

    @cached_property
    def forgotten(self) -> list[JobId]:
        """The jobs that slurmctld had saved, and that nobody knows any more."""
        absent = (job for job in missing(self) if job.job_id in (self.saved or ()) and not job.heard)
        return [job.job_id for job in absent if self.asked.get(job.job_id, _NOT_ASKED) is None]

    @cached_property
    def lost_its_memory(self) -> bool:
        """Whether slurmctld was started with an older state than it had, or with none. That SLURM lists nothing says so only
        if its ids did not go on: else the last jobs may have ended, unheard, and been forgotten in time. Many speak for
        themselves: ids go on also where slurmctld was told to forget all jobs.
        """
        if not self.forgotten:
            return False
        last = max(self.jobs[job_id].slurm_id or 0 for job_id in self.forgotten)
        return self._many(len(self.forgotten)) or (not self.slurm and self.first_id <= last)

    @property
    def knows_all_it_had_saved(self) -> bool:
        """Whether SLURM answered, and lacks nothing that slurmctld had on its disk."""
        return self.slurm is not None and self.saved is not None and not self.saved

    @cached_property
    def named(self) -> dict[tuple[str, str], list[Listed]]:
        """SLURM's jobs by name and user: live ones first, then the oldest. What is known to be another job of the ledger is not
        the one that its owner now calls it.
        """
        known = {(job.slurm_id, job.slurm_submit_s): job.job_id for job in self.jobs.values() if job.slurm_submit_s}
        found = dict[tuple[str, str], list[Listed]]()
        for row in sorted((self.slurm or {}).values(), key=lambda row: (not live(row), row.slurm_id)):
            if known.get((row.slurm_id, row.submit_s), row.name) == row.name:
                found.setdefault((row.name, row.user), []).append(row)
        return found


def doubt(kind: Found, job_id: JobId, slurm_id: SlurmId | None = None) -> str:
    """The name under which a doubt is remembered until the next sweep."""
    return f"{kind} {job_id}" if slurm_id is None else f"{kind} {job_id} {slurm_id}"


def missing(view: View) -> list[Known]:
    """The jobs that SLURM should have and does not list, or not in a way that says so at once."""
    if view.slurm is None:
        return []
    return [
        job
        for job in view.jobs.values()
        if job.state in IN_SLURM and row_of(job, view.slurm) is None and Kind.WITNESS not in job.parked
    ]


def waited(view: View) -> list[Known]:
    """The jobs that would be lost now, and that were never seen running: what is left of them is to be looked for."""
    absent = (job for job in missing(view) if view.asked.get(job.job_id, _NOT_ASKED) is None)
    return [job for job in absent if never_ran(job) and not job.heard and is_certain(job, view)]


def never_ran(job: Known) -> bool:
    """Whether neither SLURM nor the contract ever said that it runs."""
    return job.state is State.QUEUED and job.chain_status is ChainStatus.SCHEDULED and job.slurm_id is not None


def is_certain(job: Known, view: View) -> bool:
    """Whether it was missed long enough, by a slurmctld that has had the time to hear from its nodes, and they from it; and
    those who may have its end in their spool have had the time to tell, if they are there.
    """
    heard_out = view.in_touch_s is None or view.in_touch_s >= view.grace_s
    return view.again(Found.MISSING, job.job_id) and view.steady_s >= view.grace_s and heard_out


def never_seen(view: View) -> list[JobId]:
    """Jobs of ours that are hot on chain, and that the ledger has never heard of."""
    return [job_id for job_id in view.claims if job_id not in view.jobs and claimed(job_id, view)]


def claimed(job_id: JobId, view: View) -> bool:
    """Whether the contract has the job hot and ours."""
    return view.chain is not None and is_claimed(view.chain.get(job_id), view.provider)


def unlisted(view: View) -> dict[JobId, Address]:
    """The jobs, with their customers, that may have been in SLURM before the ledger knew of it, and are not in its list."""
    if view.slurm is None:
        return {}
    new = {job_id: view.claims[job_id].customer for job_id in never_seen(view)}
    restored = {job.job_id: job.customer for job in view.jobs.values() if is_behind(job, view)}
    return {job_id: user for job_id, user in (new | restored).items() if listed_id(job_id, user, view) is None}


def unexplained(view: View) -> list[Listed]:
    """The SLURM jobs of customers of `unlisted` jobs that may be one of these under another name: their scripts tell."""
    customers = set(unlisted(view).values())
    known = {job.slurm_id for job in view.jobs.values()}
    rows = (row for row in (view.slurm or {}).values() if row.user in customers and row.slurm_id not in known)
    return [row for row in rows if row.batch and (live(row) or _ran(row))]


def foreign(view: View) -> list[Listed]:
    """The live SLURM jobs of customers that no job of the ledger or of the chain explains: what nobody pays for. A job that is
    just being submitted has no id in the ledger yet, and is known by its name.
    """
    known = {job.slurm_id for job in view.jobs.values()}
    expected = {(job.job_id, job.customer) for job in view.jobs.values() if job.slurm_id is None}
    expected |= {(job_id, claim.customer) for job_id, claim in view.claims.items()}
    rows = (row for row in (view.slurm or {}).values() if live(row) and CUSTOMER.fullmatch(row.user))
    return [
        row
        for row in rows
        if row.slurm_id not in known and (row.name, row.user) not in expected and row.name not in view.others
    ]


def marked_names(slurm: Collection[Listed], comment: str) -> set[JobId]:
    """The jobs on chain that live SLURM jobs with our mark are named after."""
    return {JobId(row.name) for row in slurm if has_our_mark(row, comment)}


def live(row: Listed) -> bool:
    """Whether SLURM runs it or will."""
    return row.seen.phase in (Phase.WAITING, Phase.RUNNING)


def is_behind(job: Known, view: View) -> bool:
    """Whether the ledger is yet to submit what has run, as the contract knows."""
    return job.state in BEFORE_SLURM and status_of(job.job_id, view) is ChainStatus.RUNNING


def listed_id(job_id: JobId, customer: Address, view: View) -> SlurmId | None:
    """The SLURM job by its name and user: one that lives, or one that ran."""
    rows = view.named.get((job_id, customer), [])
    return next((row.slurm_id for row in rows if live(row) or _ran(row)), None)


def status_of(job_id: JobId, view: View) -> ChainStatus | None:
    """What the contract says of a job; None when it does not know it, or was not asked."""
    standing = None if view.chain is None else view.chain.get(job_id)
    return None if standing is None else standing.status


def row_of(job: Known, slurm: Mapping[SlurmId, Listed]) -> Listed | None:
    """The job under the ledger's id."""
    row = slurm.get(job.slurm_id) if job.slurm_id is not None else None
    return row if row is not None and is_row_of(row, job) else None


def is_row_of(row: Listed, job: Known) -> bool:
    """SLURM uses ids again after a wrap, and after it lost its state. An owner can change the name, a requeue the time. What
    this leaves out is looked at more closely: see `asked`.
    """
    return row.user == job.customer and (row.name == job.job_id or job.slurm_submit_s == row.submit_s)


def _ran(row: Listed) -> bool:
    """Whether it ended by itself: not rejected, and not cancelled under an earlier claim."""
    return row.seen.phase is Phase.ENDED and row.seen.state != "CANCELLED" and row.seen.reason != "BadConstraints"


def has_our_mark(row: Listed, comment: str) -> bool:
    """Whether a live SLURM job looks like one of ours."""
    return row.comment == comment and JOB_NAME.fullmatch(row.name) is not None and live(row)


def is_claimed(standing: OnChain | None, provider: Address) -> bool:
    """Whether the job is ours, and hot."""
    return (
        standing is not None
        and standing.provider == provider
        and standing.status in (ChainStatus.SCHEDULED, ChainStatus.RUNNING)
    )
