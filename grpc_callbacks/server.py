"""The gRPC services: JobAPI, SshAPI and grpc.health.v1.Health."""

import threading
from concurrent import futures

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from grpc_callbacks.bell import Bell
from grpc_callbacks.inbox import Inbox, InboxClosedError, InboxFullError
from grpc_callbacks.sparing import Sparing
from grpc_callbacks.validation import MalformedCallbackError, validate
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from supervisor_tasks.crash import Point, after, before

log = Sparing(structlog.get_logger())

THREADS = 16
REPORTER_ASKS = "plugins.reporter"  # as which service; nobody else asks for the health of that one
SERVICES = ("", "supervisor.v1alpha1.JobAPI", "supervisor.v1alpha1.SshAPI", REPORTER_ASKS)
HEALTH_EVERY_S = 2.0
OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Plugins that make sure of their connection by pings: by itself gRPC ends it (too_many_pings) where they come more often
    # than every five minutes, or while no call is under way.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class JobApi(services.JobAPIServicer):
    """Takes what the plugins say, and answers OK when it is on disk."""

    def __init__(self, inbox: Inbox, bell: Bell) -> None:
        self._inbox = inbox
        self._bell = bell

    def SetJobStatus(
        self, request: messages.SetJobStatusRequest, context: grpc.ServicerContext
    ) -> messages.SetJobStatusResponse:
        """INVALID_ARGUMENT for what no plugin would say, UNAVAILABLE when it could not be stored, RESOURCE_EXHAUSTED when
        so much was said of the job that only a liar can have more to say: a plugin keeps it, and comes again.
        """
        peer = context.peer()
        try:
            report = validate(request.name, request.id, request.duration, request.status, request.exit_code)
            if not report.ignored:
                self._inbox.store(report, peer)
                self._bell.ring()
        except MalformedCallbackError as error:
            log.warning("callback_malformed", peer=peer, error=str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InboxFullError as error:
            log.warning("callback_too_many", peer=peer, job_id=request.name, error=str(error))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error}; come again")
        except InboxClosedError as error:
            log.warning("callback_not_stored", peer=peer, job_id=request.name, error=str(error.__cause__))
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{error}; come again")
        outcome = "callback_ignored" if report.ignored else "callback_stored"
        before(Point.CALLBACK_ACKNOWLEDGED)
        context.add_callback(lambda: after(Point.CALLBACK_ACKNOWLEDGED))
        log.info(outcome, job_id=report.job_id, slurm_id=report.slurm_id, status=report.status, peer=peer)
        return messages.SetJobStatusResponse()


class SshApi(services.SshAPIServicer):
    """Tells sshd which key the supervisor logs in with."""

    def __init__(self, authorized_keys: str) -> None:
        self._answer = messages.FetchAuthorizedKeysResponse(authorized_keys=authorized_keys.rstrip("\n") + "\n")

    def FetchAuthorizedKeys(
        self,
        request: messages.FetchAuthorizedKeysRequest,
        context: grpc.ServicerContext,
    ) -> messages.FetchAuthorizedKeysResponse:
        """The public half, as a line of authorized_keys."""
        return self._answer


class Health(health.HealthServicer):
    """The standard health service, by which the reporter lets itself be heard."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__()
        self._inbox = inbox

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """How a service stands; NOT_FOUND for one that is none of ours."""
        if request.service == REPORTER_ASKS:
            self._inbox.hear_reporter()
        return super().Check(request, context)


class Server:
    """The process's server; it listens once it is made."""

    def __init__(
        self, address: str, credentials: grpc.ServerCredentials | None, inbox: Inbox, bell: Bell, authorized_keys: str
    ) -> None:
        self._inbox = inbox
        self._health = Health(inbox)
        callers = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="grpc")
        self._server = grpc.server(callers, options=OPTIONS)
        services.add_JobAPIServicer_to_server(JobApi(inbox, bell), self._server)
        services.add_SshAPIServicer_to_server(SshApi(authorized_keys), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host, _, port = address.rpartition(":")
        target = f"{host or '[::]'}:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(target)
        else:
            self.port = self._server.add_secure_port(target, credentials)
        self._tell_health()
        self._server.start()

    def run_until(self, asked_to_end: threading.Event) -> None:
        """Serve, and keep the health up to date; at the end calls in flight are finished."""
        while not asked_to_end.wait(HEALTH_EVERY_S):
            self._tell_health()
        self._server.stop(grace=5.0).wait()

    def _tell_health(self) -> None:
        log.tell_left_out()
        serving = health_pb2.HealthCheckResponse.SERVING
        status = serving if self._inbox.is_open() else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in SERVICES:
            self._health.set(service, status)
