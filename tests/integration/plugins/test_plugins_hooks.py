"""The hooks in C, run as slurmctld runs them: what they write, and what they do when
they cannot.
"""

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from devgrid.cluster import slurm_hooks
from devgrid.machine import deadline
from devgrid.processes import wait_until
from plugins import spool as reading
from tests.support.slurm_samples import DATA

JOB_ID = "0x" + "ab" * 32
HOOKS = ("supervisor-ended", "supervisor-started")
ENDED = {
    "JOBID": "7",
    "JOBNAME": JOB_ID,
    "JOBSTATE": "FAILED",
    "EXITCODE": "3:0",
    "START": "100",
    "END": "187",
}
STARTED = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": JOB_ID,
    "SLURM_JOB_COMMENT": "supervisor 127.0.0.1:3000",
}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", **ENDED, **STARTED}
PATIENT = {"timeout_ms": 30_000}  # where it is not the time-out that is tested
# longer than the hook's own patience, and than a loaded machine needs for the rest
HANGS_S = 6


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


@pytest.fixture
def programs(tmp_path: Path, spool: Path) -> Path:
    slurm_hooks.install(tmp_path / "programs", spool)
    slurm_hooks.configure(tmp_path / "programs", spool, **PATIENT)
    return tmp_path / "programs"


def run(
    program: Path, *, under: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    argv = [*under, str(program)]
    return subprocess.run(
        argv,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )


def events(spool: Path) -> list[reading.SpooledEvent]:
    return [reading.read(file) for file in reading.pending(spool)]


def drafts(spool: Path) -> list[str]:
    return [file.name for file in spool.iterdir() if file.name.startswith(".")]


# --- what they write ------------------------------------------------------------------


def test_hooks__job_of_the_grid__one_event_each(programs: Path, spool: Path) -> None:
    for hook in reversed(HOOKS):
        done = run(programs / hook)
        assert (done.returncode, done.stderr) == (0, "")
    assert events(spool) == [
        reading.SpooledEvent(JOB_ID, 7, reading.RUNNING),
        reading.SpooledEvent(JOB_ID, 7, reading.FAILED, 87, 768),
    ]
    assert {file.stat().st_mode & 0o777 for file in reading.pending(spool)} == {0o600}
    assert drafts(spool) == []


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
def test_hooks__environment_that_slurm_gave__is_read(
    version: str, programs: Path, spool: Path
) -> None:
    """Recorded by tests/support/record_slurm_answers.py."""
    told = json.loads((DATA / version / "hooks.json").read_text())
    for name in ("started-4", "ended-1", "ended-2", "ended-3"):
        environment = {"PATH": "/usr/bin:/bin", **told[name]}
        argv = [programs / f"supervisor-{name.partition('-')[0]}"]
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=deadline(60)
        )
        assert (done.returncode, done.stderr) == (0, "")
    seen = [
        (event.job_id, event.slurm_id, event.status, event.exit_code)
        for event in events(spool)
    ]
    assert seen == [
        (f"0x{4:064x}", 4, reading.RUNNING, 0),
        (f"0x{1:064x}", 1, reading.FINISHED, 0),
        (f"0x{2:064x}", 2, reading.FAILED, 3 * 256),
        (f"0x{3:064x}", 3, reading.FAILED, 9),
    ]


HOSTILE = {
    "line break": "0x" + "a" * 64 + "\nstate=COMPLETED",
    "63 digits": "0x" + "a" * 63,
    "65 digits": "0x" + "a" * 65,
    "capitals": "0x" + "A" * 64,
    "not hex": "0x" + "g" * 64,
    "path": "0x../" + "a" * 61,
    "command": "0x$(touch forged)" + "a" * 49,
    "none": "",
    "accents": "0x" + "é" * 32,
    "format": "0x" + "%n" * 32,
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("hook", HOOKS)
def test_hook__name_that_is_no_job_id__writes_nothing(
    hook: str, name: str, programs: Path, spool: Path
) -> None:
    log = f"/home/x/{name}.log"
    done = run(
        programs / hook,
        JOBNAME=name,
        SLURM_JOB_NAME=name,
        STDOUT=log,
        SLURM_JOB_STDOUT=log,
    )
    assert (done.returncode, done.stderr, list(spool.iterdir())) == (0, "", [])


@pytest.mark.parametrize("name", ["renamed by its owner", "0x" + "cd" * 32, ""])
@pytest.mark.parametrize("hook", HOOKS)
def test_hook__name_that_the_owner_changed__is_known_by_the_log(
    hook: str, name: str, programs: Path, spool: Path
) -> None:
    log = f"/home/0x{'ab' * 20}/{JOB_ID}.log"
    done = run(
        programs / hook,
        JOBNAME=name,
        SLURM_JOB_NAME=name,
        STDOUT=log,
        SLURM_JOB_STDOUT=log,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [(event.job_id, event.slurm_id) for event in events(spool)] == [(JOB_ID, 7)]


@pytest.mark.parametrize(
    "log",
    ["/home/x/slurm-7.out", f"/home/x/{'0x' + 'cd' * 32}.out", "/home/x/.log", ""],
)
def test_hook__another_process_renamed_the_log__its_new_name_is_reported(
    log: str, programs: Path, spool: Path
) -> None:
    assert run(programs / "supervisor-ended", STDOUT=log).returncode == 0
    assert [event.job_id for event in events(spool)] == [JOB_ID]


@pytest.mark.parametrize("comment", ["", "benchmark 127.0.0.1:1", " supervisor x:1"])
def test_start__comment_of_another_program__writes_nothing(
    comment: str, programs: Path, spool: Path
) -> None:
    assert (
        run(programs / "supervisor-started", SLURM_JOB_COMMENT=comment).returncode == 0
    )
    assert list(spool.iterdir()) == []


def test_end__words_of_slurm_with_line_breaks__forge_no_line(
    programs: Path, spool: Path
) -> None:
    assert (
        run(programs / "supervisor-ended", JOBSTATE="FAILED\nevent=started").returncode
        == 0
    )
    [file] = reading.pending(spool)
    assert "event=started" not in file.read_text()


def test_end__clock_an_hour_back__still_comes_after_the_start(
    programs: Path, spool: Path
) -> None:
    ahead = f"{time.time_ns() + 3600 * 10**9:019d}-7-start"
    (spool / ahead).write_text(
        f"event=started\njob_id={JOB_ID}\nslurm_id=7\ncomplete=1\n"
    )
    assert run(programs / "supervisor-ended").returncode == 0
    assert [event.status for event in events(spool)] == [
        reading.RUNNING,
        reading.FAILED,
    ]


def test_hook__called_by_a_name_it_does_not_know__says_so_and_lets_a_job_start(
    programs: Path, spool: Path
) -> None:
    done = run(programs / "supervisor-hook")
    assert done.returncode == 0
    assert "expected supervisor-started or supervisor-ended" in done.stderr
    assert (
        subprocess.run(
            [programs / "supervisor-hook"], env={}, capture_output=True
        ).returncode
        == 2
    )
    assert list(spool.iterdir()) == []


def test_settings__mistake__is_told_and_the_rest_holds(
    programs: Path, spool: Path
) -> None:
    with (programs / "spool.conf").open("a") as settings:
        settings.write("max_events=none\n# a comment\n\n")
    done = run(programs / "supervisor-ended")
    assert done.returncode == 0
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["event"], line["slurm_id"]) == ("spool_conf_wrong", 7)
    assert 'found "max_events=none"' in line["error"]
    assert len(events(spool)) == 1


# --- when they cannot -----------------------------------------------------------------


def strace(*injections: str, detached: bool = False) -> tuple[str, ...]:
    options = [option for what in injections for option in ("-e", f"inject={what}")]
    return (
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        *(("-D",) if detached else ()),
        *options,
    )


@pytest.mark.parametrize("hook", HOOKS)
def test_settings__mistake_and_a_syslog_that_hangs__lose_no_event(
    hook: str, programs: Path, spool: Path
) -> None:
    with (programs / "spool.conf").open("a") as settings:
        settings.write("max_events=none\n")
    done = run(
        programs / hook, under=strace(f"connect:delay_enter={HANGS_S * 1_000_000}")
    )
    assert done.returncode == 0
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["event"], line["slurm_id"]) == ("spool_conf_wrong", 7)
    assert 'found "max_events=none"' in line["error"]
    assert len(events(spool)) == 1


@pytest.mark.parametrize(
    ("hook", "status"), [("supervisor-ended", 1), ("supervisor-started", 0)]
)
def test_hook__spool_is_full__tells_it_and_notes_the_job(
    hook: str, status: int, programs: Path, spool: Path
) -> None:
    slurm_hooks.configure(programs, spool, max_events=2, **PATIENT)
    for number in ("1", "2"):
        assert run(programs / "supervisor-ended", JOBID=number).returncode == 0
    done = run(programs / hook)
    assert done.returncode == status
    assert "the spool is full: 2 events wait, max_events is 2" in done.stderr
    assert [event.slurm_id for event in events(spool)] == [1, 2]
    record = reading.read_lost(spool)
    assert record.hints == [reading.SpooledEvent(JOB_ID, 7, reading.RUNNING)]
    assert "the spool is full" in record.lines[0]


@pytest.mark.parametrize(
    ("hook", "status"), [("supervisor-ended", 1), ("supervisor-started", 0)]
)
@pytest.mark.parametrize(
    "failure",
    [
        "write:error=ENOSPC:when=1",
        "fsync:error=EIO:when=1",
        "/^rename:error=ENOSPC:when=1",
    ],
    ids=["write", "fsync", "rename"],
)
def test_hook__disk_is_full_or_fails__leaves_no_half_event_but_a_trace(
    failure: str, hook: str, status: int, programs: Path, spool: Path
) -> None:
    done = run(programs / hook, under=strace(failure))
    assert done.returncode == status
    assert (
        "No space left on device" in done.stderr or "Input/output error" in done.stderr
    )
    assert events(spool) == []
    assert drafts(spool) == []
    assert reading.read_lost(spool).hints == [
        reading.SpooledEvent(JOB_ID, 7, reading.RUNNING)
    ]


def test_hook__disk_has_room__takes_room_for_the_trace_in_advance(
    programs: Path, spool: Path
) -> None:
    assert run(programs / "supervisor-ended").returncode == 0
    lost = (spool / "lost.log").stat()
    assert lost.st_size == 0
    assert lost.st_blocks * 512 >= 64 * 1024


@pytest.mark.parametrize(
    ("hook", "status"), [("supervisor-ended", 1), ("supervisor-started", 0)]
)
def test_hook__spool_is_missing__tells_it_in_one_line(
    hook: str, status: int, programs: Path, spool: Path
) -> None:
    spool.rmdir()
    done = run(programs / hook)
    assert done.returncode == status
    (line,) = map(json.loads, done.stderr.splitlines())
    assert "open the spool: No such file or directory" in line.pop("error")
    assert datetime.now(UTC) - datetime.fromisoformat(
        line.pop("timestamp")
    ) < timedelta(seconds=deadline(60))
    about = {
        "job_id": JOB_ID,
        "slurm_id": 7,
        "level": "error",
        "logger": "supervisor-hook",
    }
    assert line == {"event": "event_not_spooled", **about}


def test_settings__strangers_bytes__stay_in_one_line_of_json(
    programs: Path, spool: Path
) -> None:
    with (programs / "spool.conf").open("ab") as settings:
        settings.write(b'max_events="\x01\xff\x1b[31m\\\n')
    done = run(programs / "supervisor-ended")
    assert done.stderr.isascii()
    (line,) = map(json.loads, done.stderr.splitlines())
    assert 'found "max_events="\x01\xff\x1b[31m\\"' in line["error"]


def test_hook__on_a_terminal__is_readable(programs: Path, spool: Path) -> None:
    spool.rmdir()
    main, terminal = os.openpty()
    try:
        subprocess.run(
            [programs / "supervisor-ended"],
            env=ENVIRONMENT,
            stderr=terminal,
            timeout=deadline(60),
        )
        shown = os.read(main, 10_000).decode()
    finally:
        os.close(main)
        os.close(terminal)
    assert shown.startswith(
        f"supervisor-hook: the end of job {JOB_ID} (SLURM's 7) is not in {spool}: open the spool"
    )


@pytest.mark.quiet_machine
def test_hook__disk_hangs__slurm_goes_on_and_the_event_follows(
    programs: Path, spool: Path, tmp_path: Path
) -> None:
    slurm_hooks.configure(programs, spool, timeout_ms=200)
    hanging = strace(f"fsync:delay_enter={HANGS_S * 1_000_000}:when=1", detached=True)
    begun_s = time.monotonic()
    for hook, status in (("supervisor-started", 0), ("supervisor-ended", 1)):
        said = tmp_path / hook  # no pipe: strace holds it as long as the writer lives
        with said.open("w") as out:
            done = subprocess.run(
                [*hanging, programs / hook],
                env=ENVIRONMENT,
                stderr=out,
                timeout=deadline(60),
            )
        assert done.returncode == status
        assert "not on disk after 200 ms; the writing goes on" in said.read_text()
    assert time.monotonic() - begun_s < HANGS_S
    assert events(spool) == []
    wait_until(lambda: len(events(spool)) == 2, "both events", 60.0)
    assert [event.status for event in events(spool)] == [
        reading.RUNNING,
        reading.FAILED,
    ]


# --- killed anywhere ------------------------------------------------------------------

# Of the process that writes; the one that SLURM waits for makes fewer openat and none
# of the others. The second write tells the outcome.
CALLS = [
    "getdents64:when=1",
    "openat:when=5",
    "write:when=1",
    "fsync:when=1",
    "/^rename:when=1",
    "fsync:when=2",
    "write:when=2",
]


@pytest.fixture
def old_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ABANDONED_AFTER_S", 0.0)


@pytest.mark.usefixtures("old_drafts")
@pytest.mark.parametrize("call", CALLS)
def test_writer__killed_at_any_call__leaves_an_event_or_none_and_slurm_goes_on(
    call: str, programs: Path, spool: Path
) -> None:
    name, when = call.split(":")
    done = run(
        programs / "supervisor-started", under=strace(f"{name}:signal=KILL:{when}")
    )
    assert done.returncode == 0
    reading.take_abandoned(spool)
    found = events(spool)  # raises for one that is not whole
    assert found in ([], [reading.SpooledEvent(JOB_ID, 7, reading.RUNNING)])
    assert drafts(spool) == []
    assert bool(found) is (CALLS.index(call) > CALLS.index("write:when=1"))
    assert "the writing process was ended" in done.stderr


def test_writer__process_group_of_the_hook_is_killed__still_writes_the_event(
    programs: Path, spool: Path
) -> None:
    """slurmctld ends a hook with all of its group when it is asked to stop: the writer
    is in none of them.
    """
    # until then, the draft shows
    hanging = strace(f"fsync:delay_enter={HANGS_S * 1_000_000}:when=1", detached=True)
    argv = [*hanging, str(programs / "supervisor-ended")]
    with subprocess.Popen(
        argv, env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        wait_until(lambda: bool(drafts(spool)), "the draft", 30.0)
        os.killpg(running.pid, signal.SIGKILL)
    wait_until(lambda: len(events(spool)) == 1, "the event", 60.0)


# --- building -------------------------------------------------------------------------


def test_built__twice__is_built_once() -> None:
    folder = slurm_hooks.built()
    made_ns = folder.stat().st_ctime_ns
    assert slurm_hooks.built() == folder
    assert folder.stat().st_ctime_ns == made_ns
