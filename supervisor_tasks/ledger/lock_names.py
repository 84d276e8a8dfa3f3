"""The names and classes of the advisory locks. Pure.

Clusters share a database, so each name shows whether clusters exclude each other.
"""

from typing import NewType

LockName = NewType("LockName", str)

WORKER_SESSIONS = 0x5EED  # class of the advisory locks that worker sessions keep
# class of the advisory locks of work that one worker does at a time, and of wallets
EXCLUSIVE = 0x10C4
# class of the advisory locks under which one worker at a time leases effects, isolated
# ones or in groups
LEASING_EFFECTS = 0x7042
# class of the advisory lock by which `supervisor doctor` tries the connections
TRIED = 0xD0C7


def cluster_lock(cluster: str, work: str) -> LockName:
    """The lock of a piece of work of one cluster. A cluster's name has no space, so no
    two clusters share a name.
    """
    return LockName(f"{cluster} {work}")


def wallet_lock(chain_id: int, address: str) -> LockName:
    """The lock under which transactions are signed. All clusters share it, because they
    may share a wallet.
    """
    return LockName(f"wallet {chain_id} {address}")


def directory_lock(directory: str) -> LockName:
    """The lock under which accounts are made. All clusters share it: two of one
    directory must not give a number twice.
    """
    return LockName(f"directory {directory}")
