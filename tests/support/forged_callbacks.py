"""Forged callbacks: about jobs of others, with absurd figures, twice, too early, too
late. Anyone can call the port.
"""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from devgrid.grid import Grid
from devgrid.machine import deadline
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub
from tests.support.audit_evidence import ACKNOWLEDGED

CALLERS = 8
# The possible answers. RESOURCE_EXHAUSTED: no room for more callbacks about unknown
# jobs, or jobs without a SLURM id.
ANSWERS = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}
STATUSES = range(11)  # all of JobStatus; 11 stands for one that a later version may add
ABSURD = (0, 1, 59, 60, 61, 3600, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1)
ABSURD_IDS = (0, 1, 2**31, 2**32 - 1, 2**32, 2**64 - 1)
ABSURD_EXITS = (0, 1, 9, 15, 256, 65535, -1, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)
HOSTILE = (
    "",
    "0x",
    "x" * 10_000,
    "0x" + "G" * 64,
    "'; DROP TABLE jobs; --",
    "$(reboot)\n0x" + "a" * 64,
    "\u202e0x",
)


def forged_callbacks(
    seed: int, job_ids: Sequence[str], slurm_ids: Sequence[int]
) -> Iterator[SetJobStatusRequest]:
    """An endless series of forged callbacks, most of them about these jobs."""
    chance = random.Random(seed)
    earlier: list[SetJobStatusRequest] = []
    while True:
        if earlier and chance.random() < 0.1:
            yield chance.choice(earlier)  # once more, out of order
            continue
        callback = SetJobStatusRequest(
            name=_name(chance, job_ids),
            id=chance.choice(slurm_ids)
            if slurm_ids and chance.random() < 0.8
            else chance.choice(ABSURD_IDS),
            duration=chance.choice(ABSURD)
            if chance.random() < 0.5
            else chance.randrange(10_000),
            status=chance.choice([*STATUSES, 11]),
            exit_code=chance.choice(ABSURD_EXITS),
        )
        earlier.append(callback)
        yield callback


def send(
    grid: Grid, callbacks: Sequence[SetJobStatusRequest], tries: int = 1
) -> dict[str, int]:
    """Send the callbacks to the gRPC process, several at a time. Returns how many got
    which answer.

    Those that are acknowledged are recorded for the audit. With more than one of
    `tries`, a callback that could not be stored in time is sent again, as a plugin
    does: one stall of the disk is enough for that.
    """
    authority = (grid.folder / "tls" / "ca.pem").read_bytes()
    address = grid.environment["PUBLIC_ADDRESS"]
    with grpc.secure_channel(
        address, grpc.ssl_channel_credentials(authority)
    ) as channel:
        stub = JobAPIStub(channel)
        with ThreadPoolExecutor(CALLERS) as pool:
            answers = list(
                pool.map(lambda callback: _answer(stub, callback, tries), callbacks)
            )
    with (grid.folder / ACKNOWLEDGED).open("a") as file:
        file.writelines(
            _line(sent)
            for sent, answer in zip(callbacks, answers, strict=True)
            if answer == "OK"
        )
    return {answer: answers.count(answer) for answer in sorted(set(answers))}


def _line(callback: SetJobStatusRequest) -> str:
    row = {"job_id": callback.name, "slurm_id": callback.id, "status": callback.status}
    return (
        json.dumps(
            row | {"duration_s": callback.duration, "exit_code": callback.exit_code}
        )
        + "\n"
    )


def _answer(stub: JobAPIStub, callback: SetJobStatusRequest, tries: int) -> str:
    try:
        stub.SetJobStatus(callback, timeout=deadline(30))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE and tries > 1:
            return _answer(stub, callback, tries - 1)
        return str(error.code().name)
    return "OK"


def _name(chance: random.Random, job_ids: Sequence[str]) -> str:
    draw = chance.random()
    if job_ids and draw < 0.7:
        return chance.choice(job_ids)
    if draw < 0.9:
        return f"0x{chance.getrandbits(256):064x}"
    return chance.choice(HOSTILE)
