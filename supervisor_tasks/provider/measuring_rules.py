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


def run_due(inputs: RegistrationInput) -> str:
    """Return why a benchmark run is due now; empty if none is due. Each new set of
    machines, prices or operator's labels gets a run.
    """
    benchmarks, newest = inputs.benchmarks, inputs.on_chain.newest
    if not benchmarks.enabled or benchmarks.under_way:
        return ""
    if not inputs.machines:
        return ""
    if inputs.asked_to_measure:
        return inputs.asked_to_measure
    if inputs.on_chain.banned:
        return ""
    if newest is None:
        if inputs.unmeasured:
            return "nothing is registered"
        return ""
    news = _news_of_machines(inputs, newest) + _news_of_terms(inputs, newest)
    if news:
        return "; ".join(news)
    if _is_time(benchmarks):
        return "on schedule"
    return ""


def _is_time(benchmarks: MeasuredState) -> bool:
    """Whether the last run ended so long ago that the schedule asks for another one."""
    if not benchmarks.every_s:
        return False
    ended_ago_s = benchmarks.ended_ago_s
    return ended_ago_s is None or ended_ago_s >= benchmarks.every_s


def _news_of_machines(inputs: RegistrationInput, newest: Offer) -> list[str]:
    """Return which machines need a measurement. The registered machines may not be
    those of the last run.
    """
    if not inputs.is_hardware_stable or not inputs.unmeasured:
        return []
    news = machine_differences(newest.machines, inputs.machines)
    if news:
        return news
    if not inputs.benchmarks.measured_machines:  # no run is known
        return []
    return ["other nodes work than were measured"]


def _news_of_terms(inputs: RegistrationInput, newest: Offer) -> list[str]:
    """Return what has changed in prices and operator's labels since the registration;
    nothing if the last run was made with the present ones. New prices do not wait for a
    run, so they may be registered by now. Then this returns only that they have changed
    since the last run, if that run's prices are known.
    """
    pricing_digest = inputs.benchmarks.pricing_digest
    if pricing_digest == inputs.pricing_digest:
        return []
    labels = merged(inputs.kept_labels, inputs.operator, inputs.override)
    new_prices = price_differences(newest.prices, inputs.prices)
    new_labels = label_differences(dict(newest.labels), labels)
    news = new_prices + new_labels
    if news:
        return news
    if not pricing_digest:
        return []
    return ["the prices or the operator's labels are others than when it was measured"]


def after_asking_for_a_run(inputs: RegistrationInput) -> RegistrationInput:
    """Return the inputs after a run was asked for."""
    benchmarks = replace(
        inputs.benchmarks, under_way=True, pricing_digest=inputs.pricing_digest
    )
    return replace(inputs, benchmarks=benchmarks, asked_to_measure="")
