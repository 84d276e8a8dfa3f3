"""The judgement on what the probes have seen. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor_tasks.chain.rpc.endpoint_health import BEHIND_BLOCKS
from supervisor_tasks.doctor.check_results import Finding, green, red, skipped, yellow
from supervisor_tasks.provider.offer import rounded_credits
from supervisor_tasks.slurm.site_limits import Confinement, JobLimits

SLOW_S = 1.0  # of an answer of an RPC endpoint
FEW_JOBS = 100  # that the wallet pays for
CLOCK_OFF_S = 5.0  # SLURM's munge allows 300 s, tokens and challenges less
CLOCK_WRONG_S = 60.0
FEW_DAYS = 14  # of a certificate that is left
MAX_ERROR_CHARS = 300  # characters of an error

NOT_FOUND_STATUS = 127  # the status of a shell that finds no such program
TOKEN_MISSING = "supervisor: no token"  # noqa: S105  what job_submit.lua prints for a job without one
REJECTED_BY_LUA = "supervisor:"


# --- this environment -----------------------------------------------------------------


def settings_verdicts(process: str, lines: Sequence[str]) -> list[Finding]:
    """Judge the settings of a process by the lines of a SettingsError; each names its
    variable first.
    """
    if not lines:
        return [green(f"settings of {process}", "complete and well-formed")]
    return [
        red(
            f"setting {line.partition(':')[0]}",
            line.partition(": ")[2],
            "correct it where the process gets its settings",
        )
        for line in lines
    ]


def mistyped_verdicts(nearest: Mapping[str, str]) -> list[Finding]:
    """Judge variables that look like settings and are none."""
    return [
        yellow(
            f"variable {name}",
            "no setting has this name",
            f"rename it to {right}, or remove it",
        )
        for name, right in nearest.items()
    ]


# --- the ledger -----------------------------------------------------------------------


def database_verdict(version: str, *, keeps_sessions: bool) -> Finding:
    """Judge the ledger's database. Locks and leases last as long as a session of
    Postgres.
    """
    if keeps_sessions:
        return green("database", f"Postgres {version} answers")
    return red(
        "database",
        "two connections share one session of Postgres: a pooler stands between, and locks and leases hold nothing",
        "DATABASE_URL must lead to Postgres itself, or to a pooler that keeps sessions (pool_mode=session)",
    )


def migrations_verdict(found: str | None, expected: str | None) -> Finding:
    """Judge the revision of the ledger's tables."""
    if found == expected:
        return green(
            "migrations", f"the tables are at {found}, as this version expects"
        )
    return red(
        "migrations",
        f"the tables are at {found or 'none'}; expected {expected}",
        "supervisor db upgrade",
    )


def cluster_verdict(name: str, known: Sequence[str]) -> Finding:
    """Judge whether the ledger knows the cluster."""
    if name in known:
        return green("cluster", f"the ledger knows {name}")
    listed = ", ".join(known) or "none: no fleet has ever worked with it"
    return red(
        "cluster",
        f"the ledger does not know {name!r}; it knows {listed}",
        "correct CLUSTER_NAME, or start its fleet",
    )


def fleet_verdicts(problems: Sequence[str]) -> list[Finding]:
    """Judge whether the periodic work ends in time, by the problems of
    observability/health.py.
    """
    mend = "start the process that is named, and read its log"
    if not problems:
        return [green("fleet", "everything periodic comes to an end")]
    return [red("fleet", problem, mend) for problem in problems]


def alarm_verdicts(names: Sequence[str]) -> list[Finding]:
    """Judge the alarms that are on."""
    if not names:
        return [green("alarms", "none is on")]
    return [
        red(f"alarm {name}", "is on", f"supervisor alarm show {name}") for name in names
    ]


def heartbeat_verdict(
    name: str, age_s: float | None, missing_after_s: float, mend: str, *, needed: bool
) -> Finding:
    """Judge a process by the age of its last heartbeat; None if it never sent one."""
    if age_s is None:
        if needed:
            return red(
                name, "never sent a heartbeat; expected one every few seconds", mend
            )
        return skipped(name, f"never sent a heartbeat; if the site has one: {mend}")
    if age_s > missing_after_s:
        return red(
            name,
            f"last heartbeat {age_s:.0f} s ago; expected one every few seconds",
            mend,
        )
    return green(name, f"last heartbeat {age_s:.0f} s ago")


# --- the chain ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndpointSeen:
    """The answer of an RPC endpoint: its chain, its last block and how long it took; or
    the error.
    """

    name: str
    chain_id: int = 0
    head: int = 0
    took_s: float = 0.0
    error: str = ""


def endpoint_verdicts(seen: Sequence[EndpointSeen], chain_id: int) -> list[Finding]:
    """Judge the RPC endpoints. The fleet works while one of them works: then the
    failure of another is yellow, not red.
    """
    heads = [one.head for one in seen if (one.error, one.chain_id) == ("", chain_id)]
    best = max(heads, default=0)
    return [
        _endpoint_verdict(one, chain_id, best, has_working=bool(heads)) for one in seen
    ]


def _endpoint_verdict(
    one: EndpointSeen, chain_id: int, best: int, *, has_working: bool
) -> Finding:
    name = f"RPC endpoint {one.name}"
    mend = "mend the endpoint, or take it out of METASCHEDULER_ENDPOINT_RPC"
    if one.error:
        found = one.error[:MAX_ERROR_CHARS]
        if has_working:
            return yellow(name, found, mend)
        return red(name, found, mend)
    if one.chain_id != chain_id:
        found = f"serves chain {one.chain_id}; expected {chain_id}"
        return red(name, found, "correct METASCHEDULER_ENDPOINT_RPC or CHAIN_ID")
    behind = best - one.head
    lag = f"{behind} blocks behind the best"
    if behind == 1:
        lag = "1 block behind the best"
    about = f"chain {one.chain_id}, block {one.head}, {lag}, {one.took_s * 1000:.0f} ms"
    if behind > BEHIND_BLOCKS:
        return yellow(
            name, f"{about}; expected at most {BEHIND_BLOCKS} blocks behind", mend
        )
    if one.took_s > SLOW_S:
        return yellow(name, f"{about}; expected an answer within {SLOW_S:g} s", mend)
    return green(name, about)


def announcements_verdict(one: EndpointSeen, chain_id: int) -> Finding:
    """Judge the endpoint that announces new blocks. Without it, blocks are polled."""
    name = f"WebSocket endpoint {one.name}"
    if one.error:
        found = f"{one.error[:MAX_ERROR_CHARS]}; blocks are polled meanwhile"
        return yellow(
            name, found, "mend the endpoint, or correct METASCHEDULER_ENDPOINT_WS"
        )
    if one.chain_id != chain_id:
        return red(
            name,
            f"serves chain {one.chain_id}; expected {chain_id}",
            "correct METASCHEDULER_ENDPOINT_WS or CHAIN_ID",
        )
    return green(name, f"chain {one.chain_id}, {one.took_s * 1000:.0f} ms")


def reading_verdict(
    cursor: int | None, head: int, scanned_s: float | None, patience_s: float
) -> Finding:
    """Judge how far the ledger has read the chain. The chain goes on between two scans:
    blocks that are not read are wrong only if the last scan that reached the head,
    `scanned_s` ago, is older than `patience_s`.
    """
    if cursor is None:
        return yellow(
            "chain reading",
            "the ledger has read no block yet",
            "start a worker of the chain queue",
        )
    lag = max(head - cursor, 0)
    scanned, is_late = "never read to the head", True
    if scanned_s is not None:
        scanned = f"last read to the head {scanned_s:.0f} s ago"
        is_late = scanned_s > patience_s
    if lag > BEHIND_BLOCKS and is_late:
        found = f"{lag} blocks behind the node, {scanned}; expected at most {patience_s:g} s"
        return yellow(
            "chain reading",
            found,
            "start a worker of the chain queue, and read its log",
        )
    return green(
        "chain reading", f"up to block {cursor}, {lag} behind the node, {scanned}"
    )


def contract_verdict(address: str, *, is_open: bool) -> Finding:
    """Judge the contract, which answers."""
    if is_open:
        return green("contract", f"{address} answers and takes jobs")
    return red(
        "contract",
        f"{address} is retired: it takes no more jobs",
        "put the new address into METASCHEDULER_SMART_CONTRACT",
    )


@dataclass(frozen=True, slots=True)
class WalletSeen:
    """A wallet, and what the gas of one job costs; `measured` if that is of this
    ledger's own jobs.
    """

    address: str
    balance_wei: int
    least_wei: int
    job_wei: int
    measured: bool


def wallet_verdict(seen: WalletSeen) -> Finding:
    """Judge the wallet by how many jobs it pays the gas for."""
    mend = f"send coins for gas to {seen.address}"
    held = f"{seen.address} holds {rounded_credits(seen.balance_wei)} coins for gas"
    if seen.balance_wei < seen.least_wei:
        return red(
            "wallet",
            f"{held}; expected at least {rounded_credits(seen.least_wei)} coins (WALLET_MIN_WEI)",
            mend,
        )
    if seen.job_wei <= 0:
        return green("wallet", f"{held}; gas is free")
    jobs = seen.balance_wei // seen.job_wei
    basis = "estimated"
    if seen.measured:
        basis = "as its jobs have cost"
    paid = f"{held}, enough for {jobs} jobs ({basis})"
    if jobs < FEW_JOBS:
        return yellow("wallet", paid, mend)
    return green("wallet", paid)


def registration_verdict(*, valid: bool, waiting: bool, banned: bool) -> Finding:
    """Judge what the contract lets the provider do."""
    if banned:
        return red(
            "provider", "is banned by the grid", "ask the grid's administrators why"
        )
    if valid:
        if waiting:
            return green(
                "provider", "is approved, and a newer registration waits for approval"
            )
        return green("provider", "is approved")
    if waiting:
        return yellow(
            "provider",
            "waits for approval",
            "ask the grid's administrators to approve it",
        )
    return red(
        "provider",
        "is not registered",
        "supervisor provider show, then `supervisor provider register`",
    )


# --- the login node and SLURM ---------------------------------------------------------


def key_pair_verdict(derived: str, given: str) -> Finding:
    """Judge SLURM_SSH_PUBLIC_KEY by the public key that is derived from
    SLURM_SSH_PRIVATE_KEY; both are lines of OpenSSH's form, with a comment or none.
    """
    if derived.split()[:2] == given.split()[:2]:
        return green("SSH key pair", "the two keys belong together")
    return red(
        "SSH key pair",
        "SLURM_SSH_PUBLIC_KEY is not the public key of SLURM_SSH_PRIVATE_KEY: sshd rejects our logins as customers",
        f"SLURM_SSH_PUBLIC_KEY={derived}, or give the private key that belongs to it",
    )


def host_key_verdict(
    address: str, shown: str, known: Sequence[str], file: str
) -> Finding:
    """Judge the host key that the login node shows, by the fingerprints that
    SLURM_SSH_KNOWN_HOSTS has of it.
    """
    if shown in known:
        return green("SSH host key", f"{address} shows {shown}, as in {file}")
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    check = "on the node itself, compare it with `ssh-keygen -lf` of /etc/ssh/ssh_host_*_key.pub; if it is the node's"
    scan = f"`ssh-keyscan -p {port} {host} >> {file}`"
    if not known:
        return red(
            "SSH host key",
            f"{address} shows {shown}; {file} has none for it",
            f"{check}: {scan}",
        )
    listed = f"[{host}]:{port}"
    if port == "22":
        listed = host
    remove = f"`ssh-keygen -f {file} -R '{listed}'`"
    expected = f"{address} shows {shown}; expected {', '.join(known)} of {file}: the node was installed again, or is another"
    return red(
        "SSH host key",
        expected,
        f"{check}, as for a new installation: {remove}, then {scan}",
    )


def version_verdict(
    name: str, setting: str, status: int, stdout: str, stderr: str
) -> Finding:
    """Judge the answer of a SLURM command to --version."""
    version = stdout.strip()
    if status == 0 and version:
        return green(name, version.splitlines()[0])
    printed = (stderr or stdout).strip()[:MAX_ERROR_CHARS]
    mend = "see what it prints on the login node"
    if status == NOT_FOUND_STATUS:
        mend = "install it on the login node, or correct its path"
    return red(
        name,
        printed or f"ended with status {status} and printed nothing",
        f"{mend}: {setting}",
    )


def controller_verdict(identity: str, known: str | None, *, same: bool) -> Finding:
    """Judge slurmctld, which answers, by the cluster that the ledger has jobs of."""
    if known is None or same:
        return green("slurmctld", f"answers: {identity}")
    mend = "correct SLURM_SSH_ADDRESS or SLURMRESTD_URL; if it is the right one, `supervisor cluster accept`"
    return red("slurmctld", f"is {identity}; expected {known}", mend)


def accounting_verdict(
    *, asked: bool, unused: bool, status: int, stderr: str
) -> Finding:
    """Judge accounting: whether sacct answers where the fleet asks it, and whether the
    fleet asks it where there is one.
    """
    if unused:
        return yellow(
            "accounting",
            "slurmctld has slurmdbd, and the fleet does not ask it",
            "set SLURM_ACCOUNTING=true",
        )
    if not asked:
        return green("accounting", "the site has none, and the fleet asks none")
    if status == 0:
        return green("accounting", "sacct answers")
    return red(
        "accounting",
        stderr.strip()[:MAX_ERROR_CHARS] or f"status {status}",
        "start slurmdbd, or SLURM_ACCOUNTING=false",
    )


def nodes_verdict(usable: int, partition: str, left_out: int) -> Finding:
    """Judge the nodes of the partition."""
    if usable:
        found = f"{usable} of {partition} work"
        if left_out:
            found += f"; {left_out} are left out"
        return green("nodes", found)
    found = f"{partition} has no node that works; {left_out} are left out"
    return red("nodes", found, "`sinfo -R` on the login node; correct SLURM_PARTITION")


def confinement_verdict(seen: Confinement) -> Finding:
    """Judge whether nodes keep a job within what was paid for, and end all of its
    processes with it.
    """
    missing = []
    if seen.proctrack != "proctrack/cgroup":
        missing.append(
            f"ProctrackType={seen.proctrack}; expected proctrack/cgroup, as processes can outlive their job"
        )
    if "task/cgroup" not in seen.task_plugins:
        missing.append(
            f"TaskPlugin={','.join(seen.task_plugins)}; expected task/cgroup in it, as a job can use the whole node"
        )
    missing += [f"{name}=no; expected yes" for name in seen.unconstrained]
    if not seen.allocates_memory:
        missing.append(
            "SelectTypeParameters allocates no memory; expected such as CR_Core_Memory, as a job can use all memory of the node"
        )
    if missing:
        return yellow(
            "confinement of jobs",
            "; ".join(missing),
            "slurm.conf and cgroup.conf: see docs/security.md, Nodes",
        )
    return green("confinement of jobs", "by control groups")


def job_limits_verdict(seen: JobLimits) -> Finding:
    """Judge whether SLURM gives a job no more than it asks for."""
    more = []
    if seen.whole_nodes:
        more.append(
            f"{seen.whole_nodes}: a job that pays for one CPU gets a whole node"
        )
    if seen.over_time_limit:
        more.append(
            f"OverTimeLimit={seen.over_time_limit}; expected 0, as that time is not paid"
        )
    if seen.may_expand:
        more.append(
            "SchedulerParameters has permit_job_expansion: a job can take over the nodes of another one"
        )
    if seen.slurm_user.startswith("root"):
        more.append(
            "SlurmUser=root: a customer's strigger can run programs on slurmctld's host"
        )
    if more:
        return yellow(
            "limits of jobs", "; ".join(more), "slurm.conf: see docs/security.md, Nodes"
        )
    return green("limits of jobs", "SLURM gives a job no more than it asks for")


def associations_verdict(customer_account: str, *, required: bool) -> Finding:
    """Judge whether a new customer gets an association with an account, where slurmctld
    requires one.
    """
    name = "customers in accounting"
    if not required:
        return green(name, "slurmctld takes jobs of users that accounting has not")
    if customer_account:
        return green(name, f"new customers are added to account {customer_account}")
    return yellow(
        name,
        "AccountingStorageEnforce: slurmctld rejects the jobs of a new customer until he is added to an account",
        "set SLURM_CUSTOMER_ACCOUNT, or add each customer by sacctmgr",
    )


def job_submit_verdict(status: int, stderr: str) -> Finding:
    """Judge slurmctld's answer to a job without payment, which sbatch --test-only asked
    about.
    """
    if status == 0:
        found = "SLURM takes a customer's job without payment"
        return red(
            "job_submit.lua",
            found,
            "JobSubmitPlugins=lua in slurm.conf: see plugins/README.md",
        )
    if TOKEN_MISSING in stderr:
        return green("job_submit.lua", "rejects a customer's job without payment")
    words = stderr.strip()[:MAX_ERROR_CHARS] or f"status {status}"
    if REJECTED_BY_LUA in stderr:
        return red(
            "job_submit.lua",
            words,
            "correct supervisor_submit.conf: see plugins/README.md",
        )
    return yellow(
        "job_submit.lua", words, "read slurmctld's log: something else rejects the job"
    )


# --- clocks and certificates ----------------------------------------------------------


def off_within_s(theirs_s: int, asked_s: float, answered_s: float) -> float:
    """Return how many seconds a clock is ahead of ours, at least. It was read, in whole
    seconds, between `asked_s` and `answered_s` of ours; 0 if it agrees with a moment
    between them.
    """
    return min(theirs_s - int(asked_s), 0) or max(theirs_s - answered_s, 0)


def clock_verdict(name: str, off_s: float) -> Finding:
    """Judge a clock that is `off_s` ahead of ours; behind, if negative."""
    thing = f"clock of {name}"
    if abs(off_s) < 1:
        return green(thing, "agrees with ours")
    if abs(off_s) < CLOCK_OFF_S:
        return green(thing, f"{off_s:+.1f} s to ours")
    found = f"{off_s:+.0f} s to ours; expected at most {CLOCK_OFF_S:g} s"
    mend = f"start chrony or ntpd here and on {name}"
    if abs(off_s) < CLOCK_WRONG_S:
        return yellow(thing, found, mend)
    return red(thing, found, mend)


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """The certificate of a service: its end, its names, and why a client does not
    accept it; empty if it does.
    """

    ends_at: datetime
    names: Sequence[str] = ()
    distrust: str = ""


def certificate_verdict(
    name: str, seen: CertificateSeen, now: datetime, mend: str
) -> Finding:
    """Judge a certificate by its days left, and by whether a client accepts it."""
    thing, days = f"TLS of {name}", (seen.ends_at - now).total_seconds() / 86_400
    names = ", ".join(seen.names[:3]) or "no name"
    if days < 0:
        return red(thing, f"expired {-days:.0f} days ago ({names})", mend)
    if seen.distrust:
        return red(thing, f"{seen.distrust[:MAX_ERROR_CHARS]} ({names})", mend)
    if days < FEW_DAYS:
        return yellow(thing, f"{days:.0f} days left ({names})", mend)
    return green(thing, f"{days:.0f} days left ({names})")
