"""`supervisor top`: a live screen of the cluster, with keys."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.alarm import names_of_raised
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import UnusableError
from supervisor_tasks.cli.job import JOBS, show_job, with_outcome
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.status import EFFECTS, facts_of, problems_of
from supervisor_tasks.cli.views import Cell, Column, View, span
from supervisor_tasks.cli.wording import counted, joined
from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.jobs.model import State
from supervisor_tasks.ledger.status_queries import JobFilter, StatusSummary
from supervisor_tasks.ledger.switch_names import Switch

STATES = View(
    "jobs",
    "state",
    (
        Column("STATE", "state", "state"),
        Column("JOBS", "jobs", "number"),
        Column("OLDEST", "oldest_at", "age"),
    ),
)
FACTS = (
    "health",
    "claims",
    "submissions",
    "provider",
    "unread callbacks",
    "open transactions",
    "throughput",
    "chain head",
    "chain read up to",
    "queues",
    "SLURM",
    "wallet",
    "earned today",
    "RPC endpoints",
)
FEW_FACTS = (
    "health",
    "claims",
    "submissions",
    "throughput",
    "chain head",
    "chain read up to",
    "queues",
    "SLURM",
    "wallet",
    "earned today",
)
"""What is shown where the terminal has few lines, so that the jobs have room."""
FEW_LINES = 40
MOVE_LINES = 10  # lines, in the timeline of a job
KEYS = "q quit  j/k next, previous  enter open  b back  f filter  p pause claims"
THROUGHPUT_S = 600.0  # a job that was settled earlier does not count
ENTER_SCREEN, LEAVE_SCREEN, HOME, CLEAR_LINE, CLEAR_BELOW = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)
ESCAPE = b"\x1b"
ARROWS = {b"\x1b[A": "k", b"\x1b[B": "j", b"\r": "\n"}
app = options.single()


@dataclass(frozen=True, slots=True)
class Screen:
    """What the keys have chosen. `selected` is the number of the selected job, and
    `opened` the id of the open one. `first_line` is the first line of its timeline on
    the screen, and `only` the only state that is shown. `asks` means that a question
    about claims waits for its answer.
    """

    selected: int = 0
    opened: str | None = None
    first_line: int = 0
    only: State | None = None
    asks: bool = False


@app.command()
def top(
    context: typer.Context,
    every_s: Annotated[
        float,
        typer.Option(
            "--every", min=0.2, metavar="SECONDS", help="How often it is read again."
        ),
    ] = 2.0,
    no_color: options.NoColor = False,
) -> None:
    """Show the cluster live: health, jobs by state, what is left to do, alarms, wallet;
    keys open a job, filter and pause.

    Example: supervisor top --every 1
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UnusableError(
            "found no terminal; expected one: `supervisor status --watch 2` works without"
        )
    cli = cli_context(context)
    cli.shown.color = not no_color
    screen = Screen()
    # prints which ledger this is, and refuses another one, before the screen is taken
    cli.overview.now()
    with _own_screen():
        while True:
            try:
                key, screen = _one_look(cli, screen, every_s)
            except LedgerUnavailableError as error:
                warning = f"{error}; the screen is an older one, and is read again every {span(every_s)}"
                _write_below(cli.shown.line(warning))
                key = _key(every_s)
            if key == "q":
                return


def _one_look(cli: CliContext, screen: Screen, every_s: float) -> tuple[str, Screen]:
    """Draw the screen, and do what a key asks for. Returns the key and the next screen.
    Raises LedgerUnavailableError.
    """
    states = () if screen.only is None else (screen.only.value,)
    jobs = cli.overview.jobs(JobFilter(states))
    _draw(cli, screen, jobs)
    key = _key(every_s)
    if screen.asks and key == "y":
        _switch_claims(cli)
    return key, pressed(screen, key, [str(row["job_id"]) for row in jobs])


def pressed(screen: Screen, key: str, job_ids: Sequence[str]) -> Screen:
    """Return what is shown after a key; an empty key is none."""
    last = max(len(job_ids) - 1, 0)
    screen = replace(
        screen, selected=min(screen.selected, last), asks=screen.asks and not key
    )
    if key == "p":
        return replace(screen, asks=True)
    if key == "b":
        return replace(screen, opened=None, first_line=0)
    if key == "\n" and job_ids:
        return replace(screen, opened=job_ids[screen.selected])
    if key == "f":
        return replace(screen, only=next_filter(screen.only), selected=0)
    step = {"j": 1, "k": -1}.get(key, 0)
    if screen.opened is not None:
        return replace(screen, first_line=max(screen.first_line + step * MOVE_LINES, 0))
    return replace(screen, selected=max(min(screen.selected + step, last), 0))


def next_filter(only: State | None) -> State | None:
    """Return the state that the next press of the filter shows; None for all."""
    states: list[State | None] = [None, *State, None]
    return states[states.index(only) + 1]


def effect_of_pause(*, paused: bool, under_way: int) -> str:
    """Return what pausing the claims changes, or resuming them if they are paused, in
    numbers.
    """
    jobs = f"{counted(under_way, 'job')} under way"
    if paused:
        return f"jobs will be claimed again, beside {jobs}"
    return f"no more jobs will be claimed; {jobs} will go on"


def _claims(cli: CliContext) -> tuple[bool, str]:
    """Return whether claims are paused, and what a change of that brings."""
    paused = cli.ledger.switches.is_set(Switch.CLAIMING_PAUSED)
    return paused, effect_of_pause(
        paused=paused, under_way=sum(cli.overview.snapshot().jobs.values())
    )


def _switch_claims(cli: CliContext) -> None:
    switches, (paused, will) = cli.ledger.switches, _claims(cli)
    verb = "resume" if paused else "pause"
    with cli.change(
        f"claims {verb}", "claims", will, yes=True, reason="top", is_confirmed=True
    ):
        if paused:
            switches.unset(Switch.CLAIMING_PAUSED)
        else:
            switches.set(Switch.CLAIMING_PAUSED, "supervisor top")


def _draw(cli: CliContext, screen: Screen, jobs: Sequence[Mapping[str, Any]]) -> None:
    """Draw the screen in one write, so that it does not flicker; what does not fit is
    left out.
    """
    columns, rows = os.get_terminal_size()
    room = rows - 3
    if screen.opened is None:
        lines = _overview_and_jobs(cli, screen, jobs, room)
    else:
        lines = _timeline(cli, screen, room)
    last_line = f"{_claims(cli)[1]}: go on? y/n" if screen.asks else KEYS
    shown = [cli.shown.target[:columns], *lines[:room], "", last_line[: columns - 1]]
    sys.stdout.write(HOME + f"{CLEAR_LINE}\r\n".join(shown) + CLEAR_BELOW)
    sys.stdout.flush()


def _write_below(text: str) -> None:
    """Write a line in the place of the keys."""
    columns, rows = os.get_terminal_size()
    sys.stdout.write(f"\x1b[{rows};1H{text[: columns - 1]}{CLEAR_LINE}")
    sys.stdout.flush()


def _timeline(cli: CliContext, screen: Screen, room: int) -> list[str]:
    with cli.shown.captured() as lines:
        show_job(cli, str(screen.opened), Format.TABLE)
    return lines[min(screen.first_line, max(len(lines) - room, 0)) :]


def _overview_and_jobs(
    cli: CliContext, screen: Screen, jobs: Sequence[Mapping[str, Any]], room: int
) -> list[str]:
    snapshot = cli.overview.snapshot()
    facts = facts_of(snapshot, problems_of(cli, snapshot))
    facts["throughput"] = throughput(cli.overview.settled_within(THROUGHPUT_S))
    with cli.shown.captured() as above:
        overview(
            cli.shown,
            snapshot,
            facts,
            cli.overview.by_state(),
            cli.now(),
            brief=room < FEW_LINES - 3,
        )
        title = "all that are not settled" if screen.only is None else screen.only.value
        cli.shown.title(f"jobs: {title}")
    # the selected job is the last line at most
    first = max(screen.selected + 1 - max(room - len(above) - 1, 1), 0)
    with cli.shown.captured() as list_:
        cli.shown.table(
            JOBS,
            list(map(with_outcome, jobs[first:])),
            cli.now(),
            selected=screen.selected - first,
        )
    return above + list_


def throughput(settled: int) -> Cell:
    """Return how many jobs were settled lately, in words."""
    return Cell(f"{counted(settled, 'job')} settled in the last {span(THROUGHPUT_S)}")


def overview(
    shown: Output,
    snapshot: StatusSummary,
    facts: Mapping[str, Cell],
    states: Sequence[Mapping[str, Any]],
    now: datetime,
    *,
    brief: bool = False,
) -> None:
    """Print what is above the list of jobs; `brief` for a terminal of few lines."""
    names = FEW_FACTS if brief else FACTS
    raised = [alarm.name for alarm in snapshot.alarms]
    chosen = {name: facts[name] for name in names} | {"alarms": names_of_raised(raised)}
    if brief:
        shown.facts(chosen | {"jobs": Cell(_by_state(states, now))})
        return
    shown.facts(chosen)
    shown.blank()
    shown.table(STATES, states, now)
    shown.blank()
    shown.table(EFFECTS, [asdict(count) for count in snapshot.effects], now)


def _by_state(states: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Return the number of jobs in each state, and for how long the oldest one is
    there.
    """
    parts = list[str]()
    for row in states:
        age = span((now - row["oldest_at"]).total_seconds())
        parts.append(f"{row['jobs']} {row['state']} (oldest {age})")
    return joined(parts)


def _key(within_s: float) -> str:
    """Return the key that is pressed within this time; empty for none. Further keys
    wait in the terminal: each look takes one.
    """
    if not _has_input(within_s):
        return ""
    terminal = sys.stdin.fileno()
    pressed_bytes = os.read(terminal, 1)
    # an arrow's three bytes come together; the key Escape is the first byte alone
    if pressed_bytes == ESCAPE and _has_input(0.0):
        pressed_bytes += os.read(terminal, 2)
    return ARROWS.get(pressed_bytes, pressed_bytes[:1].decode(errors="replace"))


def _has_input(within_s: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], within_s)
    return bool(ready)


@contextmanager
def _own_screen() -> Iterator[None]:
    """Take keys one by one, on a screen that is gone when this ends, however it
    ends.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        sys.stdout.write(ENTER_SCREEN)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE_SCREEN)
        sys.stdout.flush()


COMMANDS = {"top": app}
