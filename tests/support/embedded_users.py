"""A process that uses the embedded servers of a state folder until its standard input
ends. It first prints their URLs.
"""

# On a slow machine a Postgres that was killed takes longer to recover than a start may
# take. It goes on meanwhile, and the error asks for another start.
PROGRAM = """
import sys, time
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.settings import load_or_exit
settings = load_or_exit()
def url(of):
    for more in (4, 3, 2, 1, 0):
        begun_s = time.monotonic()
        try:
            return of(settings)
        except embedded_servers.EmbeddedServerError:
            in_time = time.monotonic() - begun_s < embedded_servers.START_TIMEOUT_S
            if in_time or not more:
                raise
print(url(embedded_servers.database_url), url(embedded_servers.broker_url), flush=True)
sys.stdin.read()
"""
