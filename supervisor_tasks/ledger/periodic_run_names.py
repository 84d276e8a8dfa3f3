"""The names of the periodic runs that show whether the fleet is alive, and how
often each must end. Pure.

The probe imports this module and little else.
"""

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
