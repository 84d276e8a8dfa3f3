"""The token that slurmctld asks for, and what plugins/supervisor_submit.lua makes of
it, in the interpreter of each version of Lua that SLURM links.
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
# what SLURM links: 5.1 on Debian 12, 5.3 on EL8, 5.4 on EL9
INTERPRETERS = [
    "lua5.1",
    *(pytest.param(name, marks=pytest.mark.extended) for name in ("lua5.3", "lua5.4")),
]
# slurmctld's side: a job as job_submit/lua shows it (SLURM 22.05.8), and the time. All
# its numbers come from lua_pushnumber, which makes them floats in Lua 5.3 and later.
HARNESS = """
local now, log, NONE = {now}, {{}}, {{}}
os.time = function() return now end
slurm = {{ SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, jobs = {{}}, log_info = string.format,
    log_user = function(...) log[#log + 1] = string.format(...) end }}
local supervisor = dofile("{folder}/supervisor_submit.lua")
local function with_floats(given)
    for key, value in pairs(given) do
        if type(value) == "number" then given[key] = value + 0.0 end
    end
    return given
end
local function submit(comment, changed, uid)
    local job = {{ name = "{name}", user_name = "{user}", user_id = 7, time_limit = 60, num_tasks = 3, cpus_per_task = 4,
        min_mem_per_cpu = 500, tres_per_job = "gres:gpu:2", partition = "main", comment = comment, min_cpus = 12,
        pn_min_cpus = 4, requeue = 0, shared = 65534, priority = 4294967294, begin_time = 0, cron_job = false,
        script = "#!/bin/sh\\n# supervisor job {name}\\ntrue\\n" }}
    for key, value in pairs(changed or {{}}) do
        if value == NONE then job[key] = nil else job[key] = value end
    end
    log = {{}}
    local code = supervisor.submit(with_floats(job), (uid or 7) + 0.0)
    print(code == 0 and "taken: " .. tostring(job.comment) or (log[1]:match("^supervisor: (.-):")))
end
local function modify(asks, uid, owner, comment, claimed, new_comment)
    local request = {{ user_id = claimed or uid, user_name = asks, comment = new_comment }}
    local job = {{ job_id = 1, user_id = owner, comment = comment }}
    print(supervisor.modify(with_floats(request), with_floats(job), uid + 0.0) == 0 and "changed" or "refused")
end
{calls}
"""


class Script:
    """The script beside its settings, as a site has it."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.folder, self.interpreter = folder, interpreter
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
            [self.interpreter, "-"],
            input=program,
            capture_output=True,
            text=True,
            timeout=deadline(60),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(params=INTERPRETERS)
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Script:
    return Script(tmp_path, request.param)


def submit(
    submission: Submission = SUBMISSION, key: str = KEY, changed: str = "nil"
) -> str:
    return f'submit("{with_token(submission, key)}", {changed})'


def test_token__signed_text__covers_all_that_a_job_costs() -> None:
    assert signed_text(SUBMISSION).split("\n") == [
        "supervisor-submit-1",
        SUBMISSION.job_id,
        SUBMISSION.user.lower(),
        *("60", "3", "4", "500", "2", "main"),
        *("supervisor host.example.com:3000", "1", str(NOW + 80)),
    ]


def test_expiry__sbatch_takes_its_time_and_clocks_differ__allows_for_both() -> None:
    assert expires_s(NOW, 10.0, 10.0) == NOW + 80


def test_script__supervisors_job__is_taken_and_its_comment_loses_the_token(
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
        ("{cpus_per_task = 8, min_cpus = 24, pn_min_cpus = 8}", "wrong token"),
        ("{min_mem_per_cpu = 501}", "wrong token"),
        ("{min_mem_per_cpu = NONE}", "wrong token"),  # none: the partition's default
        ("{tres_per_job = 'gres:gpu:4'}", "wrong token"),
        ("{tres_per_job = 'gres:gpu:2,license:1'}", "wrong token"),
        ("{tres_per_job = 'license:1,gres:gpu:2'}", "wrong token"),
        ("{partition = 'main,expensive'}", "wrong token"),
        ("{user_name = '0x" + "1" * 40 + "'}", "wrong token"),
        ("{name = 'x\\n'}", "wrong token"),
        ("{num_tasks = 3.5}", "wrong token"),
        ("{min_mem_per_cpu = 2 ^ 63}", "wrong token"),  # no integer in Lua
        ("{min_mem_per_cpu = math.huge}", "wrong token"),
        ("{shared = 0}", "token does not cover shared"),
        ("{priority = 0}", "token does not cover priority"),
        ("{min_cpus = 24}", "token does not cover min_cpus"),
        ("{array_inx = '1-10'}", "token does not cover array_inx"),
        ("{begin_time = 5}", "token does not cover begin_time"),
        ("{requeue = 1}", "token does not cover requeue"),
        ("{requeue = 65534}", "token does not cover requeue"),  # the site's JobRequeue
        ("{pn_min_cpus = 8}", "token does not cover pn_min_cpus"),
        ("{cron_job = true}", "token does not cover cron_job"),
        ("{tres_per_task = 'cpu:5'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'cpu=8'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'cpu:4,gres:gpu:1'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'gres:gpu:1'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'gres/gpu:4'}", "token does not cover tres_per_task"),
        ("{tres_per_task = 'cpu'}", "token does not cover tres_per_task"),
        ("{script = '#!/bin/sh\\n'}", "token does not cover script"),
        (
            "{script = '#!/bin/sh\\n# supervisor job 0x1\\ntrue\\n'}",
            "token does not cover script",
        ),
        ("{comment = 'supervisor host:1'}", "no token"),
        ("{user_name = 'alice', comment = 'x'}", "taken: x"),
    ],
)
def test_script__customers_job_not_as_paid_for__is_refused_with_the_reason(
    script: Script, changed: str, said: str
) -> None:
    assert script.run(submit(changed=changed)) == [said]


# what sbatch of SLURM 22.05 to 24.11 can ask for beyond what a token tells
UNPAID_OPTIONS = """
account admin_comment array_inx batch_features begin_time boards_per_node burst_buffer
clusters container contiguous core_spec cores_per_socket cpu_freq_gov cpu_freq_max
cpu_freq_min cpus_per_tres delay_boot dependency end_time exc_nodes extra features
het_job_offset immediate licenses max_cpus max_nodes mcs_label mem_per_tres
min_mem_per_node min_nodes network nice ntasks_per_board ntasks_per_core ntasks_per_gpu
ntasks_per_node ntasks_per_socket ntasks_per_tres pn_min_tmp_disk prefer priority qos
reboot req_nodes req_switch reservation shared site_factor sockets_per_board
sockets_per_node thread_spec threads_per_core time_min tres_bind tres_freq tres_per_node
tres_per_socket wait4switch wckey
"""
NOT_TOLD = UNPAID_OPTIONS.split()


def test_script__each_option_that_no_token_tells__is_refused(script: Script) -> None:
    asked = "\n".join(f"submit(COMMENT, {{{name} = 5}})" for name in NOT_TOLD)
    said = script.run(f'COMMENT = "{with_token(SUBMISSION, KEY)}"', asked)
    assert said == [f"token does not cover {name}" for name in NOT_TOLD]


@pytest.mark.parametrize("asked", [1, 2, 127, 128, 254, 255, 256, 65533])
def test_script__number_of_any_size_that_no_token_tells__is_refused(
    script: Script, asked: int
) -> None:
    """254 is NO_VAL of 8 bits, which no field has, and also the CPUs of a node."""
    named = ["pn_min_cpus", "min_cpus", *NOT_TOLD]
    calls = "\n".join(f"submit(COMMENT, {{{name} = {asked}}})" for name in named)
    said = script.run(f'COMMENT = "{with_token(SUBMISSION, KEY)}"', calls)
    assert said == [f"token does not cover {name}" for name in named]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("{pn_min_cpus = 65534}", "taken: supervisor host.example.com:3000"),
        ("{min_cpus = 4294967294}", "taken: supervisor host.example.com:3000"),
        ("{min_cpus = 65534}", "token does not cover min_cpus"),
    ],
)
def test_script__number_that_was_left_out__is_taken_in_its_own_width(
    script: Script, changed: str, said: str
) -> None:
    assert script.run(submit(changed=changed)) == [said]


@pytest.mark.parametrize("tres", ["cpu:4", "cpu=4"])
def test_script__paid_cpus_of_a_task_as_newer_slurm_shows_them__are_taken(
    script: Script, tres: str
) -> None:
    """sbatch of SLURM 22.11 to 24.11 writes --cpus-per-task into tres_per_task too;
    22.05 leaves it out.
    """
    assert script.run(submit(changed=f"{{tres_per_task = '{tres}'}}")) == [
        "taken: supervisor host.example.com:3000"
    ]


def test_script__part_of_a_code_or_none_of_its_digits__is_a_wrong_token(
    script: Script,
) -> None:
    comment, _, code = with_token(SUBMISSION, KEY).rpartition(".")
    guessed = [f"{comment}.{code[:1]}", f"{comment}.{code}0", f"{comment}.{code[:-1]}"]
    assert script.run(*(f'submit("{guess}")' for guess in guessed)) == [
        "wrong token"
    ] * len(guessed)


def test_script__false_code_with_more_digits__is_a_wrong_token_however_many(
    script: Script,
) -> None:
    """Digits that are too many must not make up for one that is wrong: then about
    11,000 tries would find the number of digits that does for any code.
    """
    comment, _, code = with_token(SUBMISSION, KEY).rpartition(".")
    other = "1" if code[-1] == "0" else "0"
    apart = abs(ord(code[-1]) - ord(other))
    false = f"{comment}.{code[:-1]}{other}"
    more = [0, 1, apart, apart**2 - 1, apart**2, apart**2 + 1, 2000]
    tries = (f'submit("{false}{"0" * digits}")' for digits in more)
    assert script.run(*tries) == ["wrong token"] * len(more)


def test_script__text_of_any_length__costs_slurmctld_no_more_than_a_short_one(
    script: Script,
) -> None:
    """A customer's texts come to the script before SLURM limits them."""
    code = "0" * 64
    tries = [
        f"submit(('x'):rep(10 ^ 7) .. ' token=1.{NOW}.{code}')",
        f"submit('x token=1.{NOW}.{code}', {{name = ('x'):rep(10 ^ 7)}})",
        f"submit('x token=1.{NOW}.{code}', {{partition = ('x'):rep(10 ^ 7)}})",
        f"submit('x token=1.' .. ('9'):rep(10 ^ 6) .. '.{code}')",
        f"submit('x token=' .. ('9'):rep(10 ^ 6) .. '.{NOW}.{code}')",
    ]
    assert script.run(*tries) == ["wrong token"] * len(tries)


def test_script__false_code_that_has_expired__is_refused_before_a_code_is_computed(
    script: Script,
) -> None:
    false = f"submit('x token=1.1.{'0' * 64}')"
    assert script.run(false)[0].startswith("token expired")


def test_script__token_given_again_or_an_older_one__is_refused_as_used(
    script: Script,
) -> None:
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


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("", "token used"),
        ("job_state = 0", "token used"),
        ("job_state = 3", "taken: supervisor host.example.com:3000"),
        ("name = 'another'", "taken: supervisor host.example.com:3000"),
        ("user_id = 8", "taken: supervisor host.example.com:3000"),
    ],
    ids=["runs", "waits", "has ended", "another job", "another user's"],
)
def test_script__later_token_of_a_job_that_is_live__is_not_taken(
    script: Script, job: str, said: str
) -> None:
    """A customer can keep the tokens of submissions, and say that none ran."""
    listed = f'{{user_id = 7, job_state = 1, name = "{SUBMISSION.job_id}"}}'
    calls = (
        f"slurm.jobs[1] = {listed}",
        f"for key, value in pairs({{{job}}}) do slurm.jobs[1][key] = value end",
        submit(replace(SUBMISSION, number=2)),
    )
    assert script.run(*calls) == [said]


def test_script__older_token_that_counts_for_longer__stays_used(
    script: Script,
) -> None:
    """It counts until slurmctld has forgotten the later number; slurmctld is started
    again, so that it forgets now.
    """
    lasting = replace(SUBMISSION, expires_s=NOW + 3600)
    script.run(submit(replace(SUBMISSION, number=2)))
    for later_s in (400, 3600):
        assert script.run(submit(lasting), now=NOW + later_s) == ["token used"]


TAKEN = "taken: supervisor host.example.com:3000"
# The next line of the file of used tokens is cut off where the disk is full.
DISK_FULL = """
local open = io.open
io.open = function(name, mode)
    if mode ~= "a" then return open(name, mode) end
    io.open = open
    local file = open(name, mode)
    file:write("1 18000")
    file:close()
    return { write = function() return nil, "No space left on device" end,
        close = function() return true end }
end
"""


def test_script__last_line_of_used_tokens_was_cut_off__spoils_no_other(
    script: Script,
) -> None:
    later = replace(SUBMISSION, number=2)
    script.run(submit())
    with script.used.open("a") as file:
        file.write(f"9 {NOW + 380} {SUBMISSION.job_id}")
    assert script.run(submit(), submit(later)) == ["token used", TAKEN]
    assert script.run(submit(later)) == ["token used"]


def test_script__disk_was_full_for_a_while__forgets_no_token_that_was_used(
    script: Script,
) -> None:
    later = replace(SUBMISSION, number=2)
    assert script.run(
        submit(replace(SUBMISSION, number=0)), DISK_FULL, submit(), submit(later)
    ) == [
        TAKEN,
        "no memory",
        TAKEN,
    ]
    assert script.run(submit(later)) == ["token used"]


def test_script__tokens_that_are_over__are_forgotten(script: Script) -> None:
    script.used.write_text(
        "".join(f"1 {NOW - 1} 0x{number} .\n" for number in range(5000))
    )
    script.run(submit())
    assert len(script.used.read_text().splitlines()) == 1


def test_script__slurmctld_runs_on__forgets_older_tokens_meanwhile(
    script: Script,
) -> None:
    jobs = [replace(SUBMISSION, number=number) for number in range(1, 2101)]
    script.run(
        "local function each(text) return submit(text) end",
        *(submit(job) for job in jobs),
    )
    assert len(script.used.read_text().splitlines()) < 1100


def test_script__token_expired_or_of_a_clock_far_ahead__is_refused(
    script: Script,
) -> None:
    ahead = replace(SUBMISSION, expires_s=NOW + 4000)
    assert script.run(submit(), now=NOW + 81) == ["token expired"]
    assert script.run(submit(ahead)) == ["token expired"]


@pytest.mark.parametrize("keys", [f"{OTHER_KEY}\n{KEY}\n", f"{KEY}\n{OTHER_KEY}\n"])
def test_script__keys_are_being_changed__takes_both(script: Script, keys: str) -> None:
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


@pytest.mark.parametrize("conf", [None, "", "key_file = /missing\n"])
def test_script__without_settings__takes_nothing_of_a_customer(
    script: Script, conf: str | None
) -> None:
    if conf is None:
        script.conf.unlink()
    else:
        script.conf.write_text(conf)
    alice = submit(changed="{user_name = 'alice', comment = 'x'}")
    own = submit(changed="{comment = 'x'}")
    assert script.run(submit(), own, alice) == ["no key", "no key", "taken: x"]


@pytest.mark.parametrize(
    ("changed", "uid", "said"),
    [
        ("{user_name = NONE}", 7, "unknown user"),
        ("{comment = 'x'}", 0, "taken: x"),  # root, for a customer
        ("{comment = 'x'}", 8, "taken: x"),  # an administrator of SLURM, for a customer
        ("{user_id = 0, user_name = 'root', comment = 'x'}", 0, "taken: x"),
        ("{user_name = '0X" + "aB" * 20 + "', comment = 'x'}", 7, "no token"),
        ("{user_name = '0x" + "a" * 39 + "', comment = 'x'}", 7, "taken: x"),
    ],
)
def test_script__who_submits__decides_whether_a_token_is_asked_for(
    script: Script, changed: str, uid: int, said: str
) -> None:
    without_token = f'submit("x", {changed}, {uid})'
    assert script.run(without_token) == [said]


@pytest.mark.parametrize(
    ("asks", "uid", "owner", "comment", "said"),
    [
        (SUBMISSION.user, 7, 7, "supervisor host:1", "refused"),
        (SUBMISSION.user, 7, 7, "x", "refused"),  # a nested job's
        ("", 7, 7, "supervisor host:1", "refused"),  # a user without a name
        ("alice", 7, 7, "x", "changed"),
        ("root", 0, 7, "supervisor host:1", "changed"),
        ("slurmadmin", 8, 7, "supervisor host:1", "changed"),
    ],
)
def test_script__change_of_a_job__is_refused_to_its_owner(
    script: Script, asks: str, uid: int, owner: int, comment: str, said: str
) -> None:
    assert script.run(f'modify("{asks}", {uid}, {owner}, "{comment}")') == [said]


@pytest.mark.parametrize(
    ("asks", "claimed", "comment", "said"),
    [
        ("root", 0, "supervisor x", "refused"),
        ("root", 0, "supervisor", "refused"),
        ("", 4294967294, "supervisor x", "refused"),  # NO_VAL: no user at all
        ("alice", 7, "supervisor x", "changed"),
        ("root", 0, "x", "changed"),
    ],
)
def test_script__change_by_an_owner_who_gives_another_user__makes_no_job_paid(
    script: Script, asks: str, claimed: int, comment: str, said: str
) -> None:
    """slurmctld keeps the user that the request names. A nested job with the comment of
    a paid one would admit others.
    """
    changes = f'modify("{asks}", 7, 7, "x", {claimed}, "{comment}")'
    assert script.run(changes) == [said]


@pytest.mark.parametrize(
    ("nested", "job", "said"),
    [
        ("", "{user_id = 7, job_state = 1, comment = 'supervisor h:1'}", "no token"),
        ("no", "{user_id = 7, job_state = 1, comment = 'supervisor h:1'}", "no token"),
        ("yes", "{user_id = 7, job_state = 1, comment = 'supervisor h:1'}", "taken: x"),
        ("yes", "{user_id = 8, job_state = 1, comment = 'supervisor h:1'}", "no token"),
        ("yes", "{user_id = 7, job_state = 0, comment = 'supervisor h:1'}", "no token"),
        ("yes", "{user_id = 7, job_state = 3, comment = 'supervisor h:1'}", "no token"),
        ("yes", "{user_id = 7, job_state = 1, comment = 'x'}", "no token"),
        (
            "yes # of each job",
            "{user_id = 7, job_state = 1, comment = 'supervisor h:1'}",
            "taken: x",
        ),
    ],
)
def test_script__nested_job__is_taken_where_allowed_while_a_paid_job_runs(
    script: Script, nested: str, job: str, said: str
) -> None:
    if nested:
        script.conf.write_text(f"{script.conf.read_text()}nested_jobs = {nested}\n")
    assert script.run(f"slurm.jobs[1] = {job}", 'submit("x")') == [said]


@pytest.mark.parametrize("comment", ["supervisor h:1", "supervisor", "supervisor x y"])
def test_script__nested_job_that_calls_itself_paid__is_refused(
    script: Script, comment: str
) -> None:
    """Further jobs of its owner would be taken while it runs, without an end."""
    script.conf.write_text(f"{script.conf.read_text()}nested_jobs = yes\n")
    paid = "{user_id = 7, job_state = 1, comment = 'supervisor h:1'}"
    assert script.run(f"slurm.jobs[1] = {paid}", f'submit("{comment}")') == ["no token"]


def test_script__settings_with_comments_behind_them__are_read_without_these(
    script: Script,
) -> None:
    script.conf.write_text(
        f"# ours\nkey_file = {script.key}  # of SlurmUser\n"
        f"used_file = {script.used}\t# in StateSaveLocation\n"
    )
    assert script.run(submit()) == [TAKEN]
    assert script.used.read_text()


def test_script__cannot_write_down_what_was_used__takes_nothing(
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
def test_sbatch__known_words_of_the_script__are_no_refusal_of_the_job(
    said: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        submitted_id(
            CommandAnswer(1, "", f"sbatch: error: supervisor: {said}\n{VERDICT}")
        )
