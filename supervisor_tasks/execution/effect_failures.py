"""What follows when effects fail: they are due again later, or parked for the operator,
and alarms are raised.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import structlog

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.errors import TransientError
from supervisor_tasks.execution.backoff import retry_delay_s
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import PARKED_AFTER, Failure, OpenEffect
from supervisor_tasks.slurm.homes import UNSAFE

log = structlog.get_logger()

DIRECTORY_REJECTS = "the directory rejects: "
DIRECTORY_UNAVAILABLE = "the directory does not answer: "
RUN_NOT_PLANNED = "the run cannot be planned: "
# Alarms about effects whose last error has this beginning, when they have failed
# for so many seconds.
ALARMS_OF_ERRORS = (
    (AlarmName.HOME_UNSAFE, UNSAFE, 0.0),
    (AlarmName.LDAP_REQUEST_REJECTED, DIRECTORY_REJECTS, 0.0),
    (AlarmName.LDAP_UNAVAILABLE, DIRECTORY_UNAVAILABLE, 180.0),
    (AlarmName.BENCHMARK_STALLED, RUN_NOT_PLANNED, 0.0),
)


def most_attempts(effects: Sequence[OpenEffect]) -> int:
    """Return the highest number of attempts of these effects."""
    return max(effect.attempts for effect in effects)


@contextmanager
def given_back_on_failure(
    ledger: Ledger, effects: Sequence[OpenEffect]
) -> Iterator[None]:
    """Make the effects of a batch due again soon if the batch fails. A TransientError
    is logged as a warning. Any other error is raised, and the effects are tried again.
    An effect that fails so each time is leased isolated, and then parked.
    """
    again_s = retry_delay_s(most_attempts(effects))
    try:
        yield
    except TransientError as error:
        ledger.effects.postpone(effects, again_s, str(error))
        log.warning("batch_postponed", effects=len(effects), error=str(error))
    except Exception as error:
        give_back_unexpected(ledger, effects, error)
        raise
    except BaseException as error:
        # the worker got the order to end: no failure of the effects
        ledger.effects.postpone(effects, again_s, repr(error))
        raise


def give_back_unexpected(
    ledger: Ledger, effects: Sequence[OpenEffect], error: Exception, **seen: object
) -> None:
    """Make effects due again soon after an unexpected error. One that was leased
    isolated is parked at its third error. Raises LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """
    if len(effects) == 1 and effects[0].unexpected_failures + 1 >= PARKED_AFTER:
        park(ledger, effects[0], error_text(error), error=type(error).__name__, **seen)
    else:
        again_s = retry_delay_s(most_attempts(effects))
        ledger.effects.postpone(effects, again_s, error_text(error), unexpected=True)


def error_text(error: Exception) -> str:
    """Return an unexpected error for the operator. The repr of an OSError does not name
    its file.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return f"{type(error).__name__}: {error}"
    return repr(error)


def park(ledger: Ledger, effect: OpenEffect, reason: str, **seen: object) -> None:
    """Leave an effect to the operator, with an alarm and the evidence in `seen`. If
    news of the job came in meanwhile, the effect is tried once more instead. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    park_all(ledger, [Failure(effect, reason, seen)])


def park_all(ledger: Ledger, failures: Sequence[Failure]) -> None:
    """Park several effects, as `park` does one, in one transaction."""
    if not failures:
        return
    parked = ledger.effects.park(
        [
            replace(failure, evidence={"reason": failure.reason, **failure.evidence})
            for failure in failures
        ]
    )
    for failure in failures:
        about = failure.effect.named | {
            "kind": failure.effect.kind,
            "attempts": failure.effect.attempts,
            "reason": failure.reason,
        }
        if failure.effect.id in parked:
            log.error("effect_parked", **about)
        else:
            log.warning("effect_retried_after_new_event", **about)
    if parked:
        update_effect_alarms(ledger)


def update_effect_alarms(ledger: Ledger) -> None:
    """Raise the alarms for parked effects, and for effects that have failed for long;
    end them when there are none. Late effects are still tried: an outage never ends a
    job. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    summary = ledger.effects.alarm_summary()
    if summary.parked:
        ledger.alarms.on(
            AlarmName.EFFECT_PARKED,
            effects=summary.parked,
            advice="supervisor effect list --state parked",
        )
    else:
        ledger.alarms.off(AlarmName.EFFECT_PARKED)
    if summary.overdue:
        ledger.alarms.on(
            AlarmName.EFFECT_OVERDUE,
            effects=summary.overdue,
            tries=summary.most_tries,
            for_s=round(summary.longest_s),
            last_error=summary.last_error,
        )
    else:
        ledger.alarms.off(AlarmName.EFFECT_OVERDUE)
    for alarm, beginning, for_s in ALARMS_OF_ERRORS:
        _update_error_alarm(ledger, alarm, beginning, for_s)


def _update_error_alarm(
    ledger: Ledger, alarm: AlarmName, beginning: str, for_s: float
) -> None:
    failing = ledger.effects.failing_with(beginning, for_s)
    if failing.effects:
        ledger.alarms.on(
            alarm,
            effects=failing.effects,
            errors=failing.errors,
            subjects=failing.subjects,
        )
    else:
        ledger.alarms.off(alarm)
