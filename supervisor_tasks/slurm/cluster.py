"""The cluster: what the journey asks of SLURM, in one command each."""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from supervisor_tasks.crash import Point, after, around, before
from supervisor_tasks.effects import IN_TIME_S, settled_after_s
from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, SupervisorError, TransientError
from supervisor_tasks.job import Address, Definition, JobId, SlurmId
from supervisor_tasks.slurm import commands, guarded_command
from supervisor_tasks.slurm.accounting import (
    accounted_jobs,
    histories,
    sacct_by_id,
    sacct_histories,
    sacct_history,
    submitted_as,
)
from supervisor_tasks.slurm.commands import script_mark
from supervisor_tasks.slurm.guarded_command import LoginClock, Order
from supervisor_tasks.slurm.homes import Homes, home_seen, look
from supervisor_tasks.slurm.identity import Record, Sight, Wanted, accounted_record, listed_record, recognise_all
from supervisor_tasks.slurm.listing import (
    Listed,
    listed_jobs,
    requests,
    squeue_all,
    squeue_by_id,
    squeue_format,
    squeue_json,
)
from supervisor_tasks.slurm.output import (
    MAX_SLURM_ID,
    MIN_JOB_AGE_S,
    Answer,
    Seen,
    SlurmUnavailableError,
    boot_time,
    has_accounting,
    max_job_id,
    min_job_age_s,
    next_id,
    not_cancelled,
    require_done,
    submitted_id,
)
from supervisor_tasks.slurm.recognise import (
    MOST_SCRIPTS,
    Sought,
    calls_itself,
    last_writes,
    marked_job,
    read_scripts,
    recognised,
    script_heads,
    worth_reading,
    written_at,
)
from supervisor_tasks.slurm.size import Size, memory_per_cpu_limit
from supervisor_tasks.slurm.splitting import ask_in_parts
from supervisor_tasks.slurm.ssh import COMMAND_TIMEOUT_S, Ssh, our_clock_s
from supervisor_tasks.slurm.submit_token import Submission, expires_s, with_token
from supervisor_tasks.slurm.which import Which, which

log = structlog.get_logger()

CLOCKS_DIFFER_S = 600.0  # slurmctld's and the login node's: munge allows 300 s
SCRIPTS_A_LOOK = 100  # in one command: a slurmctld that is slow is to answer it within COMMAND_TIMEOUT_S
CONTROLLER_TIMEOUT_S = 15.0  # who waits longer to hear that slurmctld runs learns late that it is back

Explained = Callable[[Mapping[SlurmId, int]], Collection[SlurmId]]


class UndecidedError(PermanentError):
    """What was found may be the job and may not; an operator is to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What SLURM is asked for."""

    definition: Definition
    limit_min: int
    script: str = field(repr=False)
    number: int  # which submission of the job this is, from 1


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
    """A slurmctld that answers: since when it runs, in its own words, which are others after each restart (where it can, in
    seconds since the epoch); whether it keeps an accounting database that we do not ask; of which cluster it is;
    the id that the next job gets, 0 where it does not tell; how long it remembers a job that has ended, 0 for ever; and
    MaxJobId.
    """

    booted: str
    accounting_unused: bool
    which: Which
    next_id: int = 0
    min_job_age_s: int = MIN_JOB_AGE_S
    max_id: int = MAX_SLURM_ID


@dataclass(slots=True)
class Bounds:
    """What slurmctld told this process last."""

    max_id: int = MAX_SLURM_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """SLURM behind the login node. Threads may share it. `compares_sizes`: SLURM gives a job the CPUs, memory and nodes that it
    asks for, so that more is its owner's doing.
    """

    ssh: Ssh
    paths: Paths
    admin: str
    partition: str
    public_address: str
    message_timeout_s: float = 10.0
    compares_sizes: bool = True
    homes: Homes = field(default_factory=Homes)
    bounds: Bounds = field(default_factory=Bounds)
    environment_file: str = ""  # the site's, on the login node: what it exports, jobs inherit
    submit_key: str = field(default="", repr=False)  # empty at a site without job_submit.lua

    @property
    def settled_after_s(self) -> float:
        """How long after its beginning a submission can change nothing in SLURM any more."""
        return settled_after_s(self.message_timeout_s)

    def clock(self, user: str) -> LoginClock:
        """The login node's clock, as this user sees it, and where the admin has SLURM's configuration. Raises
        SshUnavailableError when the login node does not let us in.
        """
        return replace(self.ssh.clock(user), slurm_conf=self._admins_clock().slurm_conf)

    def now_s(self) -> int:
        """The time of the site (Unix time), as the login node has it. Raises SshUnavailableError."""
        return self._admins_clock().at(our_clock_s())

    def _admins_clock(self) -> LoginClock:
        return self.ssh.clock(self.admin, sites_own=True)

    def require_own_home(self, user: Address) -> None:
        """Before a session begins as a customer. Raises UnsafeHomeError when another customer may decide what it runs, and
        other TransientErrors when the login node does not tell.
        """
        mark = new_mark()
        self.homes.require_own(
            user,
            see=lambda: home_seen(self._ask(look(mark, user)), mark, user),
            log_in=lambda: self.ssh.clock(user),
        )

    def submit(self, user: Address, job_id: JobId, request: Request, clock: LoginClock, begun_s: float) -> SlurmId:
        """Hand a job to SLURM as the customer, within IN_TIME_S of `begun_s` (`our_clock_s`) or not at all. Raises
        SlurmRejectedError, a TransientError (nothing was taken), or OutcomeUnknownError (look before doing anything).
        """
        return self.hand_over(user, self._order(user, job_id, request, clock.at(begun_s)), clock, begun_s)

    def submit_batch(
        self,
        user: Address,
        requests: Sequence[tuple[JobId, Request]],
        clock: LoginClock,
        begun_s: float,
        answered: Callable[[JobId, SlurmId | Exception], None],
    ) -> None:
        """Hand jobs of one customer to SLURM, one after the other, within IN_TIME_S of `begun_s` (`our_clock_s`) or not at all.
        `answered` is called once for each, in this thread, as soon as its answer is there, with its id or what `submit` would
        raise of it. Raises only what `answered` raises: then the rest is not told, and may be with SLURM.
        """
        begun_login_s = clock.at(begun_s)
        orders = [self._order(user, job_id, request, begun_login_s) for job_id, request in requests]
        self._hand_over_all(
            user, orders, clock, begun_s, lambda number, outcome: answered(requests[number][0], outcome)
        )

    def _order(self, user: Address, job_id: JobId, request: Request, begun_login_s: int) -> Order:
        argv = commands.sbatch(
            self.paths.sbatch,
            job_id,
            request.definition,
            limit_min=request.limit_min,
            partition=self.partition,
            comment=self._comment(user, job_id, request, begun_login_s),
        )
        return Order(argv, commands.batch_script(job_id, request.script))

    def _comment(self, user: Address, job_id: JobId, request: Request, begun_login_s: int) -> str:
        comment = commands.comment(self.public_address)
        if not self.submit_key:
            return comment
        submission = Submission(
            job_id=job_id,
            user=user,
            definition=request.definition,
            limit_min=request.limit_min,
            partition=self.partition,
            comment=comment,
            number=request.number,
            expires_s=expires_s(begun_login_s, IN_TIME_S, self.message_timeout_s),
        )
        return with_token(submission, self.submit_key)

    def hand_over(self, user: str, order: Order, clock: LoginClock, begun_s: float) -> SlurmId:
        """Run sbatch as a user, within IN_TIME_S of `begun_s` or not at all; raises what `submit` does."""
        outcomes = list[SlurmId | Exception]()
        self._hand_over_all(user, [order], clock, begun_s, lambda _, outcome: outcomes.append(outcome))
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return outcomes[0]

    def _hand_over_all(
        self,
        user: str,
        orders: Sequence[Order],
        clock: LoginClock,
        begun_s: float,
        answered: Callable[[int, SlurmId | Exception], None],
    ) -> None:
        mark = new_mark()

        def heard(number: int, answer: Answer) -> None:
            after(Point.SBATCH)
            answered(number, self._outcome(answer))

        answers = guarded_command.Answers(mark, len(orders), heard, our_clock_s)
        unanswered = self._run_guarded(user, orders, clock.slurm_conf, clock.at(begun_s + IN_TIME_S), begun_s, answers)
        if answers.came_late:
            self.ssh.forget_clock(user)  # or it is wrong by now
        for number in range(answers.told, len(orders)):
            answered(number, unanswered)

    def _run_guarded(
        self,
        user: str,
        orders: Sequence[Order],
        slurm_conf: str,
        until_login_s: int,
        begun_s: float,
        answers: guarded_command.Answers,
    ) -> Exception:
        """Run these; returns why those that have no answer then have none."""
        if our_clock_s() >= begun_s + IN_TIME_S:
            return guarded_command.TooLateError("this worker stood still; nothing was sent")
        argv = guarded_command.guarded(len(orders), until_login_s, slurm_conf, self.environment_file)
        stdin = guarded_command.framed(answers.mark, orders)
        before(Point.SBATCH)
        try:
            status = self.ssh.stream_in_turn(
                user, argv, stdin, guarded_command.ANSWERED_AFTER_S, answers, other=self.admin
            )
        except (TransientError, OutcomeUnknownError) as error:
            return error
        return answers.ended(status)

    def _outcome(self, answer: Answer) -> SlurmId | Exception:
        try:
            return submitted_id(answer, self.bounds.max_id)
        except SupervisorError as error:
            return error

    def find(self, user: Address, job_id: JobId, begun_s_ago: float, explained: Explained) -> list[Seen]:
        """All that slurmctld has of our job, whatever its owner calls it. `explained` says which SLURM jobs, by id and time,
        are other jobs of ours. Raises UndecidedError when a job may be ours and may not.
        """
        all_jobs = self.list_all(user)
        others = explained({slurm_id: job.submit_s for slurm_id, job in all_jobs.items()})
        listed = [job for slurm_id, job in all_jobs.items() if slurm_id not in others]
        hinted = [job for job in listed if calls_itself(job, job_id)]
        marks = self._few_script_marks(hinted)
        # A rejected job has no script; of one whose script cannot be read, its word is taken.
        ours = [job.seen for job in hinted if marks.get(job.slurm_id, script_mark(job_id)) == script_mark(job_id)]
        return ours or self._find_renamed(user, job_id, listed, begun_s_ago)

    def _find_renamed(self, user: Address, job_id: JobId, listed: Sequence[Listed], begun_s_ago: float) -> list[Seen]:
        since_s = self.now_s() - begun_s_ago - CLOCKS_DIFFER_S
        suspects = worth_reading(listed, since_s)
        if not suspects:
            return []
        marks = self._few_script_marks(suspects)
        unread = [job.slurm_id for job in suspects if job.slurm_id not in marks and not calls_itself(job, job_id)]
        ours = [job.seen for job in suspects if marks.get(job.slurm_id) == script_mark(job_id)]
        if unread and not ours and set(unread) & self.list_all(user).keys():  # and not forgotten in between
            raise UndecidedError(
                f"nobody knows whether SLURM has the job: its submission was cut off {begun_s_ago:.0f} s ago, and of the jobs"
                f" {unread} of {user}, which are no others of ours, the scripts cannot be read"
            )
        return ours

    def _few_script_marks(self, jobs: Sequence[Listed]) -> dict[SlurmId, str]:
        if len(jobs) > MOST_SCRIPTS:
            raise UndecidedError(f"{len(jobs)} jobs in SLURM may be this one; {MOST_SCRIPTS} at most are looked at")
        return self._script_marks([job.slurm_id for job in jobs])

    def _script_marks(self, slurm_ids: Sequence[SlurmId]) -> dict[SlurmId, str]:
        marks = dict[SlurmId, str]()
        for first in range(0, len(slurm_ids), MOST_SCRIPTS):
            mark, some = new_mark(), slurm_ids[first : first + MOST_SCRIPTS]
            marks |= script_heads(self._ask(read_scripts(self.paths.scontrol, some), mark.encode() + b"\n"), mark)
        return marks

    def history(self, user: Address, job_id: JobId, begun_s_ago: float) -> list[Seen]:
        """What accounting, where there is any, has of the submissions of our job since then, whatever its owner calls it."""
        if not self.paths.sacct:
            return []
        mark = new_mark()
        asked = sacct_history(self.paths.sacct, user, _minutes(begun_s_ago), mark)
        return submitted_as(self._ask(asked), mark, job_id)

    def histories(self, users: Mapping[JobId, Address], begun_s_ago: Mapping[JobId, float]) -> dict[JobId, list[Seen]]:
        """The same of many jobs of many customers, in one command; of each customer since the first of his jobs began."""
        if not (users and self.paths.sacct):
            return {}
        mark, user_mark = new_mark(), new_mark()
        minutes = {user: _minutes(begun_s_ago[job_id]) for job_id, user in users.items()}
        for job_id, user in users.items():
            minutes[user] = max(minutes[user], _minutes(begun_s_ago[job_id]))
        answer = self._ask(sacct_histories(self.paths.sacct, minutes, mark), user_mark.encode() + b"\n")
        told = histories(answer, user_mark)
        return {job_id: submitted_as(told[user], mark, job_id) for job_id, user in users.items() if user in told}

    def scripts(self, jobs: Sequence[Listed]) -> dict[SlurmId, JobId]:
        """Which job of ours each of these is by its batch script; the others are left out. One command for 500 jobs."""
        marks = self._script_marks([job.slurm_id for job in jobs])
        return {slurm_id: job_id for slurm_id, line in marks.items() if (job_id := marked_job(line)) is not None}

    def had(self, wanted: Sequence[Sought], listed: Mapping[SlurmId, Listed]) -> dict[JobId, bool | None]:
        """Whether SLURM or accounting has, or had, what `find` looks for, of many jobs; None is that nobody can tell. A few
        commands for all of them: slurmctld's whole list is at hand, 500 scripts are read at once, accounting is asked once.
        """
        now_s = self.now_s()
        of_users = dict[str, list[Listed]]()
        for row in listed.values():
            of_users.setdefault(row.user, []).append(row)
        suspects = {one.job_id: one.suspects(of_users.get(one.user, ()), now_s - CLOCKS_DIFFER_S) for one in wanted}
        rows = {row.slurm_id: row for some in suspects.values() if len(some) <= MOST_SCRIPTS for row in some}
        marks = self._script_marks(list(rows))
        unread = rows.keys() - marks.keys()
        unread &= self.list_all().keys() if unread else set()  # and not forgotten in between
        ours = {one.job_id: recognised(one.job_id, suspects[one.job_id], marks, unread) for one in wanted}
        rest = {one.job_id: one for one in wanted if ours[one.job_id] is False}
        users, ago_s = {name: one.user for name, one in rest.items()}, {name: one.ago_s for name, one in rest.items()}
        return ours | {job_id: bool(told) for job_id, told in self.histories(users, ago_s).items()}

    def left_a_log(self, user: Address, job_id: JobId, begun_s_ago: float) -> bool:
        """Whether a job of ours wrote where its output goes since then, as far as the login node can see."""
        return job_id in self.left_logs(user, {job_id: begun_s_ago})

    def left_logs(self, user: Address, begun_s_ago: Mapping[JobId, float]) -> set[JobId]:
        """The same of several jobs of one customer, in one command. Raises UnsafeHomeError, as a session begins for it."""
        self.require_own_home(user)
        now_s = self.now_s()
        answer = self.ssh.ask(user, last_writes(f"{job_id}.log" for job_id in begun_s_ago))
        written = {job_id: written_at(answer, f"{job_id}.log") for job_id in begun_s_ago}
        since_s = {job_id: now_s - ago_s - CLOCKS_DIFFER_S for job_id, ago_s in begun_s_ago.items()}
        return {job_id for job_id, at_s in written.items() if at_s is not None and at_s >= since_s[job_id]}

    def list_all(self, user: str | None = None) -> dict[SlurmId, Listed]:
        """All jobs (of one user) that slurmctld remembers, with what their owners may have written, in one question."""
        return self._list(squeue_all(self.paths.squeue, user))

    def _list(self, squeue: Sequence[str]) -> dict[SlurmId, Listed]:
        mark = new_mark()
        return listed_jobs(self._ask(squeue, squeue_format(mark)), mark)

    def look(
        self, wanted: Sequence[Wanted], listed: Mapping[SlurmId, Listed] | None = None, *, accounting: bool = True
    ) -> dict[JobId, Sight]:
        """What can be said of each of these jobs, whatever their number: in one question to slurmctld, one for each 100 batch
        scripts that have to tell, and one to the accounting database about those that slurmctld does not know, unless that
        is not to be asked: it still has those whose id is another job's. Raises SlurmUnavailableError or SshUnavailableError
        when slurmctld does not answer; while accounting does not, nothing is said of the jobs that only it can know. With
        the whole list of slurmctld at hand, it is not asked again. A question that is refused is split: of a job whose id is
        refused alone nothing is said.
        """
        rows, refused = ask_in_parts(_ids(wanted), self._ask_squeue) if listed is None else (listed.values(), {})
        sights = recognise_all(wanted, map(listed_record, rows), self._jobs_of_scripts) | _unclear(wanted, refused)
        missing = [job for job in wanted if sights[job.job_id].unknown]
        if missing and self.paths.sacct and accounting:
            try:
                sights |= self._accounted(self.paths.sacct, missing)
            except TransientError as error:
                sights |= {job.job_id: Sight(unclear=str(error)) for job in missing}
        return sights

    def known_ids(self, slurm_ids: Collection[SlurmId]) -> set[SlurmId]:
        """Which of these ids slurmctld or accounting knows as a job's, whoever owns it."""
        asked = [str(number) for number in sorted(slurm_ids)]
        known = {job.slurm_id for job in ask_in_parts(asked, self._ask_squeue)[0]} if asked else set()
        left = [str(number) for number in sorted(set(slurm_ids) - known)]
        if left and self.paths.sacct:
            known |= {record.seen.slurm_id for record in self._ask_sacct(self.paths.sacct, left)[0]}
        return known

    def _ask_squeue(self, ids: Sequence[str]) -> list[Listed]:
        some = (self._list(squeue_by_id(self.paths.squeue, batch)) for batch in commands.batches(ids))
        return [job for listed in some for job in listed.values()]

    def _ask_sacct(self, sacct: str, ids: Sequence[str]) -> tuple[list[Record], dict[str, str]]:
        mark = new_mark()

        def ask(part: Sequence[str]) -> list[Record]:
            answers = (self._ask(sacct_by_id(sacct, batch, mark)) for batch in commands.batches(part))
            return [accounted_record(job) for answer in answers for job in accounted_jobs(answer, mark)]

        return ask_in_parts(ids, ask)

    def _jobs_of_scripts(self, slurm_ids: Sequence[SlurmId]) -> dict[SlurmId, JobId | None]:
        marks = dict[SlurmId, str]()
        try:
            for first in range(0, len(slurm_ids), SCRIPTS_A_LOOK):
                marks |= self._script_marks(slurm_ids[first : first + SCRIPTS_A_LOOK])
        except TransientError as error:  # the other jobs do not wait for it
            log.warning("scripts_not_read", jobs=len(slurm_ids) - len(marks), error=str(error))
        return {slurm_id: marked_job(line) for slurm_id, line in marks.items()}

    def _accounted(self, sacct: str, wanted: Sequence[Wanted]) -> dict[JobId, Sight]:
        records, refused = self._ask_sacct(sacct, _ids(wanted))
        return recognise_all(wanted, records, lambda _: {}) | _unclear(wanted, refused)

    def cancel(self, slurm_id: SlurmId, user: str) -> None:
        """Ask SLURM to end a job of this user, and nobody else's; one that has ended is fine."""
        with around(Point.SCANCEL):
            require_done(self._ask(commands.scancel(self.paths.scancel, [slurm_id], user)), "scancel")

    def cancel_all(self, slurm_ids: Sequence[SlurmId], user: str) -> dict[SlurmId, str]:
        """The same of several jobs of this user, in one command; returns those that SLURM refused to end, and why."""
        with around(Point.SCANCEL):
            return not_cancelled(self._ask(commands.scancel(self.paths.scancel, slurm_ids, user)), slurm_ids)

    def set_time_limit(self, slurm_id: SlurmId, limit_min: int) -> None:
        """Give a job an absolute time limit; one that has ended is fine."""
        with around(Point.TIME_LIMIT):
            require_done(
                self._ask(commands.set_time_limit(self.paths.scontrol, slurm_id, limit_min)), "scontrol update"
            )

    def put_back(self, slurm_id: SlurmId, words: Sequence[str]) -> None:
        """Change a job that waits; one that has ended is fine. Raises SlurmRejectedError where SLURM does not do that."""
        require_done(self._ask(commands.put_back(self.paths.scontrol, slurm_id, words)), "scontrol update")

    def forbid_requeue(self, slurm_id: SlurmId) -> None:
        """Have SLURM refuse to run a job once more, which its owner could ask for also after its end. Nothing happens to one
        that has ended. Raises SlurmRejectedError.
        """
        self.put_back(slurm_id, ["Requeue=0"])

    def hold_again(self, slurm_id: SlurmId) -> None:
        """Have a job that has ended wait again, and not begin: only such a one can be kept from being requeued. Raises
        SlurmRejectedError.
        """
        require_done(self._ask(commands.hold_again(self.paths.scontrol, slurm_id)), "scontrol requeuehold")

    def requests(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, Size]:
        """What jobs that run were submitted for, as their owner has changed it since; those that SLURM does not know are left
        out. Raises SlurmUnavailableError.
        """
        ids = ",".join(map(str, sorted(slurm_ids)))
        return requests(self._ask(squeue_json(self.paths.squeue, ids)), slurm_ids)

    def memory_per_cpu_limit(self) -> int | None:
        """The site's MaxMemPerCPU (MB), where it has one. Raises SlurmUnavailableError."""
        answers = [
            self._ask(commands.show_config(self.paths.scontrol)),
            self._ask(commands.show_partition(self.paths.scontrol, self.partition)),
        ]
        for answer in answers:
            require_done(answer, "scontrol show")
        config, partition = answers
        return memory_per_cpu_limit(config.stdout, partition.stdout)

    def controller(self) -> Controller:
        """How slurmctld runs. Raises SlurmUnavailableError or SshUnavailableError when it does not answer."""
        answer = self._ask(commands.show_config(self.paths.scontrol), timeout_s=CONTROLLER_TIMEOUT_S)
        unused = has_accounting(answer) and self.paths.sacct is None
        told = Controller(
            boot_time(answer), unused, which(answer), next_id(answer), min_job_age_s(answer), max_job_id(answer)
        )
        self.bounds.max_id = told.max_id
        return told

    def _ask(self, argv: Sequence[str], stdin: bytes = b"", *, timeout_s: float = COMMAND_TIMEOUT_S) -> Answer:
        """Run something that may be run twice, as the admin user."""
        try:
            return self.ssh.run(self.admin, argv, stdin, timeout_s)
        except OutcomeUnknownError as error:
            raise SlurmUnavailableError(str(error)) from error


def _minutes(begun_s_ago: float) -> int:
    return int(begun_s_ago + CLOCKS_DIFFER_S) // 60 + 1


def _unclear(wanted: Iterable[Wanted], refused: Mapping[str, str]) -> dict[JobId, Sight]:
    return {job.job_id: Sight(unclear=why) for job in wanted if (why := refused.get(str(job.slurm_id))) is not None}


def _ids(wanted: Iterable[Wanted]) -> list[str]:
    return [str(slurm_id) for slurm_id in sorted({job.slurm_id for job in wanted})]


def new_mark() -> str:
    """What nobody can guess, to stand between the parts of one answer."""
    return secrets.token_hex(16)
