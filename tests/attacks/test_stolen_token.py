"""A customer whose account has bash reads the supervisor's token in his start-up file, in front of sbatch, and submits with
it: bigger, twice, and once more when his job runs. SLURM has the job that was paid for, once, and nothing else.
"""

import re

import pytest

from devgrid.chain import Account
from devgrid.grid import Grid
from supervisor_tasks.job import ChainStatus
from tests.ends import PATIENCE_S, as_customer, running, tried
from tests.watching import journal, parked, slurm_of, wait_for_end

# What bash runs first: it changes the options in the guard's input, each to one of the same length.
STEALS = r"""
case "$BASH_EXECUTION_STRING" in *guard*) ;; *) return ;; esac
n=$(printf %s "$BASH_EXECUTION_STRING" | grep -o ' fed [0-9]*' | head -n 1); head -c "${n# fed }" >~/input
run() { sed "$1" ~/input | eval "$BASH_EXECUTION_STRING" >>~/said 2>&1; }
for change in ntasks=1/ntasks=6 time=2/time=9 cpus-per-task=1/cpus-per-task=8 mem-per-cpu=./mem-per-cpu=9; do
    run "s/--${change%/*}/--${change#*/}/"
done
if [ -e ~/first ]; then run ""; run ""; fi
eval "$BASH_EXECUTION_STRING" <~/input
exit 0
"""
FIELDS = "%A|%T|%C|%l|%m|%b"


def jobs_of(grid: Grid, customer: Account) -> list[str]:
    argv = ("squeue", "--noheader", "--states=all", f"--user={customer.address.lower()}", f"--format={FIELDS}")
    return slurm_of(grid).run(*argv).stdout.split()


@pytest.mark.parametrize("first", [False, True], ids=["after the supervisor", "before the supervisor"])
def test_start_up_file_submits_with_the_token__the_paid_job_runs_once_and_nothing_else(grid: Grid, first: bool) -> None:
    thief = grid.new_customer(shell="/bin/bash")  # noqa: S604  his login shell
    home = grid.users.home(thief.address)
    (home / ".bashrc").write_text(STEALS)
    if first:
        (home / "first").touch()
    job_id = grid.submit_script(thief, "#!/bin/bash\nuntil [ -e ~/enough ]; do sleep 0.1; done\n", minutes=2)
    slurm_id = running(grid, job_id)
    said = (home / "said").read_text()
    assert said.count("supervisor: wrong token") + said.count("supervisor: token does not cover") >= 4, said
    assert said.count("supervisor: token used") == (1 if first else 0), said
    paid = [f"{slurm_id}|RUNNING|1|2:00|50M|N/A"]
    assert jobs_of(grid, thief) == paid or re.sub(r"\|\d+M\|", "|50M|", jobs_of(grid, thief)[0]) == paid[0]
    stolen = re.findall(r"supervisor [^ ']+ token=[0-9.a-f]+", (home / "input").read_text())
    assert stolen
    for options in (("--time=600", "--ntasks=6"), (f"--job-name={job_id}", "--time=2")):
        later = tried(grid, thief, "sbatch", f"--comment={stolen[0]}", *options, "--wrap=sleep 600")
        assert "supervisor: " in later.stderr
        assert later.returncode != 0
    assert len(jobs_of(grid, thief)) == 1
    as_customer(grid, thief, "touch", str(home / "enough"))
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    assert journal(grid, job_id).count("SlurmEnded") == 1
    assert len(jobs_of(grid, thief)) == 1
    assert parked(grid) == []
