"""The job definition service: sends the batch script of a job to its provider.

Like the real one, it checks the signature of a one-use challenge and, on chain, that
the job belongs to that customer and that provider.
"""

import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError

from devgrid.services import script_store
from protos.sbatchapi.v1alpha1 import sbatch_pb2 as messages
from protos.sbatchapi.v1alpha1 import sbatch_pb2_grpc as services
from supervisor_tasks.chain.abi_codec import function
from supervisor_tasks.chain.rpc.client import Rpc, RpcError, RpcUnavailableError
from supervisor_tasks.jobs.model import ChainStatus

GET_JOB = function("JobRepository", "get")
CHALLENGE_LIFE_S = 600.0


class RefusedError(Exception):
    """The service rejects a request, with a gRPC status and a reason."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class Challenges:
    """One-use nonces, each good for ten minutes. They are found by their bytes: what
    strangers send is compared and never parsed (deep JSON overflows the stack, as
    eth_abi's parser sets the recursion limit to 100,000).
    """

    clock: Callable[[], float] = time.monotonic
    _issued: dict[bytes, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self) -> bytes:
        """A new challenge, opaque to the caller."""
        nonce, now = secrets.token_hex(16), self.clock()
        challenge = json.dumps(
            {"message": "Sign to fetch a batch script.", "nonce": nonce}
        ).encode()
        with self._lock:
            self._issued[challenge] = now + CHALLENGE_LIFE_S
            while self._issued[oldest := next(iter(self._issued))] < now:
                del self._issued[oldest]
        return challenge

    def use(self, challenge: bytes) -> None:
        """Take a challenge back. Raises RefusedError for one that is not ours, was
        used, or is too old.
        """
        with self._lock:
            good_until = self._issued.pop(challenge, None)
        if good_until is None:
            raise RefusedError(
                grpc.StatusCode.UNAUTHENTICATED,
                "the challenge is none of ours, or was used before",
            )
        if good_until < self.clock():
            raise RefusedError(
                grpc.StatusCode.UNAUTHENTICATED,
                "the challenge is older than ten minutes",
            )


class AuthApi(services.AuthAPIServicer):
    """Issues challenges."""

    def __init__(self, challenges: Challenges) -> None:
        self._challenges = challenges

    def Challenge(
        self, request: messages.ChallengeRequest, context: grpc.ServicerContext
    ) -> messages.ChallengeResponse:
        """Issue a new challenge."""
        return messages.ChallengeResponse(challenge=self._challenges.issue())


class SBatchApi(services.SBatchAPIServicer):
    """Sends scripts to the providers of their jobs."""

    def __init__(
        self,
        challenges: Challenges,
        rpc: Rpc,
        jobs: str,
        folder: Path,
        public_address: str,
    ) -> None:
        self._challenges = challenges
        self._rpc = rpc
        self._jobs = jobs
        self._folder = folder
        self._public_address = public_address

    def GetSBatch(
        self, request: messages.GetSBatchRequest, context: grpc.ServicerContext
    ) -> messages.GetSBatchResponse:
        """The script of a job, for its provider."""
        try:
            self._challenges.use(request.challenge)
            _check_signature(request)
            self._check_job(request)
            script = script_store.fetch(self._folder, request.batch_location_hash)
        except RefusedError as error:
            context.abort(error.status, str(error))
        except KeyError:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"there is no script {request.batch_location_hash[:80]!r}",
            )
        except RpcUnavailableError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return messages.GetSBatchResponse(
            sbatch=script, grid_logger_url=self._public_address
        )

    def _check_job(self, request: messages.GetSBatchRequest) -> None:
        if not re.fullmatch("0x[0-9a-fA-F]{64}", request.job_id):
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                "job_id: expected 0x and 64 hex digits",
            )
        data = GET_JOB.encode(bytes.fromhex(request.job_id[2:]))
        try:
            answer = self._rpc.call(
                "eth_call", {"to": self._jobs, "data": data}, "latest"
            )
        except RpcError as error:
            raise RefusedError(
                grpc.StatusCode.NOT_FOUND, f"there is no job {request.job_id} on chain"
            ) from error
        (_, status, customer, provider, definition, *_), *_ = GET_JOB.decode(answer)
        if (
            provider != "0x" + request.provider_address.hex()
            or customer != "0x" + request.customer_address.hex()
        ):
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                "the job is not this customer's and provider's",
            )
        if definition[4] != request.batch_location_hash:
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                "the job has another batch location hash",
            )
        if ChainStatus(status).is_final:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the job has ended")


def _check_signature(request: messages.GetSBatchRequest) -> None:
    signature = request.signed_challenge
    if len(signature) != 65:
        reason = f"the signature has {len(signature)} bytes; expected 65 (r, s, v)"
        raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, reason)
    if signature[64] < 27:
        signature = signature[:64] + bytes([signature[64] + 27])
    try:
        signer = Account.recover_message(
            encode_defunct(primitive=request.challenge), signature=signature
        )
    except (ValueError, BadSignature, ValidationError) as error:
        raise RefusedError(
            grpc.StatusCode.UNAUTHENTICATED, f"the signature cannot be read: {error}"
        ) from error
    if signer.lower() != "0x" + request.provider_address.hex():
        raise RefusedError(
            grpc.StatusCode.UNAUTHENTICATED, "the signature is not the provider's"
        )
