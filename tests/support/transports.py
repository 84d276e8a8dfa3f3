"""The ways to SLURM (SLURM_TRANSPORT) that a test runs over.

A test that uses the fixture `transport`, itself or through its other fixtures, runs
over each way with the same assertions. `only_ssh` leaves out the way over slurmrestd,
for one of the reasons below and no other. `rest_in_chaos` leaves it to `make chaos`.
"""

from enum import StrEnum

import pytest

from devgrid.options import Transport

SSH: Transport = "ssh"
REST: Transport = "rest"
TRANSPORTS = (SSH, REST)
TRANSPORT = "transport"  # the fixture
MARKER = "over"  # its arguments are the ways that the test runs over


class OnlySsh(StrEnum):
    """Why a test runs over SSH alone. docs/how-to/slurmrestd.md has what follows from
    each for the site.
    """

    LOGIN_NODE = "sshd, SLURM's commands, their SPANK plugins and a customer's start-up files are a login node's"
    SCRIPTS = "slurmrestd 22.05 shows no batch script: a job that its owner has renamed is left to the operator"
    ACCOUNTING = "slurmdbd is not asked over slurmrestd"
    START = "slurmrestd does not show since when slurmctld runs: the sweep submits no lost job again"
    ELSEWHERE = "tests/e2e/test_without_login.py has it over slurmrestd: it waits for as long anyway"
    NO_DIFFERENCE = "SLURM is not asked for what the test is about: a second run would show nothing new"


def only_ssh(why: OnlySsh) -> pytest.MarkDecorator:
    """Mark a test, or one of its parameters."""
    return pytest.mark.over(SSH, why=why)


# takes long: over slurmrestd, only `make chaos` runs it
rest_in_chaos = pytest.mark.rest_in_chaos


def transport_of(item: pytest.Item) -> str:
    """The way that a test is parametrised with; empty for a test without one."""
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.params.get(TRANSPORT, ""))


def runs(item: pytest.Item) -> bool:
    """Whether a test runs over the way that it is parametrised with."""
    marker = item.get_closest_marker(MARKER)
    return marker is None or transport_of(item) in ("", *marker.args)


def is_for_chaos(item: pytest.Item) -> bool:
    """Whether `make test` leaves out a test with the way that it is parametrised
    with.
    """
    return (
        transport_of(item) == REST
        and item.get_closest_marker(rest_in_chaos.name) is not None
    )
