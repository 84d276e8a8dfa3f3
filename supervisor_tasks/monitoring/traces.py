"""Traces by OpenTelemetry, if the settings want them. Without OTEL_EXPORTER_OTLP_ENDPOINT nothing of it is imported."""

from collections.abc import Callable, Sequence

import structlog

from supervisor_tasks.config.settings import Settings
from supervisor_tasks.jobs.model import Job
from supervisor_tasks.jobs.trace import NoTraces, Recorded, Tracer

log = structlog.get_logger()

History = Callable[[Job], tuple[Sequence[Recorded], float | None]]  # its events, and when its claim was signed


def tracer_of(settings: Settings, process: str, history: History | None = None) -> Tracer:
    """Return where the spans of this process go. A process that records ends needs the jobs' history.

    Without the packages of the extra `otel` the process works on, without traces.
    """
    if settings.otel_exporter_otlp_endpoint is None:
        return NoTraces()
    try:
        from supervisor_tasks.monitoring.otlp import OtlpTracer
    except ModuleNotFoundError as error:
        log.warning("traces_unavailable", error=str(error), advice="install the extra: grid-supervisor[otel]")
        return NoTraces()
    return OtlpTracer(settings.otel_exporter_otlp_endpoint, settings.cluster_name, process, history)
