"""Why no job is claimed now, as the ledger shows it to an operator. `jobs/claim.py`
decides by the same state.
"""

from collections.abc import Iterator
from math import inf

from supervisor_tasks.alarms.alarm_meanings import STOPS_CLAIMS
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli.views import span
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.status_queries import StatusSummary
from supervisor_tasks.monitoring.slurm_tries import SLURM_ANSWERED, answered_recently
from supervisor_tasks.observability.health import LOOKED_EVERY_S, MISSED_INTERVALS


def why_no_claims(summary: StatusSummary, chain_poll_s: float) -> list[str]:
    """Return the reasons for which no job is claimed now; empty if jobs are claimed."""
    return list(_reasons(summary, MISSED_INTERVALS * max(chain_poll_s, LOOKED_EVERY_S)))


def slurm_answers(summary: StatusSummary) -> bool:
    """Whether SLURM has answered lately, and no try has failed since."""
    return answered_recently(summary.periodic_run_ages_s.get(SLURM_ANSWERED))


def _reasons(summary: StatusSummary, patience_s: float) -> Iterator[str]:
    if summary.claiming_paused:
        yield "paused by an operator"
    if summary.submissions_paused:
        yield "submissions are paused"
    yield from _of_alarms(summary)
    yield from _of_chain(summary, patience_s)
    if summary.registration_status is None:
        yield "the registration's status is not known yet"
    elif not summary.registration_status.claims:
        yield f"the provider is {summary.registration_status.value}"
    if not slurm_answers(summary):
        yield "SLURM does not answer"


def _of_alarms(summary: StatusSummary) -> Iterator[str]:
    raised = [alarm.name for alarm in summary.alarms]
    stops = [name for name in raised if name in STOPS_CLAIMS]
    if len(stops) == 1:
        yield f"alarm {stops[0]}"
    elif stops:
        yield f"alarms {', '.join(stops)}"
    if AlarmName.CLAIMS_FULL in raised:
        yield "as many jobs wait as may (CLAIM_MAX_WAITING)"


def _of_chain(summary: StatusSummary, patience_s: float) -> Iterator[str]:
    looked_s = summary.periodic_run_ages_s.get(finished_key("claim"), inf)
    answered_s = summary.periodic_run_ages_s.get("claim", inf)
    if looked_s > patience_s:
        yield f"no worker looks at the chain{_last(looked_s)}"
    elif answered_s > patience_s:
        yield f"the chain does not answer{_last(answered_s)}"


def _last(age_s: float) -> str:
    return "" if age_s == inf else f" (last {span(age_s)} ago)"
