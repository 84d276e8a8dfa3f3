"""Jobs of a real chain that are claimed and run, and a contract that fails for some calls
only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.events import (
    ScriptFetched,
    SlurmRunningObserved,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.ledger import JobChange
from tests.support.wallet_harness import ChainHarness, scheduled_jobs, settled

STARTED = (
    ScriptFetched("echo", ""),
    SubmitStarted(10),
    Submitted(SlurmId(7)),
    SlurmRunningObserved(),
)
# Code that does what the code at another address does, but for calls with a certain
# word.
BUT_FOR = (
    "7f{word}60{at}3514605e57366000600037"  # to the end, if that word is there
    "6000600036600073{code}5af43d600060003e6059573d6000fd5b3d6000f3"
    "5b{end}"
)
NO_ESTIMATE, REFUSED = "fe", "60006000fd"  # an invalid opcode; a revert without a word
ELSEWHERE = "0x" + "e1" * 20


@contextmanager
def broken_for(chain: Chain, word: str, end: str, at: str = "04") -> Iterator[None]:
    """The contract ends every call with that word at that place (its first argument, if
    not another) in that way, and does what it should for all others.
    """
    address = chain.addresses.metascheduler
    code = chain.rpc.call("eth_getCode", address, "latest")
    chain.rpc.call("anvil_setCode", ELSEWHERE, code)
    broken = BUT_FOR.format(word=word, at=at, code=ELSEWHERE[2:], end=end)
    chain.rpc.call("anvil_setCode", address, "0x" + broken)
    try:
        yield
    finally:
        chain.rpc.call("anvil_setCode", address, code)


def started(harness: ChainHarness, provider: Account) -> JobId:
    """A job that is claimed and runs, which must be reported to the contract."""
    (job_id,) = scheduled_jobs(harness.chain, provider, 1)
    claim(harness.site)
    settled(harness)
    harness.site.ledger.record(*(JobChange(job_id, event) for event in STARTED))
    return job_id


def provider_of(harness: ChainHarness) -> Account:
    """The account of the fleet's wallet."""
    return Account(harness.account.address, "")


def execute(harness: ChainHarness, statement: str) -> None:
    """Change the fleet's ledger."""
    with harness.engine.begin() as connection:
        connection.execute(text(statement))


def due(harness: ChainHarness) -> None:
    """As when the time has passed."""
    execute(harness, "UPDATE effects SET due_at = now()")


def waited(harness: ChainHarness, seconds: float) -> None:
    """As when that much time has passed since the last claim."""
    with harness.engine.begin() as connection:
        connection.execute(
            text("UPDATE facts SET since = since - :s * interval '1 second'"),
            {"s": seconds},
        )
