"""`python -m devgrid.services`: the job definition service and the grid logger in one
process.
"""

import argparse
import signal
from concurrent import futures
from pathlib import Path

import grpc

from devgrid.services.grid_logger import GridLogger
from devgrid.services.job_definitions import AuthApi, Challenges, SBatchApi
from protos.logger.v1alpha1.logger_pb2_grpc import add_LoggerAPIServicer_to_server
from protos.sbatchapi.v1alpha1 import sbatch_pb2_grpc as services
from supervisor_tasks.chain.rpc.client import Rpc

THREADS = 8


def main() -> None:
    """Read the options and serve until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="devgrid.services", description="Job definition service and grid logger."
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument(
        "--scripts", type=Path, required=True, help="folder of the batch scripts"
    )
    parser.add_argument(
        "--logs", type=Path, required=True, help="folder of the users' log lines"
    )
    parser.add_argument("--rpc", required=True, help="URL of the chain")
    parser.add_argument(
        "--jobs", required=True, help="address of the job repository contract"
    )
    options = parser.parse_args()
    server = grpc.server(futures.ThreadPoolExecutor(THREADS))
    challenges = Challenges()
    api = SBatchApi(
        challenges, Rpc.at(options.rpc), options.jobs, options.scripts, options.listen
    )
    services.add_AuthAPIServicer_to_server(AuthApi(challenges), server)
    services.add_SBatchAPIServicer_to_server(api, server)
    add_LoggerAPIServicer_to_server(GridLogger(options.logs), server)
    pair = [(options.key.read_bytes(), options.cert.read_bytes())]
    server.add_secure_port(options.listen, grpc.ssl_server_credentials(pair))
    server.start()
    signal.signal(signal.SIGTERM, lambda *_: server.stop(grace=1.0))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
