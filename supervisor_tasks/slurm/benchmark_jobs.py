"""The SLURM jobs that measure the cluster. This module submits them, finds them by
name, reads their output, and cancels them.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.benchmarking.benchmark_run import (
    MAX_OUTPUT_BYTES,
    Measurement,
    batch_script,
    output_file,
    sbatch,
)
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.guarded_command import LoginClock, Order
from supervisor_tasks.slurm.interface import CLOCKS_DIFFER_S
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.login_node import new_delimiter
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    JobRecord,
    SlurmUnavailableError,
)
from supervisor_tasks.slurm.sacct import accounted_jobs, sacct_named
from supervisor_tasks.slurm.squeue import SqueueRow

READ_TIMEOUT_S = 120.0  # for 10 MB
MAX_BACK_S = 30 * 86400.0
_READ = (
    'IFS= read -r m; if [ -e "$1" ]; then echo "$m there"; tail -c "$2" -- "$1" | base64; echo "$m whole"; '
    'else echo "$m absent"; fi'
)
_REMOVE = ("rm", "-f", "--")


@dataclass(frozen=True, slots=True)
class BenchmarkJobs:
    """The benchmark jobs of one cluster. New ones run as `user`. Jobs that a worker
    with other settings submitted still belong to the user of those settings. Threads
    may share it.
    """

    cluster: Cluster
    user: str

    def clock(self) -> LoginClock:
        """Return the login node's clock. Raises TransientError when the login node
        rejects the connection; a retry helps.
        """
        return self.cluster.clock.of(self.user)

    def submit(
        self, measurement: Measurement, clock: LoginClock, begun_s: float
    ) -> SlurmId | Exception:
        """Submit a benchmark to SLURM, soon after `begun_s` or not at all. Returns the
        answer.
        """
        argv = sbatch(
            self.cluster.login_node.paths.sbatch,
            measurement,
            partition=self.cluster.settings.partition,
        )
        return self.cluster.submissions.run_sbatch(
            self.user, Order(argv, batch_script(measurement)), clock, begun_s
        )

    def owner(self, measurement: Measurement) -> str:
        """Return the Linux user that the job runs as, or will run as."""
        return measurement.run_as or self.user

    def listed(self, measurement: Measurement) -> list[SqueueRow]:
        """Return all jobs of the user that slurmctld remembers, oldest first. Raises
        SlurmUnavailableError when slurmctld does not answer; a retry helps.
        """
        return sorted(
            self.cluster.queries.list_all(self.owner(measurement)).values(),
            key=lambda job: job.slurm_id,
        )

    def accounted(self, measurement: Measurement) -> JobRecord | None:
        """Return accounting's record of a job that has ended and that slurmctld does
        not know. None without such a record, or at a site without accounting. Raises
        SlurmUnavailableError when accounting does not answer; a retry helps.
        """
        sacct = self.cluster.login_node.paths.sacct
        if sacct is None:
            return None
        delimiter = new_delimiter()
        argv = sacct_named(
            sacct,
            measurement.job_name,
            self.owner(measurement),
            minutes_back(measurement.called_ago_s),
            delimiter,
        )
        for row in reversed(accounted_jobs(self._ask(measurement, argv), delimiter)):
            if row.record.phase is Phase.ENDED:
                return row.record
        return None

    def output(self, measurement: Measurement) -> bytes | None:
        """Return the end of the job's output, 10 MB at most; None when the file is
        missing. Raises SlurmUnavailableError when it could not be read whole, and
        LoginRejectedError when the login node does not let the user in. A retry helps.
        """
        delimiter = new_delimiter()
        argv = [
            "/bin/sh",
            "-c",
            _READ,
            "output",
            output_file(measurement.job_name),
            str(MAX_OUTPUT_BYTES),
        ]
        return read_output(
            self._ask(measurement, argv, delimiter.encode() + b"\n", READ_TIMEOUT_S),
            delimiter,
        )

    def remove_output(self, measurement: Measurement) -> None:
        """Remove the job's output; a second call changes nothing. Raises
        SlurmUnavailableError when it may still be there; a retry helps.
        """
        answer = self._ask(measurement, [*_REMOVE, output_file(measurement.job_name)])
        if answer.status != 0:
            raise SlurmUnavailableError(
                f"rm ended with status {answer.status}: {answer.stderr[:200]!r}"
            )

    def cancel(self, measurement: Measurement, slurm_id: SlurmId) -> None:
        """Ask SLURM to end a job of the user. Raises SlurmUnavailableError when SLURM
        does not answer (a retry helps), and SlurmRejectedError (a retry does not).
        """
        self.cluster.control.cancel(slurm_id, self.owner(measurement))

    def _ask(
        self,
        measurement: Measurement,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout_s: float = 30.0,
    ) -> CommandAnswer:
        """Run a command as the user. The command must be safe to run twice."""
        return self.cluster.login_node.ask_as(
            self.owner(measurement), argv, stdin, timeout_s=timeout_s
        )


def minutes_back(called_ago_s: float) -> int:
    """Return how many minutes accounting must look back for a job. A restored ledger
    does not know when it submitted the job.
    """
    return int(min(called_ago_s, MAX_BACK_S) + CLOCKS_DIFFER_S) // 60 + 1


def read_output(answer: CommandAnswer, delimiter: str) -> bytes | None:
    """Return the bytes between the delimiters; None when the file is missing. Raises
    SlurmUnavailableError when they did not all arrive; a retry helps.
    """
    _, _, shown = answer.stdout.partition(f"{delimiter} ")
    if shown.startswith("absent\n"):
        return None
    encoded, end, _ = shown.removeprefix("there\n").partition(f"{delimiter} whole\n")
    if not (shown.startswith("there\n") and end):
        raise SlurmUnavailableError(
            f"an output could not be read (status {answer.status}): {answer.stderr[:200]!r}"
        )
    try:
        return base64.b64decode(encoded)
    except binascii.Error as error:
        raise SlurmUnavailableError(f"an output is incomplete: {error}") from error
