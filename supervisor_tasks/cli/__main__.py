"""python -m supervisor_tasks.cli is `supervisor`."""

from supervisor_tasks.cli import main

main()
