"""SLURM's side: hooks, spool and reporter, the authorized-keys command."""

import os

# gRPC's library in C writes text of its own about connections between the lines of the
# log; callers get these as errors. It reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
