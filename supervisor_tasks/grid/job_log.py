"""The grid logger: it takes log lines for the customer of a job."""

import time
from collections.abc import Callable, Iterator, Sequence

import grpc
import structlog

from protos.logger.v1alpha1.logger_pb2 import WriteRequest
from protos.logger.v1alpha1.logger_pb2_grpc import LoggerAPIStub
from supervisor_tasks.errors import TransientError
from supervisor_tasks.grid.grpc_channels import may_be_reached
from supervisor_tasks.jobs.model import Address, JobId

log = structlog.get_logger()

TIMEOUT_S = 10.0


class GridLoggerDownError(TransientError):
    """The logger does not take lines; retry later."""


class GridLogger:
    """A client that writes to the logger that a job names. `open_channel` connects to a
    host:port.
    """

    def __init__(self, open_channel: Callable[[str], grpc.Channel]) -> None:
        self._open_channel = open_channel

    def write(
        self, url: str, user: Address, job_id: JobId, lines: Sequence[str]
    ) -> None:
        """Write lines for the job's customer. An address to which gRPC can never
        connect counts as no logger. Raises GridLoggerDownError or ServiceDownError; a
        retry helps.
        """
        if not may_be_reached(url):
            log.warning(
                "grid_logger_unusable",
                job_id=job_id,
                grid_logger_url=url,
                help="the customer is not notified; the job definition service must give host:port",
            )
            return
        try:
            with self._open_channel(url) as channel:
                LoggerAPIStub(channel).Write(
                    _requests(user, job_id, lines), timeout=TIMEOUT_S
                )
        except grpc.RpcError as error:
            raise GridLoggerDownError(
                f"grid logger {url}: {error.code().name}: {error.details()}"
            ) from error


def _requests(
    user: Address, job_id: JobId, lines: Sequence[str]
) -> Iterator[WriteRequest]:
    for line in lines:
        yield WriteRequest(
            log_name=job_id, user=user, data=line.encode(), timestamp=time.time_ns()
        )
