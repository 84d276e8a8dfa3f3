"""Scripts of any interpreter run as they are, on real SLURM, and their #SBATCH and #PBS
lines have no effect.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from devgrid.options import Transport
from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId
from tests.support.submission_env import CUSTOMER, PATIENCE_S, SubmissionEnv
from tests.support.transports import TRANSPORTS

ASKS = "#SBATCH --ntasks=7\n#SBATCH --array=1-3\n#SBATCH --time=99\n#SBATCH --hold\n#SBATCH --nice=5\n"
# sbatch would obey these
ASKS_AS_ELSEWHERE = "#PBS -t 1-3\n#PBS -h\n#PBS -p 5\n#PBS -A another\n"
# A program that prints the text that the interpreter reads.
PYTHON = (
    "from __future__ import annotations\nimport os, sys, hashlib, random\n"
    "print(hashlib.sha256(open(__file__, 'rb').read()).hexdigest(), end=' ')\n"
    "print(__file__ == sys.argv[0], os.path.exists(sys.path[0]), '\u00e4')\n"
    "sys.stdout.flush()\n"
)
PERL = """\
use Digest::SHA;
open my $file, '<:raw', $0 or die; print Digest::SHA->new(256)->addfile($file)->hexdigest, "\\n";
while (<DATA>) { print $_, $^W }
exit 4;
__DATA__
the data
"""
FISH = """\
set -l words a b
if test (count $words) -eq 2
    echo ran in $words[1] (string length $FISH_VERSION >/dev/null; and echo fish)
    exit 7
end
"""
R = """\
arguments <- commandArgs(trailingOnly = FALSE)
path <- sub("--file=", "", grep("^--file=", arguments, value = TRUE))
cat("ran", R.version$language, "")
cat(length(grep("^#SBATCH", readLines(path))), "lines of SBATCH\\n")
quit(status = 8)
"""
# A program that it starts gets none of the options.
NODE = """*/
const { execFileSync } = require("node:child_process")
execFileSync("npm", ["--version"])
console.log(["ran", ...Object.keys(process.env).filter(name => name.startsWith("NODE_"))].join(" "))
process.exit(9)
"""
# first line, body, what it prints ({sha256}: of the script, so that it was read as it
# is), how it ends
SCRIPTS = {
    "python3": ("#!/usr/bin/python3\n", f"{PYTHON}sys.exit(3)\n", "{sha256} True False \u00e4\n", "3:0"),
    "env": ("#!/usr/bin/env python3\n", f"{PYTHON}os.kill(os.getpid(), 9)\n", "{sha256} True False \u00e4\n", "0:9"),
    "env -S": ("#!/usr/bin/env -S python3 -u -B\n", f"{PYTHON}print(sys.dont_write_bytecode)\n",
        "{sha256} True False \u00e4\nTrue\n", "0:0"),
    "perl": ("#! /usr/bin/perl -w\n", PERL, "{sha256}\nthe data\n1", "4:0"),
    "awk -f": ("#!/usr/bin/awk -f\n", 'BEGIN { print "ran"; exit 5 }\n', "ran\n", "5:0"),
    "fish": ("#!/usr/bin/fish\n", FISH, "ran in a fish\n", "7:0"),
    "node": ("#!/usr/bin/env node\n/*\n", NODE, "ran\n", "9:0"),
    "sha256sum": ("#!/usr/bin/sha256sum --tag\n", "any \u00e4 text\n", "SHA256 (/proc/", "0:0"),
    "bash -e": ("#!/bin/bash -e\n", "echo ran ${0##*/}; false; echo on\n", "ran slurm_script\n", "1:0"),
    "sh": ("#!/bin/sh\n", "echo ran ${0##*/}; exit 6\n", "ran slurm_script\n", "6:0"),
    "bash": ("#!/usr/bin/env bash\n", 'echo "${BASH_SOURCE[0]##*/}"; kill -TERM $$\n', "slurm_script\n", "0:15"),
    "no first line": ("", "echo ran ${BASH_VERSION:+bash}\n", "ran bash\n", "0:0"),
    "no such program": ("#!/usr/bin/no-such-program\n", "x\n", "/usr/bin/no-such-program: not found\n", "127:0"),
    "two words in one": (
        "#!/usr/bin/env python3 -u\n", "print('ran')\n", "'python3 -u': No such file or directory\n", "127:0"
    ),
    "shell words": ("#!/usr/bin/awk -f;touch$IFS$HOME/touched\n", "BEGIN {}\n", "touched", "2:0"),
}  # fmt: skip
# `make setup` does not install R, as it needs 150 MB: where it is, it is tried too.
if Path("/usr/bin/Rscript").exists():
    SCRIPTS["Rscript"] = (
        "#!/usr/bin/Rscript --vanilla\n",
        R,
        "ran R 5 lines of SBATCH\n",
        "8:0",
    )


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(rest=True, min_job_age_s=86_400) as running:
        yield running


@pytest.fixture(scope="module")
def sites(submission_env: SubmissionEnv) -> Iterator[dict[Transport, WorkerContext]]:
    """A worker for each transport."""
    sites = {
        way: submission_env.site(submission_env.cluster_over(way)) for way in TRANSPORTS
    }
    yield sites
    for site in sites.values():
        site.slurm.cluster.close()
        site.ledger.holder.close()


@pytest.fixture
def site(sites: dict[Transport, WorkerContext], transport: Transport) -> WorkerContext:
    return sites[transport]


@pytest.fixture(scope="module")
def begun(
    submission_env: SubmissionEnv, sites: dict[Transport, WorkerContext]
) -> dict[tuple[Transport, str], JobId]:
    """Submit a job of each script over each transport. They run side by side, as each
    takes a second.
    """
    return {
        (way, name): submitted(submission_env, sites[way], script_of(name))
        for name in SCRIPTS
        for way in TRANSPORTS
    }


def script_of(name: str) -> str:
    first, body, _, _ = SCRIPTS[name]
    return first + ASKS + ASKS_AS_ELSEWHERE + body


def submitted(submission_env: SubmissionEnv, site: WorkerContext, script: str) -> JobId:
    job = submission_env.new_job(site, script)
    submission_env.until_queued(site, job)
    return job


def ended(submission_env: SubmissionEnv, site: WorkerContext, job: JobId) -> int:
    slurm_id = site.ledger.jobs([job])[job].slurm_id
    assert slurm_id is not None
    wait_until(
        lambda: submission_env.field(slurm_id, "State") in ("COMPLETED", "FAILED"),
        "the job to end",
        PATIENCE_S,
        0.1,
    )
    return slurm_id


@pytest.mark.parametrize("name", SCRIPTS)
def test_script__in_any_language__runs_as_it_is_and_asks_for_nothing(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    begun: dict[tuple[Transport, str], JobId],
    transport: Transport,
    name: str,
) -> None:
    job, script = begun[transport, name], script_of(name)
    _, _, printed, status = SCRIPTS[name]
    slurm_id = ended(submission_env, site, job)
    home = submission_env.slurm.users.home(CUSTOMER)
    log = (home / f"{job}.log").read_text()
    assert printed.format(sha256=sha256(script.encode()).hexdigest()) in log
    shown = submission_env.slurm.run(
        "scontrol", "show", "job", str(slurm_id), "--oneliner"
    ).stdout
    assert f"ExitCode={status} " in shown, shown
    assert {"NumTasks=1", "TimeLimit=00:10:00", "Nice=0", "Account=(null)"} <= {
        *shown.split()
    }, shown
    assert "ArrayJobId" not in shown
    wait_until(
        lambda: left_in(home) == [], "what unpacks the scripts to go", PATIENCE_S, 0.1
    )
    assert submission_env.in_slurm(job) == [slurm_id]


def left_in(home: Path) -> list[str]:
    """What a script leaves there that should not run, and the folders in which other
    jobs unpack their scripts for a moment.
    """
    return [
        path.name
        for path in home.iterdir()
        if "supervisor" in path.name or path.name == "touched"
    ]


WAITS = """#!/usr/bin/python3
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("waits", flush=True)
time.sleep(600)
"""


def test_signal__sent_to_the_batch_script__reaches_the_script_itself(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job = submitted(submission_env, site, WAITS)
    log, slurm_id = (
        submission_env.slurm.users.home(CUSTOMER) / f"{job}.log",
        site.ledger.jobs([job])[job].slurm_id,
    )
    assert slurm_id is not None
    wait_until(
        lambda: log.exists() and "waits" in log.read_text(),
        "the script",
        PATIENCE_S,
        0.1,
    )
    submission_env.slurm.run("scancel", "--batch", "--signal=USR1", str(slurm_id))
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "FAILED",
        "the job to end",
        PATIENCE_S,
        0.1,
    )
    assert (
        "ExitCode=7:0 "
        in submission_env.slurm.run(
            "scontrol", "show", "job", str(slurm_id), "--oneliner"
        ).stdout
    )


def test_script__very_long__arrives_whole(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    filler = "# \u00e4\u00f6\u00fc supervisor EOF ' \" $(exit 1) `exit 1`\n" * 60_000
    script = f"#!/usr/bin/python3\n{PYTHON}{filler}print('the end')\n"
    job = submitted(submission_env, site, script)
    slurm_id = ended(submission_env, site, job)
    assert submission_env.field(slurm_id, "State") == "COMPLETED"
    log = (submission_env.slurm.users.home(CUSTOMER) / f"{job}.log").read_text()
    assert log == f"{sha256(script.encode()).hexdigest()} True False \u00e4\nthe end\n"
