"""What is between the ledger and the operator: alarms that are on, and switches that the operator has set."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import Engine, delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert

from supervisor_tasks.ledger.database import asking
from supervisor_tasks.ledger.models import AlarmRow, SwitchRow
from supervisor_tasks.ledger.rows import storable_json

log = structlog.get_logger()

ALARMS = AlarmRow.metadata.tables["alarms"]
SWITCHES = SwitchRow.metadata.tables["switches"]


class AlarmName(StrEnum):
    """What an operator is called for."""

    SLURM_NOT_ANSWERING = "slurm_not_answering"
    SLURM_IS_ANOTHER = "slurm_is_another"
    SLURM_FORGOT = "slurm_forgot"
    NODES_NOT_SEEN = "nodes_not_seen"
    CALLBACKS_AWAY = "callbacks_away"
    CHAIN_NOT_ANSWERING = "chain_not_answering"
    ENDPOINT_AWAY = "endpoint_away"  # one of several
    ENDPOINTS_DISAGREE = "endpoints_disagree"
    EVENTS_FROM_ONE_ENDPOINT = "events_from_one_endpoint"  # although others are named
    WRONG_CHAIN = "wrong_chain"
    WALLET_EMPTY = "wallet_empty"
    TRANSACTION_STUCK = "transaction_stuck"
    FOREIGN_WRITER = "foreign_writer"
    ANOTHER_LEDGERS_JOBS = "another_ledgers_jobs"
    CONTRACT_RETIRED = "contract_retired"
    CLAIMS_FULL = "claims_full"  # the room for jobs that wait is taken
    CLAIMS_REVERT = "claims_revert"
    CHAIN_LOG_UNREADABLE = "chain_log_unreadable"
    REORGANISED_TOO_DEEP = "reorganised_too_deep"
    NODE_BEHIND = "node_behind"
    SCAN_STANDS_STILL = "scan_stands_still"
    EFFECT_PARKED = "effect_parked"
    EFFECT_LATE = "effect_late"
    HOME_UNSAFE = "home_unsafe"  # a customer's, in which another one may decide what a session runs
    DIRECTORY_REFUSES = "directory_refuses"
    DIRECTORY_AWAY = "directory_away"
    RUNS_AFTER_END = "runs_after_end"  # jobs that had ended were requeued, and are cancelled
    MORE_THAN_PAID = "more_than_paid"  # owners changed their jobs in SLURM, and these were cancelled
    SIZES_NOT_COMPARED = "sizes_not_compared"  # what jobs have with what was paid for
    SWEEP_CONTRADICTION = "sweep_contradiction"
    SWEEP_BLIND = "sweep_blind"
    FOREIGN_CUSTOMER_JOBS = "foreign_customer_jobs"
    SUBMIT_TOKENS_UNCHECKED = "submit_tokens_unchecked"  # slurmctld does not ask job_submit.lua
    PROVIDER_BANNED = "provider_banned"
    PROVIDER_REJECTED = "provider_rejected"  # or removed
    REGISTRATION_REFUSED = "registration_refused"
    BENCHMARK_STANDS_STILL = "benchmark_stands_still"
    BENCHMARK_FAILED = "benchmark_failed"
    BENCHMARK_USER_REFUSED = "benchmark_user_refused"  # the login node does not let BENCHMARK_RUN_AS in
    BENCHMARK_WAITS = "benchmark_waits"  # long, in SLURM's queue
    SLURM_ACCOUNTING_UNUSED = "slurm_accounting_unused"


class Switch(StrEnum):
    """What an operator can set."""

    DRAINED = "drained"  # nothing new is claimed; what is under way goes on
    SUBMISSIONS_HELD = "submissions_held"  # and nothing is given to SLURM


def finished_tick(name: str) -> str:
    """The name of the tick that periodic work leaves whenever it comes to an end, also when somebody did not answer."""
    return f"{name} finished"


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that is on, and what it is about."""

    name: AlarmName
    details: dict[str, Any]
    raised_at: datetime


class Alarms:
    """The alarms of one cluster. Raising one that is on, or clearing one that is off, changes nothing and is silent."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def on(self, name: AlarmName, **details: Any) -> None:
        """Call the operator. The log has it once, however often it is raised; the details are the last ones."""
        kept = storable_json(details)
        row = insert(ALARMS).values(cluster=self._cluster, name=name.value, details=kept)
        seen = {"details": kept, "seen_at": func.now()}
        upsert = row.on_conflict_do_update(index_elements=["cluster", "name"], set_=seen)
        with self._engine.begin() as connection:
            # now() is the transaction's time: only a row of this transaction has it
            fresh = connection.scalar(upsert.returning(ALARMS.c.raised_at == func.now()))
        if fresh:
            log.error("alarm_on", alarm=name.value, **details)

    def off(self, name: AlarmName, *, quiet_s: float | None = None) -> None:
        """What the operator was called for is over; with `quiet_s`, only if it was not seen for so long."""
        this = [ALARMS.c.cluster == self._cluster, ALARMS.c.name == name.value]
        if quiet_s is not None:
            this.append(ALARMS.c.seen_at <= func.now() - func.make_interval(0, 0, 0, 0, 0, 0, quiet_s))
        with asking(self._engine) as connection:  # one round trip, and mostly there is none
            if not connection.scalar(select(exists().where(*this))):
                return
        gone = delete(ALARMS).where(*this)
        with self._engine.begin() as connection:
            if connection.execute(gone).rowcount:
                log.info("alarm_off", alarm=name.value)

    def all(self) -> list[Alarm]:
        """What is on, oldest first."""
        query = select(ALARMS).where(ALARMS.c.cluster == self._cluster).order_by(ALARMS.c.raised_at)
        with asking(self._engine) as connection:
            return [Alarm(AlarmName(row.name), row.details, row.raised_at) for row in connection.execute(query)]


class Switches:
    """The operator's switches of one cluster."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def set(self, switch: Switch, reason: str = "") -> None:
        """Turn on; the reason is shown to whoever asks."""
        row = insert(SWITCHES).values(cluster=self._cluster, name=switch.value, reason=reason)
        upsert = row.on_conflict_do_update(index_elements=["cluster", "name"], set_={"reason": reason})
        with self._engine.begin() as connection:
            connection.execute(upsert)

    def unset(self, switch: Switch, reason: str | None = None) -> None:
        """Turn off; with a reason, only if it is on for that one."""
        because = () if reason is None else (SWITCHES.c.reason == reason,)
        with self._engine.begin() as connection:
            connection.execute(delete(SWITCHES).where(*self._here(switch), *because))

    def is_set(self, switch: Switch) -> bool:
        """Whether it is on."""
        return self.reason(switch) is not None

    def reason(self, switch: Switch) -> str | None:
        """Why it is on; None when it is off."""
        with asking(self._engine) as connection:
            found: str | None = connection.scalar(select(SWITCHES.c.reason).where(*self._here(switch)))
        return found

    def _here(self, switch: Switch) -> tuple[Any, ...]:
        return SWITCHES.c.cluster == self._cluster, SWITCHES.c.name == switch.value
