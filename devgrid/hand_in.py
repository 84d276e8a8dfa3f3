"""Checks a customer's input before it goes to the chain: ids, credits, minutes, sizes.

The chain would refuse wrong input with only the name of an error, or accept a job that
no cluster can run. The errors of these checks state it in words and credits.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation, localcontext

from devgrid.chain.model import ChainJob, JobDefinition, Provider
from devgrid.services.metascheduler import fits

CREDIT_DIGITS = 18  # a credit has 10**18 wei
CREDIT = 10**CREDIT_DIGITS
MAX_CREDITS = 10**12  # more than a grid of devgrid has
MAX_MINUTES = 525_600  # a year
MAX_CLUSTERS = 8  # each has a SLURM and a fleet of its own on this machine
MAX_LINES = 1_000_000
MAX_FILE_BYTES = 1_000_000
# SLURM and gRPC accept 4 MiB, with the message around the script
MAX_SCRIPT_BYTES = 4_000_000
LEAST_PREFIX = 3  # 0x and a digit
MAX_NAMED = 5


class HandInError(ValueError):
    """A customer's input is wrong. The message has what was found, what was expected,
    and what helps.
    """


def whole_number(name: str, text: str, most: int) -> int:
    """A number from 1 to `most`. Raises HandInError."""
    if re.fullmatch("[0-9]{1,20}", text) and 1 <= int(text) <= most:
        return int(text)
    raise HandInError(
        f"{name}: found {_short(text)}; expected a whole number from 1 to {most:,}"
    )


def wei_of(text: str) -> int:
    """An amount of credits in wei, exactly. Raises HandInError."""
    expected = (
        f"expected a number of credits above 0 and at most {MAX_CREDITS:,}, such as 2.5"
    )
    try:
        credits_ = Decimal(text)
    except InvalidOperation:
        credits_ = Decimal("NaN")
    if not credits_.is_finite() or not 0 < credits_ <= MAX_CREDITS:
        raise HandInError(f"credits: found {_short(text)}; {expected}")
    with localcontext(prec=60):
        wei = credits_ * CREDIT
        if wei != wei.to_integral_value():
            raise HandInError(
                f"credits: found {_short(text)}; expected {CREDIT_DIGITS} digits after the point at most"
            )
        return int(wei)


def credits_text(wei: int) -> str:
    """An amount in credits, to print. It is rounded down, so that a printed limit can
    be used as it is.
    """
    return f"{wei // 10 ** (CREDIT_DIGITS - 4) / 10**4:,.4f} credits"


def job_named(name: str, known: Sequence[str]) -> str:
    """The job whose id begins with that name. Raises HandInError."""
    named = name.lower()
    if len(named) >= LEAST_PREFIX:
        found = [job_id for job_id in known if job_id.startswith(named)]
    else:
        found = []
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(job_id[:12] for job_id in found[:MAX_NAMED])
        raise HandInError(
            f"job: found {len(found)} jobs whose ids begin with {_short(name)} ({some}); expected one"
        )
    raise HandInError(
        f"job: found {_short(name)}, the id of no job of this customer; expected the beginning of one of"
        f" {len(known)} ids: `devgrid jobs` lists them"
    )


def check_open(job: ChainJob) -> None:
    """Raises HandInError when a job has ended."""
    if job.status.is_final:
        raise HandInError(
            f"job {job.job_id[:12]} has ended ({job.status.name}); expected one that waits or runs"
        )


def check_not_cancelled(job: ChainJob) -> None:
    """Raises HandInError when a job has ended, or its customer wants it cancelled."""
    check_open(job)
    if job.has_cancel_request:
        raise HandInError(
            f"job {job.job_id[:12]} is cancelled already; its cluster ends it soon"
        )


def check_balance(wei: int, balance_wei: int, what: str) -> None:
    """Raises HandInError when a customer cannot pay."""
    if wei > balance_wei:
        raise HandInError(
            f"{what} takes {credits_text(wei)}, and the customer has {credits_text(balance_wei)}; expected no more than that"
        )


def check_job(
    definition: JobDefinition,
    minutes: int,
    wei_per_min: int,
    balance_wei: int,
    clusters: Mapping[str, Provider],
) -> None:
    """Raises HandInError when no cluster has the hardware, or the customer cannot pay
    for the minutes.
    """
    if not any(
        fits(definition, wei_per_min, provider) for provider in clusters.values()
    ):
        there = "; ".join(
            f"{name} has {_hardware(provider)}" for name, provider in clusters.items()
        )
        raise HandInError(
            f"resources: found {_size(definition)}; expected a job that fits into a cluster: {there}"
        )
    locked_wei = wei_per_min * minutes
    if locked_wei > balance_wei:
        affordable = balance_wei // wei_per_min if wei_per_min else MAX_MINUTES
        raise HandInError(
            f"minutes: {minutes:,} minutes of this job take {credits_text(locked_wei)} ({credits_text(wei_per_min)} each),"
            f" and the customer has {credits_text(balance_wei)}; expected {affordable:,} minutes at most"
        )


def check_file_size(name: str, size_bytes: int) -> None:
    """Raises HandInError when a workflow file is too large."""
    if size_bytes > MAX_FILE_BYTES:
        raise HandInError(
            f"{name}: found more than {MAX_FILE_BYTES:,} bytes; expected a workflow file of no more"
        )


def check_script_size(size_bytes: int) -> None:
    """Raises HandInError when the batch script of a workflow file is too large for
    SLURM.
    """
    if size_bytes > MAX_SCRIPT_BYTES:
        raise HandInError(
            f"the file: its batch script would have {size_bytes:,} bytes; expected {MAX_SCRIPT_BYTES:,} at most: quotation"
            " marks take five bytes each"
        )


def _size(definition: JobDefinition) -> str:
    each = (
        f"{definition.cpus_per_task:,} CPUs and {definition.mem_per_cpu_mb:,} MB a CPU"
    )
    return f"{definition.ntasks:,} tasks with {each}, {definition.gpus:,} GPUs in all"


def _hardware(provider: Provider) -> str:
    nodes = provider.nodes
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    memory_mb = sum(node.memory_mb for node in nodes)
    return f"{len(nodes)} nodes with {cpus:,} CPUs, {memory_mb:,} MB and {gpus:,} GPUs in all"


def _short(text: str, most: int = 40) -> str:
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."
