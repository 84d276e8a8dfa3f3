"""The search for submissions, over SSH: by squeue's names, by batch scripts and by
accounting.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.errors import UndecidedError
from supervisor_tasks.jobs.model import Address, JobId, SlurmId
from supervisor_tasks.slurm.interface import CLOCKS_DIFFER_S, FindOwners
from supervisor_tasks.slurm.login_node import LoginNode, new_delimiter
from supervisor_tasks.slurm.parsers import JobRecord, QuestionRejectedError
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
    job_id_in_header,
    matches_script,
)
from supervisor_tasks.slurm.squeue import SqueueRow
from supervisor_tasks.slurm.ssh_clock import SshClock
from supervisor_tasks.slurm.ssh_queries import SshJobQueries
from supervisor_tasks.slurm.ssh_scripts import SshScripts


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSubmissionSearch:
    """The search for jobs that may have been submitted. Threads may share it."""

    login_node: LoginNode
    clock: SshClock
    queries: SshJobQueries
    batch_scripts: SshScripts

    def find(
        self, user: Address, begun_ago_s: Mapping[JobId, float], owners: FindOwners
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
        for job_id, ago_s in begun_ago_s.items():
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
        self, users: Mapping[JobId, Address], begun_ago_s: Mapping[JobId, float]
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
            needed = int(begun_ago_s[job_id] + CLOCKS_DIFFER_S) // 60 + 1
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
            results[job_id] = matches_script(job_id, suspects[job_id], headers, unread)
            if results[job_id] is False:
                users[job_id], ago_s[job_id] = search.user, search.ago_s
        for job_id, records in self.sacct_submissions_of(users, ago_s).items():
            results[job_id] = None
            if not isinstance(records, QuestionRejectedError):
                results[job_id] = bool(records)
        return results


def _ids_to_read(suspects: Iterable[Sequence[SqueueRow]]) -> list[SlurmId]:
    """Return the ids of the suspects of each job, each id once. A job that has too many
    suspects is left out.
    """
    slurm_ids = dict[SlurmId, None]()
    for rows in suspects:
        if len(rows) <= MAX_SCRIPTS:
            slurm_ids |= dict.fromkeys(row.slurm_id for row in rows)
    return list(slurm_ids)
