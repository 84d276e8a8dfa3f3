"""The names of the periodic runs that show whether the fleet is alive, and how
often each must end. Pure.

The probe imports this module and little else.
"""

from collections.abc import Mapping

BEAT = "beat"  # the periodic run of beat
RECORD_BEAT_EVERY_S = 5.0
CALLBACKS = "callbacks"  # the heartbeat of the gRPC process
SCANNED = "scan"  # the chain was read to its head
CHAIN_HEAD = "chain head"  # a reading: the number of the node's last block
# a reading: the jobs that wait on the contract to be claimed
CLAIMABLE = "claimable jobs"
# begins the names of readings: the messages that wait in each queue of the broker
QUEUE = "queue "
OLD_ROWS_DELETED = "old rows deleted"  # no old row was left
# a statement may begin before another one records what it reads
CLOCK_TOLERANCE_S = 5.0
# Beat starts this work at least once in so many seconds, even if nothing requests
# it. Its end shows that its workers are alive.
IDLE_S = {
    SCANNED: 75.0,
    "accounts": 300.0,
    "check_alarms": 120.0,
    "benchmark": 300.0,
    "check_slurm": 60.0,
    "register": 300.0,
    "refresh_inventory": 60.0,
}


def finished_key(name: str) -> str:
    """The name of the run that periodic work records whenever it ends, even if SLURM
    or a node did not answer.
    """
    return f"{name} finished"


def is_in_the_future(age_s: float) -> bool:
    """Whether what is so old lies in the future: the database's clock was set back
    since.
    """
    return age_s < -CLOCK_TOLERANCE_S


def since_end_s(ages_s: Mapping[str, float], run_name: str) -> float:
    """How many seconds ago this run was recorded, of runs with these ages. Infinite if
    it never was, or if it lies in the future, because such an age proves nothing.
    """
    age_s = ages_s.get(run_name, float("inf"))
    return float("inf") if is_in_the_future(age_s) else age_s
