"""Questions about slurmctld and what the site has configured, over SSH."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import structlog

from supervisor_tasks.errors import TransientError
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.account_defaults import (
    plugins_may_choose,
    show_users,
    site_choices,
)
from supervisor_tasks.slurm.cluster_identity import parse_cluster_identity
from supervisor_tasks.slurm.interface import CONTROLLER_TIMEOUT_S, Controller
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.parsers import (
    MAX_SLURM_ID,
    boot_time,
    has_accounting,
    max_job_id,
    min_job_age_s,
    next_id,
    require_success,
)
from supervisor_tasks.slurm.size import SiteChoice, Size, memory_per_cpu_limit
from supervisor_tasks.slurm.ssh import our_clock_s

log = structlog.get_logger()

CHOICES_ASKED_AGAIN_S = 60.0  # a slurmdbd that hangs must not delay each look


@dataclass(slots=True)
class LastReported:
    """The last values that SLURM reported to this process."""

    max_id: int = MAX_SLURM_ID
    controller: Controller | None = None
    site_choices: dict[str, SiteChoice] = field(default_factory=dict)  # of users
    choices_asked_from_s: float = 0.0  # by `our_clock_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSiteQueries:
    """Questions about slurmctld and the site to scontrol and sacctmgr. Threads may
    share it.
    """

    login_node: LoginNode
    partition: str
    reported: LastReported

    def site_choices(
        self, shown: Collection[tuple[str, Size]]
    ) -> Mapping[str, SiteChoice] | None:
        """Return what the site gives the jobs of these users, who have jobs of these
        sizes. A user is left out if SLURM does not show what the site gives him. None
        where a plugin of the site may choose.

        It asks the accounting database, in one command, about users whose jobs have
        another account or QOS than the database reported last. If the database does not
        answer, its last answer counts, and the next question comes after a minute.
        """
        reported = self.reported
        controller = reported.controller or self.controller()
        if controller.plugins_choose:
            return None
        choices = reported.site_choices
        users = set[str]()
        for user, size in shown:
            choice = choices.get(user)
            given = (size.account, size.qos)
            if choice is None or (choice.account, choice.qos) != given:
                users.add(user)
        if not (users and self.login_node.paths.sacct):
            return choices
        if our_clock_s() < reported.choices_asked_from_s:
            return choices
        sacctmgr = str(PurePosixPath(self.login_node.paths.sacct).with_name("sacctmgr"))
        question = show_users(sacctmgr, users, controller.identity.name)
        try:
            answer = self.login_node.ask(question, timeout_s=CONTROLLER_TIMEOUT_S)
            choices |= site_choices(answer, self.partition)
        except TransientError as error:
            # the look goes on: slurmctld alone knows what runs
            reported.choices_asked_from_s = our_clock_s() + CHOICES_ASKED_AGAIN_S
            log.warning("site_choices_unknown", users=len(users), error=str(error))
        return choices

    def memory_per_cpu_limit(self) -> int | None:
        """Return the site's MaxMemPerCPU (MB), None where it has none. Raises
        SlurmUnavailableError when slurmctld does not answer; a retry helps.
        """
        answers = [
            self.login_node.ask(commands.show_config(self.login_node.paths.scontrol)),
            self.login_node.ask(
                commands.show_partition(self.login_node.paths.scontrol, self.partition)
            ),
        ]
        for answer in answers:
            require_success(answer, "scontrol show")
        config, partition = answers
        return memory_per_cpu_limit(config.stdout, partition.stdout)

    def controller(self) -> Controller:
        """Return slurmctld's state. Raises SlurmUnavailableError or SshUnavailableError
        when it does not answer; a retry helps.
        """
        answer = self.login_node.ask(
            commands.show_config(self.login_node.paths.scontrol),
            timeout_s=CONTROLLER_TIMEOUT_S,
        )
        accounting_unused = (
            has_accounting(answer) and self.login_node.paths.sacct is None
        )
        controller = Controller(
            boot_time(answer),
            accounting_unused,
            parse_cluster_identity(answer),
            next_id(answer),
            min_job_age_s(answer),
            max_job_id(answer),
            plugins_may_choose(answer.stdout),
        )
        self.reported.max_id, self.reported.controller = controller.max_id, controller
        return controller
