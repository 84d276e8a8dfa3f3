"""Callbacks that lie: of others' jobs, with absurd figures, twice, too early, too late. The port is open to all."""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from devgrid.grid import Grid
from devgrid.machine import deadline
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub
from tests.chaos.evidence import ACKNOWLEDGED

CALLERS = 8
# What they are told: also that there is no room for more about unknown jobs, or that have no SLURM id yet.
ANSWERS = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}
STATUSES = range(11)  # all that JobStatus knows, and one that a later version may add: 11
ABSURD = (0, 1, 59, 60, 61, 3600, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1)
ABSURD_IDS = (0, 1, 2**31, 2**32 - 1, 2**32, 2**64 - 1)
ABSURD_EXITS = (0, 1, 9, 15, 256, 65535, -1, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)
HOSTILE = ("", "0x", "x" * 10_000, "0x" + "G" * 64, "'; DROP TABLE jobs; --", "$(reboot)\n0x" + "a" * 64, "\u202e0x")


def lies(seed: int, job_ids: Sequence[str], slurm_ids: Sequence[int]) -> Iterator[SetJobStatusRequest]:
    """An endless series of callbacks, most of them about the jobs that exist."""
    chance = random.Random(seed)
    said: list[SetJobStatusRequest] = []
    while True:
        if said and chance.random() < 0.1:
            yield chance.choice(said)  # once more, out of order
            continue
        lie = SetJobStatusRequest(
            name=_name(chance, job_ids),
            id=chance.choice(slurm_ids) if slurm_ids and chance.random() < 0.8 else chance.choice(ABSURD_IDS),
            duration=chance.choice(ABSURD) if chance.random() < 0.5 else chance.randrange(10_000),
            status=chance.choice([*STATUSES, 11]),
            exit_code=chance.choice(ABSURD_EXITS),
        )
        said.append(lie)
        yield lie


def tell(grid: Grid, requests: Sequence[SetJobStatusRequest], tries: int = 1) -> dict[str, int]:
    """Say them all to the gRPC process, several at a time; how many got which answer. What is acknowledged is written down for
    the audit. With more `tries` one that could not be stored in time is said again, as a plugin would: one stall of the disk is
    enough for that.
    """
    authority = (grid.folder / "tls" / "ca.pem").read_bytes()
    address = grid.environment["PUBLIC_ADDRESS"]
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority)) as channel:
        stub = JobAPIStub(channel)
        with ThreadPoolExecutor(CALLERS) as pool:
            answers = list(pool.map(lambda request: _answer(stub, request, tries), requests))
    with (grid.folder / ACKNOWLEDGED).open("a") as file:
        file.writelines(_line(said) for said, answer in zip(requests, answers, strict=True) if answer == "OK")
    return {answer: answers.count(answer) for answer in sorted(set(answers))}


def _line(said: SetJobStatusRequest) -> str:
    row = {"job_id": said.name, "slurm_id": said.id, "status": said.status}
    return json.dumps(row | {"duration_s": said.duration, "exit_code": said.exit_code}) + "\n"


def _answer(stub: JobAPIStub, request: SetJobStatusRequest, tries: int) -> str:
    try:
        stub.SetJobStatus(request, timeout=deadline(30))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE and tries > 1:
            return _answer(stub, request, tries - 1)
        return str(error.code().name)
    return "OK"


def _name(chance: random.Random, job_ids: Sequence[str]) -> str:
    draw = chance.random()
    if job_ids and draw < 0.7:
        return chance.choice(job_ids)
    if draw < 0.9:
        return f"0x{chance.getrandbits(256):064x}"
    return chance.choice(HOSTILE)
