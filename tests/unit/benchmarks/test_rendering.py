"""Batch scripts as they are rendered: golden files, shellcheck, and what they do where
this machine is the node.
"""

import re
from pathlib import Path

import pytest

from benchmarks.plan import Mode, PlannedNode, Ucx
from benchmarks.registry import SUITE
from tests.support.benchmark_cases import GOLDEN, GPU_NODES, PLANS, rendered, text
from tests.support.benchmark_plans import DATA, a_plan, run_here

# of a script that plays srun: it runs the words behind the options
RUN_WORDS = 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"'


def test_rendering__every_plan__is_as_its_golden_file_shows() -> None:
    """`make golden` writes them again; the difference is what a reviewer reads."""
    assert {name: text(job) for name, job in rendered().items()} == {
        path.name: path.read_text() for path in GOLDEN.glob("*.sh")
    }


def test_rendering__any_plan__holds_no_line_that_sbatch_obeys() -> None:
    assert not [name for name, job in rendered().items() if "#SBATCH" in job.script]


def test_environment__words_of_a_shell__stay_text() -> None:
    plan = a_plan(environment={"GREETING": "$(touch /tmp/x); 'it' \"is\" `here`"})
    script = SUITE["machine"].render(plan).script + '\nprintf "%s" "$GREETING"\n'
    assert run_here(script).decode().endswith(plan.environment["GREETING"])


def test_rendering__operators_environment__overrides_what_is_set_for_mpi() -> None:
    script = (
        SUITE["osu"].render(a_plan(environment={"OMPI_MCA_btl": "self,tcp"})).script
    )
    assert script.index("OMPI_MCA_btl=vader,self,tcp") < script.index(
        "OMPI_MCA_btl=self,tcp"
    )


# --- GPU and CPU affinity -------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (
            "535.104",
            [
                "--cpu-affinity",
                "0-31,64-95:0-31,64-95:32-63,96-127:32-63,96-127",
                "--gpu-affinity",
                "0:1:2:3",
            ],
        ),
        ("470.57", ["--cpu-affinity", "0-7:8-15", "--gpu-affinity", "0:1"]),
        ("450.80", ["--cpu-affinity", "0-15", "--gpu-affinity", "0"]),
        ("550.54-no-affinity", ["--gpu-affinity", "0:1"]),
        (None, []),
    ],
)
def test_hpl__on_gpus__is_bound_as_nvidia_smi_shows(
    tmp_path: Path, topology: str | None, expected: list[str]
) -> None:
    """srun, nvidia-smi and NVIDIA's hpl.sh are played by small programs; the script is
    the one that is submitted.
    """
    shown = (
        f"cat {DATA}/nvidia-smi-topo-{topology}.made-up.txt" if topology else "exit 9"
    )
    program(tmp_path, "nvidia-smi", shown)
    program(tmp_path, "srun", 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"')
    program(
        tmp_path,
        "hpl.sh",
        'printf "<%s>" "$@"; printf "<%s>" "${UCX_NET_DEVICES:-}" "$UCX_TLS"; echo',
    )
    program(tmp_path, "mpirun", 'shift 2\nexec "$@"')
    plan = a_plan(nodes=GPU_NODES[:1], ucx=Ucx.of_settings(True, "mlx5_0:1", "rc"))
    output = run_here(
        SUITE["hpl"].render(plan).script,
        PATH=f"{tmp_path}:/usr/bin:/bin",
        SLURMD_NODENAME="gpu1",
    ).decode()
    words = re.findall(r"<([^>]*)>", output)
    assert words[0] == "--xhpl-ai"
    assert words[1:-4] == expected
    assert words[-2:] == ["mlx5_0:1", "rc"]
    assert ("told none" in output) == (topology is None)


@pytest.mark.parametrize(
    ("topology", "gpus"), [("535.104", "0:1:2:3"), (None, "0:1:2:3")]
)
def test_hpl__where_there_is_hpl_mxp__is_run_by_parameters(
    tmp_path: Path, topology: str | None, gpus: str
) -> None:
    """NVIDIA's later images have hpl-mxp.sh beside an hpl.sh that knows no mixed
    precision.
    """
    program(
        tmp_path,
        "nvidia-smi",
        f"cat {DATA}/nvidia-smi-topo-{topology}.made-up.txt" if topology else "exit 9",
    )
    program(tmp_path, "srun", 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"')
    program(tmp_path, "hpl.sh", "echo '<never>'")
    program(tmp_path, "hpl-mxp.sh", 'printf "<%s>" "$@"')
    program(tmp_path, "mpirun", 'shift 2\nexec "$@"')
    script = SUITE["hpl"].render(a_plan(nodes=GPU_NODES[:1])).script
    words = re.findall(
        r"<([^>]*)>",
        run_here(
            script, PATH=f"{tmp_path}:/usr/bin:/bin", SLURMD_NODENAME="gpu1"
        ).decode(),
    )
    given = dict(zip(words[::2], words[1::2], strict=True))
    cpus = given.pop("--cpu-affinity", None)
    assert given == {
        "--n": "126464",
        "--nb": "512",
        "--nprow": "2",
        "--npcol": "2",
        "--nporder": "row",
        "--gpu-affinity": gpus,
    }
    assert (cpus is None) == (topology is None)


@pytest.mark.parametrize(
    ("node", "device"), [("gpu1", "mlx5_0:1"), ("gpu2", "mlx5_1:1"), ("gpu3", "")]
)
def test_ranks__with_a_device_list_for_each_node__get_their_nodes(
    tmp_path: Path, node: str, device: str
) -> None:
    program(tmp_path, "mpirun", 'shift 2\nexec "$@"')
    program(tmp_path, "osu_latency", 'echo "<${UCX_NET_DEVICES:-}>"')
    script = SUITE["osu"].render(PLANS["native-gpu-ucx"]).script
    output = run_here(
        script, PATH=f"{tmp_path}:/usr/bin:/bin", SLURMD_NODENAME=node
    ).decode()
    assert f"<{device}>" in output


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


# --- what sbatch is asked for ---------------------------------------------------------


def test_hpl__two_nodes_with_four_gpus_each__asks_for_a_rank_for_each_gpu() -> None:
    job = SUITE["hpl"].render(a_plan(mode=Mode.CONTAINER, nodes=GPU_NODES))
    assert (job.nodes, job.ntasks_per_node, job.cpus_per_task, job.gpus_per_node) == (
        2,
        4,
        16,
        4,
    )
    assert job.exclusive
    assert job.nodelist == ()


def test_hpl__some_nodes_without_gpus__asks_for_those_that_have_some() -> None:
    job = SUITE["hpl"].render(PLANS["container-mixed"])
    assert (job.nodes, job.nodelist) == (2, ("gpu1", "gpu2"))


def test_hpl__single_node__takes_one_of_the_most_common_kind() -> None:
    nodes = (PlannedNode(name="small", cpus=2, mem_mb=1000), *a_plan().nodes)
    job = SUITE["hpl"].render(a_plan(nodes=nodes, hpl_single_node=True))
    assert (job.nodes, job.nodelist) == (1, ("node1",))
    assert "N 62976, NB 512, P x Q 4 x 2" in job.script


def test_hpl__two_nodes__has_the_problem_of_the_smaller_memory() -> None:
    nodes = (
        PlannedNode(name="node1", cpus=15, mem_mb=128460),
        PlannedNode(name="node2", cpus=15, mem_mb=256000),
    )
    script = SUITE["hpl"].render(a_plan(nodes=nodes, hpl_single_node=False)).script
    assert "N 89600, NB 512, P x Q 6 x 5" in script


def test_osu__one_node__runs_two_ranks_there_and_says_so() -> None:
    job = SUITE["osu"].render(PLANS["native-one-node"])
    assert (job.nodes, job.ntasks_per_node) == (1, 2)
    assert "nonce_line note measured between two ranks of one node" in job.script


def test_benchmarks__all__ask_for_a_time_limit_and_no_requeue() -> None:
    for job in rendered().values():
        flags = job.resource_flags()
        assert "--no-requeue" in flags
        assert any(re.fullmatch("--time=[1-9][0-9]*", flag) for flag in flags)


# --- the native programs of this machine ----------------------------------------------


@pytest.mark.parametrize(
    ("volume", "expected"),
    [("disk-tmp", ["--nodes=2", "--nodes=2"]), ("scratch", [])],
)
def test_ior__a_disk_of_each_nodes_own__is_prepared_and_cleaned_on_each_node(
    tmp_path: Path, volume: str, expected: list[str]
) -> None:
    """Two nodes have such a volume each; srun, for which this machine is the other one,
    runs what it is given.
    """
    folder, programs = tmp_path / "volume", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    plan = a_plan(volumes={volume: str(folder)})
    program(programs, "ior", "exit 1")
    program(programs, "mpirun", f"touch {folder}/*/test.00000001; exit 1")
    program(programs, "srun", f'echo "$3" >>{tmp_path}/asked\n{RUN_WORDS}')
    output = run_here(
        SUITE["ior"].render(plan).script, PATH=f"{programs}:/usr/bin:/bin"
    ).decode()
    asked = (
        (tmp_path / "asked").read_text().splitlines()
        if (tmp_path / "asked").exists()
        else []
    )
    assert asked == expected
    assert list(folder.iterdir()) == []
    assert "may be left" not in output


def test_ior__name_taken_on_another_node__volume_is_left_out_by_name(
    tmp_path: Path,
) -> None:
    """srun, for which this machine is the other node, finds another user's link where
    the folder of the test should be.
    """
    folder, programs, target = (tmp_path / name for name in ("volume", "bin", "target"))
    for path in (folder, programs, target):
        path.mkdir()
    program(programs, "ior", "exit 1")
    program(programs, "mpirun", f"touch {tmp_path}/started")
    program(
        programs,
        "srun",
        f'rmdir "${{!#}}" && ln -s {target} "${{!#}}"\n{RUN_WORDS}',
    )
    plan = a_plan(volumes={"disk-tmp": str(folder)})
    reading = SUITE["ior"].parse(
        run_here(SUITE["ior"].render(plan).script, PATH=f"{programs}:/usr/bin:/bin"),
        plan.nonce,
    )
    assert "each node" in reading.left_out["storage.disk-tmp.write.bw.mibps"]
    assert not (tmp_path / "started").exists()
    assert list(folder.iterdir()) == []
    assert target.is_dir()


def test_ior__any_volume__writes_in_a_folder_that_no_other_user_can_enter(
    tmp_path: Path,
) -> None:
    folder, programs = tmp_path / "volume", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    program(programs, "ior", "exit 1")
    show = f'stat -c "%a %n" "$(dirname "${{!#}}")" >{tmp_path}/found'
    program(programs, "mpirun", show)
    plan = a_plan(volumes={"scratch": str(folder)})
    run_here(SUITE["ior"].render(plan).script, PATH=f"{programs}:/usr/bin:/bin")
    mode, _, name = (tmp_path / "found").read_text().strip().partition(" ")
    assert mode == "700"
    assert Path(name).parent == folder
    assert plan.nonce not in name
    assert list(folder.iterdir()) == []


def test_ior__no_folder_of_its_own__volume_is_left_out_by_name(tmp_path: Path) -> None:
    program(tmp_path, "ior", f"touch {tmp_path}/started")
    program(tmp_path, "mpirun", f"touch {tmp_path}/started")
    program(tmp_path, "mktemp", "echo 'mktemp: No space left' >&2; exit 1")
    plan = a_plan(volumes={"scratch": str(tmp_path)})
    reading = SUITE["ior"].parse(
        run_here(SUITE["ior"].render(plan).script, PATH=f"{tmp_path}:/usr/bin:/bin"),
        plan.nonce,
    )
    assert reading.empty
    assert all("No space left" in why for why in reading.left_out.values())
    assert not (tmp_path / "started").exists()


def test_ior__job_is_cancelled__leaves_nothing_in_the_volume(tmp_path: Path) -> None:
    folder, programs = tmp_path / "volume", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    program(programs, "ior", "exit 1")
    cancel = f'ls {folder} >{tmp_path}/found; touch "${{!#}}"; kill -TERM $PPID'
    program(programs, "mpirun", cancel)
    plan = a_plan(volumes={"scratch": str(folder)})
    output = run_here(
        SUITE["ior"].render(plan).script, PATH=f"{programs}:/usr/bin:/bin"
    ).decode()
    assert (tmp_path / "found").read_text().startswith("benchmark-")
    assert "finished" not in output
    assert list(folder.iterdir()) == []


def test_ior__any_volume__writes_until_the_file_is_on_the_disk_and_says_so(
    tmp_path: Path,
) -> None:
    """Else the page cache of the nodes is measured, and not the volume."""
    folder, programs = tmp_path / "volume", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    recorded = DATA / "ior-4.0.0.made-up.txt"
    mpirun = f'while [ "$1" != ior ]; do shift; done; echo "$@" >{tmp_path}/asked; cat {recorded}'
    for name, body in {"ior": "exit 1", "mpirun": mpirun}.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    plan = a_plan(volumes={"scratch": str(folder)})
    output = run_here(
        SUITE["ior"].render(plan).script, PATH=f"{programs}:/usr/bin:/bin"
    )
    reading = SUITE["ior"].parse(output, plan.nonce)
    assert "-e" in (tmp_path / "asked").read_text().split()
    assert "storage.scratch.write.bw.mibps" in reading.numbers
    assert [
        note for note in reading.notes if "storage.scratch" in note and "fsync" in note
    ]


def test_ior__neither_program__is_left_out_by_name(tmp_path: Path) -> None:
    for name in ("bash", "sed", "rm", "cat"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    plan = a_plan(volumes={"scratch": str(tmp_path)})
    reading = SUITE["ior"].parse(
        run_here(SUITE["ior"].render(plan).script, PATH=str(tmp_path)), plan.nonce
    )
    assert reading.empty
    assert set(reading.left_out.values()) == {"neither ior nor fio on the node"}


def test_speedtest__no_program_and_no_server__is_left_out_by_name() -> None:
    plan = a_plan()
    reading = SUITE["speedtest"].parse(
        run_here(SUITE["speedtest"].render(plan).script), plan.nonce
    )
    assert reading.empty
    assert sorted(reading.left_out) == [
        "network.download.bw.mbps",
        "network.upload.bw.mbps",
    ]
    assert (
        "no iperf3 server is configured" in reading.left_out["network.upload.bw.mbps"]
    )


def test_osu__no_program__is_left_out_by_name() -> None:
    plan = a_plan()
    reading = SUITE["osu"].parse(run_here(SUITE["osu"].render(plan).script), plan.nonce)
    assert reading.empty
    assert reading.left_out["network.p2p.bw.mbps"] == "no osu_bibw on the node"


def test_hpl__no_program__is_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "bash").symlink_to("/bin/bash")
    plan = a_plan()
    reading = SUITE["hpl"].parse(
        run_here(SUITE["hpl"].render(plan).script, PATH=str(tmp_path)), plan.nonce
    )
    assert reading.left_out == {"compute.gflops": "neither xhpl nor hpcc on the node"}
