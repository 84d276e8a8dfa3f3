"""The job definition service, which turns a batch location hash into the script that
SLURM runs.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from protos.sbatchapi.v1alpha1.sbatch_pb2 import ChallengeRequest, GetSBatchRequest
from protos.sbatchapi.v1alpha1.sbatch_pb2_grpc import AuthAPIStub, SBatchAPIStub
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.jobs.model import Job

TIMEOUT_S = 10.0
FINAL = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}
# A restarted service does not know its old challenges. A service whose node is a block
# behind does not know yet that the job is ours.
REJECTED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


class ScriptUnavailableError(PermanentError):
    """The service will never give this script; the message is the service's own."""


class ScriptRejectedError(TransientError):
    """The service does not accept that we may read this script; the message is the
    service's own. A retry may help later, or it may never help.
    """


class JobDefinitionsDownError(TransientError):
    """The service does not answer; retry later."""


@dataclass(frozen=True, slots=True)
class Script:
    """The service's answer for a job."""

    text: str
    grid_logger_url: str


class JobDefinitions:
    """A client of the service. Threads may share it. `open_channel` connects to the
    service; `sign` makes an EIP-191 signature of 65 bytes.
    """

    def __init__(
        self, open_channel: Callable[[], grpc.Channel], sign: Callable[[bytes], bytes]
    ) -> None:
        self._open_channel = open_channel
        self._sign = sign
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def fetch(self, job: Job) -> Script:
        """Fetch a job's script with a new challenge. Raises ScriptUnavailableError
        (final), JobDefinitionsDownError or ServiceDownError (retry) or
        ScriptRejectedError (retry, but not for ever).
        """
        channel = self._connected()
        try:
            challenge = (
                AuthAPIStub(channel)
                .Challenge(ChallengeRequest(), timeout=TIMEOUT_S)
                .challenge
            )
            request = GetSBatchRequest(
                batch_location_hash=job.definition.batch_location_hash,
                signed_challenge=self._sign(challenge),
                challenge=challenge,
                provider_address=bytes.fromhex(job.provider[2:]),
                customer_address=bytes.fromhex(job.customer[2:]),
                job_id=job.job_id,
            )
            answer = SBatchAPIStub(channel).GetSBatch(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() in FINAL or _script_is_too_long(error):
                raise ScriptUnavailableError(_error_text(error)) from error
            self._discard(channel)
            if error.code() in REJECTED:
                raise ScriptRejectedError(_error_text(error)) from error
            raise JobDefinitionsDownError(_error_text(error)) from error
        return Script(answer.sbatch, answer.grid_logger_url)

    def _connected(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                self._channel = self._open_channel()
            return self._channel

    def _discard(self, channel: grpc.Channel) -> None:
        """Make the next call open a new channel, because the service may have another
        certificate by then. Calls of other threads on the old channel end by
        themselves.
        """
        with self._lock:
            if self._channel is channel:
                self._channel = None


def _script_is_too_long(error: grpc.RpcError) -> bool:
    """Whether the script is longer than gRPC and SLURM accept (MAX_MESSAGE_BYTES of a
    channel). A retry has the same result.
    """
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (
        error.details() or ""
    )


def _error_text(error: grpc.RpcError) -> str:
    return f"job definition service: {error.code().name}: {error.details()}"
