"""The reporter: for all files that it finds and all answers, each event is delivered in
its job's order, or told to be lost.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from devgrid import REPOSITORY
from devgrid.cluster import slurm_hooks
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, wait_until
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from plugins.delivery import HEARTBEAT_SERVICE
from protos.supervisor.v1alpha1.supervisor_pb2 import (
    JOB_STATUS_FAILED,
    JOB_STATUS_RUNNING,
)
from tests.support.spool_env import (
    events,
    name_of,
    new_spool,
    serving,
    start_reporter,
    write,
)

pytestmark = pytest.mark.slow  # retries that last

AT_ONCE_S = 0.3  # less than the reporter's own look round
PROMPT_S = 1.0
ENDS_WITHIN_S = 8.0  # Python and gRPC included; less than what a call may take
MAX_WAIT_S = 2.0
START, END = (JOB_STATUS_RUNNING, 0), (JOB_STATUS_FAILED, 768)


@pytest.fixture
def processes() -> Iterator[Processes]:
    with private_processes() as mine:
        yield mine


@pytest.fixture
def spool(processes: Processes) -> Path:
    return new_spool(processes)


@pytest.mark.quiet_machine
def test_reporter__event_appears__is_delivered_at_once_and_its_file_removed(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        written_s = []
        for job in range(1, 7):
            written_s.append(time.monotonic())
            write(spool, job, "start")
            wait_until(lambda: not events(spool), "the event to be delivered", 60.0)
            assert supervisor.received(job) == [(JOB_STATUS_RUNNING, 0)]
        took_s = [
            call[0] - at_s
            for call, at_s in zip(supervisor.calls, written_s, strict=True)
        ]
        # The best of five: each but the first is written right after a look, and would
        # wait for the next one.
        assert min(took_s[1:]) < AT_ONCE_S, took_s


def test_reporter__draft_of_a_hook__is_left_alone(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        (spool / ".1-7-end").write_text("event=ended\n")
        start_reporter(processes, spool, port)
        write(spool, 1, "start")
        wait_until(lambda: bool(supervisor.calls), "the other event", 60.0)
        assert (spool / ".1-7-end").exists()
        assert supervisor.received(7) == []


def test_reporter__supervisor_cannot_store_it__tries_again_until_it_is_taken(
    processes: Processes, spool: Path
) -> None:
    write(spool, 1, "start")
    write(spool, 1, "end")
    with serving() as (supervisor, port):
        supervisor.refusals.extend(
            [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL]
        )
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        running = (JOB_STATUS_RUNNING, 0)
        assert supervisor.received(1) == [
            running,
            running,
            running,
            (JOB_STATUS_FAILED, 768),
        ]


# malformed, and about a job that is not known
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "NOT_FOUND"])
def test_reporter__never_taken_by_the_supervisor__goes_to_rejected_with_one_log_line(
    processes: Processes, spool: Path, code: str
) -> None:
    with serving() as (supervisor, port):
        supervisor.refusals.append(grpc.StatusCode[code])
        file = write(spool, 1, "start")
        start_reporter(processes, spool, port)
        wait_until(
            lambda: (spool / "rejected" / file.name).exists(),
            "the event to be rejected",
            60.0,
        )
        write(spool, 2, "start")
        wait_until(lambda: not events(spool), "the next one to be delivered", 60.0)
    assert not file.exists()
    (line,) = said(processes, "event_rejected")
    assert "no such job" in line["reason"]
    assert "\nERROR forged" in line["reason"]
    assert line["slurm_id"] == 1


def test_reporter__file_that_no_hook_wrote__goes_to_rejected(
    processes: Processes, spool: Path
) -> None:
    (spool / "1-1-end").write_text("what is this")
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        wait_until(
            lambda: (spool / "rejected" / "1-1-end").exists(),
            "the file to be rejected",
            60.0,
        )
        assert not supervisor.calls


def test_reporter__folder_of_the_rejected_is_gone__is_made_again_without_delay(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        supervisor.refusals.append(grpc.StatusCode.INVALID_ARGUMENT)
        (spool / "rejected").rmdir()
        write(spool, 1, "start")
        wait_until(lambda: not events(spool), "the event to be rejected", 60.0)
        assert len(supervisor.received(1)) == 1
        shutil.rmtree(spool / "rejected")
        (spool / "1-2-end").write_text("what is this")
        write(spool, 3, "end")
        wait_until(lambda: not events(spool), "the file to be rejected", 60.0)
        assert supervisor.received(3) == [END]
    assert [file.name for file in (spool / "rejected").iterdir()] == ["1-2-end"]
    assert said(processes, "spool_failed") == []


def test_reporter__rejected_event_cannot_be_put_aside__other_events_do_not_wait(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        (spool / "rejected").rmdir()
        (spool / "rejected").touch()
        (spool / "1-1-end").write_text("what is this")
        wait_until(
            lambda: bool(longest_waits(processes)),
            "the longest wait to be reached",
            60.0,
        )
        write(spool, 2, "end")
        wait_until(
            lambda: HEARTBEAT_SERVICE in supervisor.health_asked, "it to be heard", 60.0
        )
        assert supervisor.received(2) == [END]
        assert events(spool) == ["1-1-end"]


def test_reporter__folder_of_the_rejected_is_gone__still_tells_its_figures(
    processes: Processes, spool: Path
) -> None:
    with serving() as (_, port):
        running = start_reporter(processes, spool, port)
        (spool / "rejected").rmdir()
        processes.kill(running, signal.SIGTERM)
    assert said(processes, "reporter_figures")[-1]["kept_rejected"] == 0
    assert errors(processes) == []


def test_reporter__killed_before_the_answer__delivers_again_after_its_restart(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        supervisor.hold.clear()
        start_reporter(processes, spool, port)
        write(spool, 1, "end")
        wait_until(lambda: len(supervisor.calls) == 1, "the call", 60.0)
        processes.kill(processes.find("reporter"))
        assert len(events(spool)) == 1
        supervisor.hold.set()
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert len(supervisor.received(1)) == 2


def test_reporter__several_jobs__are_under_way_side_by_side(
    processes: Processes, spool: Path
) -> None:
    for job in range(1, 5):
        write(spool, job, "start")
        write(spool, job, "end")
    with serving() as (supervisor, port):
        supervisor.hold.clear()
        start_reporter(processes, spool, port)
        wait_until(lambda: supervisor.under_way == 4, "four calls under way", 60.0)
        assert {call.status for _, call in supervisor.calls} == {JOB_STATUS_RUNNING}
        supervisor.hold.set()
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert supervisor.most_under_way == 4


@pytest.mark.quiet_machine
def test_reporter__supervisor_back_after_an_outage__hears_within_the_longest_wait(
    processes: Processes, spool: Path
) -> None:
    port = free_port()
    write(spool, 1, "start")
    start_reporter(processes, spool, port)
    wait_until(
        lambda: len(longest_waits(processes)) >= 2,
        "the longest wait to be reached",
        60.0,
    )
    with serving(port) as (supervisor, _):
        back_s = time.monotonic()
        wait_until(lambda: bool(supervisor.calls), "the call", 60.0)
        # the reporter's wait, and that of its channel, which restarts at most so much
        # later
        assert supervisor.calls[0][0] - back_s < 2 * MAX_WAIT_S + PROMPT_S


@pytest.mark.quiet_machine
def test_reporter__outage__its_channel_keeps_trying_to_connect(
    processes: Processes, spool: Path
) -> None:
    write(spool, 1, "start")
    with socket.create_server(("127.0.0.1", 0)) as closed_shop:
        closed_shop.settimeout(60.0)
        start_reporter(processes, spool, closed_shop.getsockname()[1])
        accepted_s = []
        for _ in range(6):
            closed_shop.accept()[0].close()
            accepted_s.append(time.monotonic())
    assert (
        accepted_s[-1] - accepted_s[0] < 8.0
    )  # gRPC by itself: 1.0 + 1.6 + 2.6 + 4.1 + 6.6 s, and each up to a fifth less


def test_reporter__network_forgets_its_connection__takes_another_one_soon(
    processes: Processes, spool: Path
) -> None:
    """As a firewall does that was started again: it sends no reset, and the kernel
    would wait for a quarter of an hour.
    """
    with serving() as (supervisor, port), Proxy.start(f"127.0.0.1:{port}") as network:
        start_reporter(processes, spool, int(network.address.rpartition(":")[2]))
        write(spool, 1, "start")
        wait_until(lambda: supervisor.received(1) == [START], "the first event", 60.0)
        network.fault(Fault.DROP)
        write(spool, 2, "start")
        wait_until(
            lambda: supervisor.received(2) == [START], "the event after the break", 60.0
        )
        assert network.connections == 2


def test_reporter__tls__trusts_its_own_authority_alone(
    processes: Processes, spool: Path
) -> None:
    ours, theirs = (
        make_certificates(processes.folder / name) for name in ("tls", "others")
    )
    write(spool, 1, "start")
    with serving(certificates=ours) as (supervisor, port):
        start_reporter(processes, spool, port, theirs.ca)
        log = processes.logs / "reporter.log"
        wait_until(
            lambda: "UNAVAILABLE" in log.read_text(),
            "the reporter to refuse the certificate",
            60.0,
        )
        assert not supervisor.calls
        processes.stop(processes.find("reporter"))
        start_reporter(processes, spool, port, ours.ca)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert supervisor.received(1) == [(JOB_STATUS_RUNNING, 0)]


def test_reporter__idle__ends_at_once_when_asked(
    processes: Processes, spool: Path
) -> None:
    with serving() as (_, port):
        start_reporter(processes, spool, port)
        asked_s = time.monotonic()
        processes.kill(processes.find("reporter"), signal.SIGTERM)
        assert time.monotonic() - asked_s < deadline(ENDS_WITHIN_S)


def log_of(processes: Processes) -> str:
    return (processes.logs / "reporter.log").read_text()


def lines(processes: Processes) -> list[dict[str, Any]]:
    """The reporter's log; the last line may be half written."""
    whole, _, _ = log_of(processes).rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def said(processes: Processes, event: str) -> list[dict[str, Any]]:
    return [line for line in lines(processes) if line["event"] == event]


def errors(processes: Processes) -> list[dict[str, Any]]:
    return [line for line in lines(processes) if line["level"] == "error"]


def longest_waits(processes: Processes) -> list[dict[str, Any]]:
    return [
        line
        for line in said(processes, "delivery_postponed")
        if line["again_s"] == MAX_WAIT_S
    ]


@pytest.mark.parametrize(
    "code", ["UNIMPLEMENTED", "DEADLINE_EXCEEDED", "UNKNOWN", "PERMISSION_DENIED"]
)
def test_reporter__answer_that_is_no_answer__is_asked_again(
    processes: Processes, spool: Path, code: str
) -> None:
    write(spool, 1, "start")
    with serving() as (supervisor, port):
        supervisor.refusals.extend([grpc.StatusCode[code]] * 2)
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert supervisor.received(1) == [START] * 3
    assert code in log_of(processes)


def test_reporter__jobs_that_always_fail__delay_no_others_and_keep_their_own_order(
    processes: Processes, spool: Path
) -> None:
    bad = range(1, 21)  # more than the reporter has callers
    for job in bad:
        write(spool, job, "start")
        write(spool, job, "end")
    with serving() as (supervisor, port):
        supervisor.always.update(dict.fromkeys(bad, grpc.StatusCode.INTERNAL))
        start_reporter(processes, spool, port)
        wait_until(
            lambda: len(supervisor.calls) > 2 * len(bad),
            "the bad ones to be tried",
            60.0,
        )
        write(spool, 100, "start")
        write(spool, 100, "end")
        wait_until(
            lambda: supervisor.received(100) == [START, END], "the good one", 60.0
        )
        assert {call.status for _, call in supervisor.calls if call.id in bad} == {
            JOB_STATUS_RUNNING
        }
        supervisor.always.clear()
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)


def test_reporter__numbers_against_the_clock__are_what_counts(
    processes: Processes, spool: Path
) -> None:
    write(spool, 1, "end", sequence=8_000_000_000_000_000_001)
    write(spool, 1, "start", sequence=8_000_000_000_000_000_000)
    write(spool, 2, "end", sequence=7)
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert supervisor.received(1) == [START, END]
        assert supervisor.received(2) == [END]


PLACES = {  # and what is told of the start there
    "before-event-read": [START],
    "after-event-read": [START],
    # it was acknowledged, and its file is still there
    "before-event-delivered": [START, START],
    "after-event-delivered": [START],
}


@pytest.mark.parametrize(("place", "starts"), PLACES.items())
def test_reporter__killed_where_the_world_changes__loses_nothing(
    processes: Processes, spool: Path, place: str, starts: list[tuple[int, int]]
) -> None:
    order = processes.folder / "crash"
    order.write_text(place)
    with serving() as (supervisor, port):
        killed = start_reporter(processes, spool, port, CRASH_AT=str(order))
        # it dies of the first, and so not before it is known to be at work
        for kind in ("start", "end"):
            write(spool, 1, kind)
        wait_until(lambda: killed.process() is None, "the crash", 60.0)
        processes.kill(killed)  # which reaps it
        assert len(events(spool)) == (1 if place == "after-event-delivered" else 2)
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert supervisor.received(1) == [*starts, END]


def test_reporter__killed_again_and_again_under_load__loses_nothing(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        for job in range(1, 301):
            write(spool, job, "start")
            write(spool, job, "end")
        for told in (1, 100, 200, 300, 400):
            running = start_reporter(processes, spool, port)
            wait_until(
                lambda least=told: len(supervisor.calls) >= least,  # type: ignore[misc]
                "some to be told",
                60.0,
                0.001,
            )
            processes.kill(running)
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        for job in range(1, 301):
            heard = supervisor.received(job)
            # RUNNING (4) before FAILED (8), each once or more
            assert heard == sorted(heard)
            assert set(heard) == {START, END}


def test_reporter__spoiled_files__block_no_other_events(
    processes: Processes, spool: Path
) -> None:
    (spool / "0000000000000000001-1-end").touch()
    (spool / "0000000000000000002-2-end").write_bytes(b"\0" * 4096)
    (spool / "0000000000000000003-3-end").mkdir()
    (spool / "0000000000000000004-4-end").symlink_to("/nowhere")
    (spool / "0000000000000000005-5-end").write_text(
        f"event=ended\njob_id={name_of(5)}\nslurm_id=5\nstate=FAI"
    )
    beyond = f"event=ended\njob_id={name_of(6)}\nslurm_id=6\nstate=FAILED\nexit=3:0\nstart_s=1\nend_s={2**65}\ncomplete=1\n"
    (spool / "0000000000000000006-6-end").write_text(beyond)
    write(spool, 7, "end")
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        wait_until(lambda: not events(spool), "the spool to be empty", 60.0)
        assert [call.id for _, call in supervisor.calls] == [7]
    assert len(list((spool / "rejected").iterdir())) == 6
    wait_until(
        lambda: len(said(processes, "event_rejected")) >= 6,
        "a line of the log for each",
        60.0,
    )
    assert len(said(processes, "event_rejected")) == 6


def test_reporter__events_that_no_hook_could_write__are_told_as_hints_and_loudly(
    processes: Processes, spool: Path
) -> None:
    slurm_hooks.install(processes.folder / "programs", spool)
    slurm_hooks.configure(
        processes.folder / "programs", spool, max_events=1, timeout_ms=30_000
    )
    run = processes.folder / "programs" / "supervisor-ended"
    ended = {"JOBSTATE": "FAILED", "EXITCODE": "3:0", "START": "100", "END": "187"}
    for job in (1, 2, 3, 3):
        environment = {"JOBID": str(job), "JOBNAME": name_of(job), **ended}
        assert subprocess.run(
            [run], env=environment, capture_output=True
        ).returncode == (0 if job == 1 else 1)
    with serving() as (supervisor, port):
        supervisor.refusals.extend([grpc.StatusCode.UNAVAILABLE] * 4)
        start_reporter(processes, spool, port)
        wait_until(
            lambda: not events(spool) and not (spool / "lost.log").stat().st_size,
            "all to be told",
            60.0,
        )
        assert supervisor.received(1)[-1] == END
        assert (supervisor.received(2)[-1], supervisor.received(3)[-1]) == (
            START,
            START,
        )
        processes.stop(processes.find("reporter"))
    lost = said(processes, "event_lost")
    assert [(line["job_id"], line["slurm_id"]) for line in lost] == [
        (name_of(job), job) for job in (2, 3, 3)
    ]
    assert said(processes, "reporter_figures")[-1]["lost"] == 3


def test_reporter__hint_that_is_never_taken__keeps_no_other_one_waiting(
    processes: Processes, spool: Path
) -> None:
    bad = range(1, 11)  # more than the reporter has callers
    (spool / "lost.log").write_text(
        "".join(f"1 end {name_of(job)} {job} no room\n" for job in (*bad, 100))
    )
    with serving() as (supervisor, port):
        supervisor.always.update(dict.fromkeys(bad, grpc.StatusCode.RESOURCE_EXHAUSTED))
        start_reporter(processes, spool, port)
        wait_until(lambda: supervisor.received(100) == [START], "the other hint", 60.0)
        wait_until(
            lambda: len(supervisor.received(1)) > 2,
            "the first one to be tried again",
            60.0,
        )
        assert supervisor.received(100) == [START]  # once
        with (spool / "lost.log").open("a") as lost:
            lost.write(f"1 end {name_of(100)} 100 no room again\n")
        wait_until(
            lambda: supervisor.received(100) == [START] * 2,
            "the hint of its second event",
            60.0,
        )
        supervisor.always.clear()
        wait_until(
            lambda: not (spool / "lost.log").stat().st_size, "all to be told", 60.0
        )


def test_reporter__where_ends_are_delivered__lets_itself_be_heard_again_and_again(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        write(spool, 1, "start")
        wait_until(lambda: not events(spool), "the start", 60.0)
        assert not supervisor.health_asked  # it may be a node's
        write(spool, 1, "end")
        wait_until(
            lambda: len(supervisor.health_asked) > 1, "it to be heard twice", 60.0
        )
        wait_until((spool / "has_end_events").exists, "the file has_end_events", 60.0)
        processes.stop(processes.find("reporter"))
        supervisor.health_asked.clear()
        supervisor.always[2] = grpc.StatusCode.RESOURCE_EXHAUSTED
        write(spool, 2, "end")
        start_reporter(processes, spool, port)
        wait_until(
            lambda: set(supervisor.health_asked) == {HEARTBEAT_SERVICE},
            "its heartbeat, with any events waiting",
            60.0,
        )


def test_reporter__draft_of_a_hook_that_was_killed__is_taken_over(
    processes: Processes, spool: Path
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    draft = write(spool, 1, "end").rename(
        spool / f".0000000000000000001-1-end.{ended.pid}"
    )
    os.utime(draft, (time.time() - 100,) * 2)
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        wait_until(lambda: supervisor.received(1) == [END], "the event", 60.0)
    (line,) = said(processes, "hook_killed")
    assert line["file"].endswith("0000000000000000001-1-end")
    assert line["outcome"] == "taken over"


def test_reporter__spool_goes_away_and_comes_back__goes_on(
    processes: Processes, spool: Path
) -> None:
    with serving() as (supervisor, port):
        start_reporter(processes, spool, port)
        wait_until((spool / "rejected").is_dir, "the reporter to begin", 60.0)
        # the reporter may write to it at this moment
        shutil.rmtree(spool.rename(spool.with_name("gone")))
        wait_until(
            lambda: bool(said(processes, "spool_failed")),
            "the reporter to notice",
            60.0,
        )
        (spool / "rejected").mkdir(parents=True)
        write(spool, 1, "end")
        wait_until(lambda: supervisor.received(1) == [END], "the event", 60.0)


@pytest.mark.parametrize("what", ["watches", "instances"])
def test_reporter__kernel_has_nothing_to_watch_with__looks_round_and_says_so_once(
    processes: Processes, spool: Path, what: str
) -> None:
    without = (
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        'echo 0 > "$0" && exec "$@"',
    )
    with serving() as (supervisor, port):
        start_reporter(
            processes,
            spool,
            port,
            within=(*without, f"/proc/sys/user/max_inotify_{what}"),
        )
        for job in range(1, 4):
            write(spool, job, "end")
            wait_until(lambda: not events(spool), "the event to be delivered", 20.0)
            assert supervisor.received(job) == [END]
        processes.kill(processes.find("reporter"), signal.SIGTERM)
    (line,) = errors(processes)
    assert line["event"] == "inotify_unavailable"


def test_reporter__no_spool__says_so_in_one_line(
    processes: Processes, spool: Path
) -> None:
    spool.rmdir()
    argv = [
        sys.executable,
        "-m",
        "plugins.reporter",
        "--spool",
        str(spool),
        "--supervisor",
        "127.0.0.1:1",
    ]
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=deadline(60)
    )
    assert done.returncode == 1
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["event"], told["level"]) == ("reporter_ended", "error")
    assert told["reason"].startswith("[Errno 2] No such file or directory")
