"""The token that slurmctld asks for, and what plugins/supervisor_submit.lua makes of
it, in Lua's own interpreter.
"""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from devgrid.machine import deadline
from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.jobs.model import Definition, JobId
from supervisor_tasks.slurm.parsers import (
    CommandAnswer,
    SlurmRejectedError,
    SlurmUnavailableError,
    submitted_id,
)
from supervisor_tasks.slurm.submit_token import (
    Submission,
    expires_s,
    signed_text,
    with_token,
)

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
KEY, OTHER_KEY = "0123456789abcdef" * 4, "f" * 64
NOW = 1_800_000_000
SUBMISSION = Submission(
    job_id=JobId("0x" + "a" * 64),
    user="0x" + "Bc" * 20,
    definition=Definition(
        gpus=2, mem_per_cpu_mb=500, cpus_per_task=4, ntasks=3, batch_location_hash="h"
    ),
    limit_min=60,
    partition="main",
    comment="supervisor host.example.com:3000",
    number=1,
    expires_s=NOW + 80,
)
# slurmctld's side: a job as job_submit/lua shows it (SLURM 22.05.8), and the time
HARNESS = """
local now, log = {now}, {{}}
os.time = function() return now end
slurm = {{ SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, jobs = {{}}, log_info = function() end,
    log_user = function(...) log[#log + 1] = string.format(...) end }}
local supervisor = dofile("{folder}/supervisor_submit.lua")
local function submit(comment, changed)
    local job = {{ name = "{name}", user_name = "{user}", user_id = 7, time_limit = 60, num_tasks = 3, cpus_per_task = 4,
        min_mem_per_cpu = 500, tres_per_job = "gres:gpu:2", partition = "main", comment = comment, min_cpus = 12,
        pn_min_cpus = 4, requeue = 0, shared = 65534, priority = 4294967294, begin_time = 0, cron_job = false,
        script = "#!/bin/sh\\n# supervisor job {name}\\ntrue\\n" }}
    for key, value in pairs(changed or {{}}) do job[key] = value end
    log = {{}}
    local code = supervisor.submit(job, 7)
    print(code == 0 and "taken: " .. tostring(job.comment) or (log[1]:match("^supervisor: (.-):")))
end
{calls}
"""


class Script:
    """The script beside its settings, as a site has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for file in ("supervisor_submit.lua", "supervisor_sha256.lua"):
            (folder / file).write_text((PLUGINS / file).read_text())
        self.key, self.used, self.conf = (
            folder / "key",
            folder / "used",
            folder / "supervisor_submit.conf",
        )
        self.key.write_text(f"{KEY}\n")
        self.conf.write_text(
            f"# the site's\nkey_file = {self.key}\nused_file={self.used}\n"
        )

    def run(self, *calls: str, now: int = NOW) -> list[str]:
        """What each call, in one slurmctld, comes to."""
        about = {
            "folder": self.folder,
            "name": SUBMISSION.job_id,
            "user": SUBMISSION.user,
            "now": now,
        }
        program = HARNESS.format(calls="\n".join(calls), **about)
        done = subprocess.run(
            ["lua5.1", "-"],
            input=program,
            capture_output=True,
            text=True,
            timeout=deadline(60),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def submit(
    submission: Submission = SUBMISSION, key: str = KEY, changed: str = "nil"
) -> str:
    return f'submit("{with_token(submission, key)}", {changed})'


def test_token__covers_all_that_a_job_costs() -> None:
    assert signed_text(SUBMISSION).split("\n") == [
        "supervisor-submit-1",
        SUBMISSION.job_id,
        SUBMISSION.user.lower(),
        *("60", "3", "4", "500", "2", "main"),
        *("supervisor host.example.com:3000", "1", str(NOW + 80)),
    ]


def test_expiry__lasts_as_long_as_sbatch_may_run_and_clocks_differ() -> None:
    assert expires_s(NOW, 10.0, 10.0) == NOW + 80


def test_script__takes_the_supervisors_job_and_the_token_out_of_its_comment(
    script: Script,
) -> None:
    assert script.run(submit()) == ["taken: supervisor host.example.com:3000"]


@pytest.mark.parametrize(
    "length", [0, 1, 7, 8, 60, 61, 62, 63, 64, 65, 100, 127, 128, 129, 500]
)
def test_script__any_length__computes_the_same_code(
    script: Script, length: int
) -> None:
    assert script.run(submit(replace(SUBMISSION, comment="c" * length)))[0].startswith(
        "taken"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("{time_limit = 61}", "wrong token"),
        ("{num_tasks = 6, min_cpus = 24}", "wrong token"),
        ("{min_mem_per_cpu = 501}", "wrong token"),
        ("{tres_per_job = 'gres:gpu:4'}", "wrong token"),
        ("{tres_per_job = 'gres:gpu:2,license:1'}", "wrong token"),
        ("{user_name = '0x" + "1" * 40 + "'}", "wrong token"),
        ("{name = 'x\\n'}", "wrong token"),
        ("{shared = 0}", "token does not cover shared"),
        ("{priority = 0}", "token does not cover priority"),
        ("{min_cpus = 24}", "token does not cover min_cpus"),
        ("{array_inx = '1-10'}", "token does not cover array_inx"),
        ("{begin_time = 5}", "token does not cover begin_time"),
        ("{requeue = 1}", "token does not cover requeue"),
        ("{cron_job = true}", "token does not cover cron_job"),
        ("{tres_per_task = 'cpu:5'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'cpu=8'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'cpu:4,gres:gpu:1'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'gres:gpu:1'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'gres/gpu:4'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'cpu'}", "token does not cover tres_per_task"),
        ("{script = '#!/bin/sh\\n'}", "token does not cover script"),
        ("{comment = 'supervisor host:1'}", "no token"),
        ("{user_name = 'alice', comment = 'x'}", "taken: x"),
    ],
)
def test_script__refuses_what_was_not_paid_for(
    script: Script, changed: str, said: str
) -> None:
    assert script.run(submit(changed=changed)) == [said]


@pytest.mark.parametrize("tres", ["cpu:4", "cpu=4"])
def test_script__takes_the_paid_cpus_of_a_task_as_newer_slurm_shows_them(
    script: Script, tres: str
) -> None:
    """sbatch of SLURM 22.11 to 24.11 writes --cpus-per-task into tres_per_task too;
    22.05 leaves it out.
    """
    assert script.run(submit(changed=f"{{tres_per_task = '{tres}'}}")) == [
        "taken: supervisor host.example.com:3000"
    ]


def test_script__takes_a_token_once_and_none_that_is_older(script: Script) -> None:
    later, latest = replace(SUBMISSION, number=2), replace(SUBMISSION, number=3)
    assert script.run(submit(), submit(), submit(later), submit(), submit(later)) == [
        "taken: supervisor host.example.com:3000",
        "token used",
        "taken: supervisor host.example.com:3000",
        "token used",
        "token used",
    ]
    assert script.run(submit(later), submit(latest)) == [
        "token used",
        "taken: supervisor host.example.com:3000",
    ]


def test_script__a_last_line_that_was_cut_off_spoils_no_other(script: Script) -> None:
    script.run(submit())
    with script.used.open("a") as file:
        file.write("1 18000")
    assert (
        script.run(submit(), submit(replace(SUBMISSION, number=2)))[0] == "token used"
    )
    assert script.run(submit(replace(SUBMISSION, number=2))) == ["token used"]


def test_script__forgets_tokens_that_are_over(script: Script) -> None:
    script.used.write_text(
        "".join(f"1 {NOW - 1} 0x{number} .\n" for number in range(5000))
    )
    script.run(submit())
    assert len(script.used.read_text().splitlines()) == 1


def test_script__forgets_while_slurmctld_runs(script: Script) -> None:
    jobs = [replace(SUBMISSION, number=number) for number in range(1, 2101)]
    script.run(
        "local function each(text) return submit(text) end",
        *(submit(job) for job in jobs),
    )
    assert len(script.used.read_text().splitlines()) < 1100


def test_script__expired_or_of_a_clock_far_ahead(script: Script) -> None:
    ahead = replace(SUBMISSION, expires_s=NOW + 4000)
    assert script.run(submit(), now=NOW + 81) == ["token expired"]
    assert script.run(submit(ahead)) == ["token expired"]


@pytest.mark.parametrize("keys", [f"{OTHER_KEY}\n{KEY}\n", f"{KEY}\n{OTHER_KEY}\n"])
def test_script__takes_both_keys_while_they_are_changed(
    script: Script, keys: str
) -> None:
    script.key.write_text(keys)
    assert script.run(submit(), submit(replace(SUBMISSION, number=2), OTHER_KEY))[
        1
    ].startswith("taken")
    script.key.write_text(f"{OTHER_KEY}\n")
    assert script.run(submit(replace(SUBMISSION, number=3))) == ["wrong token"]


@pytest.mark.parametrize("keys", ["", "secret\n", f"{KEY}\n{KEY}\n{KEY}\n"])
def test_script__without_a_key__refuses_only_customers(
    script: Script, keys: str
) -> None:
    script.key.write_text(keys)
    assert script.run(submit(), submit(changed="{user_name = 'alice'}"))[0] == "no key"


def test_script__that_cannot_write_down_what_was_used_takes_nothing(
    script: Script,
) -> None:
    script.conf.write_text(
        f"key_file = {script.key}\nused_file = {script.folder}/missing/used\n"
    )
    assert script.run(submit()) == ["no memory"]


VERDICT = "sbatch: error: Batch job submission failed: Access/permission denied\n"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("no token: x", SlurmUnavailableError),
        ("wrong token: x", SlurmUnavailableError),
        ("token expired: x", SlurmUnavailableError),
        ("token does not cover qos: x", SlurmUnavailableError),
        ("no key: x", SlurmUnavailableError),
        ("no memory: x", SlurmUnavailableError),
        ("unknown user: x", SlurmUnavailableError),
        ("token used: x", OutcomeUnknownError),
        ("anything else", SlurmRejectedError),
    ],
)
def test_sbatch__what_the_script_said_is_no_refusal_of_the_job(
    said: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        submitted_id(
            CommandAnswer(1, "", f"sbatch: error: supervisor: {said}\n{VERDICT}")
        )
