"""The faults that a test can cause on a grid: each begins and ends while everything
else goes on.

A part can be killed (and started again when the fault ends), stopped (SIGSTOP: its
sockets stay open and no process answers) or made slow (stopped most of the time, in
short turns). A part is a process with all that descends from it.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil
import psycopg
from redis import Redis
from redis.exceptions import RedisError

from devgrid.faults import limited_disk
from devgrid.faults.network_proxy import Fault as Broken
from devgrid.faults.network_proxy import Proxy
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from tests.support.grid_assertions import slurm_of
from tests.support.live_processes import descendants, is_alive, signal_each
from tests.support.shifted_clocks import shifted
from tests.support.slurmctld_log import unsaved_ends

# The parts of a fleet, and the parts that it works with.
WITHOUT_REPORTER = ("worker", "beat", "callbacks")
OURS = (*WITHOUT_REPORTER, "reporter")
THEIRS = ("slurmctld", "slurmd-node1", "sshd", "services", "postgres", "redis")
RPC_DELAY_S = 0.3
SLOW_STOPPED_S = 0.2
SLOW_RUNNING_S = 0.05
POSTGRES_DISK_MB = 256
SPOOL_DISK_MB = 16
MAX_SEGMENTS = 100
BELIEVED_AFTER_S = 25.0  # BatchStartTimeout and 10 s, and some more
SLURMCTLD_STARTS_S = 60.0
# short enough for what only a sweep repairs
SWEEPS = {"SWEEP_EVERY_S": "20", "SWEEP_GRACE_S": "15"}


@dataclass(frozen=True, slots=True)
class Target:
    """A grid whose fleet reaches the chain through a proxy that can fail. Customers
    always reach it. anvil itself is never killed or stopped: it keeps the chain in its
    memory, so the chain would be lost to all, which no real node can cause.
    """

    grid: Grid
    rpc: Proxy

    @classmethod
    @contextmanager
    def start(cls, options: GridOptions) -> Iterator["Target"]:
        """A grid with small disks and frequent sweeps, and its fleet."""
        overrides = {**SWEEPS, **options.overrides}
        options = replace(
            options,
            postgres_disk_mb=POSTGRES_DISK_MB,
            spool_disk_mb=SPOOL_DISK_MB,
            overrides=overrides,
        )
        grid = Grid.start(options)
        try:
            with Proxy.start(grid.chain.rpc_url.removeprefix("http://")) as rpc:
                grid.environment["METASCHEDULER_ENDPOINT_RPC"] = f"http://{rpc.address}"
                grid.fleet.start(flower=False)
                yield cls(grid, rpc)
        finally:
            grid.stop()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. `begin` causes it, and returns the function that ends it."""

    name: str
    begin: Callable[[Target], Callable[[], None]]

    @contextmanager
    def on(self, target: Target) -> Iterator[None]:
        """Inside this, the fault lasts."""
        end = self.begin(target)
        try:
            yield
        finally:
            end()


def killed(part: str) -> Fault:
    """The part dies by SIGKILL, and is started again at the end."""

    def begin(target: Target) -> Callable[[], None]:
        grid = target.grid
        kill(grid, part)
        return lambda: start_again(grid, part)

    return Fault(f"{part} killed", begin)


def stopped(part: str) -> Fault:
    """The part stands still; its connections stay open."""

    def begin(target: Target) -> Callable[[], None]:
        grid = target.grid
        signal_part(grid, part, signal.SIGSTOP)
        return lambda: signal_part(grid, part, signal.SIGCONT)

    return Fault(f"{part} stopped", begin)


def slow(part: str) -> Fault:
    """The part works a fifth of the time."""

    def begin(target: Target) -> Callable[[], None]:
        grid = target.grid
        over = threading.Event()

        def hold_back() -> None:
            while not over.is_set():
                signal_part(grid, part, signal.SIGSTOP)
                over.wait(SLOW_STOPPED_S)
                signal_part(grid, part, signal.SIGCONT)
                over.wait(SLOW_RUNNING_S)

        brake = threading.Thread(target=hold_back, name=f"slow {part}", daemon=True)
        brake.start()

        def end() -> None:
            over.set()
            brake.join()

        return end

    return Fault(f"{part} slow", begin)


def _restart(part: str) -> Fault:
    def begin(target: Target) -> Callable[[], None]:
        grid = target.grid
        running = grid.processes.find(part)
        process = running.process()
        backends = list[psutil.Process]()
        if process is not None and part == "postgres":
            backends = descendants(process)
        grid.processes.stop(running)
        # With clients, Postgres does not end in time and is killed. Its backends end a
        # moment later, and hold the shared memory until then.
        wait_until(
            lambda: not any(map(is_alive, backends)), "Postgres's backends to end", 30.0
        )
        start_again(grid, part)
        return lambda: None

    return Fault(f"{part} restarted", begin)


def _redis_flushed(target: Target) -> Callable[[], None]:
    with redis_of(target.grid) as redis:
        redis.flushall()
    return lambda: None


def _redis_full(target: Target) -> Callable[[], None]:
    with redis_of(target.grid) as redis:
        redis.config_set("maxmemory", "1")

    def end() -> None:
        with redis_of(target.grid) as redis:
            redis.config_set("maxmemory", "0")

    return end


def _disk_full(target: Target) -> Callable[[], None]:
    """The disk has no room left: tables cannot grow, and soon the write-ahead log
    cannot either.
    """
    processes = target.grid.processes
    database_url = target.grid.environment["DATABASE_URL"].replace("+psycopg", "")
    # on a full disk it accepts no new connection
    with psycopg.connect(database_url, autocommit=True) as connection:
        limited_disk.fill(limited_disk.data_of(processes))
        _use_up_segments(connection)

    def end() -> None:
        limited_disk.make_room(limited_disk.data_of(processes))
        if all(running.name != "postgres" for running in processes.running()):
            start_again(target.grid, "postgres")  # as systemd does at a site

    return end


def _spool_full(target: Target) -> Callable[[], None]:
    """The spool has no room for an event of the hooks. The file `lost.log` has its room
    reserved already.
    """
    spool = target.grid.folder / "spool"
    limited_disk.fill(spool)
    return lambda: limited_disk.make_room(spool)


def _use_up_segments(connection: psycopg.Connection) -> None:
    """Switch segments of the write-ahead log until Postgres panics, as it has no room
    for the next one. Without that, it would fill the 16 MB of a segment first, which
    takes long.
    """
    try:
        for _ in range(MAX_SEGMENTS):
            connection.execute(
                "SELECT pg_logical_emit_message(false, 'fault', 'disk full'), pg_switch_wal()"
            )
    except psycopg.OperationalError:
        return
    raise AssertionError("Postgres found room for its log on a full disk")


def _connections_lost(target: Target) -> Callable[[], None]:
    with redis_of(target.grid) as redis:
        redis.client_kill_filter(_type="normal", skipme=True)
    return lambda: None


def _two_beats(target: Target) -> Callable[[], None]:
    grid = target.grid
    grid.fleet.start_beat("second-beat")
    return lambda: grid.processes.stop(grid.processes.find("second-beat"))


def _two_workers(target: Target) -> Callable[[], None]:
    grid = target.grid
    grid.fleet.start_worker("second-worker")
    return lambda: grid.processes.kill(grid.processes.find("second-worker"))


def clock_off(part: str, hours: int) -> Fault:
    """The part is started again with a clock that is `hours` ahead of all others
    (behind, if negative).
    """

    def begin(target: Target) -> Callable[[], None]:
        grid = target.grid
        kill(grid, part)
        grid.processes.start_again(part, **shifted(grid, hours))

        def end() -> None:
            kill(grid, part)
            start_again(grid, part)

        return end

    return Fault(f"{part}'s clock {hours:+d} h", begin)


def _rpc(name: str, fault: Broken | None, delay_s: float = 0.0) -> Fault:
    def begin(target: Target) -> Callable[[], None]:
        target.rpc.delay_s = delay_s
        target.rpc.fault(fault)

        def end() -> None:
            target.rpc.delay_s = 0.0
            target.rpc.fault(None)

        return end

    return Fault(f"RPC {name}", begin)


RPC = (
    _rpc("killed", Broken.REFUSE),
    _rpc("stopped", Broken.HANG),
    _rpc("slow", None, RPC_DELAY_S),
)
ALL = (
    *(killed(part) for part in (*OURS, *THEIRS)),
    *(stopped(part) for part in (*OURS, *THEIRS)),
    *(slow(part) for part in (*OURS, *THEIRS)),
    *RPC,
    _restart("postgres"),
    _restart("redis"),
    _restart("slurmctld"),
    Fault("redis flushed", _redis_flushed),
    Fault("redis out of memory", _redis_full),
    Fault("redis connections lost", _connections_lost),
    Fault("postgres' disk full", _disk_full),
    Fault("spool's disk full", _spool_full),
    Fault("two beats", _two_beats),
    Fault("two workers", _two_workers),
    *(clock_off(part, hours) for part in OURS for hours in (1, -1)),
)
BY_NAME = {fault.name: fault for fault in ALL}


def kill(grid: Grid, part: str) -> None:
    """End a part and its descendants by SIGKILL. Of slurmd, only itself: its
    descendants are the jobs.
    """
    running = grid.processes.find(part)
    if not part.startswith("slurmd"):
        process = running.process()
        signal_each([] if process is None else descendants(process), signal.SIGKILL)
    grid.processes.kill(running)


def start_again(grid: Grid, part: str) -> None:
    """Start a part that has ended."""
    if part == "postgres":
        (limited_disk.data_of(grid.processes) / "postmaster.pid").unlink(
            missing_ok=True
        )
    grid.processes.start_again(part)


def have_ended_jobs_noticed(grid: Grid) -> None:
    """Start each slurmd again if slurmctld runs a job that has ended. A slurmctld that
    is killed before it saves the end has such a job as RUNNING, until a registration of its
    node without the job. slurmctld asks for one rarely, and believes none just after its
    own start.
    """
    log = (grid.folder / "slurm" / "slurmctld.log").read_text().splitlines()
    ended = {end.slurm_id for end in unsaved_ends(log) if not end.lost}
    if not ended or ended.isdisjoint(running_in_slurm(grid)):
        return
    controller = grid.processes.find("slurmctld").process()
    assert controller is not None
    wait_until(
        lambda: time.time() - controller.create_time() > BELIEVED_AFTER_S,
        "slurmctld to believe its nodes",
        BELIEVED_AFTER_S,
        0.2,
    )
    for running in list(grid.processes.running()):
        if running.name.startswith("slurmd-node"):
            kill(grid, running.name)
            start_again(grid, running.name)


def running_in_slurm(grid: Grid) -> list[int]:
    """The SLURM ids of the jobs that slurmctld has as running, once it answers."""
    argv = ("squeue", "--noheader", "--states=running", "--format=%A")
    wait_until(
        lambda: slurm_of(grid).run(*argv).returncode == 0,
        "slurmctld to answer",
        SLURMCTLD_STARTS_S,
        0.2,
    )
    return [int(slurm_id) for slurm_id in slurm_of(grid).run(*argv).stdout.split()]


def signal_part(grid: Grid, part: str, sig: signal.Signals) -> None:
    """Send a signal to a part and its descendants. Of slurmd, only to itself: its
    descendants are the jobs.
    """
    try:
        running = grid.processes.find(part)
    except KeyError:
        return  # it has died of another fault
    if part.startswith("slurmd"):
        grid.processes.kill(running, sig, wait=False)
    else:
        grid.processes.signal_tree(running, sig)


@contextmanager
def redis_of(grid: Grid) -> Iterator[Redis]:
    """A client of the broker, once it answers."""
    path = grid.environment["BROKER_URL"].removeprefix("redis+socket://")
    with Redis(unix_socket_path=path) as redis:
        wait_until(lambda: _answers(redis), "Redis to answer", 60.0, 0.1)
        yield redis


def _answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False
