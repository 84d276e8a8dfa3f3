"""The ways to SLURM (SLURM_TRANSPORT) that a test runs over.

A test that asks for the fixture `transport`, itself or through its other fixtures, runs over each way with the same
assertions. `only_ssh` leaves the way over slurmrestd out, for one of the reasons below and for no other.
"""

from enum import StrEnum

import pytest

from devgrid.options import Transport

SSH: Transport = "ssh"
REST: Transport = "rest"
WAYS = (SSH, REST)
TRANSPORT = "transport"  # the fixture
MARKER = "over"  # its words are the ways that the test runs over


class OnlySsh(StrEnum):
    """Why a test runs over SSH alone. docs/how-to/slurmrestd.md says of each what follows for the site."""

    LOGIN_NODE = "sshd, SLURM's commands, their SPANK plugins and a customer's start-up files are a login node's"
    SCRIPTS = "slurmrestd 22.05 shows no batch script: a job that its owner has renamed is left to the operator"
    ACCOUNTING = "slurmdbd is not asked over slurmrestd"
    START = "slurmrestd does not show since when slurmctld runs: the sweep submits no lost job again"
    ELSEWHERE = "tests/e2e/test_without_login.py has it over slurmrestd: it waits for as long anyway"
    NO_DIFFERENCE = "SLURM is not asked for what the test is about: a second run would show nothing new"


def only_ssh(why: OnlySsh) -> pytest.MarkDecorator:
    """Mark a test, or a row of its table."""
    return pytest.mark.over(SSH, why=why)


def runs(item: pytest.Item) -> bool:
    """Whether a test runs over the way that it is parametrised with."""
    marker, callspec = item.get_closest_marker(MARKER), getattr(item, "callspec", None)
    return marker is None or callspec is None or callspec.params.get(TRANSPORT, marker.args[0]) in marker.args
