"""A customer tries to get more from SLURM than he paid for: he submits jobs himself,
with or without a token of the supervisor that he has read, or changes the jobs that the
supervisor submitted.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus, Definition, JobId
from supervisor_tasks.slurm.commands import batch_script, sbatch
from supervisor_tasks.slurm.submit_token import Submission, with_token
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    id_of,
    run_as_customer,
    running,
    scontrol,
    wait_for_state,
)
from tests.support.grid_assertions import (
    alarm,
    fails_for_long,
    journal,
    parked,
    rows,
    slurm_of,
    state_of,
    wait_for_end,
)

SLEEPS = "#!/bin/bash\nsleep 3500\n"  # 60 minutes are paid
CHANGES = [
    "TimeLimit=10",
    "TimeLimit=1",
    "NumCPUs=8",
    "NumNodes=2",
    "MinMemoryCPU=5000",
    "Gres=gpu:2",
    "TresPerNode=gpu:2",
    "Partition=main",
    "ReservationName=x",
    "ArrayTaskThrottle=2",
    "StartTime=now+1hour",
    "Requeue=1",
    "Comment=x",
    "JobName=x",
    "Nice=-1",
    "QOS=x",
    "Account=x",
    "ReqThreads=1",
]
PAID = Definition(
    gpus=0, mem_per_cpu_mb=50, cpus_per_task=1, ntasks=1, batch_location_hash="h"
)
LIMIT_MIN = 2
COMMENT = "supervisor 127.0.0.1:1"
# Bash runs this first: it changes the options in the guard's input, each to one of the
# same length.
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


def shown(grid: Grid, slurm_id: int | str) -> dict[str, str]:
    words = (
        slurm_of(grid)
        .run("scontrol", "show", "job", str(slurm_id), "--oneliner")
        .stdout.split()
    )
    return dict(word.split("=", 1) for word in words if "=" in word)


def in_slurm(grid: Grid, name: str) -> list[str]:
    return (
        slurm_of(grid)
        .run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A")
        .stdout.split()
    )


def waiting_or_running(grid: Grid) -> set[str]:
    return set(slurm_of(grid).run("squeue", "--noheader", "--format=%A").stdout.split())


@pytest.fixture(scope="module")
def begun(grid: Grid, customer: Account) -> int:
    return running(grid, grid.submit_script(customer, SLEEPS))


@pytest.fixture
def slurm_id(grid: Grid, begun: int) -> int:
    """A job that runs. A slurmctld that was killed may have forgotten that it runs, and
    start it once more.
    """
    wait_for_state(grid, begun, "RUNNING")
    return begun


@pytest.fixture
def grid_settings(grid: Grid) -> Iterator[Path]:
    """The settings of the Lua script. A test may change them while slurmctld runs."""
    file = slurm_of(grid).layout.folder / "supervisor_submit.conf"
    before = file.read_text()
    yield file
    file.write_text(before)


class Interceptor:
    """A customer who has read the token of his submission. The submission did not reach
    slurmctld.
    """

    def __init__(self, grid: Grid, customer: Account, number: int) -> None:
        self.grid, self.customer = grid, customer
        self.job_id = JobId(f"0x{number:064x}")

    def submit(
        self,
        *options: str,
        key: str | None = None,
        script: bytes | None = None,
        **changed: object,
    ) -> str:
        """What sbatch said; `options` and `changed` are what is asked for beyond what
        was paid for.
        """
        return self.give(self.comment(key), *options, script=script, **changed)

    def comment(self, key: str | None = None, number: int = 1, in_s: int = 60) -> str:
        paid = Submission(
            job_id=self.job_id,
            user=self.customer.address,
            definition=PAID,
            limit_min=LIMIT_MIN,
            partition="main",
            comment=COMMENT,
            number=number,
            expires_s=int(time.time()) + in_s,
        )
        return with_token(paid, key or slurm_of(self.grid).submit_key)

    def give(self, comment: str, *options: str, script: bytes | None = None) -> str:
        asked = sbatch(
            "sbatch",
            self.job_id,
            PAID,
            limit_min=LIMIT_MIN,
            partition="main",
            comment=comment,
        )
        text = batch_script(self.job_id, SLEEPS) if script is None else script
        done = run_as_customer(
            self.grid, self.customer, *asked, *options, stdin=text.decode()
        )
        assert (done.returncode == 0) == bool(done.stdout)
        return (done.stdout or done.stderr).strip()


@pytest.fixture
def interceptor(
    grid: Grid, customer: Account, request: pytest.FixtureRequest
) -> Interceptor:
    return Interceptor(grid, customer, abs(hash(request.node.name)) % 10**9)


def test_key__of_the_tokens__is_no_file_that_a_customer_reads(
    grid: Grid, customer: Account
) -> None:
    settings = (slurm_of(grid).layout.folder / "supervisor_submit.conf").read_text()
    (key_file,) = re.findall(r"key_file = (.*)", settings)
    assert Path(key_file).read_text().strip() == slurm_of(grid).submit_key
    read = run_as_customer(grid, customer, "cat", key_file)
    assert (read.stdout, "Permission denied" in read.stderr) == ("", True)


# --- what the supervisor submits ------------------------------------------------------


def test_token__of_a_submitted_job__is_in_no_record_of_slurm(
    grid: Grid, slurm_id: int
) -> None:
    assert shown(grid, slurm_id)["Comment"] == "supervisor"  # and then the address
    ours = f"supervisor {grid.environment['PUBLIC_ADDRESS']}"
    assert (
        slurm_of(grid)
        .run("squeue", "--noheader", f"--jobs={slurm_id}", "--format=%k")
        .stdout.strip()
        == ours
    )
    assert (
        "token" not in slurm_of(grid).run("scontrol", "show", "job", "--details").stdout
    )
    files = [
        *slurm_of(grid).layout.folder.glob("*.log"),
        *(grid.folder / "log").iterdir(),
    ]
    key = slurm_of(grid).submit_key
    assert [
        file
        for file in files
        if "token=" in (said := file.read_text(errors="replace")) or key in said
    ] == []


# --- what a customer submits ----------------------------------------------------------

SOON = "an expiry that is not over yet"


@pytest.mark.parametrize(
    "argv",
    [
        ("sbatch", "--time=600", "--ntasks=6", "--wrap=sleep 600"),
        ("srun", "--time=1", "true"),
        ("salloc", "--time=1", "true"),
        ("sbatch", "--comment=supervisor 127.0.0.1:1", "--wrap=sleep 600"),
        (
            "sbatch",
            f"--comment=supervisor 127.0.0.1:1 token=1.{SOON}.{'0' * 64}",
            "--wrap=sleep 600",
        ),
    ],
    ids=["sbatch", "srun", "salloc", "comment", "made-up-token"],
)
def test_submission__by_the_customer_himself__is_refused(
    grid: Grid, customer: Account, argv: tuple[str, ...]
) -> None:
    before = waiting_or_running(grid)
    expiry = str(int(time.time()) + 600)
    fresh = [word.replace(SOON, expiry) for word in argv]
    done = run_as_customer(grid, customer, *fresh)
    assert done.returncode != 0
    assert (
        "supervisor: no token" in done.stderr
        or "supervisor: wrong token" in done.stderr
    )
    assert waiting_or_running(grid) <= before


NESTED = "#!/bin/bash\nsbatch --time=600 --ntasks=6 --job-name=nested --wrap='sleep 600'\nsrun true && echo step ran\n"


def test_nested_submission__site_does_not_allow_it__is_refused_and_steps_run(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, NESTED)
    wait_until(
        lambda: "step ran" in grid.output(customer.address, job_id),
        "the job's step",
        60.0,
        0.1,
    )
    assert "supervisor: no token" in grid.output(customer.address, job_id)
    assert in_slurm(grid, "nested") == []


def test_nested_submission__site_allows_it_and_a_job_runs__is_taken(
    grid: Grid, customer: Account, slurm_id: int, grid_settings: Path
) -> None:
    grid_settings.write_text(grid_settings.read_text() + "nested_jobs = yes\n")
    assert (
        run_as_customer(
            grid, customer, "sbatch", "--hold", "--job-name=allowed", "--wrap=true"
        ).returncode
        == 0
    )
    slurm_of(grid).run("scancel", *in_slurm(grid, "allowed"))
    # it would count as a paid job, in which further ones are taken without an end
    says_paid = run_as_customer(
        grid, customer, "sbatch", "--comment=supervisor x", "--hold", "--wrap=true"
    )
    assert "supervisor: no token" in says_paid.stderr
    stranger = grid.new_customer()
    assert (
        "supervisor: no token"
        in run_as_customer(grid, stranger, "sbatch", "--wrap=true").stderr
    )


# --- what a customer does with a token ------------------------------------------------


def test_token__used_and_slurmctld_started_again__is_refused(
    grid: Grid, interceptor: Interceptor
) -> None:
    # else it may expire while slurmctld starts
    comment = interceptor.comment(in_s=1800)
    taken = interceptor.give(comment)
    assert taken.isdecimal()
    assert "supervisor: token used" in interceptor.give(comment)
    slurm = slurm_of(grid)
    grid.processes.kill(grid.processes.find("slurmctld"))
    slurm.start_controller()
    assert "supervisor: token used" in interceptor.give(comment)
    slurm.run("scancel", taken)


def test_token__false_and_with_more_digits__is_refused(
    interceptor: Interceptor,
) -> None:
    """A number of digits that makes up for the false ones would be found in minutes."""
    comment = interceptor.comment()
    other = "1" if comment[-1] == "0" else "0"
    apart = abs(ord(comment[-1]) - ord(other))
    false = comment[:-1] + other + "0" * apart**2
    assert "supervisor: wrong token" in interceptor.give(false, "--hold")


def test_token__of_an_earlier_submission_after_a_later_one__is_refused(
    interceptor: Interceptor, grid: Grid
) -> None:
    first, second = interceptor.comment(number=1), interceptor.comment(number=2)
    taken = interceptor.give(second)
    assert taken.isdecimal()
    assert "supervisor: token used" in interceptor.give(first)
    slurm_of(grid).run("scancel", taken)


@pytest.mark.parametrize(
    "option",
    [
        "--time=600", "--ntasks=6", "--cpus-per-task=8", "--mem-per-cpu=5000", "--gpus=2", "--partition=other",
        "--job-name=x", "--uid=root", "--comment=supervisor evil:1",
    ],
)  # fmt: skip
def test_token__with_other_than_it_says__refused(
    interceptor: Interceptor, option: str
) -> None:
    comment = interceptor.comment()
    if option.startswith("--comment"):
        comment = option.partition("=")[2] + comment.removeprefix(COMMENT)
    said = interceptor.give(
        comment, *([] if option.startswith("--comment") else [option])
    )
    assert (
        "supervisor: wrong token" in said
        or "Invalid" in said
        or "only permitted by root" in said
    ), said


@pytest.mark.parametrize(
    "option",
    [
        "--array=1-10", "--nodes=2", "--exclusive", "--gres=gpu:1", "--gpus-per-node=1", "--gpus-per-task=1",
        "--requeue", "--reservation=x", "--qos=x", "--account=x", "--nice=10", "--begin=now+1hour",
        "--dependency=singleton", "--licenses=x", "--hold", "--nodelist=node1", "--exclude=node1", "--mem=4000",
        "--mincpus=4", "--ntasks-per-node=1", "--time-min=1", "--threads-per-core=1", "--cores-per-socket=2",
        "--constraint=x", "--tmp=1", "--contiguous", "--overcommit --nodes=4", "--switches=1", "--cpus-per-gpu=2",
        "--mem-per-gpu=100", "--wckey=x", "--hint=nomultithread", "--hint=compute_bound", "--exclusive=user",
        "--ntasks-per-core=1", "--ntasks-per-socket=1",
        "--oversubscribe", "--spread-job --nodes=1-4", "--cpu-freq=high", "--network=x", "--clusters=devgrid",
    ],
)  # fmt: skip
def test_token__with_what_it_does_not_tell__refused(
    interceptor: Interceptor, option: str
) -> None:
    said = interceptor.submit(*option.split())
    assert not said.isdecimal(), option
    assert in_slurm(interceptor.grid, interceptor.job_id) == []


@pytest.mark.parametrize("option", ["--core-spec=1", "--deadline=now+2hours"])
def test_token__with_what_the_script_is_not_shown__gives_no_more(
    interceptor: Interceptor, option: str
) -> None:
    taken = interceptor.submit(option)
    if taken.isdecimal():
        job = shown(interceptor.grid, taken)
        assert (job["NumCPUs"], job["OverSubscribe"], job["TimeLimit"]) == (
            "1",
            "OK",
            "00:02:00",
        )
        slurm_of(interceptor.grid).run("scancel", taken)


def test_token__with_a_script_that_the_supervisor_would_not_find__refused(
    interceptor: Interceptor,
) -> None:
    said = interceptor.submit(script=b"#!/bin/bash\nsleep 600\n")
    assert "supervisor: token does not cover script" in said


def test_token__expired_or_of_another_customer__refused(
    grid: Grid, interceptor: Interceptor
) -> None:
    assert "supervisor: token expired" in interceptor.give(interceptor.comment(in_s=-1))
    comment, interceptor.customer = interceptor.comment(), grid.new_customer()
    assert "supervisor: wrong token" in interceptor.give(comment)


def test_submission__by_the_admin_of_slurm__is_taken_without_a_token(
    grid: Grid,
) -> None:
    taken = (
        slurm_of(grid)
        .run("sbatch", "--parsable", "--wrap=true", "--output=/dev/null")
        .stdout.strip()
    )
    assert taken.isdecimal()


# --- what a customer does to a job ----------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_owner__changes_his_job__is_refused(
    grid: Grid, customer: Account, slurm_id: int, change: str
) -> None:
    before = shown(grid, slurm_id)
    done = run_as_customer(
        grid, customer, "scontrol", "update", f"JobId={slurm_id}", change
    )
    assert done.returncode != 0
    assert "Access/permission denied" in done.stderr
    assert shown(grid, slurm_id) | {"RunTime": ""} == before | {"RunTime": ""}


@pytest.fixture
def waiting_job(grid: Grid, customer: Account) -> Iterator[int]:
    """A job that waits, as its partition is down."""
    scontrol(grid, "update", "PartitionName=main", "State=DOWN")
    try:
        job_id = grid.submit_script(customer, SLEEPS)
        slurm_id = id_of(grid, job_id)
        yield slurm_id
        as_customer(grid, customer, "scancel", str(slurm_id))
    finally:
        scontrol(grid, "update", "PartitionName=main", "State=UP")


@pytest.mark.parametrize("change", ["TimeLimit=600", "TresPerNode=gpu:2"])
def test_owner__changes_his_waiting_job__is_refused(
    grid: Grid, customer: Account, waiting_job: int, change: str
) -> None:
    before = shown(grid, waiting_job)
    assert before["JobState"] == "PENDING"
    words = ("scontrol", "update", f"JobId={waiting_job}", change)
    done = run_as_customer(grid, customer, *words)
    assert "Access/permission denied" in done.stderr
    after = shown(grid, waiting_job)
    for unchanged in ("JobState", "TimeLimit", "NumCPUs"):
        assert after[unchanged] == before[unchanged], unchanged
    assert after.get("TresPerNode") == before.get("TresPerNode")


@pytest.mark.parametrize("what", ["requeue", "requeuehold", "hold", "suspend", "top"])
def test_owner__requeues_or_holds_his_job__is_refused(
    grid: Grid, customer: Account, slurm_id: int, what: str
) -> None:
    before = shown(grid, slurm_id)
    assert (
        run_as_customer(grid, customer, "scontrol", what, str(slurm_id)).returncode != 0
    )
    after = shown(grid, slurm_id)
    for unchanged in ("JobState", "Restarts", "Priority", "Requeue", "SubmitTime"):
        assert after[unchanged] == before[unchanged], unchanged


def test_owner__cancels_his_job__is_allowed(grid: Grid, customer: Account) -> None:
    job = running(grid, grid.submit_script(customer, SLEEPS))
    assert run_as_customer(grid, customer, "scancel", str(job)).returncode == 0
    wait_until(
        lambda: shown(grid, job)["JobState"] == "CANCELLED", "the job to end", 30.0, 0.1
    )


# --- what a customer reads in his start-up file, in front of sbatch -------------------


def jobs_of(grid: Grid, customer: Account) -> list[str]:
    argv = (
        "squeue",
        "--noheader",
        "--states=all",
        f"--user={customer.address.lower()}",
        f"--format={FIELDS}",
    )
    return slurm_of(grid).run(*argv).stdout.split()


@pytest.mark.parametrize(
    "first", [False, True], ids=["after the supervisor", "before the supervisor"]
)
def test_token__start_up_file_submits_with_it__only_the_paid_job_runs_and_only_once(
    grid: Grid, first: bool
) -> None:
    thief = grid.new_customer(shell="/bin/bash")  # noqa: S604  his login shell
    home = grid.users.home(thief.address)
    (home / ".bashrc").write_text(STEALS)
    if first:
        (home / "first").touch()
    job_id = grid.submit_script(
        thief, "#!/bin/bash\nuntil [ -e ~/enough ]; do sleep 0.1; done\n", minutes=2
    )
    slurm_id = running(grid, job_id)
    said = (home / "said").read_text()
    assert (
        said.count("supervisor: wrong token")
        + said.count("supervisor: token does not cover")
        >= 4
    ), said
    assert said.count("supervisor: token used") == (1 if first else 0), said
    paid = [f"{slurm_id}|RUNNING|1|2:00|50M|N/A"]
    assert (
        jobs_of(grid, thief) == paid
        or re.sub(r"\|\d+M\|", "|50M|", jobs_of(grid, thief)[0]) == paid[0]
    )
    stolen = re.findall(
        r"supervisor [^ ']+ token=[0-9.a-f]+", (home / "input").read_text()
    )
    assert stolen
    for options in (("--time=600", "--ntasks=6"), (f"--job-name={job_id}", "--time=2")):
        later = run_as_customer(
            grid,
            thief,
            "sbatch",
            f"--comment={stolen[0]}",
            *options,
            "--wrap=sleep 600",
        )
        assert "supervisor: " in later.stderr
        assert later.returncode != 0
    assert len(jobs_of(grid, thief)) == 1
    as_customer(grid, thief, "touch", str(home / "enough"))
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    assert journal(grid, job_id).count("SlurmCompleted") == 1
    assert len(jobs_of(grid, thief)) == 1
    assert parked(grid) == []


# --- a supervisor whose key is not slurmctld's ----------------------------------------


def test_submission__wrong_key_at_slurmctld__waits_and_the_operator_is_called(
    grid: Grid, customer: Account
) -> None:
    file = slurm_of(grid).layout.folder / "supervisor-submit.key"
    ours = file.read_text()
    try:
        file.write_text("0" * 64 + "\n")
        job_id = grid.submit_script(customer, "#!/bin/bash\n")
        wait_until(
            lambda: refused(grid, job_id), "the submission to be refused", 60.0, 0.1
        )
        assert state_of(grid, job_id) in ("READY", "SUBMITTING")
        fails_for_long(grid, job_id)
        wait_until(lambda: "supervisor: " in alarm(grid), "the alarm", 90.0, 0.2)
    finally:
        file.write_text("1" * 64 + "\n" + ours)  # as while a key is being changed
    wait_until(lambda: in_slurm(grid, job_id) != [], "the submission", 60.0, 0.1)
    file.write_text(ours)
    wait_until(lambda: alarm(grid) == "", "the alarm to go off", 60.0, 0.2)


def refused(grid: Grid, job_id: str) -> bool:
    effects = rows(
        grid,
        "SELECT last_error FROM effects WHERE job_id = :id AND kind = 'submit'",
        id=job_id,
    )
    return any("SLURM_SUBMIT_KEY" in (effect.last_error or "") for effect in effects)
