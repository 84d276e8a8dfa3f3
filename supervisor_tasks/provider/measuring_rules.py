"""When a run of the benchmarks is due. Pure."""

from dataclasses import replace

from supervisor_tasks.provider.offer import (
    Offer,
    label_differences,
    machine_differences,
    merged,
    price_differences,
)
from supervisor_tasks.provider.registration_rules import (
    MeasuredState,
    RegistrationInput,
)


def run_due(situation: RegistrationInput) -> str:
    """Return why a benchmark run is due now; empty if none is due. Each new set of
    machines, prices or operator's labels gets a run.
    """
    benchmarks, newest = situation.benchmarks, situation.on_chain.newest
    if not benchmarks.enabled or benchmarks.under_way:
        return ""
    if not situation.machines:
        return ""
    if situation.asked_to_measure:
        return situation.asked_to_measure
    if situation.on_chain.banned:
        return ""
    if newest is None:
        if situation.unmeasured:
            return "nothing is registered"
        return ""
    news = _news_of_machines(situation, newest) + _news_of_terms(situation, newest)
    if news:
        return "; ".join(news)
    if _is_time(benchmarks):
        return "on schedule"
    return ""


def _is_time(benchmarks: MeasuredState) -> bool:
    """Whether the last run ended so long ago that the schedule asks for another one."""
    if not benchmarks.every_s:
        return False
    ended_s_ago = benchmarks.ended_s_ago
    return ended_s_ago is None or ended_s_ago >= benchmarks.every_s


def _news_of_machines(situation: RegistrationInput, newest: Offer) -> list[str]:
    """Return which machines need a measurement. The registered machines may not be
    those of the last run.
    """
    if not situation.settled or not situation.unmeasured:
        return []
    news = machine_differences(newest.machines, situation.machines)
    if news:
        return news
    if not situation.benchmarks.measured_machines:  # no run is known
        return []
    return ["other nodes work than were measured"]


def _news_of_terms(situation: RegistrationInput, newest: Offer) -> list[str]:
    """Return what has changed in prices and operator's labels since the registration;
    nothing if the last run was made with the present ones. New prices do not wait for a
    run, so they may be registered by now. Then this returns only that they have changed
    since the last run, if that run's prices are known.
    """
    pricing_digest = situation.benchmarks.pricing_digest
    if pricing_digest == situation.pricing_digest:
        return []
    labels = merged(situation.kept_labels, situation.operator, situation.override)
    new_prices = price_differences(newest.prices, situation.prices)
    new_labels = label_differences(dict(newest.labels), labels)
    news = new_prices + new_labels
    if news:
        return news
    if not pricing_digest:
        return []
    return ["the prices or the operator's labels are others than when it was measured"]


def after_asking_for_a_run(situation: RegistrationInput) -> RegistrationInput:
    """Return the situation after a run was asked for."""
    benchmarks = replace(
        situation.benchmarks, under_way=True, pricing_digest=situation.pricing_digest
    )
    return replace(situation, benchmarks=benchmarks, asked_to_measure="")
