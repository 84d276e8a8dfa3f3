"""The advisory locks' names: clusters of one database exclude each other only where
they must.
"""

import ast
import re
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from devgrid import REPOSITORY
from supervisor_tasks.ledger import lock_names
from supervisor_tasks.ledger.lock_names import cluster_lock, directory_lock, wallet_lock

CLUSTERS = st.from_regex("[A-Za-z0-9_-]+", fullmatch=True)  # as settings.py has it
WORK = st.from_regex("[a-z_]+", fullmatch=True)
TAKERS = ("try_advisory_lock", "advisory_lock")
# Locks that are not taken by name, each with what keeps clusters apart.
OTHER_LOCKS = {
    "ledger/ledger.py": "its key is a cluster_lock",
    "ledger/outbox_sql.py": "its key is the cluster",
    "ledger/advisory_locks.py": "takes the named locks",
    "ledger/worker_sessions.py": "a process's own lock is a random number",
    "ledger/doctor_queries.py": "a lock of a command, by a random number",
    "ledger/migrations/env.py": "the schema is common to all clusters",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The modules that name an advisory lock."""
    product = REPOSITORY / "supervisor_tasks"
    for file in sorted(
        [*product.rglob("*.py"), *(REPOSITORY / "grpc_callbacks").rglob("*.py")]
    ):
        source = file.read_text()
        if "advisory" in source:
            yield (
                str(
                    file.relative_to(
                        product if file.is_relative_to(product) else REPOSITORY
                    )
                ),
                ast.parse(source),
            )


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return (
        node.func.id
        if isinstance(node.func, ast.Name)
        else getattr(node.func, "attr", "")
    )


@given(CLUSTERS, WORK, CLUSTERS, WORK)
def test_cluster_lock__two_clusters__never_one_name(
    one: str, work: str, other: str, its_work: str
) -> None:
    assert (cluster_lock(one, work) == cluster_lock(other, its_work)) == (
        (one, work) == (other, its_work)
    )


@given(CLUSTERS, WORK)
def test_cluster_lock__any_cluster_and_work__is_no_lock_that_clusters_share(
    cluster: str, work: str
) -> None:
    shared = {wallet_lock(1, "0x" + "a" * 40), directory_lock("ldap://here/ou=people")}
    assert cluster_lock(cluster, work) not in shared


def test_advisory_locks__of_the_whole_code__are_named_by_lock_names() -> None:
    named_here = {name for name, value in vars(lock_names).items() if callable(value)}
    for file, module in modules():
        for node in ast.walk(module):
            if called(node) in TAKERS:
                assert isinstance(node, ast.Call)
                assert called(node.args[1]) in named_here, f"{file}:{node.lineno}"


def test_advisory_locks__taken_in_sql__are_known() -> None:
    found = {
        file
        for file, module in modules()
        for node in ast.walk(module)
        if re.search("pg_(try_)?advisory", str(getattr(node, "value", "")))
        or called(node).startswith(("pg_advisory", "pg_try_advisory"))
    }
    assert found == set(OTHER_LOCKS)
