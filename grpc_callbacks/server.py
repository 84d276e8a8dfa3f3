"""The gRPC services: JobAPI, SshAPI and Check of grpc.health.v1.Health.

They run on one event loop (grpc.aio), because a call that never finishes would hold a
thread of gRPC's threaded server for ever. Messages arrive as bytes: a proof covers the
bytes that travelled. Health's Watch is UNIMPLEMENTED: the caller decides how long a
stream lasts, and a probe needs no stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from operator import methodcaller
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from grpc_callbacks.callback_writer import (
    CallbackNotStoredError,
    CallbackWriter,
    InboxFullError,
    NoSuchJobError,
)
from grpc_callbacks.callers import Caller, Callers, Proof, StrangerError
from grpc_callbacks.connection_acceptor import ConnectionAcceptor, allow_open_files
from grpc_callbacks.connections import (
    CALLS_OF_A_PEER,
    MAX_CONNECTIONS_OF_A_PEER,
    CallerConnection,
    UnreadCalls,
)
from grpc_callbacks.notifier import PollNotifier
from grpc_callbacks.private_sockets import SocketFolder
from grpc_callbacks.rate_limited_log import RateLimitedLogger
from grpc_callbacks.self_check import OwnPort, SelfCheck
from grpc_callbacks.validation import MalformedCallbackError, validate
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from supervisor_tasks.crash_points import CrashPoint, after, before
from supervisor_tasks.errors import TransientError
from supervisor_tasks.instruments import CALLBACKS

log = RateLimitedLogger(structlog.get_logger())

# the service in the reporter's health check; no other caller asks for it
REPORTER_SERVICE = "plugins.reporter"
SERVICES = (
    "",
    "supervisor.v1alpha1.JobAPI",
    "supervisor.v1alpha1.SshAPI",
    REPORTER_SERVICE,
)
SET_JOB_STATUS = "/supervisor.v1alpha1.JobAPI/SetJobStatus"
HEALTH_EVERY_S = 2.0
GRACE_S = 5.0
# of a connection; a gRPC client holds further calls back until one of them ends
MAX_STREAMS = 16
OPTIONS = (
    ("grpc.max_receive_message_length", 4096),  # a callback has 150 bytes at most
    ("grpc.max_metadata_size", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
    # no compression: a small message can unpack to a large one
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # Calls that have begun and have no handler yet. Above the first number (gRPC's
    # default: 1,000) gRPC cancels calls at random, also those of good callers. So the
    # number is more than one peer can begin (its connections x streams); UnreadCalls
    # limits the calls that have a handler.
    ("grpc.server.max_pending_requests", 2 * MAX_CONNECTIONS_OF_A_PEER * MAX_STREAMS),
    (
        "grpc.server.max_pending_requests_hard_limit",
        4 * MAX_CONNECTIONS_OF_A_PEER * MAX_STREAMS,
    ),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # a call that never finishes ends with its connection
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 30_000),
    # Plugins check their connection with pings. By default gRPC ends a connection
    # (too_many_pings) whose pings come more often than every five minutes, or while no
    # call is under way.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
MESSAGE_S = 15.0  # within this time a call's message must arrive
# calls; at one more, the connection with most of them is closed
MAX_CALLS_WITHOUT_MESSAGE = 1024
# of the served key: no terminal, no forwarding, and no ~/.ssh/rc, which sshd would run
# before each of the supervisor's commands
RESTRICTED = "restrict "
OURSELVES = "unix:"  # as gRPC writes the peer of a Unix socket without a name

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[bytes, Message]
Answer = Callable[[bytes, "Called"], Awaitable[Message]]


REFUSED_CALLBACKS = (
    MalformedCallbackError,
    NoSuchJobError,
    InboxFullError,
    CallbackNotStoredError,
)


class Refused(Exception):  # noqa: N818  it is an answer
    """The server answers the call with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Called:
    """A call: its context, and the caller."""

    def __init__(self, context: Context, peer: str, caller: Caller) -> None:
        self.context = context
        self.peer = peer
        self.caller = caller


class Services:
    """The methods that callers can call; checks each caller before it answers. The
    server sets `acceptor` before it listens.
    """

    acceptor: ConnectionAcceptor

    def __init__(
        self,
        writer: CallbackWriter,
        notifier: PollNotifier,
        callers: Callers,
        authorized_keys: str,
    ) -> None:
        self._writer = writer
        self._notifier = notifier
        self._callers = callers
        self._keys = messages.FetchAuthorizedKeysResponse(
            authorized_keys=RESTRICTED + authorized_keys.rstrip("\n") + "\n"
        )
        self._serving = False
        self._unread = UnreadCalls(MAX_CALLS_WITHOUT_MESSAGE)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return the handlers for gRPC's server."""
        named: dict[str, dict[str, Answer]] = {
            "supervisor.v1alpha1.JobAPI": {"SetJobStatus": self.set_job_status},
            "supervisor.v1alpha1.SshAPI": {
                "FetchAuthorizedKeys": self.fetch_authorized_keys
            },
            "grpc.health.v1.Health": {"Check": self.check},
        }
        return tuple(
            self._handlers_of(service, answers) for service, answers in named.items()
        )

    def _handlers_of(
        self, service: str, answers: "Mapping[str, Answer]"
    ) -> grpc.GenericRpcHandler:
        handlers = {
            name: self._handler(f"/{service}/{name}", answer)
            for name, answer in answers.items()
        }
        return grpc.method_handlers_generic_handler(service, handlers)

    def _handler(
        self, method: str, answer: Answer
    ) -> "grpc.RpcMethodHandler[bytes, Message]":
        async def handle(_: Any, context: Context) -> Message:
            try:
                return await self._answered(
                    method, answer, await self._message(context), context
                )
            except Refused as refused:
                await context.abort(refused.code, str(refused))
            except Exception as error:
                # a bad message must end only the caller's own call
                if log.is_first("call_failed"):
                    log.warning(
                        "call_failed",
                        method=method,
                        peer=self._peer(context),
                        error=repr(error),
                        exc_info=True,
                    )
                await context.abort(
                    grpc.StatusCode.INTERNAL, "see the supervisor's log"
                )

        # The call is a stream of messages, and the handler reads one: for a single
        # message gRPC itself waits for ever.
        return grpc.stream_unary_rpc_method_handler(handle, None, _serialized)

    async def _message(self, context: Context) -> bytes:
        """Read the call's message. If too many calls have none, close the connection
        with most of them.
        """
        name = context.peer()
        given_up = self._unread.begin(name)
        if given_up is not None:
            self.acceptor.give_up(given_up)
        try:
            async with asyncio.timeout(MESSAGE_S):
                raw = await context.read()
        except TimeoutError as error:
            log.once("call_without_message", peer=self._peer(context))
            raise Refused(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"found no message within {MESSAGE_S:g} s",
            ) from error
        finally:
            self._unread.end(name)
        if not isinstance(raw, bytes):
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT, "found no message; expected one"
            )
        return raw

    def _peer(self, context: Context) -> str:
        """Return the caller's address for the log."""
        connection = self.acceptor.connection(context.peer())
        if connection is None:
            return "gone"
        return connection.peer

    async def _answered(
        self, method: str, answer: Answer, raw: bytes, context: Context
    ) -> Message:
        if context.peer() == OURSELVES:
            return await answer(raw, Called(context, OURSELVES, Caller(Proof.UNPROVEN)))
        connection = self.acceptor.connection(context.peer())
        if connection is None:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
        if self.acceptor.connections.calls_of_peer(connection) >= CALLS_OF_A_PEER:
            log.once("too_many_calls", peer=connection.peer)
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{CALLS_OF_A_PEER} calls of one peer are under way; retry later",
            )
        caller = self._admitted(connection, method, raw, context)
        self.acceptor.connections.begin_call(connection)
        try:
            message = await answer(raw, Called(context, connection.peer, caller))
        finally:
            self.acceptor.connections.end_call(connection)
        connection.answered = True
        return message

    def _admitted(
        self, connection: CallerConnection, method: str, raw: bytes, context: Context
    ) -> Caller:
        metadata = context.invocation_metadata() or ()
        try:
            caller = self._callers.admit(connection.address, method, raw, metadata)
        except StrangerError as error:
            if method == SET_JOB_STATUS:
                CALLBACKS.labels("denied").inc()
            log.once("stranger_refused", peer=connection.peer, error=str(error))
            raise Refused(error.code, str(error)) from error
        connection.proven |= caller.proof is Proof.PROVEN
        return caller

    async def set_job_status(self, raw: bytes, called: Called) -> Message:
        """Store a callback; answers OK after the database has committed it.

        INVALID_ARGUMENT: no plugin sends such a callback. UNAVAILABLE: the database did
        not store it; a retry helps. RESOURCE_EXHAUSTED: the ledger keeps more callbacks
        about the job than true callers send; a plugin keeps the callback and tries
        again. NOT_FOUND: the ledger does not know the job, and already keeps as many
        callbacks about unknown jobs as it may.
        """
        request, peer = _parsed(messages.SetJobStatusRequest, raw), called.peer
        verdict = "ignored"
        event = "callback_ignored"
        try:
            report = validate(
                request.name,
                request.id,
                request.duration,
                request.status,
                request.exit_code,
            )
            if not report.ignored:
                await self._writer.store(report, peer, called.caller.proof)
                self._notifier.request_poll()
                verdict = "stored"
                event = "callback_stored"
        except REFUSED_CALLBACKS as error:
            raise _refused(error, peer, request.name) from error
        CALLBACKS.labels(verdict).inc()
        before(CrashPoint.CALLBACK_ACKNOWLEDGED)
        called.context.add_done_callback(cast(Any, _acknowledged))
        about = {
            "job_id": report.job_id,
            "slurm_id": report.slurm_id,
            "status": report.status,
        }
        log.info(event, **about, peer=peer, proof=str(called.caller.proof))
        return messages.SetJobStatusResponse()

    async def fetch_authorized_keys(self, raw: bytes, called: Called) -> Message:
        """Return the public half of the key that the supervisor logs in with, as a line
        of authorized_keys (sshd(8)).
        """
        return self._keys

    async def check(self, raw: bytes, called: Called) -> Message:
        """Answer whether a service works; NOT_FOUND for a service of others. The
        reporter's check is its heartbeat.
        """
        service = _parsed(health_pb2.HealthCheckRequest, raw).service
        if service not in SERVICES:
            raise Refused(grpc.StatusCode.NOT_FOUND, "")
        if service == REPORTER_SERVICE and self._callers.counts_as_heartbeat(
            called.caller
        ):
            self._writer.note_reporter_heartbeat(called.caller.node)
        answers = health_pb2.HealthCheckResponse
        if not self._serving:
            return answers(status=answers.NOT_SERVING)
        return answers(status=answers.SERVING)

    async def update_health(self) -> None:
        """Check the database, and update the answer of `check`; write the counts of
        dropped log lines.
        """
        log.flush_dropped_counts()
        self._serving = await self._writer.is_open()


class CallbackServer:
    """The process's server."""

    def __init__(
        self,
        address: str,
        public_address: str,
        credentials: grpc.ServerCredentials | None,
        services: Services,
        sockets: SocketFolder,
    ) -> None:
        self._address = address
        self._services = services
        self._sockets = sockets
        self._inner, self._own = sockets.path("callers"), sockets.path("self")
        self._tls = credentials is not None
        self._acceptor = ConnectionAcceptor(
            self._inner, public_address, tls=self._tls, most=allow_open_files()
        )
        services.acceptor = self._acceptor
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers(services.handlers())
        if credentials is None:
            self._server.add_insecure_port(f"unix:{self._inner}")
        else:
            self._server.add_secure_port(f"unix:{self._inner}", credentials)
        self._server.add_insecure_port(f"unix:{self._own}")
        self._self_check: SelfCheck | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises OSError when the address is in use or not of this machine."""
        await self._services.update_health()
        await self._server.start()
        ip, self.port = await self._acceptor.listen(self._address)
        ask = OwnPort(
            _reached_by_itself(ip),
            self.port,
            self._own,
            self._acceptor.connections.own,
            tls=self._tls,
        ).ask
        self._self_check = SelfCheck(ask)
        self._self_check.start()

    async def run_until(self, asked_to_end: asyncio.Event) -> None:
        """Serve, and update the health every HEALTH_EVERY_S, until the event is set."""
        while not asked_to_end.is_set():
            await self._services.update_health()
            try:
                await asyncio.wait_for(asked_to_end.wait(), HEALTH_EVERY_S)
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Accept no more calls, and give those under way GRACE_S to finish."""
        if self._self_check is not None:
            self._self_check.stop()
        self._acceptor.stop_listening()
        await self._server.stop(GRACE_S)
        self._acceptor.close()
        self._sockets.close()


def _parsed(kind: type[M], raw: bytes) -> M:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise Refused(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"found bytes that are no {kind.DESCRIPTOR.name}",
        ) from error


_serialized = methodcaller("SerializeToString")


def _refused(error: Exception, peer: str, job_id: str) -> Refused:
    """Count and log a callback that is not stored. Returns the call's answer."""
    details = str(error)
    if isinstance(error, TransientError):
        details += "; retry later"
    match error:
        case MalformedCallbackError():
            verdict, code = "malformed", grpc.StatusCode.INVALID_ARGUMENT
            log.warning("callback_malformed", peer=peer, error=str(error))
        case NoSuchJobError():
            verdict, code = "unknown_job", grpc.StatusCode.NOT_FOUND
            log.once("callback_of_no_job", peer=peer, job_id=job_id, error=str(error))
        case InboxFullError():
            verdict, code = "too_many", grpc.StatusCode.RESOURCE_EXHAUSTED
            log.warning("callback_too_many", peer=peer, job_id=job_id, error=str(error))
        case _:
            verdict, code = "not_stored", grpc.StatusCode.UNAVAILABLE
            cause = str(error.__cause__)
            log.warning("callback_not_stored", peer=peer, job_id=job_id, error=cause)
    CALLBACKS.labels(verdict).inc()
    return Refused(code, details)


def _acknowledged(_: Any) -> None:
    after(CrashPoint.CALLBACK_ACKNOWLEDGED)


def _reached_by_itself(ip: str) -> str:
    """Return the host at which this process reaches its own port at that IP address.

    It is not the name in the settings: a DNS that is away would end the process.
    """
    return "localhost" if ip_address(ip).is_unspecified else ip
