"""What Celery's processes do when they start, are ready and end. Each of them imports
this module.
"""

from celery.signals import (
    beat_init,
    celeryd_init,
    setup_logging,
    worker_init,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)

from supervisor_tasks.observability.probes import note_ending, serve_beat, serve_worker
from supervisor_tasks.worker import (
    on_worker_init,
    on_worker_ready,
    on_worker_shutdown,
    set_up_logging,
    start_watchdog,
)

# before Celery warns of the user that it runs as
celeryd_init.connect(set_up_logging, weak=False)
setup_logging.connect(set_up_logging, weak=False)
worker_init.connect(on_worker_init, weak=False)
worker_init.connect(serve_worker, weak=False)
worker_ready.connect(on_worker_ready, weak=False)
worker_ready.connect(start_watchdog, weak=False)
worker_shutting_down.connect(note_ending, weak=False)
worker_shutdown.connect(on_worker_shutdown, weak=False)
beat_init.connect(serve_beat, weak=False)
