"""Traces by OpenTelemetry, if OTEL_EXPORTER_OTLP_ENDPOINT is set. Without it,
OpenTelemetry is not imported.
"""

from collections.abc import Callable, Sequence

import structlog

from supervisor_tasks.config.settings import Settings
from supervisor_tasks.jobs.model import Job
from supervisor_tasks.jobs.trace import NoTraces, Recorded, Tracer

log = structlog.get_logger()

# its events, and when its claim was signed
History = Callable[[Job], tuple[Sequence[Recorded], float | None]]


def tracer_of(
    settings: Settings, process: str, history: History | None = None
) -> Tracer:
    """Return the tracer that gets the spans of this process. A process that records
    ends needs the jobs' history.

    Without the packages of the extra `otel` the process works without traces.
    """
    if settings.otel_exporter_otlp_endpoint is None:
        return NoTraces()
    try:
        from supervisor_tasks.observability.otlp import OtlpTracer
    except ModuleNotFoundError as error:
        log.warning(
            "traces_unavailable",
            error=str(error),
            advice="install the extra: grid-supervisor[otel]",
        )
        return NoTraces()
    endpoint = settings.otel_exporter_otlp_endpoint.get_secret_value()
    return OtlpTracer(endpoint, settings.cluster_name, process, history)
