"""A whole grid on one machine, for developers and tests: chain, services, SLURM
clusters, and a fleet for each of them.
"""

from pathlib import Path

import supervisor_tasks  # noqa: F401  before any import of web3, which it makes faster

REPOSITORY = Path(__file__).resolve().parent.parent
