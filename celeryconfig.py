"""Celery's configuration: queues, routes, beat, delivery.

The ledger is the truth, and a message is only a hint. So workers acknowledge late
and keep no results, and beat sends no more messages than the workers process.
"""

import sys

from kombu.entity import Queue as BrokerQueue

from supervisor_tasks.config import logging as _logs
from supervisor_tasks.config.embedded_servers import broker_tls as _broker_tls
from supervisor_tasks.config.embedded_servers import broker_url as _broker_url
from supervisor_tasks.config.process_protection import protect_memory as _protect_memory
from supervisor_tasks.config.settings import load_or_exit as _load_or_exit
from supervisor_tasks.config.settings import or_exit as _or_exit
from supervisor_tasks.config.variables import warn_of_mistyped as _warn_of_mistyped
from supervisor_tasks.messaging.queues import QUEUE_OF_TASK, TASKS, Queue
from supervisor_tasks.observability.flower_login import log_start as _log_flower
from supervisor_tasks.observability.flower_login import require_login as _require_login
from supervisor_tasks.observability.probes import serve_flower as _serve_flower
from supervisor_tasks.observability.remote_control import (
    keep_questions_only as _keep_questions_only,
)
from supervisor_tasks.observability.remote_control import (
    refuse_compressed_messages as _refuse_compressed_messages,
)
from supervisor_tasks.worker import needs_of_command as _needs_of_command
from supervisor_tasks.worker import process_of_command as _process_of_command

_needs = _needs_of_command(sys.argv)
_protect_memory(_process_of_command(sys.argv), *_needs)
_settings = _load_or_exit(*_needs)
_cluster = _settings.cluster_name

if "flower" in sys.argv:
    from flower.options import default_options as _options

    # Flower serves all clusters of the broker, so its lines name none.
    _logs.configure(_settings.effective_log_level, _settings.secret_values())
    _logs.log_crashes()
    _warn_of_mistyped()
    with _or_exit():
        _require_login(_options, _settings.flower_basic_auth)
        _serve_flower(_settings)
_keep_questions_only()
_refuse_compressed_messages()
with _or_exit():
    broker_url = _broker_url(_settings)
if "flower" in sys.argv:
    _log_flower(_options)
broker_use_ssl = _broker_tls(_settings)
broker_connection_retry_on_startup = True
broker_transport_options = {
    # the ledger has the work that a worker received and did not do; Redis needs no copy
    "ack_emulation": False,
    "socket_timeout": 7,
    "socket_connect_timeout": 3,
    "socket_keepalive": True,
    "health_check_interval": 5,  # Celery drops a dead connection after twice that
}
broker_connection_max_retries = None
worker_consumer = "supervisor_tasks.messaging.consumer:ReconnectingConsumer"
beat_scheduler = "supervisor_tasks.beat:LedgerBeat"

task_serializer = "json"
accept_content = ["json"]
task_ignore_result = True
task_acks_late = True
task_reject_on_worker_lost = True
task_publish_retry = False  # beat sends the work again for which a message failed
# for Flower; no events when a message is sent, because Flower shows the queues
worker_send_task_events = True
worker_prefetch_multiplier = 1
# tasks mostly wait, and gRPC, paramiko and web3 do not survive a fork
worker_pool = "threads"
worker_concurrency = 16
worker_hijack_root_logger = False

task_create_missing_queues = False
task_default_queue = Queue.DEFAULT.of(_cluster)
task_queues = [
    BrokerQueue(queue.of(_cluster), routing_key=queue.of(_cluster)) for queue in Queue
]
task_routes = {
    f"{TASKS}.{name}": {"queue": queue.of(_cluster)}
    for name, queue in QUEUE_OF_TASK.items()
}
