"""sshd's AuthorizedKeysCommand: prints the key that the supervisor logs in with, as the supervisor itself tells it.

The same key is good for every user of the cluster: who may become whom is decided by the supervisor.
"""

import argparse
import sys
from pathlib import Path

import grpc

from protos.supervisor.v1alpha1.supervisor_pb2 import FetchAuthorizedKeysRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import SshAPIStub

TIMEOUT_S = 5.0
OPTIONS = (
    # gRPC's own waits grow to two minutes: too long for a supervisor that comes back after an outage.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # in truth how long one attempt to connect may take
    # A connection that the network dropped without a word would stay until the kernel gives it up, after a quarter of an hour.
    # It is asked for while a call waits; the server lets that pass (grpc_callbacks/server.py).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # for the kernel (TCP_USER_TIMEOUT)
    ("grpc.http2.ping_timeout_ms", 5_000),  # and for gRPC, which by itself waits a minute, whatever the line above says
)


def main() -> None:
    """Ask and print; without an answer nobody logs in by this key."""
    parser = argparse.ArgumentParser(prog="authorized_keys", description=__doc__)
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", type=Path, help="certificate authority of the supervisor; without it, no TLS")
    options, _ = parser.parse_known_args()
    with open_channel(options.supervisor, options.ca) as channel:
        try:
            answer = SshAPIStub(channel).FetchAuthorizedKeys(FetchAuthorizedKeysRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            sys.exit(f"authorized_keys: {options.supervisor}: {error.code().name}: {error.details()}")
    sys.stdout.write(answer.authorized_keys)


def open_channel(address: str, authority: Path | None) -> grpc.Channel:
    """A channel to the supervisor, over TLS when its authority is known."""
    if authority is None:
        return grpc.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    return grpc.secure_channel(address, credentials, options=OPTIONS)


if __name__ == "__main__":
    main()
