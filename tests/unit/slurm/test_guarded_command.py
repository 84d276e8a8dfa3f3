"""The guard in front of sbatch, as any shell runs it: whole, in time, or not at all."""

import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from supervisor_tasks.effects import BEFORE_SECOND_SEARCH_S, settled_after_s
from supervisor_tasks.errors import OutcomeUnknownError, TransientError
from supervisor_tasks.slurm.guarded_command import (
    LoginClock,
    TooLateError,
    ask_clock,
    came_late,
    clock_told,
    guarded,
    guards_answer,
    marked,
)
from supervisor_tasks.slurm.output import Answer

MARK = "4f1d0c9ab3"
SCRIPT = "#!/bin/bash\necho é '$x' \"!\" \\ `a` $(b) %s\n\n\n".encode()


def run(
    shell: str, command: list[str], stdin: bytes, noise: str = "", environment: dict[str, str] | None = None
) -> Answer:
    """As sshd does: the login shell is given one text."""
    argv = [shell, "-c", noise + shlex.join(command)]
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=30, env=environment)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def in_s(seconds: int) -> int:
    return int(time.time()) + seconds


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_guarded__whole_and_in_time__the_command_gets_every_byte(shell: str) -> None:
    answer = guards_answer(run(shell, guarded(["cat"], SCRIPT, in_s(60)), marked(MARK, SCRIPT)), MARK)
    assert answer.stdout.encode() == SCRIPT


@pytest.mark.parametrize("kept", range(len(marked(MARK, SCRIPT))))
def test_guarded__cut_anywhere__nothing_is_run(kept: int) -> None:
    answer = run("sh", guarded(["echo", "ran"], SCRIPT, in_s(60)), marked(MARK, SCRIPT)[:kept])
    assert "ran" not in answer.stdout
    with pytest.raises((TransientError, OutcomeUnknownError)):
        guards_answer(answer, MARK)


def test_guarded__too_late__nothing_is_run() -> None:
    answer = run("sh", guarded(["echo", "ran"], SCRIPT, in_s(-1)), marked(MARK, SCRIPT))
    assert "ran" not in answer.stdout
    with pytest.raises(TooLateError):
        guards_answer(answer, MARK)
    assert came_late(answer, MARK)
    in_time = run("sh", guarded(["echo", f"{MARK[:5]} late"], SCRIPT, in_s(60)), marked(MARK, SCRIPT))
    assert not came_late(in_time, MARK)


def test_guarded__command_that_does_not_end__is_ended_in_time_and_nobody_knows_what_it_did() -> None:
    begun = time.monotonic()
    answer = guards_answer(run("sh", guarded(["sleep", "60"], b"", in_s(2)), marked(MARK, b"")), MARK)
    assert time.monotonic() - begun < 20
    assert answer.status == 124


@pytest.mark.parametrize(("status", "stdout"), [(0, "12\n"), (1, ""), (3, "no line feed")])
def test_guarded__status_and_output_are_the_commands(status: int, stdout: str) -> None:
    argv = ["sh", "-c", 'printf "$1"; echo why >&2; exit "$2"', "command", stdout, str(status)]
    answer = guards_answer(run("sh", guarded(argv, SCRIPT, in_s(60)), marked(MARK, SCRIPT)), MARK)
    assert answer == Answer(status, stdout, "why\n")


@pytest.mark.parametrize("noise", ["echo welcome; ", "echo 13; ", "printf '7;cluster'; ", "echo runs; echo ended 0; "])
def test_guarded__what_start_up_files_print__is_no_answer(noise: str) -> None:
    answer = guards_answer(run("bash", guarded(["echo", "12"], SCRIPT, in_s(60)), marked(MARK, SCRIPT), noise), MARK)
    assert answer.stdout == "12\n"


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "12\n",
        f"{MARK} runs\n12\n",
        f"{MARK} runs\n12\n{MARK} ended ",
        f"{MARK} runs\n12\n{MARK} ended 0",
        f"{MARK}",
    ],
)
def test_guards_answer__end_not_seen__nobody_knows(stdout: str) -> None:
    with pytest.raises(OutcomeUnknownError):
        guards_answer(Answer(0, stdout, ""), MARK)


def test_guards_answer__no_sh__nothing_was_run() -> None:
    with pytest.raises(TransientError):
        guards_answer(Answer(127, "", "bash: /bin/sh: No such file"), MARK)


def test_guarded__text__has_nothing_that_csh_or_fish_would_change() -> None:
    guard = guarded(["sbatch"], SCRIPT, 1)[2]
    assert not set(guard) & set("'!\\\n")
    assert MARK not in shlex.join(guarded(["sbatch"], SCRIPT, 1))


OPTIONS = {
    "SBATCH_GPUS": "8",
    "SBATCH_ARRAY_INX": "0-99",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_WHATEVER_COMES_NEXT": "x\nSLURM_CONF=/forged",
    "SLURM_HINT": "",
    "SLURM_CONF": "/of/another/cluster",
}
KEPT = {
    "SLURM_JWT": "token",
    "MODULEPATH": "/a:/b",
    "MY_SBATCH_GPUS": "8",
    "LINES": "a\nb",
}


def environment_of_the_command(
    shell: str, environment: dict[str, str], noise: str = "", slurm_conf: str = ""
) -> dict[str, str]:
    shown = guarded(["/usr/bin/env", "-0"], b"", in_s(60), slurm_conf)
    answer = guards_answer(run(shell, shown, marked(MARK, b""), noise, environment), MARK)
    return dict(word.split("=", 1) for word in answer.stdout.split("\0") if word)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_guarded__options_in_the_environment__are_taken_out_and_the_rest_is_the_jobs(shell: str) -> None:
    environment = {"PATH": "/home/customer/bin:/usr/bin:/bin"} | KEPT
    found = environment_of_the_command(shell, environment | OPTIONS)
    assert {name: value for name, value in found.items() if name in environment} == environment
    assert not found.keys() & OPTIONS.keys()


@pytest.mark.parametrize("slurm_conf", ["/etc/slurm.conf", "/a b/$(id)/'", "!", "("])
def test_guarded__slurms_configuration_is_the_admins(slurm_conf: str) -> None:
    assert environment_of_the_command("sh", OPTIONS, slurm_conf=slurm_conf)["SLURM_CONF"] == slurm_conf


TOOLS = "awk cat date echo env printf read test timeout wc unset ["


def sh_that_is_bash(folder: Path) -> list[str]:
    """As on many sites: it takes functions from the environment."""
    (folder / "sh").symlink_to(shutil.which("bash") or "/bin/bash")
    argv = guarded(["/usr/bin/env"], b"", in_s(60))
    assert argv[0] == "/bin/sh"
    return [str(folder / "sh"), *argv[1:]]


def test_guarded__customers_functions_with_the_names_of_tools__are_not_called(tmp_path: Path) -> None:
    owned = f'for f in {TOOLS}; do eval "function $f {{ builtin echo owned >&2; }}"; export -f "$f"; done; '
    answer = run("bash", sh_that_is_bash(tmp_path), marked(MARK, b""), owned, {"PATH": "/usr/bin:/bin", **OPTIONS})
    assert "owned" not in answer.stderr
    assert not any(name in guards_answer(answer, MARK).stdout for name in OPTIONS)


def test_guarded__customers_programs_with_the_names_of_tools__are_not_called(tmp_path: Path) -> None:
    for tool in TOOLS.split():
        (tmp_path / tool).write_text("#!/bin/sh\necho owned >&2\n")
        (tmp_path / tool).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    answer = run("/bin/sh", guarded(["/usr/bin/env"], b"", in_s(60)), marked(MARK, b""), "", {"PATH": path, **OPTIONS})
    assert answer.stderr == ""
    assert f"PATH={path}\n" in guards_answer(answer, MARK).stdout
    told = run("/bin/sh", ask_clock(MARK), b"", "", {"PATH": path})
    assert abs(clock_told(told, MARK, 0.0).login_s - time.time()) < 30


def test_clock__asked_and_told() -> None:
    clock = clock_told(run("sh", ask_clock(MARK), b"", "echo welcome; "), MARK, 1000.0)
    assert abs(clock.login_s - time.time()) < 30
    assert clock.at(1010.9) == clock.login_s + 10
    assert clock.slurm_conf == ""
    elsewhere = run("sh", ask_clock(MARK), b"", "", {"PATH": "/usr/bin:/bin", "SLURM_CONF": "/a b/slurm.conf"})
    assert clock_told(elsewhere, MARK, 0.0).slurm_conf == "/a b/slurm.conf"


@pytest.mark.parametrize("stdout", ["", "12\n", f"{MARK} \n", f"{MARK} x\n", f"{MARK} 12 "])
def test_clock__not_told__is_an_error_and_not_a_time(stdout: str) -> None:
    with pytest.raises(TransientError):
        clock_told(Answer(0, stdout, ""), MARK, 0.0)


def test_clock__an_hour_off__deadlines_are_the_login_nodes_own() -> None:
    clock = LoginClock(login_s=int(time.time()) - 3600, our_s=50.0)
    assert abs(clock.at(60.0) - (time.time() - 3590)) < 2


def test_second_search__comes_when_nothing_can_arrive_any_more() -> None:
    assert settled_after_s(10.0) == BEFORE_SECOND_SEARCH_S == 23.0


def test_tools_of_the_guard__are_here() -> None:
    assert all(shutil.which(tool) for tool in ("sh", "awk", "cat", "env", "wc", "date", "timeout"))


# --- the site's own environment ---------------------------------------------------------------------------------------------


def with_sites_file(file: Path, shell: str = "sh") -> Answer:
    command = guarded(["/usr/bin/env"], SCRIPT, in_s(60), "/the/admins", str(file))
    return run(shell, command, marked(MARK, SCRIPT), environment={"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_sites_file__what_it_exports__the_command_inherits_and_no_option(shell: str, tmp_path: Path) -> None:
    file = tmp_path / "modules.sh"
    file.write_text("export MODULEPATH=/sites PATH=/sites/bin:$PATH SBATCH_GPUS=8\nset -- a b c\necho welcome\ncat\n")
    lines = guards_answer(with_sites_file(file, shell), MARK).stdout.splitlines()
    assert {"MODULEPATH=/sites", "PATH=/sites/bin:/usr/bin:/bin", "SLURM_CONF=/the/admins"} <= set(lines)
    assert not any(line.startswith("SBATCH_GPUS") for line in lines)


def test_sites_file__cannot_be_read__nothing_is_run_and_the_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.sh"
    with pytest.raises(TransientError, match=f"SLURM_ENVIRONMENT_FILE.*{missing}"):
        guards_answer(with_sites_file(missing), MARK)
