"""Measures how fast the parsers read the outputs of benchmarks: `python -m
tests.load.parsing`.
"""

import time
from collections.abc import Iterator

from benchmarks.registry import SUITE
from benchmarks.sections import MAX_BYTES
from tests.support.benchmark_plans import DATA, NONCE, printed
from tests.support.load_figures import Figure

REPEATS = 5


def figures() -> list[Figure]:
    return [rate(name, benchmark, output) for name, benchmark, output in outputs()]


def outputs() -> Iterator[tuple[str, str, bytes]]:
    """Outputs of 10 MB: a result after progress lines or noise, or results repeated."""
    noise, result = sample("hpl-ai-nvidia-23.5.made-up.txt").split(
        "=" * 80 + "\nT/V", 1
    )
    yield (
        "HPL-AI's log with colours",
        "hpl",
        filled("hpl", noise, f"{'=' * 80}\nT/V{result}"),
    )
    table = sample("osu-latency-7.3.made-up.txt")
    yield "OSU's tables", "osu", filled("latency", table, table)
    noise = "node1: [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7 via P2P/IPC\n"
    yield (
        "IOR's table behind noise",
        "ior",
        filled("ior.scratch", noise, sample("ior-4.0.0.made-up.txt")),
    )
    yield "HPC Challenge's report", "hpl", filled("hpl", sample("hpcc-1.5.0.txt"), "")
    yield (
        "speedtest behind noise",
        "speedtest",
        filled("speedtest", noise, sample("speedtest-1.2.0.made-up.txt")),
    )


def filled(section: str, filling: str, end: str) -> bytes:
    """A section of about 10 MB: the filling repeated, then the end."""
    room = MAX_BYTES - len(end) - 1000
    return printed(
        (section, filling * (room // len(filling)) + end),
        notes=("fact volume.scratch planned",),
    )


def rate(name: str, benchmark: str, output: bytes) -> Figure:
    """The best rate of some runs, by the CPU time of this process: the machine may have
    other work.
    """
    best_s = min(seconds(benchmark, output) for _ in range(REPEATS))
    return Figure(
        f"parser: {name}", len(output) / 1e6 / best_s, "MB/s", 20.0, at_least=True
    )


def seconds(benchmark: str, output: bytes) -> float:
    began_s = time.process_time()
    if SUITE[benchmark].parse(output, NONCE).empty:
        raise RuntimeError(f"nothing was read by {benchmark}")
    return time.process_time() - began_s


def sample(name: str) -> str:
    return (DATA / name).read_text()


if __name__ == "__main__":
    for figure in figures():
        print(
            f"{figure.name:<40}{figure.value:>8.1f} {figure.unit}{'' if figure.kept else '   MISSED'}"
        )
