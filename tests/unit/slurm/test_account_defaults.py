"""What the site gives a job, as SLURM's configuration and the accounting database show
it.
"""

import pytest

from supervisor_tasks.slurm.account_defaults import (
    plugins_may_choose,
    show_users,
    site_choices,
)
from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from supervisor_tasks.slurm.size import SiteChoice
from tests.support.slurm_samples import DATA

USER = "0x" + "a" * 40
CONFIG = (DATA / "scontrol-show-config-slurm-22.05.8.txt").read_text()


def with_plugins(name: str, value: str) -> str:
    return CONFIG.replace(f"{name:24}= (null)", f"{name:24}= {value}")


@pytest.mark.parametrize(
    ("config", "may_choose"),
    [
        (CONFIG, False),
        ((DATA / "24.11.5" / "scontrol-show-config.txt").read_text(), False),
        (with_plugins("JobSubmitPlugins", "lua"), True),
        (with_plugins("JobSubmitPlugins", "all_partitions,lua"), True),
        (with_plugins("CliFilterPlugins", "cli_filter/lua"), True),
        # reads a file of the customer's
        (with_plugins("CliFilterPlugins", "cli_filter/user_defaults"), False),
        ("", True),  # not shown
    ],
)
def test_plugins_may_choose__by_the_configuration__is_this(
    config: str, may_choose: bool
) -> None:
    assert plugins_may_choose(config) is may_choose


def told(*rows: str) -> dict[str, SiteChoice]:
    return site_choices(
        CommandAnswer(0, "".join(f"{USER}|{row}\n" for row in rows), ""), "main"
    )


@pytest.mark.parametrize(
    ("rows", "choice"),
    [
        (["grid|grid||normal|high,normal"], ("grid", "normal")),
        (["grid|grid||high|high,normal"], ("grid", "high")),
        (["grid|grid|||high"], ("grid", "high")),  # the only one
        (["grid|grid|||high,normal"], ("grid", "normal")),
        # slurmctld gives none: it is not compared
        (["grid|grid|||high,low"], ("grid", "")),
        (["grid|vip||high|high", "grid|grid||normal|normal"], ("grid", "normal")),
        # the partition's own
        (["grid|grid|main|high|high", "grid|grid||normal|normal"], ("grid", "high")),
        (["grid|grid|other|high|high", "grid|grid||normal|normal"], ("grid", "normal")),
    ],
)
def test_site_choices__of_a_user__are_his_defaults(
    rows: list[str], choice: tuple[str, str]
) -> None:
    assert told(*rows) == {USER: SiteChoice(*choice)}


@pytest.mark.parametrize(
    "rows", [[], ["||||"], ["|grid|||normal"], ["vip|grid||normal|normal"]]
)
def test_site_choices__no_default_account__user_is_left_out(rows: list[str]) -> None:
    assert told(*rows) == {}


def test_site_choices__recorded__are_read() -> None:
    printed = (DATA / "sacctmgr-users-slurm-22.05.8.txt").read_text()
    assert site_choices(CommandAnswer(0, printed, ""), "main") == {
        "0x" + "2" * 40: SiteChoice("grid", "normal"),
        "0x" + "4" * 40: SiteChoice("vip", "high"),
    }


@pytest.mark.parametrize(
    "answer",
    [
        CommandAnswer(
            1, "", "sacctmgr: error: Sending PersistInit msg: Connection refused"
        ),
        CommandAnswer(0, "no table\n", ""),
        CommandAnswer(0, f"{USER}|grid|grid\n", ""),
    ],
)
def test_site_choices__no_answer__is_unavailable(answer: CommandAnswer) -> None:
    with pytest.raises(SlurmUnavailableError, match="sacctmgr ended with status"):
        site_choices(answer, "main")


def test_show_users__of_a_cluster__asks_for_all_at_once() -> None:
    words = show_users("/usr/bin/sacctmgr", {"0x2", "0x1"}, "here")
    assert words[0] == "/usr/bin/sacctmgr"
    assert {"name=0x1,0x2", "cluster=here", "--readonly", "withassoc"} <= set(words)
