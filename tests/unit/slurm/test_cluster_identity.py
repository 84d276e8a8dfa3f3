"""Which SLURM it is."""

from dataclasses import replace

import pytest

from supervisor_tasks.slurm.cluster_identity import (
    ClusterIdentity,
    parse_cluster_identity,
)
from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from tests.support.slurm_samples import recorded

HERE = ClusterIdentity("hpc", "6817", ("ctl1", "ctl2"))


def test_parse_cluster_identity__recorded_configuration__name_port_and_hosts() -> None:
    found = parse_cluster_identity(recorded("scontrol-show-config"))
    assert found == ClusterIdentity("devgrid", "15540", ("login1",))
    assert str(found) == "devgrid on port 15540 of login1"


@pytest.mark.parametrize(
    "one", [HERE, ClusterIdentity("devgrid", "15540-15544", ("login1",))]
)
def test_parse__what_was_shown__is_read_again(one: ClusterIdentity) -> None:
    assert ClusterIdentity.parse(str(one)) == one


def test_parse_cluster_identity__no_answer_or_no_name__is_no_other_cluster() -> None:
    answer = recorded("scontrol-show-config")
    for broken in (
        CommandAnswer(1, "", "down"),
        CommandAnswer(0, "", ""),
        replace(answer, stdout=answer.stdout[:5000]),
    ):
        with pytest.raises(SlurmUnavailableError):
            parse_cluster_identity(broken)


def test_is_the_same_as__a_controller_in_common__is_the_same_cluster() -> None:
    assert HERE.is_the_same_as(HERE)
    assert HERE.is_the_same_as(replace(HERE, hosts=("ctl2", "ctl3")))
    assert HERE.is_the_same_as(replace(HERE, hosts=("ctl1",)))
    for other in (
        replace(HERE, name="hpc2"),
        replace(HERE, port="6818"),
        replace(HERE, hosts=("ctl3",)),
    ):
        assert not HERE.is_the_same_as(other)


def test_is_the_same_as__another_address_or_more_ports__is_the_same_cluster() -> None:
    answer = recorded("scontrol-show-config")
    found = parse_cluster_identity(answer)
    for was, now in (
        ("login1(127.0.0.1)", "login1(10.0.0.5)"),
        ("= 15540", "= 15540-15543"),
    ):
        assert was in answer.stdout
        moved = parse_cluster_identity(
            replace(answer, stdout=answer.stdout.replace(was, now))
        )
        assert moved.is_the_same_as(found)
        assert found.is_the_same_as(moved)
    assert found.is_the_same_as(
        ClusterIdentity.parse("devgrid on port 15540 of login1(10.0.0.5)")
    )  # as it was kept earlier
    assert not found.is_the_same_as(replace(found, port="15541-15543"))
