"""An honest caller of the callbacks' port, as a program of its own, so that what the
test itself does delays no call of it: python -m tests.support.honest_caller ADDRESS
JOB_ID [CA]

It calls without a pause until its standard input ends, each time over a connection of
its own, as the upstream plugins do: a callback and sshd's question in turn. It prints a
line when it begins, and the seconds of each call, as JSON, at its end.
"""

import json
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import grpc

from devgrid import REPOSITORY
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from tests.support.ports import report

LEAST_CALLS = 20
CONTENTS = 500  # different callbacks; the ledger keeps one row of each
NOW_S = 0.0


class HonestCaller:
    """A running caller; it calls until the end of the block."""

    def __init__(self, address: str, job_id: str, ca: Path | None = None) -> None:
        words = [address, job_id, *([] if ca is None else [str(ca)])]
        self._waits_s: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.honest_caller", *words],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "HonestCaller":
        self._output().readline()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            said, _ = self._process.communicate(timeout=120)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, "a call of the honest caller failed"
        self._waits_s = json.loads(said)

    def median_s(self) -> float:
        """The median of the seconds of its calls, with their connections."""
        return statistics.median(self._waits_s)

    def p95_s(self) -> float:
        """The 95th percentile of the seconds of its calls, with their connections."""
        return statistics.quantiles(self._waits_s, n=20)[-1]

    def _output(self) -> IO[str]:
        output = self._process.stdout
        assert output is not None
        return output


def call(address: str, job_id: str, turn: int, ca: bytes | None) -> None:
    """Make one call over a new connection. Raises grpc.RpcError."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if ca is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(
            address, grpc.ssl_channel_credentials(ca), options
        )
    with channel:
        if turn % 2:
            services.SshAPIStub(channel).FetchAuthorizedKeys(
                messages.FetchAuthorizedKeysRequest(), timeout=20
            )
        else:
            report(channel, job_id, duration=turn // 2 % CONTENTS)


def main() -> None:
    """Call until standard input ends, and LEAST_CALLS at least."""
    address, job_id, *files = sys.argv[1:]
    ca = Path(files[0]).read_bytes() if files else None
    call(address, job_id, 0, ca)  # the first call loads what calls need
    print("calling", flush=True)
    waits_s = list[float]()
    while (
        len(waits_s) < LEAST_CALLS or not select.select([sys.stdin], [], [], NOW_S)[0]
    ):
        begun_s = time.perf_counter()
        call(address, job_id, len(waits_s), ca)
        waits_s.append(time.perf_counter() - begun_s)
    print(json.dumps(waits_s))


if __name__ == "__main__":
    main()
