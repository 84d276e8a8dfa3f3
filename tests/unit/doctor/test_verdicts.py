"""The judgement on what the probes of `supervisor doctor` have seen: a row each."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from supervisor_tasks.doctor import verdicts
from supervisor_tasks.doctor.check_results import Finding, Level, worst
from supervisor_tasks.doctor.verdicts import CertificateSeen, EndpointSeen, WalletSeen
from supervisor_tasks.slurm.site_limits import Confinement, JobLimits

GREEN, YELLOW, RED, SKIPPED = Level.GREEN, Level.YELLOW, Level.RED, Level.SKIPPED
NOW = datetime(2026, 11, 23, 3, tzinfo=UTC)
ETHER = 10**18
CHAIN = 179188
CONFINED = Confinement(
    "proctrack/cgroup", ("task/affinity", "task/cgroup"), (), allocates_memory=True
)
LIMITED = JobLimits(
    whole_nodes="", over_time_limit="", may_expand=False, slurm_user="slurm(64030)"
)


def look(
    name: str,
    chain_id: int = CHAIN,
    head: int = 100,
    took_s: float = 0.1,
    error: str = "",
) -> EndpointSeen:
    return EndpointSeen(name, chain_id, head, took_s, error)


@pytest.mark.parametrize(
    ("seen", "levels"),
    [
        ([look("a")], [GREEN]),
        ([look("a", error="refused")], [RED]),
        ([look("a", error="refused"), look("b")], [YELLOW, GREEN]),
        ([look("a", error="refused"), look("b", error="refused")], [RED, RED]),
        ([look("a", chain_id=1), look("b")], [RED, GREEN]),
        ([look("a", head=94), look("b", head=100)], [YELLOW, GREEN]),
        ([look("a", head=95), look("b", head=100)], [GREEN, GREEN]),
        ([look("a", took_s=1.5)], [YELLOW]),
        # another chain's head does not count
        ([look("a", chain_id=1, head=10**6), look("b")], [RED, GREEN]),
    ],
)
def test_endpoints__beside_each_other__errors_chain_and_lag_set_the_levels(
    seen: Sequence[EndpointSeen], levels: list[Level]
) -> None:
    found = verdicts.endpoint_verdicts(seen, CHAIN)
    assert [one.level for one in found] == levels
    assert all(one.mend for one in found if one.level is not GREEN)


def test_endpoints__that_answer__tell_chain_head_lag_and_time() -> None:
    seen = [
        look("a", head=100, took_s=0.0042),
        look("b", head=99, took_s=1.25),
        look("c", head=97),
        look("d", head=90),
        look("e", error="refused"),
    ]
    assert [one.found for one in verdicts.endpoint_verdicts(seen, CHAIN)] == [
        "chain 179188, block 100, 0 blocks behind the best, 4 ms",
        "chain 179188, block 99, 1 block behind the best, 1250 ms; expected an answer within 1 s",
        "chain 179188, block 97, 3 blocks behind the best, 100 ms",
        "chain 179188, block 90, 10 blocks behind the best, 100 ms; expected at most 5 blocks behind",
        "refused",
    ]


@pytest.mark.parametrize(
    ("theirs_s", "off_s"),
    [(99, -1), (100, 0), (101, 0), (103, 0), (104, 0.5), (40, -60), (164, 60.5)],
)
def test_off_within_s__answer_took_its_time__is_what_is_off_for_certain(
    theirs_s: int, off_s: float
) -> None:
    assert verdicts.off_within_s(theirs_s, 100.9, 103.5) == off_s


@pytest.mark.parametrize(
    ("balance", "job_wei", "level", "told"),
    [
        (ETHER, ETHER // 1000, GREEN, "coins for gas, enough for 1000 jobs"),
        (ETHER, ETHER // 99, YELLOW, "coins for gas, enough for 99 jobs"),
        (ETHER // 200, ETHER // 10**6, RED, "at least 0.01"),
        (ETHER, 0, GREEN, "gas is free"),
    ],
)
def test_wallet__balance__is_told_in_jobs(
    balance: int, job_wei: int, level: Level, told: str
) -> None:
    found = verdicts.wallet_verdict(
        WalletSeen("0xabc", balance, ETHER // 100, job_wei, measured=True)
    )
    assert found.level is level
    assert told in found.found
    assert ("0xabc" in found.mend) is (level is not GREEN)


CASES: list[tuple[str, Finding, Level, str]] = [
    ("migrations equal", verdicts.migrations_verdict("0025", "0025"), GREEN, ""),
    (
        "migrations older",
        verdicts.migrations_verdict("0024", "0025"),
        RED,
        "supervisor db upgrade",
    ),
    (
        "migrations none",
        verdicts.migrations_verdict(None, "0025"),
        RED,
        "supervisor db upgrade",
    ),
    ("cluster known", verdicts.cluster_verdict("a", ["a", "b"]), GREEN, ""),
    ("cluster unknown", verdicts.cluster_verdict("c", ["a", "b"]), RED, "CLUSTER_NAME"),
    (
        "heartbeat",
        verdicts.heartbeat_verdict("x", 3.0, 30.0, "start it", needed=True),
        GREEN,
        "",
    ),
    (
        "heartbeat long ago",
        verdicts.heartbeat_verdict("x", 31.0, 30.0, "start it", needed=False),
        RED,
        "start it",
    ),
    (
        "no heartbeat, needed",
        verdicts.heartbeat_verdict("x", None, 30.0, "start it", needed=True),
        RED,
        "start it",
    ),
    (
        "no heartbeat",
        verdicts.heartbeat_verdict("x", None, 30.0, "start it", needed=False),
        SKIPPED,
        "",
    ),
    ("read to the head", verdicts.reading_verdict(100, 105, None, 225.0), GREEN, ""),
    ("read between scans", verdicts.reading_verdict(100, 400, 225.0, 225.0), GREEN, ""),
    (
        "read behind",
        verdicts.reading_verdict(100, 106, 226.0, 225.0),
        YELLOW,
        "chain queue",
    ),
    (
        "never read to the head",
        verdicts.reading_verdict(100, 106, None, 225.0),
        YELLOW,
        "chain queue",
    ),
    (
        "nothing read",
        verdicts.reading_verdict(None, 106, None, 225.0),
        YELLOW,
        "chain queue",
    ),
    ("announced", verdicts.announcements_verdict(look("w"), CHAIN), GREEN, ""),
    (
        "not announced",
        verdicts.announcements_verdict(look("w", error="refused"), CHAIN),
        YELLOW,
        "ENDPOINT_WS",
    ),
    (
        "announced wrong",
        verdicts.announcements_verdict(look("w", chain_id=1), CHAIN),
        RED,
        "ENDPOINT_WS",
    ),
    ("contract open", verdicts.contract_verdict("0x1", is_open=True), GREEN, ""),
    (
        "contract retired",
        verdicts.contract_verdict("0x1", is_open=False),
        RED,
        "METASCHEDULER_SMART_CONTRACT",
    ),
    (
        "approved",
        verdicts.registration_verdict(valid=True, waiting=False, banned=False),
        GREEN,
        "",
    ),
    (
        "approved, changing",
        verdicts.registration_verdict(valid=True, waiting=True, banned=False),
        GREEN,
        "",
    ),
    (
        "waiting",
        verdicts.registration_verdict(valid=False, waiting=True, banned=False),
        YELLOW,
        "approve",
    ),
    (
        "banned",
        verdicts.registration_verdict(valid=True, waiting=False, banned=True),
        RED,
        "administrators",
    ),
    (
        "unknown",
        verdicts.registration_verdict(valid=False, waiting=False, banned=False),
        RED,
        "provider register",
    ),
    (
        "host key known",
        verdicts.host_key_verdict("h:22", "SHA256:a", ["SHA256:b", "SHA256:a"], "/k"),
        GREEN,
        "",
    ),
    (
        "host key changed",
        verdicts.host_key_verdict("h:22", "SHA256:a", ["SHA256:b"], "/k"),
        RED,
        "ssh-keygen -f /k -R",
    ),
    (
        "host key new",
        verdicts.host_key_verdict("h:22", "SHA256:a", [], "/k"),
        RED,
        "ssh-keyscan -p 22 h >> /k",
    ),
    (
        "key pair",
        verdicts.key_pair_verdict("ssh-ed25519 AAAA", "ssh-ed25519 AAAA me@here"),
        GREEN,
        "",
    ),
    (
        "key of another pair",
        verdicts.key_pair_verdict("ssh-ed25519 AAAA", "ssh-ed25519 BBBB me@here"),
        RED,
        "SLURM_SSH_PUBLIC_KEY=ssh-ed25519 AAAA",
    ),
    (
        "version",
        verdicts.version_verdict("sbatch", "P=/p", 0, "slurm-wlm 22.05.8\n", ""),
        GREEN,
        "",
    ),
    (
        "no command",
        verdicts.version_verdict("sbatch", "P=/p", 127, "", "no such file"),
        RED,
        "P=/p",
    ),
    ("no word", verdicts.version_verdict("sbatch", "P=/p", 0, " ", ""), RED, "P=/p"),
    (
        "slurmctld first seen",
        verdicts.controller_verdict("a", None, same=False),
        GREEN,
        "",
    ),
    ("slurmctld as known", verdicts.controller_verdict("a", "a", same=True), GREEN, ""),
    (
        "another slurmctld",
        verdicts.controller_verdict("b", "a", same=False),
        RED,
        "cluster accept",
    ),
    (
        "no accounting",
        verdicts.accounting_verdict(asked=False, unused=False, status=0, stderr=""),
        GREEN,
        "",
    ),
    (
        "unused accounting",
        verdicts.accounting_verdict(asked=False, unused=True, status=0, stderr=""),
        YELLOW,
        "SLURM_ACC",
    ),
    (
        "accounting",
        verdicts.accounting_verdict(asked=True, unused=False, status=0, stderr=""),
        GREEN,
        "",
    ),
    (
        "slurmdbd away",
        verdicts.accounting_verdict(asked=True, unused=False, status=1, stderr="x"),
        RED,
        "slurmdbd",
    ),
    ("nodes", verdicts.nodes_verdict(4, "main", 1), GREEN, ""),
    ("no nodes", verdicts.nodes_verdict(0, "main", 4), RED, "sinfo -R"),
    (
        "unpaid refused",
        verdicts.job_submit_verdict(1, "sbatch: error: supervisor: no token"),
        GREEN,
        "",
    ),
    ("unpaid taken", verdicts.job_submit_verdict(0, ""), RED, "JobSubmitPlugins"),
    (
        "lua has no key",
        verdicts.job_submit_verdict(1, "error: supervisor: no key"),
        RED,
        "supervisor_submit.conf",
    ),
    (
        "another refusal",
        verdicts.job_submit_verdict(1, "invalid partition"),
        YELLOW,
        "slurmctld's log",
    ),
    (
        "jobs are confined",
        verdicts.confinement_verdict(CONFINED),
        GREEN,
        "",
    ),
    (
        "processes outlive their job",
        verdicts.confinement_verdict(replace(CONFINED, proctrack="proctrack/pgid")),
        YELLOW,
        "docs/security.md",
    ),
    (
        "jobs use the whole node",
        verdicts.confinement_verdict(
            replace(CONFINED, task_plugins=("task/affinity",))
        ),
        YELLOW,
        "docs/security.md",
    ),
    (
        "devices of other jobs",
        verdicts.confinement_verdict(
            replace(CONFINED, unconstrained=("ConstrainDevices",))
        ),
        YELLOW,
        "docs/security.md",
    ),
    (
        "memory is not allocated",
        verdicts.confinement_verdict(replace(CONFINED, allocates_memory=False)),
        YELLOW,
        "docs/security.md",
    ),
    (
        "database",
        verdicts.database_verdict("16.4", keeps_sessions=True),
        GREEN,
        "",
    ),
    (
        "database behind a pooler",
        verdicts.database_verdict("16.4", keeps_sessions=False),
        RED,
        "pool_mode=session",
    ),
    ("jobs get what they ask for", verdicts.job_limits_verdict(LIMITED), GREEN, ""),
    (
        "jobs get whole nodes",
        verdicts.job_limits_verdict(
            replace(LIMITED, whole_nodes="SelectType=select/linear")
        ),
        YELLOW,
        "docs/security.md",
    ),
    (
        "jobs run on after their limit",
        verdicts.job_limits_verdict(replace(LIMITED, over_time_limit="10")),
        YELLOW,
        "docs/security.md",
    ),
    (
        "jobs take over nodes",
        verdicts.job_limits_verdict(replace(LIMITED, may_expand=True)),
        YELLOW,
        "docs/security.md",
    ),
    (
        "triggers of customers",
        verdicts.job_limits_verdict(replace(LIMITED, slurm_user="root(0)")),
        YELLOW,
        "docs/security.md",
    ),
    (
        "accounting requires nothing",
        verdicts.associations_verdict("", required=False),
        GREEN,
        "",
    ),
    (
        "customers are added",
        verdicts.associations_verdict("grid", required=True),
        GREEN,
        "",
    ),
    (
        "customers are not added",
        verdicts.associations_verdict("", required=True),
        YELLOW,
        "SLURM_CUSTOMER_ACCOUNT",
    ),
    ("clocks agree", verdicts.clock_verdict("x", -4.9), GREEN, ""),
    ("clock off", verdicts.clock_verdict("x", 5.0), YELLOW, "chrony"),
    ("clock wrong", verdicts.clock_verdict("x", -60.0), RED, "chrony"),
]


@pytest.mark.parametrize(
    ("name", "found", "level", "mend"), CASES, ids=[case[0] for case in CASES]
)
def test_verdict__each_case_seen__has_its_level_and_a_remedy_if_yellow_or_red(
    name: str, found: Finding, level: Level, mend: str
) -> None:
    assert found.level is level
    assert found.found
    assert mend in found.mend
    assert bool(found.mend) is (level in (YELLOW, RED))


@pytest.mark.parametrize(
    ("days", "distrust", "level"),
    [(15, "", GREEN), (13, "", YELLOW), (-1, "", RED), (300, "hostname mismatch", RED)],
)
def test_certificate__days_left_and_trust__set_the_level(
    days: int, distrust: str, level: Level
) -> None:
    seen = CertificateSeen(NOW + timedelta(days=days), ["a.example.com"], distrust)
    found = verdicts.certificate_verdict("x", seen, NOW, "renew it")
    assert found.level is level
    assert "a.example.com" in found.found
    assert found.mend == ("" if level is GREEN else "renew it")


def test_confinement__all_that_is_missing__is_told() -> None:
    seen = Confinement(
        "proctrack/linuxproc",
        ("task/none",),
        ("ConstrainCores",),
        allocates_memory=False,
    )
    assert verdicts.confinement_verdict(seen).found == (
        "ProctrackType=proctrack/linuxproc; expected proctrack/cgroup, as processes can outlive their job;"
        " TaskPlugin=task/none; expected task/cgroup in it, as a job can use the whole node;"
        " ConstrainCores=no; expected yes;"
        " SelectTypeParameters allocates no memory; expected such as CR_Core_Memory, as a job can use all memory of the node"
    )


def test_settings__lines_of_an_error__are_a_finding_each() -> None:
    lines = [
        "CHAIN_ID: found 'x'; expected a number",
        "DATABASE_URL: found nothing; expected a URL: postgresql://",
    ]
    found = verdicts.settings_verdicts("worker", lines)
    assert [one.name for one in found] == ["setting CHAIN_ID", "setting DATABASE_URL"]
    assert found[1].found == "found nothing; expected a URL: postgresql://"
    assert worst(found) is RED
    assert worst(verdicts.settings_verdicts("worker", [])) is GREEN


def test_lists__each_complaint_alarm_and_variable__is_a_finding() -> None:
    assert [one.level for one in verdicts.fleet_verdicts(["a", "b"])] == [RED, RED]
    assert verdicts.fleet_verdicts([])[0].level is GREEN
    assert (
        verdicts.alarm_verdicts(["wallet_empty"])[0].mend
        == "supervisor alarm show wallet_empty"
    )
    assert verdicts.alarm_verdicts([])[0].level is GREEN
    assert (
        verdicts.mistyped_verdicts({"SLURM_PARTITON": "SLURM_PARTITION"})[0].level
        is YELLOW
    )
