"""A whole grid on one machine, for developers and tests: chain, services, SLURM
clusters, and a fleet for each of them.
"""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
