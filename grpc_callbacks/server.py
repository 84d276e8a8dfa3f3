"""The gRPC services: JobAPI, SshAPI and Check of grpc.health.v1.Health.

They run on one event loop (grpc.aio), because a call that never finishes would hold a thread of gRPC's other server for ever.
Messages arrive as bytes: a proof is over the bytes that travelled. Health's Watch is UNIMPLEMENTED: a stream costs as long as
its caller likes, and a probe needs none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from grpc_callbacks.bell import Bell
from grpc_callbacks.callers import Caller, Callers, Proof, StrangerError
from grpc_callbacks.connections import CALLS_OF_A_PEER, MOST_OF_A_PEER, Connection, UnreadCalls
from grpc_callbacks.front import Front, allow_open_files
from grpc_callbacks.inbox import Inbox, InboxClosedError, InboxFullError, NoSuchJobError
from grpc_callbacks.private_sockets import SocketFolder
from grpc_callbacks.self_check import OwnPort, SelfCheck
from grpc_callbacks.sparing import Sparing
from grpc_callbacks.validation import MalformedCallbackError, validate
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from supervisor_tasks.crash import Point, after, before

log = Sparing(structlog.get_logger())

REPORTER_ASKS = "plugins.reporter"  # as which service; nobody else asks for the health of that one
SERVICES = ("", "supervisor.v1alpha1.JobAPI", "supervisor.v1alpha1.SshAPI", REPORTER_ASKS)
HEALTH_EVERY_S = 2.0
GRACE_S = 5.0
STREAMS = 16  # of a connection; a gRPC client holds further calls back until one of them ends
OPTIONS = (
    ("grpc.max_receive_message_length", 4096),  # a callback has 150 bytes at most
    ("grpc.max_metadata_size", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message unpacks to a great one
    ("grpc.max_concurrent_streams", STREAMS),
    # Begun and not yet handed to a handler. Above the first number gRPC cancels calls at random, a good caller's among them
    # (1,000 by itself): more than a peer can begin (its connections x streams), and UnreadCalls bounds them then.
    ("grpc.server.max_pending_requests", 2 * MOST_OF_A_PEER * STREAMS),
    ("grpc.server.max_pending_requests_hard_limit", 4 * MOST_OF_A_PEER * STREAMS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.max_connection_age_ms", 3_600_000),  # a call that never finishes ends with its connection
    ("grpc.max_connection_age_grace_ms", 30_000),
    # Plugins that make sure of their connection by pings: by itself gRPC ends it (too_many_pings) where they come more often
    # than every five minutes, or while no call is under way.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
MESSAGE_S = 15.0  # until a call's message must have come
MOST_WITHOUT_MESSAGE = 1024  # calls; one more, and the connection with most of them is given up
OURSELVES = "unix:"  # as gRPC writes the peer of a Unix socket without a name

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[bytes, Message]
Answer = Callable[[bytes, "Called"], Awaitable[Message]]


class Refused(Exception):  # noqa: N818  it is an answer
    """The call is answered with this status."""

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
    """What callers may ask, and who may ask it."""

    def __init__(self, inbox: Inbox, bell: Bell, callers: Callers, authorized_keys: str) -> None:
        self._inbox = inbox
        self._bell = bell
        self._callers = callers
        self._keys = messages.FetchAuthorizedKeysResponse(authorized_keys=authorized_keys.rstrip("\n") + "\n")
        self.front: Front | None = None
        self._serving = False
        self._unread = UnreadCalls(MOST_WITHOUT_MESSAGE)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """For gRPC's server."""
        named: dict[str, dict[str, Answer]] = {
            "supervisor.v1alpha1.JobAPI": {"SetJobStatus": self.set_job_status},
            "supervisor.v1alpha1.SshAPI": {"FetchAuthorizedKeys": self.fetch_authorized_keys},
            "grpc.health.v1.Health": {"Check": self.check},
        }
        return tuple(
            grpc.method_handlers_generic_handler(
                service, {name: self._handler(f"/{service}/{name}", answer) for name, answer in answers.items()}
            )
            for service, answers in named.items()
        )

    def _handler(self, method: str, answer: Answer) -> "grpc.RpcMethodHandler[bytes, Message]":
        async def handle(_: Any, context: Context) -> Message:
            try:
                return await self._answered(method, answer, await self._message(context), context)
            except Refused as refused:
                await context.abort(refused.code, str(refused))
            except Exception as error:  # what a caller sends is to cost no more than his own call
                if log.is_first("call_failed"):
                    log.warning(
                        "call_failed", method=method, peer=self._peer(context), error=repr(error), exc_info=True
                    )
                await context.abort(grpc.StatusCode.INTERNAL, "the supervisor's log tells why")

        # As a stream of messages, of which one is read: gRPC itself waits for a single one for ever.
        return grpc.stream_unary_rpc_method_handler(handle, None, _serialized)

    async def _message(self, context: Context) -> bytes:
        """The call's message. Where many calls have none, the connection with most of them is given up."""
        name = context.peer()
        given_up = self._unread.begin(name)
        if given_up is not None and self.front is not None:
            self.front.give_up(given_up)
        try:
            async with asyncio.timeout(MESSAGE_S):
                raw = await context.read()
        except TimeoutError as error:
            log.once("call_without_message", peer=self._peer(context))
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"found no message within {MESSAGE_S:g} s") from error
        finally:
            self._unread.end(name)
        if not isinstance(raw, bytes):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "found no message; expected one")
        return raw

    def _peer(self, context: Context) -> str:
        """The caller, for the log."""
        connection = None if self.front is None else self.front.connection(context.peer())
        return "gone" if connection is None else connection.peer

    async def _answered(self, method: str, answer: Answer, raw: bytes, context: Context) -> Message:
        if context.peer() == OURSELVES:
            return await answer(raw, Called(context, OURSELVES, Caller(Proof.UNPROVEN)))
        connection = None if self.front is None else self.front.connection(context.peer())
        if self.front is None or connection is None:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
        if self.front.connections.calls_of_peer(connection) >= CALLS_OF_A_PEER:
            log.once("too_many_calls", peer=connection.peer)
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{CALLS_OF_A_PEER} calls of one peer are under way; come again"
            )
        caller = self._admitted(connection, method, raw, context)
        self.front.connections.begin_call(connection)
        try:
            message = await answer(raw, Called(context, connection.peer, caller))
        finally:
            self.front.connections.end_call(connection)
        connection.answered = True
        return message

    def _admitted(self, connection: Connection, method: str, raw: bytes, context: Context) -> Caller:
        metadata = context.invocation_metadata() or ()
        try:
            caller = self._callers.admit(connection.address, method, raw, metadata)
        except StrangerError as error:
            log.once("stranger_refused", peer=connection.peer, error=str(error))
            raise Refused(error.code, str(error)) from error
        connection.proven |= caller.proof is Proof.PROVEN
        return caller

    async def set_job_status(self, raw: bytes, called: Called) -> Message:
        """Answers OK when it is on disk. INVALID_ARGUMENT for what no plugin would say, UNAVAILABLE when it could not be
        stored, RESOURCE_EXHAUSTED when so much was said of the job that only a liar can have more to say: a plugin keeps it,
        and comes again. NOT_FOUND when it is about a job that the ledger does not know, and so were many before.
        """
        request, peer = _parsed(messages.SetJobStatusRequest, raw), called.peer
        try:
            report = validate(request.name, request.id, request.duration, request.status, request.exit_code)
            if not report.ignored:
                await self._inbox.store(report, peer, called.caller.proof)
                self._bell.ring()
        except MalformedCallbackError as error:
            log.warning("callback_malformed", peer=peer, error=str(error))
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except NoSuchJobError as error:
            log.once("callback_of_no_job", peer=peer, job_id=request.name, error=str(error))
            raise Refused(grpc.StatusCode.NOT_FOUND, str(error)) from error
        except InboxFullError as error:
            log.warning("callback_too_many", peer=peer, job_id=request.name, error=str(error))
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error}; come again") from error
        except InboxClosedError as error:
            log.warning("callback_not_stored", peer=peer, job_id=request.name, error=str(error.__cause__))
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{error}; come again") from error
        outcome = "callback_ignored" if report.ignored else "callback_stored"
        before(Point.CALLBACK_ACKNOWLEDGED)
        called.context.add_done_callback(cast(Any, _acknowledged))
        about = {"job_id": report.job_id, "slurm_id": report.slurm_id, "status": report.status}
        log.info(outcome, **about, peer=peer, proof=str(called.caller.proof))
        return messages.SetJobStatusResponse()

    async def fetch_authorized_keys(self, raw: bytes, called: Called) -> Message:
        """The public half of the key that the supervisor logs in with, as a line of authorized_keys."""
        return self._keys

    async def check(self, raw: bytes, called: Called) -> Message:
        """How a service stands; NOT_FOUND for one that is none of ours. The reporter lets itself be heard by it."""
        service = _parsed(health_pb2.HealthCheckRequest, raw).service
        if service not in SERVICES:
            raise Refused(grpc.StatusCode.NOT_FOUND, "")
        if service == REPORTER_ASKS and self._callers.is_sign_of_life(called.caller):
            self._inbox.hear_reporter()
        answers = health_pb2.HealthCheckResponse
        return answers(status=answers.SERVING if self._serving else answers.NOT_SERVING)

    async def tell_health(self) -> None:
        """Find out how the services stand."""
        log.tell_left_out()
        self._serving = await self._inbox.is_open()


class Server:
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
        self._front = Front(self._inner, public_address, tls=self._tls, most=allow_open_files())
        services.front = self._front
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
        """Listen. Raises OSError when the address cannot be had."""
        await self._services.tell_health()
        await self._server.start()
        self.port = await self._front.listen(self._address)
        ask = OwnPort(_reached_by_itself(self._address), self.port, self._own, tls=self._tls).ask
        self._self_check = SelfCheck(ask)
        self._self_check.start()

    async def run_until(self, asked_to_end: asyncio.Event) -> None:
        """Serve, and keep the health up to date; at the end calls in flight are finished."""
        while not asked_to_end.is_set():
            await self._services.tell_health()
            try:
                await asyncio.wait_for(asked_to_end.wait(), HEALTH_EVERY_S)
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Take no more calls, and finish those that are under way."""
        if self._self_check is not None:
            self._self_check.stop()
        self._front.stop_listening()
        await self._server.stop(GRACE_S)
        self._front.close()
        self._sockets.close()


def _parsed(kind: type[M], raw: bytes) -> M:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"found bytes that are no {kind.DESCRIPTOR.name}") from error


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _acknowledged(_: Any) -> None:
    after(Point.CALLBACK_ACKNOWLEDGED)


def _reached_by_itself(address: str) -> str:
    """The host at which this process reaches what listens at the address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        everywhere = not host or ip_address(host).is_unspecified
    except ValueError:
        return host
    return "localhost" if everywhere else host
