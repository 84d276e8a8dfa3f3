"""The site that this worker works for: built when the worker starts, from the keys that its queues need."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery

from supervisor_tasks import logs
from supervisor_tasks.queues import Queue
from supervisor_tasks.settings import Need, load_or_exit, or_exit

if TYPE_CHECKING:
    from supervisor_tasks.wiring import Work

log = structlog.get_logger()

_current: list["Work"] = []


NEED_OF_QUEUE = {Queue.CHAIN: Need.WALLET, Queue.SLURM: Need.SSH, Queue.BENCHMARK: Need.SSH}


def needs_of_command(argv: Sequence[str]) -> list[Need]:
    """What a `celery` command line will work with, known before Celery has read it: so that all that is wrong with the
    environment is said at once.
    """
    if "worker" not in argv:
        return []
    words = [part for word in argv for part in word.split("=", 1)]
    named = [words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-Q", "--queues")]
    queues = [name.rpartition(".")[2] for names in named for name in names.split(",")]
    return list(dict.fromkeys(need for queue, need in NEED_OF_QUEUE.items() if not queues or queue.value in queues))


def current_site() -> "Work":
    """The worker's site. Raises LookupError outside of a worker."""
    if not _current:
        raise LookupError("no site: tasks run in `celery -A supervisor_tasks worker`")
    return _current[0]


def set_up_logging(**_: object) -> None:
    """Celery's processes log as all of ours do."""
    settings = load_or_exit()
    logs.configure(settings.effective_log_level, secrets=settings.secret_values())


def start_site(sender: Any, **_: object) -> None:
    """Build the site for the queues that the worker consumes, or end: a worker without one would throw away all that it
    receives, and Celery goes on when a signal's handler fails.
    """
    set_up_logging()
    try:
        with or_exit():
            _current.append(_built(sender.app))
    except Exception as error:
        log.exception("site_not_built", advice="the worker ends; start it anew when that is mended")
        raise SystemExit(2) from error


def _built(app: Celery) -> "Work":
    """What is imported here costs 100 MB: beat and Flower, which load the same tasks, do without. Whatever its -Q, a worker
    serves the default queue, which needs no key: without nudge and watch a fleet forgets its work and calls nobody.
    """
    from supervisor_tasks.wiring import build

    cluster, queues = load_or_exit().cluster_name, app.amqp.queues
    queues.select_add(queues[Queue.DEFAULT.of(cluster)])
    served = {queue for queue in Queue if queue.of(cluster) in queues.consume_from}
    needs = dict.fromkeys(need for queue, need in NEED_OF_QUEUE.items() if queue in served)
    return build(load_or_exit(*needs), served, app)


def start_ear(sender: Any, **_: object) -> None:
    """Have the worker notice when it receives nothing any more."""
    from supervisor_tasks.broker import listen_to_oneself

    deaf_after_s = load_or_exit().worker_deaf_after_s
    if deaf_after_s:
        listen_to_oneself(sender, deaf_after_s)


def stop_site(**_: object) -> None:
    """Close what the site holds."""
    while _current:
        _current.pop().close()
