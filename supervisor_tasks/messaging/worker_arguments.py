"""What the arguments of a Celery worker name: its queues, and whether they name the
worker. Pure.
"""

import re
from collections.abc import Sequence
from itertools import pairwise


def words_of(arguments: Sequence[str]) -> list[str]:
    """Split options from values that are joined to them: `--queues=chain`, `-Q=chain`,
    `-Qchain`.
    """
    words = list[str]()
    for argument in arguments:
        if re.match("-[nQ][^=]", argument):
            words += [argument[:2], argument[2:]]
        else:
            words += argument.split("=", 1)
    return words


def has_name(arguments: Sequence[str]) -> bool:
    """Whether the arguments name the worker."""
    words = words_of(arguments)
    return "-n" in words or "--hostname" in words


def queues_named(arguments: Sequence[str]) -> list[str]:
    """The queues that `-Q` or `--queues` names, without the cluster before their point;
    none if there is no such option.
    """
    queues = list[str]()
    for option, value in pairwise(words_of(arguments)):
        if option in ("-Q", "--queues"):
            queues += [queue.rpartition(".")[2] for queue in value.split(",")]
    return queues
