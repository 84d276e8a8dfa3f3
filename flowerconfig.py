"""How Flower shows the fleet: each task with the job that it is about, and our own
pages beside Flower's.
"""

from supervisor_tasks.dashboard.install import install
from supervisor_tasks.dashboard.task_columns import COLUMNS, shown_task

tasks_columns = COLUMNS
format_task = shown_task
max_tasks = 20_000
install()
