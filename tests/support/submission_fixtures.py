"""The fixture of files that submit to a real SLURM over SSH, and start no grid: a
conftest.py imports it.
"""

from collections.abc import Iterator

import pytest

from tests.support.submission_env import SubmissionEnv


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    """A SLURM with its users, and a ledger, for all tests of a file. A file that needs
    more of SLURM has its own fixture of this name.
    """
    with SubmissionEnv.running() as running:
        yield running
