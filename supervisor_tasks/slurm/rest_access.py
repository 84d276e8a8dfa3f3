"""Questions and orders to slurmrestd, as the admin."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.slurm import rest_answers
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_client import RestClient
from supervisor_tasks.slurm.rest_tokens import TokenMint

QUESTION_TIMEOUT_S = 30.0
# of a question or order that is safe to run twice; our clock may be wrong by minutes
TOKEN_FOR_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAccess:
    """Questions and orders to one slurmrestd. `admin` is the Linux user (SlurmUser or
    an operator) who sees and changes all jobs.
    """

    client: RestClient
    mint: TokenMint
    admin: str

    def ask(
        self, path: str, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> Mapping[str, Any]:
        """Ask as the admin. Raises SlurmUnavailableError; a retry helps. Raises
        QuestionRejectedError where SLURM rejected; a retry helps once SLURM accepts the
        question.
        """
        return rest_answers.require_answer(
            self.order("GET", path, timeout_s=timeout_s), f"GET {path}"
        )

    def order(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = QUESTION_TIMEOUT_S,
    ) -> RestAnswer:
        """Send a request that is safe to run twice, as the admin. Raises
        SlurmUnavailableError when no answer came; a retry helps.
        """
        now_s = int(time.time())
        token = self.mint.token(self.admin, now_s, now_s + TOKEN_FOR_S)
        try:
            return self.client.request(
                method, path, self.admin, token, body=body, timeout_s=timeout_s
            )
        except OutcomeUnknownError as error:
            raise SlurmUnavailableError(str(error)) from error
