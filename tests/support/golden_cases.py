"""The outputs of the operator's commands in the golden files, with data that never
change.

`make golden` writes the golden files again: tests/unit/cli/golden/NAME.COLUMNS.txt.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.cli.alarm import ALARMS, MESSAGES, SILENCES, summary_of
from supervisor_tasks.cli.alarm import facts_of as alarm_facts
from supervisor_tasks.cli.benchmark import BENCHMARKS, NODES, RUNS, VALUES, show_run
from supervisor_tasks.cli.bill import Bill
from supervisor_tasks.cli.claim_stops import why_no_claims
from supervisor_tasks.cli.cluster_commands import CLUSTERS
from supervisor_tasks.cli.cluster_commands import facts_of as cluster_facts
from supervisor_tasks.cli.config import SETTINGS
from supervisor_tasks.cli.doctor import show_lines
from supervisor_tasks.cli.earnings_commands import EARNINGS, bars_of, shown_row
from supervisor_tasks.cli.effect import EFFECTS
from supervisor_tasks.cli.job import JOBS, with_outcome
from supervisor_tasks.cli.job_actions import RETRIED
from supervisor_tasks.cli.log import LOG, with_short_ids
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.provider import RegistrationSummary, show_provider
from supervisor_tasks.cli.status import (
    PERIODIC_RUNS,
    StatusProblems,
    WalletSummary,
    show_status,
)
from supervisor_tasks.cli.status import facts_of as status_facts
from supervisor_tasks.cli.sweep import SWEEPS, show_sweep
from supervisor_tasks.cli.timeline import facts_of, lines_of, next_of
from supervisor_tasks.cli.top import KEYS, overview, throughput
from supervisor_tasks.cli.tx import SIGNATURES, TRANSACTIONS, show_transaction
from supervisor_tasks.cli.views import View
from supervisor_tasks.doctor.check_results import green, skipped
from supervisor_tasks.doctor.verdicts import (
    WalletSeen,
    contract_verdict,
    host_key_verdict,
    wallet_verdict,
)
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    Job,
    JobId,
    Outcome,
    SlurmId,
    State,
    TopUp,
)
from supervisor_tasks.ledger.earnings import Earned, Per
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.ledger.status_queries import (
    EffectCount,
    StatusSummary,
    StoredReading,
    Writer,
)
from supervisor_tasks.notifications.incident_messages import Silence
from supervisor_tasks.provider.offer import Prices
from supervisor_tasks.provider.registration_rules import RegistrationStatus

GOLDEN = Path(__file__).parents[1] / "unit" / "cli" / "golden"
WIDTHS = (80, 160)
NOW = datetime(2026, 11, 23, 3, 0, 0, tzinfo=UTC)
CUSTOMERS = (
    "0x506a0fb6d88ca2d4e328516e8ea10cb98f95a34a",
    "0x9c2e0fb6d88ca2d4e328516e8ea10cb98f95a34b",
)
FIRST, SECOND, THIRD = (
    f"0x7903{digit}914{'e4b0e241b9d87aead9553ea86fcc162e30075a8d0def5e226079bda5'}"
    for digit in "012"
)
LONG_ERROR = (
    "SlurmUnavailableError: sbatch: error: Batch job submission failed: Unable to contact slurm controller"
    " (connect failure)"
)


def ago(**units: float) -> datetime:
    """A time before NOW."""
    return NOW - timedelta(**units)


def job_row(
    job_id: str, state: str, slurm_id: int | None, reason: str | None, **units: float
) -> dict[str, Any]:
    """A row of `supervisor job list`. The units are how long ago the job was made."""
    return {
        "job_id": job_id,
        "state": state,
        "chain_status": {"RUNNING": "RUNNING", "ENDED": "RUNNING"}.get(
            state, "SCHEDULED"
        ),
        "slurm_id": slurm_id,
        "customer": CUSTOMERS[0] if job_id != THIRD else CUSTOMERS[1],
        "time_limit_min": 600,
        "elapsed_s": 3725 if state == "ENDED" else None,
        "created_at": ago(**units),
        "updated_at": ago(seconds=42),
        "outcome_status": "FAILED" if state == "ENDED" else None,
        "reason": reason,
    }


EARNED = [
    Earned("2026-11-23", 4, 129, 1_008_381_200_000_000_000_007, 18_120_000_000_001),
    Earned("2026-11-22", 1, 0, 0, 4_000_000_000_000),
    Earned(
        "2026-11-20",
        31,
        8120,
        98_431_000_000_000_000_000_000,
        2_310_000_000_000_000_000,
    ),
]

LISTS: dict[str, tuple[View, list[dict[str, Any]]]] = {
    "job-list": (
        JOBS,
        [
            with_outcome(row)
            for row in (
                job_row(FIRST, "RUNNING", 104217, None, hours=3, minutes=12),
                job_row(SECOND, "SUBMITTING", None, None, minutes=4, seconds=5),
                job_row(
                    THIRD,
                    "ENDED",
                    104190,
                    "the node failed: NODE_FAIL on node-a-17.cluster.example.com",
                    days=2,
                    hours=7,
                ),
            )
        ],
    ),
    "effect-list": (
        EFFECTS,
        [
            {
                "effect": 17,
                "subject": SECOND,
                "kind": "submit",
                "place": "parked",
                "state": "SUBMITTING",
                "due_at": ago(minutes=3),
                "attempts": 12,
                "failing_since": ago(minutes=59),
                "parked_at": ago(minutes=2),
                "last_error": LONG_ERROR,
                "evidence": {"error": "SlurmUnavailableError", "attempts": 12},
            },
            {
                "effect": 1018,
                "subject": FIRST,
                "kind": "poll_slurm",
                "place": "waiting",
                "state": "RUNNING",
                "due_at": NOW + timedelta(seconds=95),
                "attempts": 0,
                "failing_since": None,
                "parked_at": None,
                "last_error": None,
                "evidence": None,
            },
        ],
    ),
    "alarm-list": (
        ALARMS,
        [
            {
                "name": name,
                "raised_at": ago(minutes=61),
                "silenced_until": NOW + timedelta(hours=2)
                if name == "wallet_empty"
                else None,
                "details": details,
                "summary": summary_of(name, details),
            }
            for name, details in {
                "wallet_empty": {
                    "balance_wei": 12000,
                    "needed_wei": 340000000000000,
                    "address": CUSTOMERS[1],
                },
                "effect_parked": {
                    "effects": 1,
                    "advice": "supervisor effect list --state parked",
                },
            }.items()
        ],
    ),
    "alarm-messages": (
        MESSAGES,
        [
            {
                "channel": channel,
                "kind": kind,
                "state": state,
                "created_at": ago(minutes=60),
                "sent_at": sent_at,
                "next_at": next_at,
                "failed_tries": failed_tries,
                "failing_since": None if error is None else ago(minutes=60),
                "last_error": error,
            }
            for channel, kind, state, sent_at, next_at, failed_tries, error in [
                (
                    "alertmanager",
                    "raised",
                    "sent",
                    ago(minutes=60),
                    NOW + timedelta(seconds=48),
                    0,
                    None,
                ),
                ("mail", "raised", "sent", ago(minutes=59), None, 0, None),
                (
                    "slack",
                    "raised",
                    "failing",
                    None,
                    NOW + timedelta(minutes=4),
                    9,
                    "HTTP status 500: it is away",
                ),
                (
                    "command",
                    "raised",
                    "parked",
                    None,
                    None,
                    97,
                    "exit status 127: notify-the-pager: not found",
                ),
                ("mail", "resolved", "due", None, None, 0, None),
            ]
        ],
    ),
    "tx-list": (
        TRANSACTIONS,
        [
            {
                "id": 41,
                "nonce": 140,
                "purpose": "report FINISHED",
                "job_id": FIRST,
                "state": "MINED",
                "hash": "0x4be1" + "ab" * 30,
                "max_fee_wei": "30000000000",
                "block_number": 120042,
                "error": None,
                "created_at": ago(minutes=7),
            },
            {
                "id": 42,
                "nonce": 141,
                "purpose": "claim",
                "job_id": None,
                "state": "SIGNED",
                "hash": "0x77aa" + "cd" * 30,
                "max_fee_wei": "33000000000",
                "block_number": None,
                "error": "insufficient funds for gas * price + value",
                "created_at": ago(seconds=12),
            },
        ],
    ),
    "tx-signatures": (
        SIGNATURES,
        [
            {
                "hash": "0x4be1" + "ab" * 30,
                "signed_at": ago(minutes=7),
                "fee": "30 gwei per gas",
                "tip": "1 gwei per gas",
                "head": 120040,
            }
        ],
    ),
    "sweep-list": (
        SWEEPS,
        [
            {
                "id": 12,
                "begun_at": ago(minutes=14),
                "took_s": 1.25,
                "why": "beat",
                "compared": "3 jobs of the ledger, 2 jobs of SLURM, 3 jobs of the contract, at block 120042",
                "found": "1 missing, left to you",
                "unseen": "",
            }
        ],
    ),
    "cluster-list": (
        CLUSTERS,
        [
            {
                "cluster": "geneva",
                "open_jobs": 3,
                "alarms": 2,
                "last_run_at": ago(seconds=1),
                "switches": ["claiming_paused"],
            },
            {
                "cluster": "lausanne",
                "open_jobs": 0,
                "alarms": 0,
                "last_run_at": ago(days=40),
                "switches": [],
            },
        ],
    ),
    "log": (
        LOG,
        [
            with_short_ids(row)
            for row in (
                {
                    "id": 3,
                    "at": ago(minutes=5),
                    "operator": "alice@login1",
                    "command": "job settle",
                    "subject": FIRST,
                    "change": f"{FIRST} (RUNNING) will end as FAILED; the customer pays 7 minutes",
                    "reason": "node lost",
                    "outcome": "done",
                },
                {
                    "id": 2,
                    "at": ago(hours=26),
                    "operator": "bob@login1",
                    "command": "claims pause",
                    "subject": "claims",
                    "change": "no more jobs will be claimed for geneva; 3 jobs under way will go on",
                    "reason": "",
                    "outcome": None,
                },
            )
        ],
    ),
    "earnings": (
        EARNINGS[Per.DAY],
        [shown_row(Per.DAY, earned, rounded=True) for earned in EARNED],
    ),
    "earnings-job": (
        EARNINGS[Per.JOB],
        [
            shown_row(
                Per.JOB,
                Earned(
                    FIRST,
                    1,
                    14,
                    114_380_000_000_000_000_000,
                    4_120_000_000_000,
                    CUSTOMERS[0],
                    "FAILED",
                    ago(hours=2),
                ),
                rounded=True,
            ),
            shown_row(Per.JOB, Earned("", 0, 0, 0, 9_300_000_000_000), rounded=True),
        ],
    ),
    "earnings-month": (
        EARNINGS[Per.MONTH],
        [
            shown_row(
                Per.MONTH,
                Earned("2026-11", 36, 8249, EARNED[2].earned_wei, EARNED[2].fees_wei),
                rounded=True,
            ),
            shown_row(
                Per.MONTH, Earned("2026-10", 0, 0, 0, 9_300_000_000_000), rounded=True
            ),
        ],
    ),
    "earnings-customer": (
        EARNINGS[Per.CUSTOMER],
        [
            shown_row(
                Per.CUSTOMER,
                Earned(
                    CUSTOMERS[0], 35, 8249, EARNED[2].earned_wei, EARNED[2].fees_wei
                ),
                rounded=True,
            ),
            shown_row(
                Per.CUSTOMER,
                Earned(CUSTOMERS[1], 1, 0, 0, EARNED[0].fees_wei),
                rounded=True,
            ),
        ],
    ),
    "job-retry": (
        RETRIED,
        [
            {"id": 17, "kind": "submit", "job_id": SECOND},
            {"id": 1018, "kind": "poll_slurm", "job_id": FIRST},
        ],
    ),
    "silences": (
        SILENCES,
        [
            {
                "name": "slurm_not_answering",
                "begun_at": ago(hours=1),
                "ends_at": NOW + timedelta(hours=2),
                "reason": "slurmctld is upgraded, and the login node gets new memory, by the night shift",
            }
        ],
    ),
    "periodic-work": (
        PERIODIC_RUNS,
        [
            {"name": "scan", "age_s": 2.4},
            {"name": "ldap_accounts", "age_s": 301.0},
            {"name": "refresh_inventory", "age_s": 41.0},
        ],
    ),
    "benchmark-plan": (
        NODES,
        [
            {
                "name": f"node-a-{n}.cluster.example.com",
                "cpus": 64,
                "gpus": 4,
                "mem_mb": 512_000,
            }
            for n in (17, 18)
        ],
    ),
    "benchmark-values": (
        VALUES,
        [
            {"at": ago(days=3), "run": 3, "benchmark": "hpl", "value": 41210.5},
            {"at": ago(days=90), "run": 1, "benchmark": "hpl", "value": 39871.0},
        ],
    ),
    "benchmark-history": (
        RUNS,
        [
            {
                "id": 3,
                "state": "DONE",
                "asked_at": ago(days=3),
                "ended_at": ago(days=2, hours=22),
                "why": "new switches",
                "hardware": "4 nodes, 256 CPUs, 16 GPUs, 2048000 MB",
                "cancel_reason": None,
            }
        ],
    ),
    "benchmark-results": (
        BENCHMARKS,
        [
            {
                "benchmark": "hpl",
                "state": "MEASURED",
                "slurm_id": 104100,
                "slurm_state": "COMPLETED",
                "tool": "HPL 2.3",
                "output_bytes": 8123,
                "called_at": ago(days=3),
                "ended_at": ago(days=2, hours=23),
                "reason": None,
            },
            {
                "benchmark": "osu",
                "state": "FAILED",
                "slurm_id": 104101,
                "slurm_state": "FAILED",
                "tool": "",
                "output_bytes": 12,
                "called_at": ago(days=2, hours=23),
                "ended_at": ago(days=2, hours=22),
                "reason": "exit code 1: srun: error: Unable to create step for job 104101: Invalid generic resource",
            },
        ],
    ),
    "config-show": (
        SETTINGS,
        [
            {"setting": "CLUSTER_NAME", "from": "environment", "value": "geneva"},
            {
                "setting": "DATABASE_URL",
                "from": "file /run/secrets/database_url",
                "value": "(set, not shown)",
            },
            {
                "setting": "BENCHMARK_HPL_IMAGE",
                "from": "default",
                "value": "registry-1.deepsquare.run#library/hpc:23.5",
            },
            {
                "setting": "ALLOW_SHARED_HOMES_WHERE_CUSTOMERS_CAN_RUN_CODE_AS_EACH_OTHER",
                "from": "default",
                "value": "no",
            },
        ],
    ),
}


def entry(at: datetime, source: str, what: str, **details: Any) -> dict[str, Any]:
    """An entry of a job's timeline."""
    return {"at": at, "source": source, "what": what, "details": details}


def story() -> list[dict[str, Any]]:
    """A job that was submitted, ran, was topped up, and ended; its report is not sent,
    as the node rejects it.
    """
    begun = ago(hours=1)

    def after(seconds: float) -> datetime:
        return begun + timedelta(seconds=seconds)

    running = [
        entry(
            after(20 + 60 * n),
            "journal",
            "SlurmRunningObserved",
            seen="RUNNING",
            state="RUNNING",
        )
        for n in range(12)
    ]
    return [
        entry(after(-1), "transaction", "claim", hash="0x77aa" + "cd" * 30, nonce=140, state="MINED", block=120001),
        entry(after(0), "journal", "Claimed", time_limit_min=60, state="CLAIMED"),
        entry(after(0.25), "journal", "ScriptFetched", bytes=1169, state="READY"),
        entry(after(0.5), "journal", "SubmitStarted", limit_min=60, state="SUBMITTING"),
        entry(after(1.75), "journal", "Submitted", slurm_id=104217, state="QUEUED"),
        entry(after(2), "journal", "SlurmPendingObserved", seen="PENDING", state="QUEUED"),
        entry(after(12), "callback", "status 4", slurm_id=104217, duration_s=0, exit_code=0, peer="10.0.0.7"),
        *running,
        entry(after(690), "command", "job retry", operator="ann@login1", reason="the login node is back", outcome="done"),
        entry(after(700), "journal", "ToppedUp", minutes=30, state="RUNNING"),
        entry(after(701), "journal", "LimitApplied", limit_min=90, state="RUNNING"),
        entry(after(900), "callback", "status 8", slurm_id=104217, duration_s=885, exit_code=1280, peer="10.0.0.1"),
        entry(
            after(901),
            "journal",
            "SlurmCompleted",
            outcome={"status": "FAILED", "elapsed_s": 885, "exit_status": 1280, "reason": "exit code 5"},
            state="ENDED",
        ),
        entry(after(901), "effect", "report", effect=9, attempts=4, due_at=(NOW + timedelta(seconds=30)).isoformat(),
              last_error="the wallet holds 12000 wei and needs 340000000000000"),
        entry(after(902), "transaction", "report FAILED", hash="0x4be1" + "ab" * 30, nonce=141, state="SIGNED",
              error="insufficient funds for gas * price + value"),
    ]  # fmt: skip


JOB = Job(
    job_id=JobId(FIRST),
    customer=Address(CUSTOMERS[0]),
    provider=Address(CUSTOMERS[1]),
    claim_key="claim:1",
    definition=Definition(
        gpus=1,
        mem_per_cpu_mb=2000,
        cpus_per_task=4,
        ntasks=2,
        batch_location_hash="hash",
    ),
    time_limit_min=60,
    state=State.ENDED,
    chain_status=ChainStatus.RUNNING,
    chain_position=(120013, 4),
    slurm_id=SlurmId(104217),
    top_ups=(TopUp("t", 30),),
    outcome=Outcome(
        status=ChainStatus.FAILED, elapsed_s=885, exit_status=1280, reason="exit code 5"
    ),
)


FOUND = [
    green("settings of this environment", "complete and well-formed"),
    green("database", "Postgres 16.2 answers"),
    contract_verdict(CUSTOMERS[1], is_open=True),
    wallet_verdict(
        WalletSeen(
            CUSTOMERS[1], 12_000_000_000_000_000, 10**16, 340_000_000_000_000, True
        )
    ),
    host_key_verdict(
        "login1.example.com:22",
        "SHA256:" + "a" * 43,
        ["SHA256:" + "b" * 43],
        "/etc/supervisor/known_hosts",
    ),
    *(
        skipped(name, "the login node does not answer")
        for name in ("sbatch", "scancel", "scontrol", "squeue", "nodes")
    ),
    skipped("LDAP", "LDAP_URL is not set: the site makes the accounts itself"),
]
PRICES = Prices(8_500_000_000_000_000_000, 950_000_000_000_000_000, 80_000_000_000_000)


EXPLORER = "https://explorer.example.org/tx/{hash}"


def show_job(
    shown: Output, *, details: bool = False, transaction_url: str = ""
) -> None:
    """What `supervisor job show` shows of a job that ended."""
    timeline = story()
    shown.facts(
        facts_of(
            JOB,
            {"created_at": ago(hours=1), "updated_at": ago(minutes=45)},
            NOW,
            timeline,
        )
    )
    shown.title("what happened")
    shown.lines(lines_of(timeline, details=details, transaction_url=transaction_url))
    shown.title("what comes next")
    shown.lines(next_of(JOB, timeline, NOW))


QUEUED = {"benchmark": 0, "chain": 2, "default": 0, "slurm": 310}


def a_summary() -> StatusSummary:
    """The state of a cluster with queued and running jobs and an alarm."""
    alarms = [
        Alarm(
            AlarmName.WALLET_EMPTY,
            {"balance_wei": 12000, "needed_wei": 340000000000000},
            ago(minutes=61),
        )
    ]
    return StatusSummary(
        cluster="geneva",
        jobs={"QUEUED": 2, "RUNNING": 14},
        effects=[
            EffectCount("report", 1, 0, 0, 0, 1, 75.5, 75.5),
            EffectCount("poll_slurm", 0, 14, 2, 0, 0, 0.0, 0.0),
        ],
        unread_callbacks={4: 2},
        oldest_unread_s=0.4,
        transactions={"SIGNED": 1},
        oldest_transaction_s=75.0,
        wallet=Writer(CUSTOMERS[1], 179188, 142),
        cursors={"contract": 120042, "history": 118000},
        head=StoredReading(120045, 2.0),
        claimable=StoredReading(3, 2.0),
        queues={name: StoredReading(number, 95.0) for name, number in QUEUED.items()},
        periodic_run_ages_s={
            "claim": 0.5,
            finished_key("claim"): 0.5,
            "scan": 2.5,
            "slurm": 1.0,
            "sweep": 840.0,
        },
        alarms=alarms,
        claiming_paused=True,
        submissions_paused=False,
        last_sweep=Reconciliation(
            ago(minutes=14, seconds=2), ago(minutes=14), {"found": {"missing": 1}}, 12
        ),
        since_sweep_s=840.0,
        registration_status=RegistrationStatus.APPROVED,
        endpoints={"https://node.example.org#1": "ok"},
    )


COMPLAINT = "an effect has been due for 76 s, expected at most 60 s: no worker takes it"
PROBLEMS = StatusProblems(
    [COMPLAINT],
    why_no_claims(a_summary(), chain_poll_s=1.0),
    WalletSummary(12_000, 8_381_200_000_000_000_000, 4),
)


def an_alarm(shown: Output) -> None:
    """What `supervisor alarm show` shows of an alarm that is silenced."""
    details = {
        "unanswered_s": 5530,
        "tries": 41,
        "error": LONG_ERROR,
        "some": [FIRST, SECOND],
    }
    alarm = {
        "name": "slurm_not_answering",
        "raised_at": ago(minutes=61),
        "details": details,
    }
    silence = Silence(
        ago(minutes=10), NOW + timedelta(hours=2), "slurmctld is upgraded"
    )
    shown.facts(alarm_facts(alarm, silence, NOW, "docs/how-to/alarms"))
    shown.blank()
    shown.table(MESSAGES, LISTS["alarm-messages"][1], NOW)


def a_cluster(shown: Output) -> None:
    """What `supervisor cluster show` shows of a cluster that takes no jobs."""
    found = {
        "cluster": "geneva",
        "slurm_cluster": "geneva 1732330000",
        "unexpected_cluster": "geneva 1764000000",
        "min_job_age_s": 300,
        "wallet": CUSTOMERS[1],
        "login_node": "login1.example.com:22",
        "partition": "main",
        "claims_paused": "maintenance until noon",
        "submissions_paused": None,
        "alarms": ["slurm_cluster_mismatch", "wallet_empty"],
    }
    shown.facts(cluster_facts(found))


def a_sweep(shown: Output) -> None:
    """What `supervisor sweep show` shows of a sweep with discrepancies."""
    discrepancies = [
        {
            "found": "orphan_running",
            "job_id": FIRST,
            "slurm_id": 104217,
            "done": [],
            "cancelled": 104217,
        },
        {
            "found": "end_not_recorded",
            "job_id": SECOND,
            "slurm_id": 104218,
            "done": ["SlurmCompleted"],
            "cancelled": None,
        },
        {
            "found": "needs_operator",
            "job_id": THIRD,
            "slurm_id": 104190,
            "done": [],
            "cancelled": None,
        },
    ]
    report = {
        "why": "beat",
        "jobs": 16,
        "slurm_jobs": 15,
        "on_chain": None,
        "block": None,
        "found": {"orphan_running": 1, "end_not_recorded": 1, "needs_operator": 1},
        "discrepancies": discrepancies,
        "cancelled": 1,
        "not_cancelled": {
            "104219": "scancel: error: Kill job error on job id 104219: Access denied"
        },
        "stale": {"effects": 2, "callbacks": 0, "transactions": 0},
        "unseen": {
            "contract": "no RPC endpoint answers: https://node.example.org#1 Connection refused"
        },
        "seconds": {"slurm": 0.42, "contract": 3.0},
        "again_s": 900.0,
        "needs_operator": {THIRD: 104190},
    }
    show_sweep(
        shown,
        Reconciliation(ago(minutes=14, seconds=2), ago(minutes=14), report, 12),
        NOW,
    )


def a_transaction(shown: Output, *, mined: bool = False) -> None:
    """What `supervisor tx show` shows of a transaction that was replaced."""
    hashes = "0x4be1" + "ab" * 30, "0x77aa" + "cd" * 30
    fees = {"max_fee_wei": "33000000000", "priority_fee_wei": "1500000000"}
    times = {
        "created_at": ago(minutes=7),
        "sent_at": ago(minutes=7),
        "done_at": None,
        "nonce_conflict_at": None,
    }
    row = {
        **{
            "id": 42,
            "nonce": 141,
            "purpose": "report FINISHED",
            "job_id": FIRST,
            "state": "SENT",
            "hash": hashes[1],
        },
        **{
            "chain_id": 179188,
            "address": CUSTOMERS[1],
            "gas": 210_000,
            "block_number": None,
        },
        "error": "insufficient funds for gas * price + value",
        "signatures": [
            fees | {"hash": one, "head": 120040 + n, "signed_at": ago(minutes=7 - n)}
            for n, one in enumerate(hashes)
        ],
    }
    paid: dict[str, Any] = {"gas_used": None, "gas_price_wei": None}
    if mined:
        paid = {
            "gas_used": 135_830,
            "gas_price_wei": "31500000000",
            "block_number": 120044,
            "state": "MINED",
            "error": "",
        }
        paid["done_at"] = ago(minutes=5)
    show_transaction(shown, row | fees | times | paid, NOW, EXPLORER, wide=False)


def a_provider(shown: Output) -> None:
    """What `supervisor provider show` shows of an approved provider."""
    machine = {"cpus": 64, "gpus": 4, "mem_mb": 512_000}
    prices = {
        "gpu_credits_per_min": "8.5",
        "cpu_credits_per_min": "0.95",
        "mem_credits_per_min": "0.00008",
    }
    labels = {
        "os": "linux",
        "compute.gflops": "41210.5",
        "storage.scratch.read.bw.mibps": "10240",
    }
    registered = {
        "machines": [machine | {"nodes": 4}],
        "prices": prices,
        "labels": labels,
    }
    offered = registered | {
        "machines": [machine | {"nodes": 3}],
        "prices": prices | {"cpu_credits_per_min": "0.9"},
    }
    decision = {
        "address": CUSTOMERS[1],
        "decision": "wait",
        "why": "the nodes changed 40 s ago, and must stay the same for 300 s",
        "measuring": False,
        "warnings": [
            "the price of a CPU is 1/100 of what other providers ask: CPU_PRICE_PER_MIN"
        ],
        **{"registered": registered, "waiting": None, "offered": offered},
    }
    summary = RegistrationSummary(
        RegistrationStatus.APPROVED, 93_000.0, {"measure": "new switches"}
    )
    show_provider(shown, decision, summary, NOW, wide=False)


def a_benchmark_run(shown: Output) -> None:
    """What `supervisor benchmark show` shows of a run that goes on."""
    nodes = [
        {"name": f"node{n}", "cpus": 64, "gpus": 4, "mem_mb": 512_000} for n in range(4)
    ]
    run = {
        **{
            "id": 3,
            "state": "RUNNING",
            "why": "new switches",
            "hardware": {"nodes": nodes},
            "cancel_reason": None,
        },
        **{
            "asked_at": ago(days=3),
            "begun_at": ago(days=2, hours=23),
            "ended_at": None,
        },
        "last_error": "sbatch: error: Batch job submission failed: Invalid partition name specified",
    }
    measured, failed = LISTS["benchmark-results"][1]
    results = [
        measured
        | {
            "labels": {"compute.gflops": "41210.5"},
            "left_out": {"gpu": "no GPU was free"},
            "notes": ["2 of 3 rounds"],
        },
        failed | {"labels": {}, "left_out": {}, "notes": []},
    ]
    show_run(shown, run, results, NOW, wide=False)


def a_status(shown: Output) -> None:
    """What `supervisor status` shows of that cluster."""
    show_status(shown, a_summary(), PROBLEMS, NOW, wide=False)


def a_live_screen(shown: Output, *, brief: bool = False) -> None:
    """The lines that `supervisor top` shows above the list of jobs, and its last
    line.
    """
    states = [
        {"state": "QUEUED", "jobs": 2, "oldest_at": ago(minutes=9)},
        {"state": "RUNNING", "jobs": 14, "oldest_at": ago(hours=30)},
    ]
    snapshot = a_summary()
    overview(
        shown,
        snapshot,
        status_facts(snapshot, PROBLEMS) | {"throughput": throughput(31)},
        states,
        NOW,
        brief=brief,
    )
    shown.title(KEYS)


def table_of(name: str, *, wide: bool = False) -> Callable[[Output], None]:
    """A function that shows the list of that name."""
    view, rows = LISTS[name]
    return lambda shown: shown.table(view, rows, NOW, wide=wide)


SHOWN: Mapping[str, Callable[[Output], None]] = {
    **{name: table_of(name) for name in LISTS},
    "job-list-wide": table_of("job-list", wide=True),
    "job-show": show_job,
    "job-show-explorer": lambda shown: show_job(shown, transaction_url=EXPLORER),
    "job-show-wide": lambda shown: show_job(shown, details=True),
    "alarm-show": an_alarm,
    "cluster-show": a_cluster,
    "sweep-show": a_sweep,
    "tx-show": a_transaction,
    "tx-show-mined": lambda shown: a_transaction(shown, mined=True),
    "provider-show": a_provider,
    "benchmark-show": a_benchmark_run,
    "status": a_status,
    "top": a_live_screen,
    "top-of-few-lines": lambda shown: a_live_screen(shown, brief=True),
    "doctor": lambda shown: show_lines(shown, FOUND),
    "earnings-plot": lambda shown: shown.bars(bars_of(Per.DAY, EARNED)),
    "bill": lambda shown: shown.facts(
        Bill(JOB, PRICES, 118_860_000_000_000_000_000, 4_120_000_000_000).facts()
    ),
}


def printed(name: str, width: int, *, color: bool = False) -> str:
    """The output on a terminal with so many columns."""
    output = io.StringIO()
    with columns(width), redirect_stdout(output):
        shown = Output([])
        shown.color = color
        SHOWN[name](shown)
    return output.getvalue()


@contextmanager
def columns(width: int) -> Iterator[None]:
    """Set COLUMNS, and the time zone of the dates."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TZ")}
    os.environ.update({"COLUMNS": str(width), "TZ": "UTC"})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def main() -> None:
    """Write the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name in SHOWN:
        for width in WIDTHS:
            (GOLDEN / f"{name}.{width}.txt").write_text(printed(name, width))


if __name__ == "__main__":
    main()
