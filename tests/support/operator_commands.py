"""The operator's commands, run on a ledger without a fleet or in a terminal, and jobs for
them.
"""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text

from devgrid import REPOSITORY
from devgrid.machine import deadline
from supervisor_tasks.cli.target import target
from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    ScriptFetched,
    SlurmCompleted,
    SubmitRejected,
    SubmitStarted,
)
from supervisor_tasks.jobs.model import ChainStatus, JobId, Outcome
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.observability.health import periodic_work
from tests.support.commands import Result
from tests.support.ledger import bring_to_queued, claim, job_id

HOSTILE = "no\x1b[2J\x07\nforged line [red]not markup[/red]"  # text of a stranger
WALLET = "0x" + "a" * 40
Run = Callable[..., Result]


def said(result: Result) -> Any:
    """What a command printed as JSON."""
    return json.loads(result.stdout)


def job_of(ledger: Ledger, number: int) -> Any:
    """The job with that number."""
    return ledger.jobs([job_id(number)])[job_id(number)]


def open_kinds(ledger: Ledger, number: int) -> set[str]:
    """The kinds of a job's effects that are neither done nor parked."""
    with ledger.engine.connect() as connection:
        query = text(
            "SELECT kind FROM effects WHERE job_id = :id AND done_at IS NULL AND parked_at IS NULL"
        )
        return set(connection.scalars(query, {"id": job_id(number)}))


def record_all_runs(ledger: Ledger) -> None:
    """Record that all periodic work has just run."""
    ledger.periodic_runs.record(
        *(work.run_name for work in periodic_work(1.0, accounts=False)), CALLBACKS
    )


def open_report(ledger: Ledger, job: JobId, nonce: int = 4) -> str:
    """A transaction that reports the job's end, and is not mined; returns its
    number.
    """
    insert = (
        "INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, idempotency_key, gas, max_fee_wei,"
        " priority_fee_wei, raw, hash, state)"
        " VALUES ('here', 1, '0x1', :nonce, 'report FINISHED', :job, :hash, 1, 1, 1, '\\x00', :hash, 'SENT') RETURNING id"
    )
    with ledger.engine.begin() as connection:
        row = {"job": job, "nonce": nonce, "hash": f"0xabc{nonce}"}
        return str(connection.scalar(text(insert), row))


def give_back(ledger: Ledger, number: int) -> None:
    """SLURM rejects the job, and the contract has it pending again."""
    before = (claim(number), ScriptFetched("echo", ""), SubmitStarted(10))
    rejected = SubmitRejected("no such partition")
    pending = ChainStatusObserved(ChainStatus.PENDING, (9, number))
    for event in (*before, rejected, pending):
        ledger.record(JobChange(job_id(number), event))
    assert job_of(ledger, number).chain_status is ChainStatus.PENDING


def target_of(environment: dict[str, str]) -> str:
    """The cluster and the database, as a command names them."""
    return target(environment["CLUSTER_NAME"], environment["DATABASE_URL"])


@contextmanager
def in_terminal(
    words: Sequence[str], environment: dict[str, str], lines: int = 40
) -> Iterator["Screen"]:
    """The command in a terminal of 80 columns; in the end it is killed, if the test has
    not ended it.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
    with subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # Ctrl-C in the terminal reaches the command
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        try:
            yield Screen(ours, process)
        finally:
            process.kill()
            os.close(ours)


def settled(ledger: Ledger, number: int) -> None:
    """Bring a job to its end, which the contract has, too."""
    job = bring_to_queued(ledger, number)
    outcome = Outcome(status=ChainStatus.FINISHED, elapsed_s=60)
    for event in (
        SlurmCompleted(outcome),
        ChainStatusObserved(ChainStatus.FINISHED, (9, 0)),
    ):
        ledger.record(JobChange(job, event))


class Screen:
    """What a program has written to its terminal since the last key."""

    def __init__(self, terminal: int, process: "subprocess.Popen[bytes]") -> None:
        self.terminal = terminal
        self.process = process
        self.shown = ""

    def press(self, key: str, *expected: str) -> None:
        """Press a key, and wait for these words."""
        self.shown = ""
        os.write(self.terminal, key.encode())
        self.wait_for(*expected)

    def wait_for(self, *expected: str) -> None:
        """Wait until all these words are shown."""
        until_s = time.monotonic() + deadline(30)
        while not all(words in self.shown for words in expected):
            assert time.monotonic() < until_s, self.shown[-3000:]
            if select.select([self.terminal], [], [], 0.5)[0]:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")


def left_by_a_fleet(ledger: Ledger, seconds_ago: int) -> None:
    """Leave what a fleet leaves that ended so long ago: its wallet and its runs."""
    ledger.wallets.hold(1, WALLET, shared=False)
    with ledger.engine.begin() as connection:
        aged = "UPDATE periodic_runs SET succeeded_at = now() - :seconds * interval '1 second'"
        connection.execute(text(aged), {"seconds": seconds_ago})
