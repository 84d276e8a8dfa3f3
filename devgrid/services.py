"""The grid's own services in one process: the job definition service and the grid logger.

`python -m devgrid.services --help`. Like the real ones, the first checks the signature of a one-use challenge and, on chain,
that the job belongs to that customer and that provider; the second appends lines to files.
"""

import argparse
import hashlib
import json
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import grpc
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError

from devgrid import scripts
from protos.logger.v1alpha1.logger_pb2 import WriteRequest, WriteResponse
from protos.logger.v1alpha1.logger_pb2_grpc import LoggerAPIServicer, add_LoggerAPIServicer_to_server
from protos.sbatchapi.v1alpha1 import sbatch_pb2 as messages
from protos.sbatchapi.v1alpha1 import sbatch_pb2_grpc as services
from supervisor_tasks.chain.codec import function
from supervisor_tasks.chain.rpc import Rpc, RpcError, RpcUnavailableError
from supervisor_tasks.job import ChainStatus

GET_JOB = function("JobRepository", "get")
CHALLENGE_LIFE_S = 600.0
THREADS = 8
LOG_NAME_BYTES = 200  # file systems end at 255, and a prefix is added


class RefusedError(Exception):
    """The service says no; with the gRPC status and the words that say why."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class Challenges:
    """One-use nonces, each good for ten minutes. They are known by their bytes: what strangers send back is compared and
    never parsed (deep JSON overflows the stack, as eth_abi's parser sets the recursion limit to 100,000).
    """

    clock: Callable[[], float] = time.monotonic
    _issued: dict[bytes, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self) -> bytes:
        """A new challenge, opaque to the caller."""
        nonce, now = secrets.token_hex(16), self.clock()
        challenge = json.dumps({"message": "Sign to fetch a batch script.", "nonce": nonce}).encode()
        with self._lock:
            self._issued[challenge] = now + CHALLENGE_LIFE_S
            while self._issued[oldest := next(iter(self._issued))] < now:
                del self._issued[oldest]
        return challenge

    def use(self, challenge: bytes) -> None:
        """Take a challenge back. Raises RefusedError for one that is not ours, was used, or is too old."""
        with self._lock:
            good_until = self._issued.pop(challenge, None)
        if good_until is None:
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "the challenge is none of ours, or was used before")
        if good_until < self.clock():
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "the challenge is older than ten minutes")


class AuthApi(services.AuthAPIServicer):
    """Gives challenges."""

    def __init__(self, challenges: Challenges) -> None:
        self._challenges = challenges

    def Challenge(
        self, request: messages.ChallengeRequest, context: grpc.ServicerContext
    ) -> messages.ChallengeResponse:
        """A new one."""
        return messages.ChallengeResponse(challenge=self._challenges.issue())


class SBatchApi(services.SBatchAPIServicer):
    """Gives scripts to whom they belong."""

    def __init__(self, challenges: Challenges, rpc: Rpc, jobs: str, folder: Path, public_address: str) -> None:
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
            script = scripts.fetch(self._folder, request.batch_location_hash)
        except RefusedError as error:
            context.abort(error.status, str(error))
        except KeyError:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no script {request.batch_location_hash[:80]!r}")
        except RpcUnavailableError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return messages.GetSBatchResponse(sbatch=script, grid_logger_url=self._public_address)

    def _check_job(self, request: messages.GetSBatchRequest) -> None:
        if not re.fullmatch("0x[0-9a-fA-F]{64}", request.job_id):
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "job_id: expected 0x and 64 hex digits")
        data = GET_JOB.encode(bytes.fromhex(request.job_id[2:]))
        try:
            answer = self._rpc.call("eth_call", {"to": self._jobs, "data": data}, "latest")
        except RpcError as error:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"there is no job {request.job_id} on chain") from error
        (_, status, customer, provider, definition, *_), *_ = GET_JOB.decode(answer)
        if provider != "0x" + request.provider_address.hex() or customer != "0x" + request.customer_address.hex():
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the job is not this customer's and provider's")
        if definition[4] != request.batch_location_hash:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the job has another batch location hash")
        if ChainStatus(status).cold:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the job has ended")


class Logger(LoggerAPIServicer):
    """Appends lines to one file per user and log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def Write(self, request_iterator: Iterator[WriteRequest], context: grpc.ServicerContext) -> WriteResponse:
        """Each message is a line."""
        for request in request_iterator:
            file = _log_file(self._folder, request.user, request.log_name)
            with self._lock:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("ab") as lines:
                    lines.write(request.data.replace(b"\n", b" ") + b"\n")
        return WriteResponse()


def logged_lines(folder: Path, user: str, log_name: str) -> list[str]:
    """What was logged for a user under a name."""
    file = _log_file(folder, user, log_name)
    return file.read_bytes().decode(errors="replace").split("\n")[:-1] if file.exists() else []


def _log_file(folder: Path, user: str, log_name: str) -> Path:
    """Names are strangers' text: each has a file of its own, and none leaves the folder."""
    return folder / f"user-{_file_name(user)}" / f"log-{_file_name(log_name)}"


def _file_name(name: str) -> str:
    """The name percent-encoded, or its hash where that would be too long for a file system."""
    safe = quote(name, safe="")
    return safe if len(safe) <= LOG_NAME_BYTES else "sha256=" + hashlib.sha256(name.encode()).hexdigest()


def _check_signature(request: messages.GetSBatchRequest) -> None:
    signature = request.signed_challenge
    if len(signature) != 65:
        reason = f"the signature has {len(signature)} bytes; expected 65 (r, s, v)"
        raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, reason)
    if signature[64] < 27:
        signature = signature[:64] + bytes([signature[64] + 27])
    try:
        signer = Account.recover_message(encode_defunct(primitive=request.challenge), signature=signature)
    except (ValueError, BadSignature, ValidationError) as error:
        raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, f"the signature cannot be read: {error}") from error
    if signer.lower() != "0x" + request.provider_address.hex():
        raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "the signature is not the provider's")


def main() -> None:
    """Read the options and serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="devgrid.services", description="Job definition service and grid logger.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--scripts", type=Path, required=True, help="folder of the batch scripts")
    parser.add_argument("--logs", type=Path, required=True, help="folder of the users' log lines")
    parser.add_argument("--rpc", required=True, help="URL of the chain")
    parser.add_argument("--jobs", required=True, help="address of the job repository contract")
    options = parser.parse_args()
    server = grpc.server(futures.ThreadPoolExecutor(THREADS))
    challenges = Challenges()
    api = SBatchApi(challenges, Rpc.at(options.rpc), options.jobs, options.scripts, options.listen)
    services.add_AuthAPIServicer_to_server(AuthApi(challenges), server)
    services.add_SBatchAPIServicer_to_server(api, server)
    add_LoggerAPIServicer_to_server(Logger(options.logs), server)
    pair = [(options.key.read_bytes(), options.cert.read_bytes())]
    server.add_secure_port(options.listen, grpc.ssl_server_credentials(pair))
    server.start()
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace=1.0))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
