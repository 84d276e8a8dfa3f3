"""A whole grid on one machine, for people and tests: chain, services, SLURM clusters and the fleets that serve them."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
