"""The command lines that SLURM is given."""

import shlex

import pytest

from supervisor_tasks.jobs.model import Definition, JobId, SlurmId
from supervisor_tasks.slurm import commands

JOB = JobId("0x" + "a" * 64)
DEFINITION = Definition(
    gpus=2, mem_per_cpu_mb=500, cpus_per_task=4, ntasks=3, batch_location_hash="h"
)


def test_sbatch__job_with_gpus__asks_for_what_was_paid_for() -> None:
    words = commands.sbatch(
        "/usr/bin/sbatch",
        JOB,
        DEFINITION,
        limit_min=60,
        partition="main",
        comment="supervisor host:3000",
    )
    assert words == [
        "/usr/bin/sbatch",
        "--parsable",
        f"--job-name={JOB}",
        "--comment=supervisor host:3000",
        "--partition=main",
        "--ntasks=3",
        "--cpus-per-task=4",
        "--mem-per-cpu=500M",
        "--gpus=2",
        "--time=60",
        f"--output={JOB}.log",
        "--no-requeue",
        "--ignore-pbs",
    ]
    assert shlex.split(shlex.join(words)) == words


def test_sbatch__no_gpus__does_not_name_them() -> None:
    none = Definition(
        gpus=0, mem_per_cpu_mb=1, cpus_per_task=1, ntasks=1, batch_location_hash="h"
    )
    words = commands.sbatch(
        "sbatch", JOB, none, limit_min=1, partition="main", comment="supervisor host:1"
    )
    assert not [word for word in words if "gpus" in word]


def test_batch_script__sbatch_lines_in_the_body__come_after_a_command() -> None:
    lines = (
        commands.batch_script(JOB, "#!/bin/sh -e\n#SBATCH --ntasks=99\necho\n")
        .decode()
        .splitlines()
    )
    assert lines == [
        "#!/bin/sh -e",
        f"# supervisor job {JOB}",
        "true",
        "#SBATCH --ntasks=99",
        "echo",
    ]


def test_batch_script__without_an_interpreter__gets_bash() -> None:
    assert (
        commands.batch_script(JOB, "echo").decode()
        == f"#!/bin/bash\n# supervisor job {JOB}\ntrue\necho"
    )


def test_batches__ten_thousand_ids__are_one_command() -> None:
    assert list(commands.batches([str(number) for number in range(1, 10_001)])) == [
        ",".join(map(str, range(1, 10_001)))
    ]


def test_batches__more_than_a_command_line_holds__leave_nothing_out() -> None:
    words = [f"{number:010}" for number in range(25_000)]
    batches = list(commands.batches(words))
    assert ",".join(batches).split(",") == words
    assert all(len(batch) <= 100_000 for batch in batches)
    assert list(commands.batches([])) == []


def test_set_time_limit__minutes__are_absolute() -> None:
    assert commands.set_time_limit("scontrol", SlurmId(7), 15) == [
        "scontrol",
        "update",
        "JobId=7",
        "TimeLimit=15",
    ]


def test_scancel__two_jobs__are_named_with_whose_they_must_be() -> None:
    assert commands.scancel("/usr/bin/scancel", [SlurmId(7), SlurmId(8)], "0xab") == [
        "/usr/bin/scancel",
        "--user=0xab",
        "7",
        "8",
    ]


def test_show_config__path_of_scontrol__asks_the_controller_with_unix_time() -> None:
    asked = ["env", "SLURM_TIME_FORMAT=%s", "/usr/bin/scontrol", "show", "config"]
    assert commands.show_config("/usr/bin/scontrol") == asked


SHELLS = [
    "/bin/sh",
    "/bin/bash -e",
    " /usr/bin/env bash",
    "/usr/bin/env -S A=1 bash -x",
    "/usr/bin/fish",
    "",
]


@pytest.mark.parametrize("line", SHELLS)
def test_batch_script__of_a_shell__keeps_its_first_line(line: str) -> None:
    text = commands.batch_script(JOB, f"#!{line}\nbody\n").decode()
    assert text == f"#!{line}\n# supervisor job {JOB}\ntrue\nbody\n"


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("/usr/bin/env python3", "/usr/bin/env python3"),
        (" /usr/bin/env -S python3 -u ", "/usr/bin/env '-S python3 -u'"),
        ("/usr/bin/awk -f;touch x", "/usr/bin/awk '-f;touch x'"),
        ("/x'$(id)", "'/x'\"'\"'$(id)'"),
        ("/{size}", "'/{size}'"),
    ],
)
def test_batch_script__of_another_program__stands_whole_behind_a_shells(
    line: str, becomes: str
) -> None:
    script = f"#!{line}\n#SBATCH --ntasks=9\nbody \u00e4"
    text = commands.batch_script(JOB, script)
    assert text.startswith(f"#!/bin/sh\n# supervisor job {JOB}\nd=".encode())
    assert f'\nexec {becomes} "/proc/$$/fd/9"\n'.encode() in text
    assert text.endswith(b"\n" + script.encode())
    assert f"tail -c {len(script.encode())} " in text.decode()
