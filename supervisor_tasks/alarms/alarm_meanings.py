"""What each alarm means, and what the operator does about it. docs/reference/alarms.md
is generated from this.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.alarms.alarm_names import AlarmName


@dataclass(frozen=True, slots=True)
class Meaning:
    """The cause of an alarm, and the operator's part. Both are sentences."""

    cause: str
    advice: str


# two releases of the supervisor can work beside each other
OF_ANOTHER_VERSION = Meaning(
    "Another version of the supervisor has raised this alarm.", "See its details."
)
MEANINGS: Mapping[AlarmName, Meaning] = {
    AlarmName.SLURM_NOT_ANSWERING: Meaning(
        "slurmctld or the login node has not answered for several tries. No new job is claimed, and nothing is"
        " registered or measured.",
        "Read the error. `supervisor doctor` tries the host key, the logins and each SLURM command, and says what mends"
        " them.",
    ),
    AlarmName.SLURM_CLUSTER_MISMATCH: Meaning(
        "Behind SLURM_SSH_ADDRESS is another SLURM than the one to which the ledger's jobs were submitted. Nothing is"
        " submitted to it.",
        "Correct SLURM_SSH_ADDRESS; if the cluster is the right one, `supervisor cluster accept`.",
    ),
    AlarmName.SLURM_STATE_LOST: Meaning(
        "slurmctld has lost jobs that it had saved. Submissions are paused.",
        "Restore slurmctld's StateSaveLocation; if what it has forgotten is lost, `supervisor cluster accept`.",
    ),
    AlarmName.NO_USABLE_NODES: Meaning(
        "SLURM shows no node of SLURM_PARTITION that works, so there is nothing to offer.",
        "Check SLURM_PARTITION, and `sinfo -R` on the login node.",
    ),
    AlarmName.CALLBACK_HEARTBEAT_MISSING: Meaning(
        "The gRPC process or a reporter sends no heartbeat. Jobs whose end may wait in the spool need your decision.",
        "Start the process and read its log; if the site has no reporter on that node any more, `supervisor reporter disable"
        " NODE`.",
    ),
    AlarmName.CHAIN_NOT_ANSWERING: Meaning(
        "No RPC endpoint has answered for a while. Nothing is claimed or reported.",
        "Check the endpoints of METASCHEDULER_ENDPOINT_RPC.",
    ),
    AlarmName.RPC_ENDPOINT_UNAVAILABLE: Meaning(
        "One of several RPC endpoints does not answer. The others are used.",
        "Repair the endpoint, or remove it from METASCHEDULER_ENDPOINT_RPC.",
    ),
    AlarmName.ENDPOINTS_DISAGREE: Meaning(
        "Only some of the RPC endpoints show events of the contract. Jobs of these events wait.",
        "Find the endpoint that is wrong, and remove it from METASCHEDULER_ENDPOINT_RPC.",
    ),
    AlarmName.EVENTS_FROM_ONE_ENDPOINT: Meaning(
        "Several RPC endpoints are configured, and only one answers. It begins and ends jobs alone, and could invent that.",
        "Repair the other endpoints, or remove them from METASCHEDULER_ENDPOINT_RPC. The alarm ends when two agree about"
        " an event, or one is left.",
    ),
    AlarmName.WRONG_CHAIN: Meaning(
        "An RPC endpoint serves another chain than CHAIN_ID. It is not used.",
        "Correct CHAIN_ID or METASCHEDULER_ENDPOINT_RPC.",
    ),
    AlarmName.WALLET_EMPTY: Meaning(
        "The wallet's balance is below WALLET_MIN_WEI, or does not pay for the open transactions. No new job is claimed.",
        "Pay into the wallet's address, which the alarm shows.",
    ),
    AlarmName.TRANSACTION_STUCK: Meaning(
        "The oldest open transaction has not been mined for 5 minutes, or needs more than WALLET_MAX_WEI_PER_GAS. Nothing"
        " is claimed.",
        "Read its last error (`supervisor tx list --open`); raise WALLET_MAX_WEI_PER_GAS if the gas price is above it.",
    ),
    AlarmName.TRANSACTION_TOO_DEAR: Meaning(
        "A claim, report or registration would cost more than WALLET_MAX_WEI_PER_TX at the prices that the RPC endpoint"
        " reports. It is not signed.",
        "Compare the endpoint's gas price with another one's. If it is true, raise WALLET_MAX_WEI_PER_TX or wait; else"
        " remove the endpoint.",
    ),
    AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT: Meaning(
        "The chain has transactions of this wallet that the ledger did not write.",
        "Find the other program that has the wallet's key. Two fleets on one wallet are slow.",
    ),
    AlarmName.FOREIGN_CLAIMS: Meaning(
        "Another ledger claimed jobs with this wallet.",
        "If that ledger is lost and its fleet is stopped for good, `supervisor job adopt TAG`.",
    ),
    AlarmName.CONTRACT_RETIRED: Meaning(
        "The contract no longer belongs to the grid, so it accepts nothing. No new job is claimed.",
        "Set METASCHEDULER_SMART_CONTRACT to the address of the present contract.",
    ),
    AlarmName.CLAIMS_FULL: Meaning(
        "CLAIM_MAX_WAITING jobs wait, and more are claimable.",
        "Wait until some of them begin, or raise CLAIM_MAX_WAITING.",
    ),
    AlarmName.CLAIMS_REVERTING: Meaning(
        "The contract rejects claims although it shows claimable jobs. A worker tries one a minute.",
        "Read the error and `supervisor tx list`; `supervisor claims pause` stops the claiming.",
    ),
    AlarmName.CHAIN_LOG_UNREADABLE: Meaning(
        "A log of the contract cannot be decoded. An event of ours may be missing.",
        "Compare the contract's ABI, and `supervisor job show` with the contract.",
    ),
    AlarmName.REORGANISED_TOO_DEEP: Meaning(
        "The chain replaced more than CHAIN_CONFIRMATIONS blocks. Nothing was taken back, and no new job is claimed.",
        "Compare the nodes, then `supervisor chain rewind`.",
    ),
    AlarmName.NODE_BEHIND: Meaning(
        "The head of the RPC node is below the blocks that were read.",
        "Check whether the node syncs.",
    ),
    AlarmName.CHAIN_SCAN_STALLED: Meaning(
        "The contract's logs cannot be read, so events are missing.",
        "Read the error, and check the RPC node.",
    ),
    AlarmName.EFFECT_PARKED: Meaning(
        "An effect will not succeed without the operator.",
        "`supervisor effect list --state parked` has the reasons; then `job retry`, `job settle` or `effect abandon`.",
    ),
    AlarmName.EFFECT_OVERDUE: Meaning(
        "An effect has failed for long. It is still tried.",
        "Read the last error; the service that it names is away or rejects the call.",
    ),
    AlarmName.HOME_UNSAFE: Meaning(
        "Other users can change a customer's home, and so what a session in it runs. The customer's jobs wait.",
        "Correct owner and mode of the homes that its errors name.",
    ),
    AlarmName.LDAP_REQUEST_REJECTED: Meaning(
        "The LDAP directory rejects a customer's account.",
        "Read the error, and check the LDAP settings and the rights of LDAP_BIND_DN.",
    ),
    AlarmName.LDAP_UNAVAILABLE: Meaning(
        "The LDAP directory does not answer, and accounts wait.",
        "Check the directory and LDAP_URL.",
    ),
    AlarmName.RUNS_AFTER_END: Meaning(
        "Owners requeued jobs that had ended. These runs are cancelled; those after the report are not billed.",
        "Install plugins/job_submit.lua, which prevents it.",
    ),
    AlarmName.MORE_THAN_PAID: Meaning(
        "Owners changed their jobs in SLURM to more than was paid for. The jobs were cancelled, or had ended.",
        "Install plugins/job_submit.lua, which prevents it.",
    ),
    AlarmName.JOBS_NOT_STARTED: Meaning(
        "Nodes could not start jobs, and SLURM has drained these nodes. The jobs are submitted again.",
        "Read slurmd's log on the nodes, mend what it names, and resume them.",
    ),
    AlarmName.SIZES_NOT_COMPARED: Meaning(
        "SLURM does not show the sizes of jobs, so they are not compared with the paid sizes.",
        "Try `squeue --json` and `scontrol show config` on the login node as SLURM_SSH_ADMIN_USER.",
    ),
    AlarmName.SWEEP_CONTRADICTION: Meaning(
        "SLURM does not know jobs that it should have: too many at once, or without a trace of their end.",
        "Check slurmctld's state and the spool; if the jobs are lost, `supervisor job mark-lost`.",
    ),
    AlarmName.SWEEP_OVERDUE: Meaning(
        "No sweep has ended for an hour, or for three of its intervals. What every other part has missed is not found.",
        "Read the logs of the slurm queue's workers: each sweep fails, or one hangs. `supervisor sweep run` tries one.",
    ),
    AlarmName.RECONCILIATION_SOURCE_UNREACHABLE: Meaning(
        "Sweeps have not seen the contract or SLURM for an hour, so they find no differences there.",
        "Read the errors that the alarm shows; `supervisor sweep run` looks again.",
    ),
    AlarmName.FOREIGN_CUSTOMER_JOBS: Meaning(
        "Customers have jobs in SLURM that are not in this ledger.",
        "Install job_submit.lua (plugins/README.md); where the site allows such jobs, set FOREIGN_JOBS_ALLOWED.",
    ),
    AlarmName.SUBMIT_TOKENS_UNCHECKED: Meaning(
        "slurmctld does not run job_submit.lua: the token stays in the job's comment.",
        "Set JobSubmitPlugins=lua in slurm.conf (plugins/README.md), or remove SLURM_SUBMIT_KEY from the workers.",
    ),
    AlarmName.PROVIDER_BANNED: Meaning(
        "The grid has banned this provider. No new job is claimed.",
        "Ask the grid's operators; `supervisor provider show` shows what is registered.",
    ),
    AlarmName.PROVIDER_REJECTED: Meaning(
        "The grid has rejected or removed this provider's registration. No new job is claimed.",
        "Ask the grid's operators, then `supervisor provider register`.",
    ),
    AlarmName.REGISTRATION_REJECTED: Meaning(
        "The contract rejects the registration.",
        "Read the error in `supervisor provider show`.",
    ),
    AlarmName.SHARED_OFFER_DIFFERS: Meaning(
        "This cluster shares a wallet, another cluster registers for it, and this cluster has other nodes, prices or"
        " labels than the contract shows; or nothing is registered, and the other cluster's fleet is down.",
        "Give both clusters the same nodes, prices and labels, or this one a wallet of its own.",
    ),
    AlarmName.BENCHMARK_STALLED: Meaning(
        "The benchmark run under way cannot be planned with these settings and these nodes.",
        "Read the error in `supervisor benchmark show`; repair it, or `supervisor benchmark cancel`.",
    ),
    AlarmName.BENCHMARK_FAILED: Meaning(
        "Benchmarks of the last run failed. Their labels stay as they were last measured on such nodes, or are missing.",
        "Read why in `supervisor benchmark show`, then `supervisor benchmark run`.",
    ),
    AlarmName.BENCHMARK_USER_REJECTED: Meaning(
        "The login node does not let BENCHMARK_RUN_AS log in.",
        "Let the user log in, or set another BENCHMARK_RUN_AS.",
    ),
    AlarmName.BENCHMARK_WAITS: Meaning(
        "A benchmark has waited in SLURM's queue for long, or SLURM has long shown its job in a state that leads to no end.",
        "Read SLURM's reason in `supervisor benchmark show`.",
    ),
    AlarmName.SLURM_ACCOUNTING_UNUSED: Meaning(
        "SLURM has slurmdbd, and SLURM_ACCOUNTING is not set.",
        "Set SLURM_ACCOUNTING=true: then the ends of jobs that SLURM has forgotten are still known.",
    ),
    AlarmName.NOTIFICATIONS_FAILING: Meaning(
        "A channel has not taken messages about alarms for 5 minutes. They are tried for a day.",
        "Read the last error; correct the settings NOTIFY_* of the workers, then `supervisor alarm test`.",
    ),
}

# While one of these is on, no new job is claimed: its reports could not be written or
# paid for, or the job may not exist. The next look at the contract claims again. A full
# room (claims_full) and a SLURM that does not answer stop claims in jobs/claim.py.
STOPS_CLAIMS = frozenset(
    {
        AlarmName.CONTRACT_RETIRED,
        AlarmName.WALLET_EMPTY,
        AlarmName.TRANSACTION_STUCK,
        AlarmName.REORGANISED_TOO_DEEP,
    }
)

# Work that is paid for stands still, or may be lost, until the operator acts. Messages
# about these alarms are sent in the quiet hours, too.
CRITICAL = frozenset(
    {
        AlarmName.SLURM_NOT_ANSWERING,
        AlarmName.SLURM_CLUSTER_MISMATCH,
        AlarmName.SLURM_STATE_LOST,
        AlarmName.CALLBACK_HEARTBEAT_MISSING,
        AlarmName.CHAIN_NOT_ANSWERING,
        AlarmName.WRONG_CHAIN,
        AlarmName.WALLET_EMPTY,
        AlarmName.TRANSACTION_STUCK,
        AlarmName.TRANSACTION_TOO_DEAR,
        AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT,
        AlarmName.FOREIGN_CLAIMS,
        AlarmName.CONTRACT_RETIRED,
        AlarmName.CLAIMS_REVERTING,
        AlarmName.REORGANISED_TOO_DEEP,
        AlarmName.CHAIN_SCAN_STALLED,
        AlarmName.EFFECT_PARKED,
        AlarmName.SWEEP_CONTRADICTION,
        AlarmName.PROVIDER_BANNED,
        AlarmName.PROVIDER_REJECTED,
        AlarmName.NOTIFICATIONS_FAILING,
    }
)


def is_known(alarm: str) -> bool:
    """Whether this version of the supervisor has an alarm of that name."""
    return alarm in frozenset(AlarmName)


def meaning_of(alarm: str) -> Meaning:
    """The meaning of an alarm by its name, which can be one of another version."""
    return MEANINGS[AlarmName(alarm)] if is_known(alarm) else OF_ANOTHER_VERSION
