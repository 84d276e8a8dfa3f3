"""The supervisor's questions and orders to SLURM. Each is one command unless its
docstring says otherwise.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from supervisor_tasks.crash_points import CrashPoint, after, before
from supervisor_tasks.errors import (
    OutcomeUnknownError,
    SupervisorError,
    TransientError,
    UndecidedError,
)
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S, submission_window_s
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm import commands, guarded_command
from supervisor_tasks.slurm.guarded_command import LoginClock, Order
from supervisor_tasks.slurm.homes import Homes
from supervisor_tasks.slurm.interface import (
    CLOCKS_DIFFER_S,
    FindOwners,
    OnAnswer,
    Request,
    SlurmCluster,
    SlurmSettings,
)
from supervisor_tasks.slurm.login_node import LoginNode, new_delimiter
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    QuestionRejectedError,
    submitted_id,
)
from supervisor_tasks.slurm.sacct import (
    sacct_histories,
    submissions_by_user,
    submitted_as,
)
from supervisor_tasks.slurm.script_matching import (
    MAX_SCRIPTS,
    ScriptSearch,
    found_by_name,
    found_by_script,
    is_recognised,
    job_id_in_header,
)
from supervisor_tasks.slurm.squeue import (
    SqueueRow,
)
from supervisor_tasks.slurm.ssh import our_clock_s
from supervisor_tasks.slurm.ssh_clock import SshClock
from supervisor_tasks.slurm.ssh_control import SshControl
from supervisor_tasks.slurm.ssh_homes import SshHomeCheck, SshJobLogs
from supervisor_tasks.slurm.ssh_queries import SshJobQueries
from supervisor_tasks.slurm.ssh_scripts import SshScripts
from supervisor_tasks.slurm.ssh_site import LastReported, SshSiteQueries
from supervisor_tasks.slurm.submit_token import (
    expires_s,
    usable_s,
    with_token,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """SLURM behind the login node. Threads may share it."""

    login_node: LoginNode
    settings: SlurmSettings
    clock: SshClock
    homes: SshHomeCheck
    logs: SshJobLogs
    batch_scripts: SshScripts
    queries: SshJobQueries
    site: SshSiteQueries
    control: SshControl
    reported: LastReported
    # the site's file on the login node; jobs inherit what it exports
    environment_file: str

    @classmethod
    def of(
        cls,
        login_node: LoginNode,
        settings: SlurmSettings,
        *,
        homes: Homes | None = None,
        environment_file: str = "",
    ) -> "Cluster":
        """Build the cluster's parts. `environment_file` is the site's file on the login
        node; jobs inherit what it exports.
        """
        clock = SshClock(login_node=login_node)
        home_check = SshHomeCheck(login_node=login_node, homes=homes or Homes())
        scripts = SshScripts(login_node=login_node)
        reported = LastReported()
        return cls(
            login_node=login_node,
            settings=settings,
            clock=clock,
            homes=home_check,
            logs=SshJobLogs(login_node=login_node, clock=clock, homes=home_check),
            batch_scripts=scripts,
            queries=SshJobQueries(login_node=login_node, scripts=scripts),
            site=SshSiteQueries(
                login_node=login_node, partition=settings.partition, reported=reported
            ),
            control=SshControl(login_node=login_node),
            reported=reported,
            environment_file=environment_file,
        )

    @property
    def address(self) -> str:
        """The login node."""
        return self.login_node.address

    def close(self) -> None:
        """Close the connections."""
        self.login_node.close()

    @property
    def submission_window_s(self) -> float:
        """How many seconds after its beginning a submission can no longer change
        anything in SLURM.
        """
        return submission_window_s(self.settings.message_timeout_s)

    @property
    def token_window_s(self) -> float:
        """How many seconds after the beginning of a submission slurmctld may still take
        the token that the customer's login session got; 0 without SLURM_SUBMIT_KEY.
        """
        if not self.settings.submit_key:
            return 0.0
        return usable_s(SUBMIT_TIMEOUT_S, self.settings.message_timeout_s)

    def submit_batch(
        self,
        user: Address,
        requests: Sequence[tuple[JobId, Request]],
        clock: LoginClock,
        begun_s: float,
        answered: OnAnswer,
    ) -> None:
        """Submit jobs of one customer to SLURM, one after the other, within
        SUBMIT_TIMEOUT_S of `begun_s` (`our_clock_s`) or not at all. Calls `answered`
        once for each job, in this thread, as soon as its answer is there
        (`submit_once.fate_of`). Raises only exceptions of `answered`: then the other
        jobs get no call, and SLURM may have them.
        """
        begun_login_s = clock.at(begun_s)
        orders = list[Order]()
        for job_id, request in requests:
            orders.append(self._order(user, job_id, request, begun_login_s))

        def order_answered(number: int, outcome: SlurmId | Exception) -> None:
            job_id, _ = requests[number]
            answered(job_id, outcome)

        self._run_guarded(user, orders, clock, begun_s, order_answered)

    def _order(
        self, user: Address, job_id: JobId, request: Request, begun_login_s: int
    ) -> Order:
        argv = commands.sbatch(
            self.login_node.paths.sbatch,
            job_id,
            request.definition,
            limit_min=request.limit_min,
            partition=self.settings.partition,
            comment=self._comment(user, job_id, request, begun_login_s),
        )
        return Order(argv, commands.batch_script(job_id, request.script))

    def _comment(
        self, user: Address, job_id: JobId, request: Request, begun_login_s: int
    ) -> str:
        comment = commands.comment(self.settings.public_address)
        if not self.settings.submit_key:
            return comment
        until_s = expires_s(
            begun_login_s, SUBMIT_TIMEOUT_S, self.settings.message_timeout_s
        )
        submission = request.submission(
            user,
            job_id,
            partition=self.settings.partition,
            comment=comment,
            expires_s=until_s,
        )
        return with_token(submission, self.settings.submit_key)

    def run_sbatch(
        self, user: str, order: Order, clock: LoginClock, begun_s: float
    ) -> SlurmId | Exception:
        """Run sbatch as a user, within SUBMIT_TIMEOUT_S of `begun_s` or not at all.
        Returns the answer.
        """
        outcomes = list[SlurmId | Exception]()
        self._run_guarded(
            user, [order], clock, begun_s, lambda _, outcome: outcomes.append(outcome)
        )
        return outcomes[0]

    def _run_guarded(
        self,
        user: str,
        orders: Sequence[Order],
        clock: LoginClock,
        begun_s: float,
        answered: Callable[[int, SlurmId | Exception], None],
    ) -> None:
        """Run these orders in one command, within SUBMIT_TIMEOUT_S of `begun_s` or not
        at all. `answered` gets the number and the answer of each.
        """

        def on_answer(number: int, answer: CommandAnswer) -> None:
            after(CrashPoint.SBATCH)
            answered(number, self._outcome(answer))

        answers = guarded_command.Answers(
            new_delimiter(), len(orders), on_answer, our_clock_s
        )
        unanswered: Exception = guarded_command.TooLateError(
            "this worker took too long to send the submission; nothing was sent"
        )
        if our_clock_s() < begun_s + SUBMIT_TIMEOUT_S:
            until_login_s = clock.at(begun_s + SUBMIT_TIMEOUT_S)
            argv = guarded_command.guard_command(
                len(orders), until_login_s, clock.slurm_conf, self.environment_file
            )
            stdin = guarded_command.framed(answers.delimiter, orders)
            before(CrashPoint.SBATCH)
            unanswered = self._stream(user, argv, stdin, answers)
        if answers.came_late:
            self.login_node.ssh.discard_clock(user)  # the clock may be wrong by now
        for number in range(answers.answered, len(orders)):
            answered(number, unanswered)

    def _stream(
        self,
        user: str,
        argv: Sequence[str],
        stdin: bytes,
        answers: guarded_command.Answers,
    ) -> Exception:
        """Give the input to a command of the guard. Returns the error of the orders
        that have no answer at the end.
        """
        try:
            status = self.login_node.ssh.stream_in_turn(
                user,
                argv,
                stdin,
                guarded_command.ANSWERED_AFTER_S,
                answers,
                other=self.login_node.admin,
            )
        except (TransientError, OutcomeUnknownError) as error:
            return error
        return answers.ended(status)

    def _outcome(self, answer: CommandAnswer) -> SlurmId | Exception:
        try:
            return submitted_id(answer, self.reported.max_id)
        except SupervisorError as error:
            return error

    def find(
        self, user: Address, begun_s_ago: Mapping[JobId, float], owners: FindOwners
    ) -> dict[JobId, list[JobRecord] | UndecidedError]:
        """Return all records that slurmctld has of each of these jobs of one customer,
        even if their owner has renamed them. `owners` takes SLURM ids with their
        submission times and returns the ids that are jobs of ours, with these jobs. The
        error is in the place of a job when a SLURM job may or may not be this one. It
        runs one command for slurmctld's list, and one for each 500 scripts. If a job is
        not found by its name, it runs these commands once more, and one for the clock.
        """
        listed = self.queries.list_all(user)
        owned = owners({slurm_id: row.submit_s for slurm_id, row in listed.items()})
        searches = list[ScriptSearch]()
        named = dict[JobId, list[SqueueRow]]()
        for job_id, ago_s in begun_s_ago.items():
            search = ScriptSearch(job_id, user, ago_s, owned)
            searches.append(search)
            named[job_id] = search.with_our_name(listed.values())
        headers = self._headers_of(named.values())
        found = dict[JobId, list[JobRecord] | UndecidedError]()
        not_found = list[ScriptSearch]()
        for search in searches:
            ours = found_by_name(search.job_id, named[search.job_id], headers)
            found[search.job_id] = ours
            if ours == []:
                not_found.append(search)
        if not_found:
            found |= self._find_renamed(user, not_found, listed.values())
        return found

    def _find_renamed(
        self,
        user: Address,
        searches: Sequence[ScriptSearch],
        listed: Collection[SqueueRow],
    ) -> dict[JobId, list[JobRecord] | UndecidedError]:
        now_s = self.clock.now_s() - CLOCKS_DIFFER_S
        recent = dict[JobId, list[SqueueRow]]()
        unread = set[SlurmId]()
        for search in searches:
            rows = search.submitted_since_start(listed, now_s)
            recent[search.job_id] = rows
            unread.update(row.slurm_id for row in rows)
        headers = self._headers_of(recent.values())
        unread -= headers.keys()
        if unread:
            unread &= self.queries.list_all(
                user
            ).keys()  # those that slurmctld still has
        found = dict[JobId, list[JobRecord] | UndecidedError]()
        for search in searches:
            rows = recent[search.job_id]
            found[search.job_id] = found_by_script(search, rows, headers, unread)
        return found

    def _headers_of(
        self, suspects: Iterable[Sequence[SqueueRow]]
    ) -> dict[SlurmId, str]:
        """Return the scripts' second lines for the suspects of each job, but not for a
        job with too many suspects.
        """
        return self.batch_scripts.headers(sorted(_ids_to_read(suspects)))

    def sacct_submissions_of(
        self, users: Mapping[JobId, Address], begun_s_ago: Mapping[JobId, float]
    ) -> dict[JobId, list[JobRecord] | QuestionRejectedError]:
        """Return accounting's records of the submissions of these jobs since they
        began, even if their owners have renamed them, in one command. Each customer's
        history starts at the earliest of his submissions. The error is in the place of
        a job whose customer the login node does not know. The result is empty at a site
        without accounting.
        """
        if not (users and self.login_node.paths.sacct):
            return {}
        minutes = dict[Address, int]()
        for job_id, user in users.items():
            needed = int(begun_s_ago[job_id] + CLOCKS_DIFFER_S) // 60 + 1
            minutes[user] = max(minutes.get(user, needed), needed)
        delimiter, user_delimiter = new_delimiter(), new_delimiter()
        answer = self.login_node.ask(
            sacct_histories(self.login_node.paths.sacct, minutes, delimiter),
            user_delimiter.encode() + b"\n",
        )
        histories = submissions_by_user(answer, user_delimiter)
        records = dict[JobId, list[JobRecord] | QuestionRejectedError]()
        for job_id, user in users.items():
            if user not in histories:
                continue
            try:
                records[job_id] = submitted_as(histories[user], delimiter, job_id)
            except QuestionRejectedError as error:
                records[job_id] = error
        return records

    def scripts(self, jobs: Sequence[SqueueRow]) -> dict[SlurmId, JobId]:
        """Return the job of ours that each SLURM job's batch script names; the others
        are left out. One command reads up to 500 scripts.
        """
        headers = self.batch_scripts.headers([job.slurm_id for job in jobs])
        named = dict[SlurmId, JobId]()
        for slurm_id, header in headers.items():
            job_id = job_id_in_header(header)
            if job_id is not None:
                named[slurm_id] = job_id
        return named

    def was_submitted(
        self, wanted: Sequence[ScriptSearch], listed: Mapping[SlurmId, SqueueRow]
    ) -> dict[JobId, bool | None]:
        """Return for each job whether SLURM or accounting has, or had, what `find`
        searches for; None when the records cannot decide it. It runs few commands:
        `listed` is slurmctld's whole list, one command reads up to 500 scripts, and one
        command asks accounting.
        """
        now_s = self.clock.now_s() - CLOCKS_DIFFER_S
        rows_of_user = dict[str, list[SqueueRow]]()
        for row in listed.values():
            rows_of_user.setdefault(row.record.user, []).append(row)
        suspects = dict[JobId, list[SqueueRow]]()
        for search in wanted:
            # a job whose user could not be resolved may be anyone's
            rows = [*rows_of_user.get(search.user, ()), *rows_of_user.get("", ())]
            suspects[search.job_id] = search.suspects(rows, now_s)
        slurm_ids = _ids_to_read(suspects.values())
        headers = self.batch_scripts.headers(slurm_ids)
        unread = set(slurm_ids) - headers.keys()
        if unread:
            unread &= self.queries.list_all().keys()  # those that slurmctld still has
        results = dict[JobId, bool | None]()
        users, ago_s = dict[JobId, Address](), dict[JobId, float]()
        for search in wanted:
            job_id = search.job_id
            results[job_id] = is_recognised(job_id, suspects[job_id], headers, unread)
            if results[job_id] is False:
                users[job_id], ago_s[job_id] = search.user, search.ago_s
        for job_id, records in self.sacct_submissions_of(users, ago_s).items():
            results[job_id] = None
            if not isinstance(records, QuestionRejectedError):
                results[job_id] = bool(records)
        return results


def over_ssh(cluster: SlurmCluster) -> Cluster:
    """Return the cluster as one behind a login node, for a caller that needs its
    commands. Raises LookupError with another transport.
    """
    if not isinstance(cluster, Cluster):
        raise LookupError("SLURM_TRANSPORT=rest: there is no login node")
    return cluster


def _ids_to_read(suspects: Iterable[Sequence[SqueueRow]]) -> list[SlurmId]:
    """Return the ids of the suspects of each job, each id once. A job that has too many
    suspects is left out.
    """
    slurm_ids = dict[SlurmId, None]()
    for rows in suspects:
        if len(rows) <= MAX_SCRIPTS:
            slurm_ids |= dict.fromkeys(row.slurm_id for row in rows)
    return list(slurm_ids)
