"""A job's timeline: what happened, when, which side did it, how long after, and what
comes next. Pure.

The ledger stores events, callbacks, effects, transactions and operators' commands
(Overview.timeline). Each becomes one line. Equal lines that follow each other become
one, and so do pairs of lines, as of a submission that is tried again and again.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from supervisor_tasks.cli.views import LEAST_ID, STYLES, Cell, ago, plain, span
from supervisor_tasks.cli.wording import counted
from supervisor_tasks.jobs.billing import billed_minutes
from supervisor_tasks.jobs.model import (
    ChainStatus,
    Definition,
    EffectKind,
    Job,
    Outcome,
    State,
)
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger.transaction_names import OPEN_STATES

Entry = Mapping[str, Any]
EventText = tuple[str, Callable[[Mapping[str, Any]], str]]

# events without a line in the short form: the callback itself has a line
ONLY_IN_WIDE = ("CallbackReceived",)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*[+-]\d\d:\d\d")
# the events that have SLURM's own word
SEEN = ("SlurmPendingObserved", "SlurmRunningObserved")
MISSING = (
    "SLURM does not list the job: after SWEEP_GRACE_S it ends as PANICKED at no cost. If the alarm sweep_contradiction"
    " is on, `supervisor job mark-lost` confirms that; `supervisor job settle` ends it in another way"
)
# an event has the reason
REASON_IN_EVENT = ("job cancel", "job settle", "job resubmit", "effect abandon")
DONE = "done"  # as ledger/operator_log.py stores it
CALLBACK_STATUS = {
    "status 0": "UNSPECIFIED",
    "status 1": "PENDING",
    "status 2": "META_SCHEDULED",
    "status 3": "SCHEDULED",
    "status 4": "RUNNING",
    "status 5": "CANCELLING",
    "status 6": "CANCELLED",
    "status 7": "FINISHED",
    "status 8": "FAILED",
    "status 9": "OUT_OF_CREDITS",
    "status 10": "PANICKED",
}


def _because(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda details: f"{text}: {details.get('reason') or 'no reason given'}"


def _fixed(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: text


def _claimed(details: Mapping[str, Any]) -> str:
    return f"claimed for {details.get('time_limit_min')} minutes at most"


def _ended(details: Mapping[str, Any]) -> str:
    """Return how the last run ended, and the seconds of the runs before it. The minutes
    that are paid are those of all runs: the head of the page has them.
    """
    outcome = details.get("outcome") or {}
    text = f"ended: {_end(outcome)}, {_exit(outcome)}"
    if not details.get("earlier_s"):
        return text
    return f"{text}; earlier runs took {span(details['earlier_s'])}"


def _earlier_runs(details: Mapping[str, Any]) -> str:
    seconds = [elapsed_s for elapsed_s, _ in details.get("ends", ())]
    return f"earlier runs took {plain(seconds)} s"


def _seen(verb: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda details: f"seen {details.get('seen') or verb}"


def _adopted(details: Mapping[str, Any]) -> str:
    number = details.get("slurm_id")
    if number is None:
        return "taken in; SLURM shows nothing of it"
    return f"taken in: SLURM has it as {number}"


EVENT_TEXTS: dict[str, EventText] = {
    "Claimed": ("chain", _claimed),
    "ScriptFetched": (
        "worker",
        lambda details: f"script fetched, {details.get('bytes')} bytes",
    ),
    "ScriptUnavailable": ("worker", _because("there is no script")),
    "SubmitStarted": (
        "worker",
        lambda details: f"submission begins, for {details.get('limit_min')} minutes",
    ),
    "Submitted": ("slurm", lambda details: f"submitted as {details.get('slurm_id')}"),
    "SubmitRejected": ("slurm", _because("rejected")),
    "SubmitNotExecuted": ("worker", _because("certainly not submitted")),
    "SubmitOutcomeUnknown": ("worker", _because("submission cut off")),
    "SubmissionNotFound": ("slurm", _fixed("has no job of this name")),
    "SubmissionStillPossible": (
        "worker",
        lambda details: (
            f"searches for it again in {span(details.get('left_s') or 0.0)}, as its submission can still arrive"
        ),
    ),
    "CallbackReceived": ("plugin", _fixed("a callback came, and a look is due")),
    "SlurmJobIdentified": (
        "slurm",
        lambda details: f"identified as {details.get('slurm_id')}",
    ),
    "SlurmPendingObserved": ("slurm", _seen("waiting")),
    "SlurmRunningObserved": ("slurm", _seen("RUNNING")),
    "EarlierRunsReported": ("plugin", _earlier_runs),
    "EarlierRunsAwaited": (
        "slurm",
        _fixed("ended it; the seconds of earlier runs are not known yet"),
    ),
    "MoreThanPaid": (
        "slurm",
        lambda details: f"has more than was paid for: {details.get('what')}",
    ),
    "SlurmCompleted": ("slurm", _ended),
    "RunsAfterItsEnd": (
        "slurm",
        lambda details: f"runs {details.get('slurm_id')} again after its end",
    ),
    "LaterRunEnded": (
        "slurm",
        lambda details: (
            f"ended a run after its end; it took {details.get('elapsed_s')} s, which are billed, too"
        ),
    ),
    "RequeueForbidden": ("slurm", _fixed("must reject each requeue of it")),
    "RequeueNotForbidden": (
        "slurm",
        _fixed("cannot be told to reject a requeue of it; its end is reported"),
    ),
    "CancelRequested": ("customer", _fixed("cancels the job")),
    "ToppedUp": (
        "customer",
        lambda details: f"pays for {details.get('minutes')} minutes more",
    ),
    "LimitApplied": (
        "slurm",
        lambda details: f"has a limit of {details.get('limit_min')} minutes",
    ),
    "ChainStatusObserved": (
        "chain",
        lambda details: f"the contract says {details.get('status')}",
    ),
    "EffectMissing": (
        "sweep",
        lambda details: f"{details.get('kind')} was missing, and is due again",
    ),
    "ExistingSlurmJobAdopted": ("sweep", _adopted),
    "SlurmJobMissing": ("slurm", _because("does not know it any more")),
    "SubmissionLostBySlurm": (
        "slurm",
        lambda details: f"forgot {details.get('slurm_id')}, which had only waited",
    ),
    "LaunchFailed": (
        "slurm",
        lambda details: (
            f"could not start {details.get('slurm_id')} on {details.get('node')}"
        ),
    ),
    "FalseSlurmId": ("slurm", _because("never had it")),
    "Reorganised": (
        "chain",
        lambda details: (
            f"blocks were replaced; the contract says {details.get('status')}"
        ),
    ),
    "EffectCompleted": ("worker", lambda details: f"{details.get('kind')} is done"),
    "OperatorConfirmedNotSubmitted": (
        "operator",
        _because("says that SLURM does not have it"),
    ),
    "OperatorCancelled": ("operator", _because("cancels the job")),
    "OperatorSettledJob": (
        "operator",
        lambda details: f"settles it: {outcome_text(details.get('outcome') or {})}",
    ),
    "OperatorAbandonedEffect": (
        "operator",
        lambda details: f"gives up {details.get('kind')}: {details.get('reason')}",
    ),
}
"""By an event's name in the journal: the side that acts, and the function that words
its details.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: when, who, what, and the details of the wide form."""

    at: datetime
    actor: str
    what: str
    style: str = ""
    details: str = ""
    link: str = ""


def lines_of(
    entries: Iterable[Entry], *, details: bool, transaction_url: str = ""
) -> list[list[Cell]]:
    """Return the cells of each line: the time, how long after the line before, who,
    what.

    `transaction_url` is the explorer's URL of a transaction, with {hash} in the place
    of its hash; the transaction's line links to it.
    """
    shown = list[list[Cell]]()
    before = list[Line]()
    for equal in _folded(list(_lines(entries, details, transaction_url))):
        line, last_at = equal[0], equal[-1].at
        after = f"+{_precise_span(_after(before, line))}" if before else ""
        moment = f"{line.at.astimezone():%m-%d %H:%M:%S}"
        what = line.what
        if len(equal) > 1:
            what += f", {len(equal)} times in {_precise_span(last_at - line.at)}"
        shown.append(
            [
                Cell(moment, "dim"),
                Cell(after, "dim"),
                Cell(line.actor),
                Cell(what, line.style, line.link),
            ]
        )
        before = equal
        if line.details:
            shown.append([Cell(""), Cell(""), Cell(""), Cell(line.details, "dim")])
    return shown


def _after(before: Sequence[Line], line: Line) -> timedelta:
    """How long after the lines before it a line is; after the first of them if it
    repeats together with them.
    """
    if before[-1].at <= line.at:
        return line.at - before[-1].at
    return line.at - before[0].at


def _precise_span(length: timedelta) -> str:
    """Return a length of time, below 10 s with hundredths of a second."""
    seconds = length.total_seconds()
    return f"{seconds:.2f}s" if seconds < 10 else span(seconds)


def _folded(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield equal lines that follow each other together. Of a pair of lines that
    repeats, all first lines come together, and then all second ones.
    """
    texts = [(line.actor, line.what) for line in lines]
    start = 0
    while start < len(lines):
        size, times = _repetition(texts, start)
        stop = start + size * times
        for place in range(start, start + size):
            yield list(lines[place:stop:size])
        start = stop


def _repetition(texts: Sequence[tuple[str, str]], start: int) -> tuple[int, int]:
    """How many of the lines from `start` on repeat together, one or two, and how many
    times.
    """
    for size in (1, 2):
        first, times = texts[start : start + size], 1
        while texts[start + size * times : start + size * (times + 1)] == first:
            times += 1
        if times > 1:
            return size, times
    return 1, 1


def _lines(
    entries: Iterable[Entry], with_details: bool, transaction_url: str
) -> Iterator[Line]:
    """Yield the line of each entry that the form shows."""
    for entry in entries:
        if with_details:
            details = plain(_readable(entry["details"]))
            yield replace(_line(entry, transaction_url), details=details)
        elif not _is_only_in_wide(entry):
            yield _line(entry, transaction_url)


def _is_only_in_wide(entry: Entry) -> bool:
    """Whether the short form leaves out an entry. It has a line for an effect only if
    it is parked: its events show the rest.
    """
    if entry["source"] == "effect" and "parked_at" not in entry["details"]:
        return True
    return entry["what"] in ONLY_IN_WIDE


def _line(entry: Entry, transaction_url: str) -> Line:
    """Return the line of an entry, without details."""
    at = entry["at"]
    what = entry["what"]
    details = entry["details"]
    match entry["source"]:
        case "journal":
            actor, text_of = EVENT_TEXTS.get(what, ("ledger", _fixed(what)))
            style = STYLES.get(str(details.get("state")), "")
            return Line(at, actor, text_of(details), style)
        case "callback":
            return Line(at, "plugin", _callback(what, details))
        case "command":
            return Line(at, "operator", _command(what, details))
        case "transaction":
            link = transaction_url.replace("{hash}", str(details.get("hash", "")))
            return Line(at, "wallet", _transaction(what, details), link=link)
        case _:
            style = "red" if "parked_at" in details else ""
            return Line(at, "worker", _effect(what, details), style)


def _readable(value: Any) -> Any:
    """Return details without what is empty, and with moments as the other lines have
    them.
    """
    if isinstance(value, Mapping):
        return {
            name: _readable(entry)
            for name, entry in value.items()
            if entry not in (None, "", [], {})
        }
    if isinstance(value, str) and MOMENT.fullmatch(value):
        return f"{datetime.fromisoformat(value).astimezone():%m-%d %H:%M:%S}"
    return value


def _callback(what: str, details: Mapping[str, Any]) -> str:
    status = CALLBACK_STATUS.get(what, what)
    return f"says {status} of {details.get('slurm_id')} after {span(details.get('duration_s') or 0)}"


def _command(command: str, details: Mapping[str, Any]) -> str:
    text = f"{details.get('operator')} gives the command {command}"
    if command not in REASON_IN_EVENT:
        text += _after_colon(details.get("reason"))
    outcome = details.get("outcome") or "how it ended is not known"
    if outcome == DONE:
        return text
    return f"{text} ({outcome})"


def _transaction(purpose: str, details: Mapping[str, Any]) -> str:
    short_hash = str(details.get("hash", ""))[:LEAST_ID]
    text = f"{purpose}: {details.get('state', '')}"
    if details.get("block") is not None:
        text += f" in block {details['block']}"
    error = _after_colon(details.get("error"))
    return f"{text}, nonce {details.get('nonce')}, {short_hash}{error}"


def _effect(kind: str, details: Mapping[str, Any]) -> str:
    if "parked_at" in details:
        state = "is parked"
    elif "done_at" in details:
        state = "was done"
    else:
        state = "is open"
    text = f"{kind} {state}"
    failed_tries = int(details.get("attempts") or 0)
    if failed_tries:
        text += f" after {counted(failed_tries, 'failed try', 'failed tries')}"
    return text + _after_colon(details.get("last_error"))


def _after_colon(reason: object) -> str:
    return f": {reason}" if reason else ""


# --- what comes next ------------------------------------------------------------------


NOTHING_MORE = "nothing: the contract has its end"
NOTHING_YET = "nothing; the next sweep looks at it"
EFFECTS = {
    EffectKind.FETCH: "fetch the script",
    EffectKind.SUBMIT: "submit to SLURM",
    EffectKind.POLL_SLURM: "look in SLURM",
    EffectKind.REPORT: "report to the contract",
    EffectKind.RETURN_JOB: "give back to the contract",
    EffectKind.CANCEL: "cancel in SLURM",
    EffectKind.TOP_UP: "give SLURM the time limit",
    EffectKind.NOTIFY_CUSTOMER: "notify the customer",
}


def next_of(job: Job, entries: Sequence[Entry], now: datetime) -> list[list[Cell]]:
    """Return a line for each thing that is left to do: what, when, and what is in its
    way.
    """
    effects, transactions = list[list[Cell]](), list[list[Cell]]()
    for entry in entries:
        if _is_open_effect(entry):
            effects.append(_next_effect(job, entry, now))
        elif _is_open_transaction(entry):
            transactions.append(_next_transaction(entry, now))
    lines = effects + transactions
    if not lines:
        is_settled = job.state is State.SETTLED
        lines.append([Cell(NOTHING_MORE if is_settled else NOTHING_YET)])
    if job.state is State.RUNNING and _last_seen(entries) == NOT_LISTED:
        lines.append([Cell("sweep"), Cell(MISSING, "yellow")])
    return lines


def _is_open_effect(entry: Entry) -> bool:
    return entry["source"] == "effect" and "done_at" not in entry["details"]


def _is_open_transaction(entry: Entry) -> bool:
    return (
        entry["source"] == "transaction"
        and entry["details"].get("state") in OPEN_STATES
    )


def _next_effect(job: Job, entry: Entry, now: datetime) -> list[Cell]:
    details = entry["details"]
    kind: str = entry["what"]
    # an effect of another release has no other name
    what = EFFECTS[EffectKind(kind)] if kind in set(EffectKind) else kind
    if details.get("last_error"):
        error = f", as the last try failed: {details['last_error']}"
    else:
        error = ""
    if "parked_at" in details:
        advice = f"`supervisor job retry {job.job_id[:12]}`"
        return [
            Cell(what),
            Cell(f"is parked and waits for you ({advice}){error}", "red"),
        ]
    due_s = (datetime.fromisoformat(details["due_at"]) - now).total_seconds()
    when = f"in {span(due_s)}" if due_s >= 1 else "now"
    return [Cell(what), Cell(f"{when}{error}", "yellow" if error else "")]


def _next_transaction(entry: Entry, now: datetime) -> list[Cell]:
    waited = span((now - entry["at"]).total_seconds())
    return [Cell(entry["what"]), Cell(f"waits to be mined for {waited}", "cyan")]


# --- the head -------------------------------------------------------------------------


def facts_of(
    job: Job, row: Mapping[str, Any], now: datetime, entries: Sequence[Entry] = ()
) -> dict[str, Cell]:
    """Return the job in a few lines: its state in the ledger, in SLURM and on the
    contract.
    """
    status, outcome = job.chain_status.name, job.outcome
    message, ended = job.status_message, ""
    if outcome is not None:
        ended = outcome_text(_outcome_details(outcome))
        if message == outcome.reason:
            message = ""  # the line of the outcome has it
    return {
        "job": Cell(job.job_id),
        "state": Cell(job.state.value, STYLES.get(job.state.value, "")),
        "contract": Cell(
            f"{status} at block {job.chain_position[0]}", STYLES.get(status, "")
        ),
        "slurm": Cell(_slurm(job, entries)),
        "customer": Cell(job.customer),
        "size": Cell(_size(job.definition)),
        "paid for": Cell(_paid(job)),
        "ended": Cell(ended),
        "settled by": Cell("an operator" if job.settled_by_operator else ""),
        "wanted": Cell(
            "the customer wants it cancelled" if job.cancel_requested else ""
        ),
        "status_message": Cell(message),
        "claimed": Cell(ago(row["created_at"], now)),
        "changed": Cell(ago(row["updated_at"], now)),
    }


def _size(size: Definition) -> str:
    parts = counted(size.cpus, "CPU"), f"{size.memory_mb} MB", counted(size.gpus, "GPU")
    return f"{', '.join(parts)} in {counted(size.ntasks, 'task')}"


def _slurm(job: Job, entries: Sequence[Entry]) -> str:
    if job.slurm_id is None:
        return ""
    if job.outcome is not None:  # SLURM was last asked before the end
        return str(job.slurm_id)
    return f"{job.slurm_id} {_last_seen(entries)}".strip()


def _last_seen(entries: Sequence[Entry]) -> str:
    """Return SLURM's own word for the job's state when it was last asked; empty if no
    event has one.
    """
    last = ""
    for entry in entries:
        if entry["what"] in SEEN:
            last = entry["details"].get("seen") or last
    return last


def _paid(job: Job) -> str:
    added = sum(top_up.minutes for top_up in job.top_ups)
    parts = f" ({job.time_limit_min} at the claim, {added} added)" if added else ""
    return f"{counted(job.limit_min, 'minute')}{parts}"


def _outcome_details(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome in the form that the journal has it in."""
    return {
        "status": outcome.status.name,
        "elapsed_s": outcome.elapsed_s,
        "exit_status": outcome.exit_status,
        "reason": outcome.reason,
    }


def outcome_text(outcome: Mapping[str, Any]) -> str:
    """Return how a job ended, as the contract gets it: the status, the seconds, the
    minutes that are paid, the exit.
    """
    minutes = billed_minutes(_elapsed_s(outcome))
    if _status(outcome) == ChainStatus.PANICKED.name:
        minutes = 0
    return f"{_end(outcome)}, {minutes} min paid, {_exit(outcome)}"


def _end(outcome: Mapping[str, Any]) -> str:
    return f"{_status(outcome)} after {span(_elapsed_s(outcome))}"


def _status(outcome: Mapping[str, Any]) -> str:
    status = outcome.get("status", "")
    return ChainStatus(status).name if isinstance(status, int) else str(status)


def _elapsed_s(outcome: Mapping[str, Any]) -> int:
    return int(outcome.get("elapsed_s") or 0)


def _exit(outcome: Mapping[str, Any]) -> str:
    text = exit_text(int(outcome.get("exit_status") or 0))
    reason = outcome.get("reason")
    if reason not in (None, "", text):
        text = f"{text}; {reason}"
    return text


def exit_text(wait_status: int) -> str:
    """Return a raw wait(2) status in words."""
    if os.WIFSIGNALED(wait_status):
        return f"signal {os.WTERMSIG(wait_status)}"
    if os.WIFEXITED(wait_status):
        return f"exit code {os.WEXITSTATUS(wait_status)}"
    return f"wait status {wait_status}"
