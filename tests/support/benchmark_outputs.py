"""What the benchmarks' programs printed, read by the parsers; tests/data/benchmarks/README.md
says which samples are made up.
"""

import pytest

from benchmarks.registry import SUITE
from benchmarks.result import Reading, UnreadableOutputError
from tests.support.benchmark_plans import DATA, NONCE, printed


def sample(name: str) -> str:
    """A recorded output."""
    return (DATA / name).read_text()


def read(
    benchmark: str,
    *sections: tuple[str, str],
    status: int = 0,
    nonce_lines: tuple[str, ...] = (),
) -> Reading:
    """What the parser reads in an output of these sections. Raises UnreadableOutputError."""
    return SUITE[benchmark].parse(
        printed(*sections, notes=nonce_lines, status=status), NONCE
    )


def refused(benchmark: str, *sections: tuple[str, str], status: int = 0) -> str:
    """Why the parser cannot read an output of these sections."""
    with pytest.raises(UnreadableOutputError) as caught:
        read(benchmark, *sections, status=status)
    return str(caught.value)
