"""Measures the specs of a partition of a thousand nodes: parsing them, and querying
them in one command over a real sshd.
"""

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from devgrid.cluster.linux_users import Users, admin
from devgrid.cluster.sshd import Sshd
from devgrid.state_folder import private_processes
from supervisor_tasks.slurm.hardware import PartitionHardware, read_hardware
from supervisor_tasks.slurm.node_query import Nodes
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.ssh import Ssh, load_key
from tests.support.load_figures import Figure
from tests.support.submission_env import authorized_keys_command, new_key

RECORDED = (
    Path(__file__).parents[1] / "data" / "slurm" / "specs-states-slurm-22.05.8.txt"
)
DELIMITER = "4f1d0c9ab3"  # the delimiter in the recorded output
NODES = 1000
RUNS = 20
COMMAND = """#!/bin/sh
case "$*" in
    *"show partition"*) cat {folder}/partition;;
    *"show nodes"*) cat {folder}/nodes;;
    *) cat {folder}/sinfo;;
esac
"""


def figures() -> list[Figure]:
    partition, nodes, sinfo = thousand_nodes()
    printed = f"{DELIMITER}\n{partition}{DELIMITER} 0\n{nodes}{DELIMITER} 0\n{sinfo}{DELIMITER} 0\n"
    # CPU time: the other work of a busy machine does not count.
    parsed_s = median_s(
        lambda: read_hardware(CommandAnswer(0, printed, ""), DELIMITER, "main"),
        time.process_time,
    )
    with private_processes() as processes:
        folder = processes.folder / "recorded"
        folder.mkdir()
        for name, text in (
            ("partition", partition),
            ("nodes", nodes),
            ("sinfo", sinfo),
        ):
            (folder / name).write_text(text)
        command = folder / "command"
        command.write_text(COMMAND.format(folder=folder))
        command.chmod(0o755)
        key, users = new_key(processes.folder / "key"), Users(processes.folder)
        sshd = Sshd.start(processes, users.environment(), authorized_keys_command(key))
        ssh = Ssh(sshd.address, load_key(key.read_text()), sshd.known_hosts)
        nodes_query = Nodes(
            ssh=ssh,
            admin=admin(),
            scontrol=str(command),
            sinfo=str(command),
            partition="main",
        )
        nodes_query.hardware()  # logs in
        queried_s = median_s(nodes_query.hardware)
        ssh.close()
    return [
        Figure(f"specs of {NODES} nodes: parsed, CPU time", parsed_s, "s", 0.2),
        Figure(
            f"specs of {NODES} nodes: one command over SSH and parsed",
            queried_s,
            "s",
            1.0,
        ),
    ]


def median_s(
    work: Callable[[], PartitionHardware],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The median seconds of RUNS runs."""
    times = []
    for _ in range(RUNS):
        began_s = clock()
        work()
        times.append(clock() - began_s)
    return statistics.median(times)


def thousand_nodes() -> tuple[str, str, str]:
    """What the three commands print for a thousand nodes: the recorded nodes, repeated
    under other names.
    """
    partition, nodes, _ = re.split(
        rf"{DELIMITER} 0\n", RECORDED.read_text().partition("\n")[2]
    )[:3]
    lines = nodes.splitlines(keepends=True)
    copies = range(NODES // len(lines) + 1)
    many = [
        re.sub("NodeName=([a-z]+)", rf"NodeName=\g<1>-{copy}-", line)
        for copy in copies
        for line in lines
    ][:NODES]
    names = [line.partition(" ")[0].removeprefix("NodeName=") for line in many]
    return (
        partition,
        "".join(many),
        "".join(f"main|{name}\nall|{name}\n" for name in names),
    )


if __name__ == "__main__":
    for figure in figures():
        print(figure)
