"""What the site gives a job that asks for no account, no QOS and any number of threads
of a core, as our submissions do.

Without plugins of the site, slurmctld takes the account and the QOS from the accounting
database: the user's default account, and the default QOS of his association. With a
plugin, the site may choose anything. Pure.

Samples: tests/data/slurm/sacctmgr-users-slurm-22.05.8.txt.
"""

import re
from collections.abc import Collection

from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from supervisor_tasks.slurm.size import SiteChoice

_FIELDS = ("User", "DefaultAccount", "Account", "Partition", "DefaultQOS", "QOS")
# slurmctld gives this QOS where an association has several and no default
_NORMAL = "normal"
_PLUGINS = ("JobSubmitPlugins", "CliFilterPlugins")
# the last one reads a file of the customer's
_NO_PLUGIN = ("", "(null)", "cli_filter/user_defaults")


def plugins_may_choose(config: str) -> bool:
    """Whether a plugin of the site may choose a job's account, QOS or threads, from
    `scontrol show config`.
    """
    for setting in _PLUGINS:
        found = re.search(rf"^{setting}\s*=\s*(\S*)", config, re.MULTILINE)
        if found is None:
            return True
        if found[1] not in _NO_PLUGIN:
            return True
    return False


def show_users(path: str, users: Collection[str], cluster: str) -> list[str]:
    """Return the command that shows the associations of these users with this cluster in
    the accounting database.
    """
    names = f"name={','.join(sorted(users))}"
    fields = f"format={','.join(_FIELDS)}"
    return [
        path,
        "--noheader",
        "--parsable2",
        "--readonly",
        "show",
        "user",
        "withassoc",
        names,
        f"cluster={cluster}",
        fields,
    ]


def site_choices(answer: CommandAnswer, partition: str) -> dict[str, SiteChoice]:
    """Return what each user's jobs get in this partition. Users without a default
    account are left out. Raises SlurmUnavailableError when the accounting database did
    not answer; a retry helps.
    """
    associations = _associations(answer)
    choices = dict[str, SiteChoice]()
    # the partition's own association overrides the general one
    for of_partition in ("", partition):
        for row in associations:
            user, default_account, account, in_partition, default_qos, qos = row
            if in_partition != of_partition:
                continue
            if account and account == default_account:
                choices[user] = SiteChoice(account, _qos(default_qos, qos.split(",")))
    return choices


def _associations(answer: CommandAnswer) -> list[list[str]]:
    """Return the fields of each association that sacctmgr printed. Raises
    SlurmUnavailableError.
    """
    rows = list[list[str]]()
    is_understood = answer.status == 0
    for line in answer.stdout.splitlines():
        row = line.split("|")
        if len(row) != len(_FIELDS):
            is_understood = False
        rows.append(row)
    if not is_understood:
        shown = (answer.stderr or answer.stdout).strip()[:200]
        raise SlurmUnavailableError(
            f"sacctmgr ended with status {answer.status}: {shown!r}"
        )
    return rows


def _qos(default: str, allowed: Collection[str]) -> str:
    """Return the QOS by slurmctld's own rule: the default one, the only one, or
    `normal`; empty where there is none.
    """
    if default:
        return default
    if len(allowed) == 1:
        return next(iter(allowed))
    if _NORMAL in allowed:
        return _NORMAL
    return ""
