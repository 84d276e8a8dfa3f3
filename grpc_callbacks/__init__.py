"""The process that SLURM's plugins and sshd call: it stores callbacks and heartbeats."""

import os

# gRPC's library in C writes text of its own about connections between the lines of the
# log; callers get these as errors. It reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
