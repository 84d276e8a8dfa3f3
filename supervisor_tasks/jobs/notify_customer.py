"""Notify the customer: write to the grid logger why a job failed or was given back."""

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import EffectCompleted, Event
from supervisor_tasks.jobs.model import EffectKind, Job


def notify_customer(context: WorkerContext, job: Job) -> Event:
    """Send the job's message to the grid logger that came with the script. Without a
    logger, nothing is written. Raises GridLoggerDownError or ServiceDownError, when the
    logger takes no lines; a retry helps.
    """
    if job.grid_logger_url and job.status_message:
        context.grid_logger.write(
            job.grid_logger_url,
            job.customer,
            job.job_id,
            job.status_message.splitlines(),
        )
    return EffectCompleted(EffectKind.NOTIFY_CUSTOMER)
