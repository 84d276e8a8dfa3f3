"""Submissions to SLURM, over SSH: sbatch as the customer, guarded on the login node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from supervisor_tasks.crash_points import CrashPoint, after, before
from supervisor_tasks.errors import OutcomeUnknownError, SupervisorError, TransientError
from supervisor_tasks.jobs.effect_timing import SUBMIT_TIMEOUT_S, submission_window_s
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm import commands, guarded_command
from supervisor_tasks.slurm.associations import Associations
from supervisor_tasks.slurm.guarded_command import LoginClock, Order
from supervisor_tasks.slurm.interface import OnAnswer, Request, SlurmSettings
from supervisor_tasks.slurm.login_node import LoginNode, new_delimiter
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    UnknownAccountError,
    submitted_id,
)
from supervisor_tasks.slurm.ssh import our_clock_s
from supervisor_tasks.slurm.ssh_site import LastReported
from supervisor_tasks.slurm.submit_token import usable_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSubmissions:
    """Submissions as customers and as the user of benchmarks. `reported` has the
    highest id that an answer may show. A customer whom accounting does not know is
    added to an account by `associations`. Jobs inherit what `environment_file`, a file of
    the site's on the login node, exports. Threads may share it.
    """

    login_node: LoginNode
    settings: SlurmSettings
    reported: LastReported
    environment_file: str
    associations: Associations

    @property
    def window_s(self) -> float:
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
        """Submit jobs of one customer in one guarded command; see Submissions."""
        begun_login_s = clock.at(begun_s)
        orders, is_unknown = list[Order](), False
        for job_id, request in requests:
            orders.append(self._order(user, job_id, request, begun_login_s))

        def order_answered(number: int, outcome: SlurmId | Exception) -> None:
            nonlocal is_unknown
            is_unknown |= isinstance(outcome, UnknownAccountError)
            job_id, _ = requests[number]
            answered(job_id, outcome)

        self._run_guarded(user, orders, clock, begun_s, order_answered)
        if is_unknown:
            self.associations.add(user)

    def _order(
        self, user: Address, job_id: JobId, request: Request, begun_login_s: int
    ) -> Order:
        argv = commands.sbatch(
            self.login_node.paths.sbatch,
            job_id,
            request.definition,
            limit_min=request.limit_min,
            partition=self.settings.partition,
            comment=request.comment(user, job_id, self.settings, begun_login_s),
        )
        return Order(argv, commands.batch_script(job_id, request.script))

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
