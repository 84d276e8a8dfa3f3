"""The associations of customers with an account of SLURM's accounting database, which
slurmctld can require of each user who submits a job. Over SSH.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

import structlog

from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import Address
from supervisor_tasks.slurm.interface import CONTROLLER_TIMEOUT_S
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.ssh import our_clock_s

log = structlog.get_logger()

ADDED_AGAIN_S = 60.0  # slurmctld may reject his jobs for another reason in these words


@dataclass(frozen=True, slots=True, kw_only=True)
class Associations:
    """Adds customers to `account` as the admin, by sacctmgr; to none where `account` is
    empty, because the site adds them. Threads may share it.
    """

    login_node: LoginNode
    account: str
    # by `our_clock_s`, when each customer may be added again
    _again_s: dict[Address, float] = field(default_factory=dict)

    def add(self, customer: Address) -> None:
        """Add the customer to the account, at most once a minute. A failure is logged:
        his job waits, slurmctld's rejection of it is shown, and the next rejection has
        him added again.
        """
        sacct = self.login_node.paths.sacct
        now_s = our_clock_s()
        if not self.account or sacct is None or now_s < self._again_s.get(customer, 0):
            return
        self._again_s[customer] = now_s + ADDED_AGAIN_S
        sacctmgr = str(PurePosixPath(sacct).with_name("sacctmgr"))
        names = (f"name={customer}", f"account={self.account}")
        argv = [sacctmgr, "--immediate", "add", "user", *names]
        try:
            answer = self.login_node.ask(argv, timeout_s=CONTROLLER_TIMEOUT_S)
        except TransientError as error:
            answer_text, status = str(error), None
        else:
            answer_text, status = answer.stderr or answer.stdout, answer.status
        said = " ".join(answer_text.split())[:300]
        fields = {"customer": customer, "account": self.account, "said": said}
        if status == 0:
            log.info("customer_added_to_account", **fields)
        else:
            log.warning("customer_not_added_to_account", **fields)
