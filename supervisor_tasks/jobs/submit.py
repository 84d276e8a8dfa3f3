"""Submit: SLURM gets each job exactly once.

The protocol is slurm/submit_once.py. The worker that holds the effect commits
SUBMITTING; no other worker may. A worker that finds a job in SUBMITTING does not know
whether SLURM took the job. It first searches all jobs of that user, twice. The second
search comes when nothing that was sent can arrive any more.

The worker also searches for three kinds of jobs before it submits them, because SLURM
may have them already. First, jobs whose claim the ledger does not remember
(chain_events/claim_ownership.py): another ledger may have submitted the job, or this one did
and has lost it. Second, jobs that we gave back and claimed again: we may have
submitted them before. Third, jobs that the customer's login session got a token for: it
may have said that nothing ran, and may have submitted the job itself.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import structlog

from supervisor_tasks.jobs.earlier_submissions import (
    earlier_submissions,
    may_be_in_slurm,
)
from supervisor_tasks.jobs.effect_group import (
    CommandFullError,
    EffectOutcome,
    Group,
    Members,
    Start,
    outcome_of,
)
from supervisor_tasks.jobs.events import (
    ExistingSlurmJobAdopted,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.extra_submissions import only_submissions
from supervisor_tasks.jobs.find_submission import search_cut_off_submissions
from supervisor_tasks.jobs.model import Job, JobId, SlurmId, State
from supervisor_tasks.jobs.per_job_results import required
from supervisor_tasks.jobs.trace import Value
from supervisor_tasks.ledger.journal import Past
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.guarded_command import LoginClock, TooLateError
from supervisor_tasks.slurm.interface import Request
from supervisor_tasks.slurm.parsers import AnswerNotUnderstoodError
from supervisor_tasks.slurm.submission_order import hand_over_in_order
from supervisor_tasks.slurm.submit_once import SubmissionOutcome, submission_outcome
from supervisor_tasks.slurm_lookup.cluster_check import (
    require_expected_cluster,
    require_not_paused,
)

log = structlog.get_logger()

# The most that the scripts of one command have together. The worker holds several
# copies of them in memory, for each of its threads. It is the size of the largest
# script (MAX_MESSAGE_BYTES in grid/grpc_channels.py).
COMMAND_SCRIPT_BYTES = 4 * 1024 * 1024


def submit(group: Group) -> None:
    """Submit the jobs that SLURM cannot have, in one command. Then submit those that it
    may have from before, unless a search finds them. At last, search for the jobs whose
    submission was cut off. A search may take minutes, so the jobs of the group that
    need none come first. Jobs whose scripts do not fit into the command are given
    back: the next group has them, when it is the customer's turn.
    """
    require_expected_cluster(group.context)
    ready = list[tuple[Job, OpenEffect]]()
    sought = list[tuple[Job, OpenEffect]]()
    for job, effect in group.members:
        if job.state is State.SUBMITTING:
            sought.append((job, effect))
        else:
            ready.append((job, effect))
    ready = _of_one_command(group, ready)
    waiting = {effect for _, effect in (*ready, *sought)}
    for members, past in _by_past(group, ready):
        try:
            _submit_ready(group, members, past)
        except Exception as error:  # noqa: BLE001  the answer of those that have none; the others go on all the same
            group.fail(error, members)
        waiting -= {effect for _, effect in members}
        if waiting:
            group.context.ledger.effects.extend(list(waiting))
    if sought:
        search_cut_off_submissions(group, sought)


def _of_one_command(
    group: Group, ready: list[tuple[Job, OpenEffect]]
) -> list[tuple[Job, OpenEffect]]:
    """The first of these jobs, as many as one command takes. Gives the others back."""
    if len(ready) < 2:
        return ready
    sizes = group.context.ledger.script_bytes([job.job_id for job, _ in ready])
    number = number_within(
        [sizes.get(job.job_id, 0) for job, _ in ready], COMMAND_SCRIPT_BYTES
    )
    if number < len(ready):
        group.fail(CommandFullError(), ready[number:])
    return ready[:number]


def number_within(sizes: Sequence[int], most: int) -> int:
    """How many of the first sizes add up to `most` at most; 1 if the first alone is
    larger. Pure.
    """
    return max(1, bisect_right(list(accumulate(sizes)), most))


def _by_past(
    group: Group, ready: Members
) -> Iterator[tuple[Members, Mapping[JobId, Past]]]:
    """Yield the jobs that SLURM cannot have, and then those that it may have from
    before, with what happened to them until then. Answers those for which the ledger
    has no answer.
    """
    past = _read_past(group, ready)
    first = list[tuple[Job, OpenEffect]]()
    again = list[tuple[Job, OpenEffect]]()
    for member in ready:
        of_job = past.get(member[0].job_id)
        if of_job is None:
            continue
        if may_be_in_slurm(group.context, of_job):
            again.append(member)
        else:
            first.append(member)
    if first:
        yield first, past
        past = _read_past(group, again)  # its ages have changed
    if again and past:
        yield again, past


def _read_past(group: Group, members: Members) -> Mapping[JobId, Past]:
    """What happened to the jobs. Answers those for which the ledger has no answer."""
    if not members:
        return {}
    try:
        past = group.context.ledger.journal.before_submission(
            [job.job_id for job, _ in members]
        )
    except Exception as error:  # noqa: BLE001  the answer of these; the others go on all the same
        group.fail(error, members)
        return {}
    for job, effect in members:
        if job.job_id not in past:
            unclaimed = RuntimeError(f"the journal has no claim of {job.job_id}")
            group.record(EffectOutcome(effect, error=unclaimed))
    return past


def _submit_ready(group: Group, members: Members, past: Mapping[JobId, Past]) -> None:
    context, cluster = group.context, group.context.slurm.cluster
    require_not_paused(context.ledger)
    # A home that is not safe must not keep the worker from seeing what SLURM has. After
    # that, no session of the customer's begins before the check of the home.
    new = _new(group, members, past)
    if not new:
        return
    cluster.homes.require_own(group.customer)
    scripts = context.ledger.scripts([job.job_id for job, _ in new])
    hand_over_in_order(
        partial(cluster.clock.of, group.customer),
        partial(_begin, group, new, scripts, past),
        partial(_run_sbatch, group),
    )


@dataclass(frozen=True, slots=True)
class _Begun:
    """Submissions that were committed as begun, with the jobs as they are since
    then.
    """

    effects: Mapping[JobId, OpenEffect]
    requests: Sequence[tuple[JobId, Request]]
    jobs: Mapping[JobId, Job]


def _begin(
    group: Group,
    members: Members,
    scripts: Mapping[JobId, str],
    past: Mapping[JobId, Past],
) -> _Begun | None:
    """Commit that the submissions have begun. Returns them, with what sbatch gets; None
    if all jobs were cancelled meanwhile. Answers the jobs that were.
    """
    start = Start({effect: SubmitStarted(job.limit_min) for job, effect in members})
    group.record(start)
    started = start.committed.result()
    effects = dict[JobId, OpenEffect]()
    requests = list[tuple[JobId, Request]]()
    for ready, effect in members:
        job = started.get(ready.job_id)
        if job is None:
            continue
        if job.state is not State.SUBMITTING or job.job_id not in scripts:
            stopped = SubmitOutcomeUnknown(
                "the job was cancelled before its submission began"
            )  # changes nothing
            group.record(EffectOutcome(effect, stopped))
            continue
        limit_min = job.applied_limit_min or job.limit_min
        request = Request(
            definition=job.definition,
            limit_min=limit_min,
            script=scripts[job.job_id],
            number=1 + past[job.job_id].begun,
        )
        effects[job.job_id] = effect
        requests.append((job.job_id, request))
    if not requests:
        return None
    return _Begun(effects, requests, started)


def _submitted(slurm_id: SlurmId | Exception) -> Submitted:
    return Submitted(required(slurm_id))


def _new(
    group: Group, members: Members, past: Mapping[JobId, Past]
) -> list[tuple[Job, OpenEffect]]:
    """Return the members whose jobs SLURM has never had. Answers the others."""
    earlier = earlier_submissions(
        group.context, group.customer, [job for job, _ in members], past
    )
    new = list[tuple[Job, OpenEffect]]()
    for job, effect in members:
        match earlier[job.job_id]:
            case None:
                new.append((job, effect))
            case Exception() as error:
                group.record(EffectOutcome(effect, error=error))
            case slurm_id:
                group.record(EffectOutcome(effect, ExistingSlurmJobAdopted(slurm_id)))
    return new


def _run_sbatch(group: Group, begun: _Begun, clock: LoginClock, begun_s: float) -> None:
    """Run sbatch for each job. The jobs that SLURM may have twice are answered after a
    look at SLURM.
    """
    cluster = group.context.slurm.cluster
    submissions = cluster.submissions
    called_s = time.time()
    again = set[JobId]()
    accepted = set[JobId]()
    to_look_at = dict[JobId, SlurmId]()
    if cluster.settings.submit_key:
        again = {job_id for job_id, request in begun.requests if request.number > 1}

    def answered(job_id: JobId, answer: SlurmId | Exception) -> None:
        answer_fields: dict[str, Value] = {"error": type(answer).__name__}
        if isinstance(answer, int):
            answer_fields = {"slurm_id": answer}
        group.context.tracer.span(
            job_id,
            "ssh sbatch",
            called_s,
            time.time(),
            customer=group.customer,
            **answer_fields,
        )
        if isinstance(answer, int):
            accepted.add(job_id)
        elif isinstance(answer, TooLateError) and accepted:
            # SLURM works, and took its time for the jobs before
            answer = CommandFullError()
        if isinstance(answer, int) and job_id in again:
            to_look_at[job_id] = answer
        else:
            group.record(
                _outcome(begun.effects[job_id], answer, submissions.token_window_s)
            )

    submissions.submit_batch(group.customer, begun.requests, clock, begun_s, answered)
    only_ids = only_submissions(group.context, group.customer, to_look_at, begun.jobs)
    for job_id, only in only_ids.items():
        group.record(outcome_of(begun.effects[job_id], partial(_submitted, only)))


def _outcome(
    effect: OpenEffect, answer: SlurmId | Exception, token_s: float
) -> EffectOutcome:
    """What sbatch's answer means for the job. After an error that is no answer, the job
    stays to be searched for. The customer can use the token for `token_s`.
    """
    match submission_outcome(answer):
        case SubmissionOutcome.REJECTED:
            return EffectOutcome(effect, SubmitRejected(str(answer), token_s))
        case SubmissionOutcome.UNKNOWN:
            log.warning("submission_unclear", job_id=effect.job_id, error=str(answer))
            return EffectOutcome(
                effect,
                SubmitOutcomeUnknown(
                    str(answer), unparsed=isinstance(answer, AnswerNotUnderstoodError)
                ),
            )
        case SubmissionOutcome.NOT_RUN:
            error = answer if isinstance(answer, Exception) else None
            return EffectOutcome(effect, SubmitNotExecuted(str(answer)), error)
    return outcome_of(effect, partial(_submitted, answer))
