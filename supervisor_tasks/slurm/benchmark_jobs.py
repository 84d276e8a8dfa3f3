"""The SLURM jobs that measure the cluster: submitted, found again by their names, read, cancelled."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.benchmark_run import MOST_OUTPUT, Measurement, batch_script, output_file, sbatch
from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.job import SlurmId
from supervisor_tasks.slurm.accounting import accounted_jobs, sacct_named
from supervisor_tasks.slurm.cluster import CLOCKS_DIFFER_S, Cluster, new_mark
from supervisor_tasks.slurm.guarded_command import LoginClock, Order
from supervisor_tasks.slurm.listing import Listed
from supervisor_tasks.slurm.output import Answer, Seen, SlurmUnavailableError
from supervisor_tasks.slurm.states import Phase

READ_TIMEOUT_S = 120.0  # for 10 MB
LONGEST_BACK_S = 30 * 86400.0
_READ = (
    'IFS= read -r m; if [ -e "$1" ]; then echo "$m there"; tail -c "$2" -- "$1" | base64; echo "$m whole"; '
    'else echo "$m absent"; fi'
)
_REMOVE = ("rm", "-f", "--")


@dataclass(frozen=True, slots=True)
class BenchmarkJobs:
    """The benchmark jobs of one cluster. They run as `user`; those that a worker with other settings has handed to SLURM
    stay the jobs of another one. Threads may share it.
    """

    cluster: Cluster
    user: str

    def clock(self) -> LoginClock:
        """The login node's clock. Raises TransientError when it does not let us in."""
        return self.cluster.clock(self.user)

    def submit(self, one: Measurement, clock: LoginClock, begun_s: float) -> SlurmId:
        """Hand a benchmark to SLURM, soon after `begun_s` or not at all; raises what `Cluster.hand_over` does."""
        argv = sbatch(self.cluster.paths.sbatch, one, partition=self.cluster.partition)
        return self.cluster.hand_over(self.user, Order(argv, batch_script(one)), clock, begun_s)

    def owner(self, one: Measurement) -> str:
        """Whose job it is, or will be."""
        return one.run_as or self.user

    def listed(self, one: Measurement) -> list[Listed]:
        """All jobs of its user that slurmctld remembers, the oldest first. Raises SlurmUnavailableError."""
        return sorted(self.cluster.list_all(self.owner(one)).values(), key=lambda job: job.slurm_id)

    def accounted(self, one: Measurement) -> Seen | None:
        """What accounting, where there is any, says of a job that slurmctld does not know and that has ended."""
        sacct = self.cluster.paths.sacct
        if sacct is None:
            return None
        mark = new_mark()
        argv = sacct_named(sacct, one.job_name, self.owner(one), minutes_back(one.called_s_ago), mark)
        records = [record.seen for record in accounted_jobs(self._ask(one, argv), mark)]
        return next((seen for seen in reversed(records) if seen.phase is Phase.ENDED), None)

    def output(self, one: Measurement) -> bytes | None:
        """The end of what a job wrote, 10 MB at most; None when there is no such file. Raises SlurmUnavailableError."""
        mark = new_mark()
        argv = ["/bin/sh", "-c", _READ, "output", output_file(one.job_name), str(MOST_OUTPUT)]
        return read_output(self._ask(one, argv, mark.encode() + b"\n", READ_TIMEOUT_S), mark)

    def remove_output(self, one: Measurement) -> None:
        """Remove what a job wrote; twice is as good as once."""
        answer = self._ask(one, [*_REMOVE, output_file(one.job_name)])
        if answer.status != 0:
            raise SlurmUnavailableError(f"rm ended with status {answer.status}: {answer.stderr[:200]!r}")

    def cancel(self, one: Measurement, slurm_id: SlurmId) -> None:
        """Ask SLURM to end a job of its user."""
        self.cluster.cancel(slurm_id, self.owner(one))

    def _ask(self, one: Measurement, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 30.0) -> Answer:
        """Run something as its user that may be run twice."""
        try:
            return self.cluster.ssh.run(self.owner(one), argv, stdin, timeout_s)
        except OutcomeUnknownError as error:
            raise SlurmUnavailableError(str(error)) from error


def minutes_back(called_s_ago: float) -> int:
    """How far accounting is to look back for a job. When it was handed over is not known of a ledger that was restored."""
    return int(min(called_s_ago, LONGEST_BACK_S) + CLOCKS_DIFFER_S) // 60 + 1


def read_output(answer: Answer, mark: str) -> bytes | None:
    """The bytes that stand between the marks; None for a file that is not there. Raises SlurmUnavailableError."""
    _, found, rest = answer.stdout.partition(f"{mark} ")
    if found and rest.startswith("absent\n"):
        return None
    encoded, whole, _ = rest.removeprefix("there\n").partition(f"{mark} whole\n")
    if not (found and rest.startswith("there\n") and whole):
        raise SlurmUnavailableError(f"an output could not be read (status {answer.status}): {answer.stderr[:200]!r}")
    try:
        return base64.b64decode(encoded)
    except binascii.Error as error:
        raise SlurmUnavailableError(f"an output did not come whole: {error}") from error
