"""Which ledger a command works with. Imports little, as `supervisor health` needs it,
too.
"""

from psycopg.conninfo import conninfo_to_dict


def target(cluster: str, url: str) -> str:
    """Return which ledger it is, without the password: cluster@host/database."""
    parts = conninfo_to_dict(url.replace("postgresql+psycopg://", "postgresql://", 1))
    port = f":{parts['port']}" if "port" in parts else ""
    return f"{cluster}@{parts.get('host', 'localhost')}{port}/{parts.get('dbname', '')}"
