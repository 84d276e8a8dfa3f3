"""Which ledger a command works with. Imports little, as `supervisor health` needs it,
too.
"""

from psycopg.conninfo import conninfo_to_dict

from supervisor_tasks.connections.postgres_url import for_libpq


def target(cluster: str, url: str) -> str:
    """Return which ledger it is, without the password: cluster@host/database. Raises
    ValueError, without a part of the URL, if it is malformed; a retry does not help.
    """
    parts = conninfo_to_dict(for_libpq(url))
    port = f":{parts['port']}" if "port" in parts else ""
    return f"{cluster}@{parts.get('host', 'localhost')}{port}/{parts.get('dbname', '')}"
