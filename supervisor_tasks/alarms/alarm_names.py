"""The names of alarms, for the operator. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

MAX_JOBS_IN_ALARM = 20  # jobs that an alarm names
# of workers that cancel such jobs, and of the sweep
RUNS_AFTER_END_ADVICE = "jobs were requeued after their end, and are cancelled; plugins/job_submit.lua prevents that"


class AlarmName(StrEnum):
    """The names of the alarms."""

    SLURM_NOT_ANSWERING = "slurm_not_answering"
    SLURM_CLUSTER_MISMATCH = "slurm_cluster_mismatch"
    SLURM_STATE_LOST = "slurm_state_lost"
    NO_USABLE_NODES = "no_usable_nodes"
    CALLBACK_HEARTBEAT_MISSING = "callback_heartbeat_missing"
    CHAIN_NOT_ANSWERING = "chain_not_answering"
    RPC_ENDPOINT_UNAVAILABLE = "rpc_endpoint_unavailable"  # one of several endpoints
    ENDPOINTS_DISAGREE = "endpoints_disagree"
    # although more endpoints are configured
    EVENTS_FROM_ONE_ENDPOINT = "events_from_one_endpoint"
    WRONG_CHAIN = "wrong_chain"
    WALLET_EMPTY = "wallet_empty"
    TRANSACTION_STUCK = "transaction_stuck"
    # at the node's prices; it is not signed
    TRANSACTION_TOO_DEAR = "transaction_too_dear"
    UNKNOWN_TRANSACTION_ON_ACCOUNT = "unknown_transaction_on_account"
    FOREIGN_CLAIMS = "foreign_claims"
    CONTRACT_RETIRED = "contract_retired"
    CLAIMS_FULL = "claims_full"  # there is no room for more waiting jobs
    CLAIMS_REVERTING = "claims_reverting"
    CHAIN_LOG_UNREADABLE = "chain_log_unreadable"
    REORGANISED_TOO_DEEP = "reorganised_too_deep"
    NODE_BEHIND = "node_behind"
    CHAIN_SCAN_STALLED = "chain_scan_stalled"
    EFFECT_PARKED = "effect_parked"
    EFFECT_OVERDUE = "effect_overdue"
    # a customer's home, in which another user may decide what a session runs
    HOME_UNSAFE = "home_unsafe"
    LDAP_REQUEST_REJECTED = "ldap_request_rejected"
    LDAP_UNAVAILABLE = "ldap_unavailable"
    # jobs that had ended were requeued, and are cancelled
    RUNS_AFTER_END = "runs_after_end"
    # owners changed their jobs in SLURM, and these were cancelled
    MORE_THAN_PAID = "more_than_paid"
    # a node could not start them; they are submitted again
    JOBS_NOT_STARTED = "jobs_not_started"
    SIZES_NOT_COMPARED = "sizes_not_compared"  # the sizes of jobs with the paid sizes
    SWEEP_CONTRADICTION = "sweep_contradiction"
    SWEEP_OVERDUE = "sweep_overdue"  # although beat and a worker for it are there
    RECONCILIATION_SOURCE_UNREACHABLE = "reconciliation_source_unreachable"
    FOREIGN_CUSTOMER_JOBS = "foreign_customer_jobs"
    # slurmctld does not run job_submit.lua
    SUBMIT_TOKENS_UNCHECKED = "submit_tokens_unchecked"
    PROVIDER_BANNED = "provider_banned"
    PROVIDER_REJECTED = "provider_rejected"  # or removed
    REGISTRATION_REJECTED = "registration_rejected"
    SHARED_OFFER_DIFFERS = "shared_offer_differs"
    BENCHMARK_STALLED = "benchmark_stalled"
    BENCHMARK_FAILED = "benchmark_failed"
    # the login node does not let BENCHMARK_RUN_AS log in
    BENCHMARK_USER_REJECTED = "benchmark_user_rejected"
    BENCHMARK_WAITS = "benchmark_waits"  # for long: to begin, or to end
    SLURM_ACCOUNTING_UNUSED = "slurm_accounting_unused"
    NOTIFICATIONS_FAILING = "notifications_failing"


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that is on, with its details. Another release of the supervisor can have
    raised it: then its name can be no AlarmName.
    """

    name: str
    details: dict[str, Any]
    raised_at: datetime
