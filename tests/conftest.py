"""For all tests."""

import os

# Tests start processes while gRPC channels of their own are open. gRPC's fork handlers then run in the child, between fork and
# exec, and now and then crash it (seen with grpcio 1.85.1: a segfault of the thread event_engine).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
