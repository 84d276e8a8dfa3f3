"""What hardware a partition has: recorded answers of SLURM 22.05, answers in the form
of later versions, and anything else.
"""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor_tasks.slurm.hardware import (
    PartitionHardware,
    SlurmNode,
    ask_hardware,
    read_hardware,
)
from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from tests.support.examples import examples

DATA = Path(__file__).parents[2] / "data" / "slurm"
DELIMITER = "4f1d0c9ab3"  # with which the samples were recorded
PARTITION_LINE = "PartitionName=main Nodes=node[1-2] State=UP TotalNodes=2\n"


def sample(name: str) -> CommandAnswer:
    stderr = DATA / f"specs-{name}.stderr.txt"
    return CommandAnswer(
        0,
        (DATA / f"specs-{name}.txt").read_text(),
        stderr.read_text() if stderr.exists() else "",
    )


def read(
    name: str, partition: str = "main", *, unresponsive: bool = False
) -> PartitionHardware:
    return read_hardware(sample(name), DELIMITER, partition, unresponsive=unresponsive)


def sizes(hardware: PartitionHardware) -> dict[str, tuple[int, int, int]]:
    return {node.name: (node.cpus, node.gpus, node.mem_mb) for node in hardware.nodes}


def node_line(name: str = "node1", **fields: str) -> str:
    known = {
        "Gres": "(null)",
        "RealMemory": "1000",
        "State": "IDLE",
        "Partitions": "main",
        "CfgTRES": "cpu=4,mem=1000M",
    }
    words = " ".join(f"{key}={value}" for key, value in (known | fields).items())
    return f"NodeName={name} CPUTot=8 {words}\n"


def answer(
    *nodes: str, members: str | None = None, partition: str = PARTITION_LINE
) -> CommandAnswer:
    if members is None:
        members = "".join(
            f"main|{node.split(' ')[0].removeprefix('NodeName=')}\n" for node in nodes
        )
    return CommandAnswer(
        0,
        f"{DELIMITER}\n{partition}{DELIMITER} 0\n{''.join(nodes)}{DELIMITER} 0\n{members}{DELIMITER} 0\n",
        "",
    )


def one(**fields: str) -> SlurmNode:
    """The only node of a partition."""
    (node,) = read_hardware(
        answer(node_line(**fields)), DELIMITER, "main", unresponsive=True
    ).nodes
    return node


# --- recorded -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "minutes"),
    [
        ("7-00:00:00", 7 * 24 * 60),
        ("01:30:00", 90),
        ("00:00:00", 0),
        ("UNLIMITED", None),
        ("-1", None),
        ("9" * 5000, None),
    ],
)
def test_read_hardware__each_form_of_maxtime__gives_minutes_or_no_limit(
    shown: str, minutes: int | None
) -> None:
    partition = PARTITION_LINE.replace(
        "PartitionName=main", f"PartitionName=main MaxTime={shown}"
    )
    assert (
        read_hardware(
            answer(node_line(), partition=partition), DELIMITER, "main"
        ).max_time_min
        == minutes
    )


def test_hardware__in_order__has_those_that_were_left_out_at_their_places() -> None:
    hardware = read_hardware(
        answer(node_line("n10"), node_line("n2", State="DOWN"), node_line("n1")),
        DELIMITER,
        "main",
    )
    assert [node.name for node in hardware.nodes] == ["n1", "n10"]
    assert [node.name for node in hardware.in_order] == ["n1", "n2", "n10"]


def test_read_hardware__recorded__counts_what_works_in_natural_order() -> None:
    hardware = read("states-slurm-22.05.8")
    assert sizes(hardware) == {
        # powered down; two of 128 CPUs and 8192 MB are SLURM's own
        "big1": (126, 0, 2_088_960),
        "mig1": (32, 7, 257_500),
        "node1": (8, 2, 16_000),  # its comment says State=DOWN CfgTRES=cpu=1
        "node10": (8, 2, 16_000),
        "typed1": (16, 4, 515_000),  # powered down, reserved for maintenance
    }
    assert [node.name for node in hardware.nodes] == [
        "big1",
        "mig1",
        "node1",
        "node10",
        "typed1",
    ]
    assert hardware.hidden_nodes == 2  # later[1-2], FUTURE


def test_read_hardware__recorded__has_the_excluded_nodes_with_their_states() -> None:
    excluded_nodes = {
        node.name: node.state for node in read("states-slurm-22.05.8").excluded_nodes
    }
    assert excluded_nodes == {
        "broken1": "DOWN+NOT_RESPONDING",
        "mixed1": "IDLE+CLOUD+DRAIN+POWERED_DOWN",
        "node2": "IDLE+DRAIN",  # its reason says State=IDLE CfgTRES=cpu=999
        "node3": "IDLE+DRAIN",
        "node4": "IDLE+FAIL",
        "odd1": "UNKNOWN+NOT_RESPONDING",
        "typed2": "DOWN+CLOUD+POWERED_DOWN",
    }


def test_read_hardware__unresponsive_wanted__counts_them_all() -> None:
    hardware = read("states-slurm-22.05.8", unresponsive=True)
    assert [node.name for node in hardware.nodes] == [
        *(
            "big1",
            "broken1",
            "mig1",
            "mixed1",
            "node1",
            "node2",
            "node3",
            "node4",
            "node10",
            "odd1",
            "typed1",
            "typed2",
        )
    ]
    assert hardware.excluded_nodes == ()
    found = sizes(hardware)
    assert found["mixed1"] == (16, 5, 131_072)  # gpu:a100:2,gpu:v100:3
    assert found["broken1"] == (8, 0, 64_000)  # 62.50G
    assert found["odd1"] == (8, 0, 64_001)


def test_read_hardware__gpus_are_not_accounted_for__gres_tells_the_same() -> None:
    tracked, untracked = (
        sizes(read(f"{name}-slurm-22.05.8", unresponsive=True))
        for name in ("states", "untracked")
    )
    assert untracked == tracked
    assert "gres/gpu" not in sample("untracked-slurm-22.05.8").stdout


@pytest.mark.parametrize(
    ("name", "partition", "nodes"),
    [
        ("states-main-large", "main-large", ["big1", "typed1"]),
        ("hidden", "hidden", ["node1"]),
        ("states", "main", ["big1", "mig1", "node1", "node10", "typed1"]),
        ("empty", "empty", []),
    ],
)
def test_read_hardware__other_partitions__only_its_own_nodes(
    name: str, partition: str, nodes: list[str]
) -> None:
    assert [
        node.name for node in read(f"{name}-slurm-22.05.8", partition).nodes
    ] == nodes


@pytest.mark.parametrize(
    ("name", "partition", "why"),
    [
        (
            "nowhere",
            "nowhere",
            "scontrol show partition ended with status ' 1', expected 0: Partition nowhere not found",
        ),
        ("part-of-a-name", "mai", "Partition mai not found"),
        ("down", "main", "Unable to contact slurm controller"),
        (
            "starting",
            "main",
            "slurmctld has just started; it is yet to hear from node1, node10, node2",
        ),
        (
            "forged",
            "main",
            "scontrol and sinfo disagree about the nodes of 'main': only scontrol has fake, only sinfo has none",
        ),
        (
            "states",
            "main-large",
            "scontrol shows the partition 'main' with '14' nodes, expected 'main-large' and a number",
        ),
    ],
)
def test_read_hardware__recorded_failures__say_what_was_found(
    name: str, partition: str, why: str
) -> None:
    with pytest.raises(SlurmUnavailableError) as caught:
        read(f"{name}-slurm-22.05.8", partition)
    assert why in str(caught.value)


def test_read_hardware__slurmctld_has_just_started__waits_for_no_node_when_all_count() -> (
    None
):
    assert len(read("starting-slurm-22.05.8", unresponsive=True).nodes) == 12


# --- later versions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "partition", "found", "excluded_nodes"),
    [
        (
            "23.02.7",
            "gpu",
            {
                "gpu01": (64, 4, 524_288),
                "gpu-fat1": (128, 4, 1_031_000),
                "gpu-fat2": (128, 4, 1_048_576),
            },
            ["gpu02", "gpu03"],
        ),
        (
            "23.11.10",
            "main",
            {
                **{
                    "a1": (64, 8, 515_317),
                    "a2": (64, 4, 515_317),
                    "a3": (64, 0, 515_317),
                },
                **dict.fromkeys(("c1", "c2", "c3"), (16, 1, 62_259)),
            },
            ["h1"],
        ),
        (
            "24.05.4",
            "main",
            {"n8": (254, 4, 1_023_672), "n10": (256, 4, 1_031_864)},
            ["n9", "n11"],
        ),
        (
            "25.05.3",
            "main",
            dict.fromkeys(("h100-1", "h100-2"), (224, 8, 2_063_937)),
            ["old1"],
        ),
    ],
)
def test_read_hardware__later_versions__gives_what_works_and_what_is_left_out(
    version: str,
    partition: str,
    found: dict[str, tuple[int, int, int]],
    excluded_nodes: list[str],
) -> None:
    hardware = read(f"made-up-slurm-{version}", partition)
    assert sizes(hardware) == found
    assert [node.name for node in hardware.excluded_nodes] == excluded_nodes


# --- GPUs and memory ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tres", "gres", "gpus"),
    [
        ("cpu=4", "(null)", 0),
        ("cpu=4", "", 0),
        ("cpu=4,gres/gpu=4", "gpu:4", 4),
        ("cpu=4,gres/gpu=4,gres/gpu:a100=4", "gpu:a100:4", 4),
        ("cpu=4,gres/gpu:a100=4", "gpu:a100:4(S:0-1)", 4),
        ("cpu=4,gres/gpu:a100=2,gres/gpu:v100=3", "(null)", 5),
        # only one type is accounted for
        ("cpu=4,gres/gpu:a100=2", "gpu:a100:2,gpu:v100:3", 5),
        ("cpu=4,gres/gpu=0", "gpu:4", 0),
        ("cpu=4,gres/gpumem=80G,gres/gpuutil=100", "(null)", 0),
        ("cpu=4,gres/shard=16,gres/mps=100", "gpu:2,shard:16,mps:100", 2),
        ("cpu=4", "gpu:tesla:2(S:0,2-3),gpu:kepler:1(S:1)", 3),
        ("cpu=4", "gpu:a:2,gpu:b:2", 4),
        ("cpu=4", "craynetwork:4,gpu:2,gpus:7", 2),
        ("cpu=4", "gpu", 1),
        ("cpu=4", "gpu:k80", 1),
        ("cpu=4", "gpu:1g.5gb:7", 7),
        ("cpu=4", "gpu:a100:no_consume:3", 3),
    ],
)
def test_read_hardware__cfgtres_and_gres__give_the_number_of_gpus(
    tres: str, gres: str, gpus: int
) -> None:
    assert one(CfgTRES=tres, Gres=gres).gpus == gpus


@pytest.mark.parametrize(
    ("shown", "mem_mb"),
    [
        *(
            ("16000M", 16_000),
            ("62.50G", 64_000),
            ("512G", 524_288),
            ("1T", 1_048_576),
            ("1.25T", 1_310_720),
        ),
        *(("1P", 1_073_741_824), ("2048K", 2), ("16000", 16_000), ("0", 0)),
    ],
)
def test_read_hardware__memory_with_any_unit__is_in_megabytes(
    shown: str, mem_mb: int
) -> None:
    assert one(CfgTRES=f"cpu=4,mem={shown}").mem_mb == mem_mb


def test_read_hardware__node_without_cfgtres__what_is_configured() -> None:
    node = one(CfgTRES="", RealMemory="4096", Gres="gpu:a100:4(S:0-1)")
    assert (node.cpus, node.gpus, node.mem_mb) == (8, 4, 4096)


@pytest.mark.parametrize(
    "wrong",
    [
        {"CfgTRES": "cpu=many,mem=1M"},
        {"CfgTRES": "cpu=4,mem=1X"},
        {"CfgTRES": "cpu=4,mem=-1M"},
        {"CfgTRES": "cpu=4,mem=1e3M"},
        {"CfgTRES": "cpu=4,mem=nanG"},
        {"CfgTRES": "cpu=4,mem=999999999999999P"},
        {"CfgTRES": "cpu=4,gres/gpu=x"},
        {"CfgTRES": "cpu=99999999999999999,mem=1M"},
        {"CfgTRES": "cpu=٤,mem=1M"},
        {"CfgTRES": "cpu=4", "RealMemory": "lots"},
        {"MemSpecLimit": "some"},
        {"MemSpecLimit": "100", "RealMemory": "lots"},
        {"State": ""},
        {"Gres": "gpu:99999999999999999"},
    ],
)
def test_read_hardware__no_number__is_an_error_that_names_the_node(
    wrong: dict[str, str],
) -> None:
    with pytest.raises(SlurmUnavailableError, match=r"NodeName=node1 .*expected"):
        one(**wrong)


@pytest.mark.parametrize(
    ("fields", "mem_mb"),
    [
        ({"MemSpecLimit": "0", "RealMemory": ""}, 1000),
        ({"MemSpecLimit": "100"}, 900),
        ({"MemSpecLimit": "100", "CfgTRES": "cpu=4"}, 900),
        # a version whose CfgTRES lacks it
        ({"MemSpecLimit": "100", "CfgTRES": "cpu=4,mem=900M"}, 900),
        ({"MemSpecLimit": "1001"}, 0),
    ],
)
def test_read_hardware__memory_that_slurm_keeps__is_not_counted(
    fields: dict[str, str], mem_mb: int
) -> None:
    assert one(**fields).mem_mb == mem_mb


# --- states ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        *(
            "IDLE",
            "ALLOCATED",
            "MIXED",
            "MIXED+COMPLETING",
            "ALLOCATED+",
            "MIXED-",
            "IDLE+PLANNED",
            "RESERVED",
            "MAINT",
        ),
        *(
            "IDLE+CLOUD",
            "IDLE+CLOUD+POWERED_DOWN",
            "IDLE+CLOUD+POWER",
            "IDLE~",
            "IDLE#",
            "IDLE%",
            "ALLOCATED*#",
        ),
        *(
            "IDLE+CLOUD+NOT_RESPONDING+POWERED_DOWN",
            "IDLE+NOT_RESPONDING+POWERING_DOWN",
            "POWERED_DOWN",
        ),
        *(
            "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP",
            "IDLE+POWER_DOWN",
            "IDLE+MAINTENANCE+RESERVED",
        ),
        *(
            "IDLE+REBOOT_REQUESTED",
            "MIXED+BLOCKED",
            "IDLE+DYNAMIC_NORM",
            "IDLE+SOMETHING_NEW",
            "IDLE$",
        ),
    ],
)
def test_node__sound_or_power_saving_state__works(state: str) -> None:
    assert SlurmNode("n", 1, 0, 1, state).works


@pytest.mark.parametrize(
    "state",
    [
        *(
            "DOWN",
            "DOWN*",
            "DOWN+NOT_RESPONDING",
            "DOWN+CLOUD+POWERED_DOWN",
            "DOWN~",
            "DOWN+DRAIN",
            "DOWN*+DRAIN",
        ),
        *(
            "IDLE+DRAIN",
            "IDLE*+DRAIN",
            "DRAINED",
            "DRAINED*",
            "DRAINING",
            "MIXED+DRAIN",
            "ALLOCATED+DRAIN",
        ),
        *(
            "IDLE+DRAIN+POWERED_DOWN",
            "IDLE+NOT_RESPONDING",
            "IDLE*",
            "IDLE+NOT_RESPONDING+REBOOT_ISSUED",
            "MIXED*",
        ),
        *(
            "IDLE+FAIL",
            "ALLOCATED+FAIL",
            "FAILING",
            "ERROR",
            "IDLE+INVALID_REG",
            "INVAL",
            "DOWN+INVALID_REG",
        ),
        *(
            "UNKNOWN",
            "UNKNOWN+NOT_RESPONDING",
            "UNKNOWN*",
            "FUTURE",
            "SOMETHING_NEW",
            "idle",
        ),
    ],
)
def test_node__down_draining_silent_or_unknown_state__does_not_work(state: str) -> None:
    assert not SlurmNode("n", 1, 0, 1, state).works


def test_read_hardware__future_nodes__are_none_even_when_all_count() -> None:
    shown = answer(
        node_line("node1"), node_line("node2", State="FUTURE"), members="main|node1\n"
    )
    hardware = read_hardware(shown, DELIMITER, "main", unresponsive=True)
    assert [node.name for node in hardware.nodes] == ["node1"]
    assert hardware.hidden_nodes == 1


# --- nothing looks changed when nothing is --------------------------------------------


def test_read_hardware__order__is_natural_and_by_name_alone() -> None:
    names = [
        "a",
        "a-2",
        "a-10",
        "n1",
        "n01",
        "n2",
        "n10",
        "n10a",
        "n010b2",
        "n010b10",
        "n" + "9" * 5000,
        "x1y2z3",
        "x1y10z1",
    ]
    lines = [node_line(name) for name in names]
    expected = read_hardware(answer(*lines), DELIMITER, "main")
    for seed in range(20):
        Random(seed).shuffle(lines)
        assert read_hardware(answer(*lines), DELIMITER, "main") == expected
    in_order = [node.name for node in expected.nodes]
    assert in_order == [
        "a",
        "a-2",
        "a-10",
        "n01",
        "n1",
        "n2",
        "n10",
        "n10a",
        "n010b2",
        "n010b10",
        *in_order[10:],
    ]
    assert in_order[10:] == ["n" + "9" * 5000, "x1y2z3", "x1y10z1"]


def test_read_hardware__only_states_and_loads_differ__is_equal() -> None:
    before = answer(
        node_line("node1", CPULoad="0.1"), node_line("node2", State="IDLE+DRAIN")
    )
    after = answer(
        node_line("node1", State="ALLOCATED", CPULoad="8.1"),
        node_line("node2", State="DOWN+NOT_RESPONDING"),
    )
    assert read_hardware(before, DELIMITER, "main") == read_hardware(
        after, DELIMITER, "main"
    )


@pytest.mark.parametrize(
    "change",
    [{"CfgTRES": "cpu=5,mem=1000M"}, {"CfgTRES": "cpu=4,mem=999M"}, {"Gres": "gpu:1"}],
)
def test_read_hardware__hardware_differs__is_not_equal(change: dict[str, str]) -> None:
    assert read_hardware(answer(node_line()), DELIMITER, "main") != read_hardware(
        answer(node_line(**change)), DELIMITER, "main"
    )


# --- what is not whole, and what contradicts itself -----------------------------------


def test_read_hardware__a_node_twice__is_an_error() -> None:
    twice = answer(node_line(), node_line(CfgTRES="cpu=400,mem=1T"))
    with pytest.raises(SlurmUnavailableError, match="node1' twice"):
        read_hardware(twice, DELIMITER, "main")


def test_read_hardware__only_sinfo_has_a_node__is_an_error() -> None:
    with pytest.raises(
        SlurmUnavailableError, match="only scontrol has none, only sinfo has node2"
    ):
        read_hardware(
            answer(node_line(), members="main|node1\nmain|node2\n"), DELIMITER, "main"
        )


def test_read_hardware__free_text__is_not_read() -> None:
    text = "a = b\nState=DOWN CfgTRES=cpu=1 NodeName=x Partitions=y\n\n  Gres=gpu:9"
    for field in ("Reason", "Comment", "Extra"):
        (node,) = read_hardware(
            answer(node_line(**{field: text})), DELIMITER, "main"
        ).nodes
        assert (node.name, node.cpus, node.gpus, node.state) == ("node1", 4, 0, "IDLE")


def test_read_hardware__no_partition_but_a_reason_that_names_it__is_left_out() -> None:
    nowhere = "NodeName=node2 CPUTot=8 State=IDLE CfgTRES=cpu=4,mem=1000M Reason=taken out of Partitions=main\n"
    hardware = read_hardware(
        answer(node_line(), nowhere, members="main|node1\n"), DELIMITER, "main"
    )
    assert [node.name for node in hardware.nodes] == ["node1"]


@pytest.mark.parametrize(
    "other", ["main-large", "domain", "main2", "large,main-large,domain", "MAIN"]
)
def test_read_hardware__the_name_is_part_of_anothers__only_its_own_nodes(
    other: str,
) -> None:
    members = "main|node1\n" + "".join(f"{name}|node2\n" for name in other.split(","))
    hardware = read_hardware(
        answer(node_line(), node_line("node2", Partitions=other), members=members),
        DELIMITER,
        "main",
    )
    assert [node.name for node in hardware.nodes] == ["node1"]


def test_read_hardware__start_up_files_print_something__is_passed_over() -> None:
    whole = answer(node_line())
    greeted = CommandAnswer(0, "Welcome!\nNodeName=x State=IDLE\n" + whole.stdout, "")
    assert read_hardware(greeted, DELIMITER, "main") == read_hardware(
        whole, DELIMITER, "main"
    )


def test_read_hardware__cut_anywhere__is_an_error_and_not_a_smaller_cluster() -> None:
    whole = sample("states-slurm-22.05.8").stdout
    for kept in range(0, len(whole) - 1, 7):
        with pytest.raises(SlurmUnavailableError):
            read_hardware(CommandAnswer(0, whole[:kept], ""), DELIMITER, "main")


@pytest.mark.parametrize("status", [1, 127])
def test_read_hardware__nothing_was_run__is_an_error_with_what_was_said(
    status: int,
) -> None:
    with pytest.raises(SlurmUnavailableError, match="sh: not found"):
        read_hardware(CommandAnswer(status, "", "sh: not found"), DELIMITER, "main")


WORDS = st.sampled_from(
    [
        *(
            f"{DELIMITER}\n",
            f"{DELIMITER} 0\n",
            f"{DELIMITER} 1\n",
            PARTITION_LINE,
            node_line(),
            node_line("node2", Gres="gpu:2(S:0,1)"),
        ),
        *(
            "main|node1\n",
            "main|node2\n",
            "NodeName=",
            "State=IDLE",
            "CfgTRES=cpu=",
            "mem=1.5T",
            " Reason=",
            "\n",
            "|",
            "=",
        ),
    ]
)
ANYTHING = st.text(max_size=400) | st.lists(
    WORDS | st.text(max_size=10), max_size=30
).map("".join)


@given(ANYTHING, st.text(max_size=50), st.integers(0, 255), st.booleans())
@settings(max_examples=examples(500))
def test_read_hardware__any_text__gives_specs_or_the_one_error(
    stdout: str, stderr: str, status: int, unresponsive: bool
) -> None:
    try:
        hardware = read_hardware(
            CommandAnswer(status, stdout, stderr),
            DELIMITER,
            "main",
            unresponsive=unresponsive,
        )
    except SlurmUnavailableError:
        return
    assert all(
        node.cpus >= 0 and node.gpus >= 0 and node.mem_mb >= 0
        for node in hardware.nodes
    )


@given(
    st.text(max_size=60),
    st.text(max_size=60),
    st.text(max_size=60),
    st.text(max_size=60),
)
@settings(max_examples=examples(500))
def test_read_hardware__any_fields__give_specs_or_the_one_error(
    tres: str, gres: str, state: str, reason: str
) -> None:
    line = node_line(
        CfgTRES=f"cpu=4,{tres}", Gres=gres, State=f"IDLE{state}", Reason=reason
    )
    try:
        read_hardware(answer(line, node_line("node2")), DELIMITER, "main")
    except SlurmUnavailableError:
        return


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "NodeName=a ",
            " Reason=",
            "\n",
            "\nNodeName=a",
            "(",
            "gpu:",
            "gres/gpu:a=1,",
            "=",
            "main|n\n",
            "9",
            "+",
            "a9",
        ),
        *(f"{DELIMITER} 0\n", " ", "\t ", "(S:", ")("),
    ],
)
def test_read_hardware__long_nonsense__takes_no_more_steps_than_it_is_long(
    piece: str,
) -> None:
    """Ten times the text must not take a hundred times the time; the bound is the
    test's own time limit.
    """
    nonsense = piece * (300_000 // len(piece))
    for field in ("Gres", "CfgTRES", "State", "Reason", "Partitions"):
        # one node that is no node of sinfo's
        with pytest.raises(SlurmUnavailableError):
            read_hardware(
                answer(node_line(**{field: nonsense}), members="main|other\n"),
                DELIMITER,
                "main",
            )
    for text in (
        nonsense,
        f"{DELIMITER}\n{nonsense}{DELIMITER} 0\n",
        answer(node_line(), members=nonsense).stdout,
    ):
        with pytest.raises(SlurmUnavailableError):
            read_hardware(CommandAnswer(0, text, ""), DELIMITER, "main")


def test_ask_specs__its_command_line__does_not_hold_the_delimiter() -> None:
    words = ask_hardware("/usr/bin/scontrol", "/usr/bin/sinfo", "main")
    assert words[-3:] == ["/usr/bin/scontrol", "/usr/bin/sinfo", "main"]
    assert not [word for word in words if DELIMITER in word]
    assert not set("'!\\\n") & set(words[2])  # any login shell hands it on unchanged
