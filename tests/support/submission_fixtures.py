"""Fixtures of files that need a real SLURM over SSH or an sshd, and start no grid: a
conftest.py imports those that its folder uses.
"""

from collections.abc import Iterator

import pytest

from tests.support.submission_env import Login, SubmissionEnv


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    """A SLURM with its users, and a ledger, for all tests of a file. A file that needs
    more of SLURM has its own fixture of this name.
    """
    with SubmissionEnv.running() as running:
        yield running


@pytest.fixture(scope="module")
def login() -> Iterator[Login]:
    """A login node's sshd without a SLURM, for all tests of a file."""
    with Login.running() as running:
        yield running
