"""Questions about jobs, over SSH. Each is one command unless its docstring says
otherwise.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import structlog

from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.slurm import commands
from supervisor_tasks.slurm.job_matching import (
    MatchRequest,
    MatchResult,
    Record,
    accounted_record,
    listed_record,
    match_jobs,
)
from supervisor_tasks.slurm.login_node import LoginNode, new_delimiter
from supervisor_tasks.slurm.not_started import (
    accounted_end_command,
    accounted_ends,
    drained_command,
    drained_s,
    ended_on,
    ended_on_command,
    not_started,
)
from supervisor_tasks.slurm.sacct import accounted_jobs, sacct_by_id
from supervisor_tasks.slurm.script_matching import job_id_in_header
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.splitting import ask_in_parts
from supervisor_tasks.slurm.squeue import (
    SqueueRow,
    listed_jobs,
    requested_sizes,
    squeue_all,
    squeue_by_id,
    squeue_format,
    squeue_json,
)
from supervisor_tasks.slurm.ssh_scripts import SshScripts

log = structlog.get_logger()

# in one command, so that a slow slurmctld answers within COMMAND_TIMEOUT_S
SCRIPTS_A_LOOK = 100
REMARKS_KEPT = 64  # texts on squeue's standard error that were logged
_SHOWN = 200  # characters of such a text


@dataclass(frozen=True, slots=True, kw_only=True)
class SshJobQueries:
    """Questions about jobs to squeue, sacct and scontrol. Threads may share it."""

    login_node: LoginNode
    batch_scripts: SshScripts

    @property
    def has_accounting(self) -> bool:
        """Whether the supervisor asks sacct."""
        return self.login_node.paths.sacct is not None

    def list_all(self, user: str | None = None) -> dict[SlurmId, SqueueRow]:
        """Return all jobs (of one user) that slurmctld remembers, with the texts that
        their owners can write, in one command.
        """
        return self._list(squeue_all(self.login_node.paths.squeue, user))

    def _list(self, squeue: Sequence[str]) -> dict[SlurmId, SqueueRow]:
        delimiter = new_delimiter()
        answer = self.login_node.ask(squeue, squeue_format(delimiter))
        rows = listed_jobs(answer, delimiter)
        remark = answer.stderr.strip()
        if remark and not rows:
            _log_remark(remark[:_SHOWN])
        return rows

    def look(
        self,
        wanted: Sequence[MatchRequest],
        listed: Mapping[SlurmId, SqueueRow] | None = None,
        *,
        accounting: bool = True,
    ) -> dict[JobId, MatchResult]:
        """Return what SLURM shows of each of these jobs, for any number of jobs.

        It asks slurmctld once, or not at all when the caller passes slurmctld's whole
        list as `listed`. It runs one command for each 100 batch scripts that must
        decide. Unless `accounting` is False, it asks the accounting database once about
        the jobs that slurmctld does not know. Accounting still has the jobs whose id
        slurmctld has given to another job. A question that SLURM rejects is split; a
        job whose id is rejected alone is unclear.

        Raises SlurmUnavailableError or SshUnavailableError when slurmctld does not
        answer; a retry helps. While accounting does not answer, the jobs that only
        accounting can know are unclear.
        """
        rows: Iterable[SqueueRow]
        if listed is None:
            rows, rejected = ask_in_parts(_ids(wanted), self._ask_squeue)
        else:
            rows, rejected = listed.values(), {}
        records = map(listed_record, rows)
        results = match_jobs(wanted, records, self._jobs_of_scripts)
        results |= _unclear(wanted, rejected)
        if not (accounting and self.login_node.paths.sacct):
            return results
        missing = list[MatchRequest]()
        for job in wanted:
            if results[job.job_id].unknown:
                missing.append(job)
        try:
            results |= self._accounted(self.login_node.paths.sacct, missing)
        except TransientError as error:
            for job in missing:
                results[job.job_id] = MatchResult(unclear=str(error))
        return results

    def known_ids(self, slurm_ids: Collection[SlurmId]) -> set[SlurmId]:
        """Return the ids that slurmctld or accounting knows as jobs of any user."""
        rows, _ = ask_in_parts(_as_texts(slurm_ids), self._ask_squeue)
        known = {row.slurm_id for row in rows}
        missing = set(slurm_ids) - known
        if self.login_node.paths.sacct:
            records, _ = self._ask_sacct(
                self.login_node.paths.sacct, _as_texts(missing)
            )
            known.update(record.seen.slurm_id for record in records)
        return known

    def _ask_squeue(self, ids: Sequence[str]) -> list[SqueueRow]:
        rows = list[SqueueRow]()
        for batch in commands.batches(ids):
            rows += self._list(
                squeue_by_id(self.login_node.paths.squeue, batch)
            ).values()
        return rows

    def _ask_sacct(
        self, sacct: str, ids: Sequence[str]
    ) -> tuple[list[Record], dict[str, str]]:
        """Return accounting's records of these ids, and why others are rejected. It runs
        no command for no id.
        """
        delimiter = new_delimiter()

        def ask(part: Sequence[str]) -> list[Record]:
            records = list[Record]()
            for batch in commands.batches(part):
                answer = self.login_node.ask(sacct_by_id(sacct, batch, delimiter))
                records += map(accounted_record, accounted_jobs(answer, delimiter))
            return records

        return ask_in_parts(ids, ask)

    def _jobs_of_scripts(
        self, slurm_ids: Sequence[SlurmId]
    ) -> dict[SlurmId, JobId | None]:
        headers = dict[SlurmId, str]()
        try:
            for first in range(0, len(slurm_ids), SCRIPTS_A_LOOK):
                part = slurm_ids[first : first + SCRIPTS_A_LOOK]
                headers |= self.batch_scripts.headers(part)
        except TransientError as error:
            # the other jobs must not wait for these scripts
            log.warning(
                "scripts_not_read", jobs=len(slurm_ids) - len(headers), error=str(error)
            )
        return {slurm_id: job_id_in_header(line) for slurm_id, line in headers.items()}

    def _accounted(
        self, sacct: str, wanted: Sequence[MatchRequest]
    ) -> dict[JobId, MatchResult]:
        records, rejected = self._ask_sacct(sacct, _ids(wanted))
        results = match_jobs(wanted, records, lambda _: {})
        results |= _unclear(wanted, rejected)
        return results

    def requests(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, Size]:
        """Return the sizes that running jobs were submitted for, with their owners'
        later changes. Jobs that SLURM does not know are left out. Raises
        SlurmUnavailableError; a retry helps.
        """
        ids = ",".join(_as_texts(slurm_ids))
        answer = self.login_node.ask(squeue_json(self.login_node.paths.squeue, ids))
        return requested_sizes(answer, slurm_ids)

    def not_started(self, slurm_ids: Collection[SlurmId]) -> dict[SlurmId, str]:
        """Return those of these jobs that a node could not start, in at most three
        commands. See JobQueries.
        """
        ended = ended_on(
            self.login_node.ask(
                ended_on_command(self.login_node.paths.squeue, slurm_ids)
            )
        )
        forgotten = set(slurm_ids) - ended.keys()
        if forgotten and self.login_node.paths.sacct:
            command = accounted_end_command(self.login_node.paths.sacct, forgotten)
            ended |= accounted_ends(self.login_node.ask(command))
        nodes = {end.node for end in ended.values()}
        if not nodes:
            return {}
        drained = drained_s(
            self.login_node.ask(drained_command(self.login_node.paths.scontrol, nodes))
        )
        return not_started(ended, drained)


@lru_cache(REMARKS_KEPT)
def _log_remark(text: str) -> None:
    """Log a text that came with an empty list that counts, once for each text."""
    log.info("squeue_remark_ignored", text=text)


def _unclear(
    wanted: Iterable[MatchRequest], rejected: Mapping[str, str]
) -> dict[JobId, MatchResult]:
    """Return the result of each job whose id SLURM rejected."""
    results = dict[JobId, MatchResult]()
    for job in wanted:
        error = rejected.get(str(job.slurm_id))
        if error is not None:
            results[job.job_id] = MatchResult(unclear=error)
    return results


def _ids(wanted: Iterable[MatchRequest]) -> list[str]:
    return _as_texts({job.slurm_id for job in wanted})


def _as_texts(slurm_ids: Iterable[SlurmId]) -> list[str]:
    return list(map(str, sorted(slurm_ids)))
