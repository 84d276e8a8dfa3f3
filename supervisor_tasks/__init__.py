"""The supervisor's Celery app: `celery -A supervisor_tasks worker|beat|flower`."""

from celery import Celery

app = Celery("supervisor", include=["supervisor_tasks.tasks"])
app.config_from_object("celeryconfig")
