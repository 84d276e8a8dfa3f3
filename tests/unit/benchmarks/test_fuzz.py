"""Any bytes give a reading or the one error, and what is read can be a measurement."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.registry import SUITE
from benchmarks.result import Reading, UnreadableOutputError
from benchmarks.sections import MAX_BYTES
from supervisor_tasks.provider.offer import label_texts
from tests.support.benchmark_plans import DATA, NONCE, printed
from tests.support.examples import examples

SECTIONS = {
    "machine": ("os", "arch", "cpuinfo", "lscpu", "gpu"),
    "speedtest": ("speedtest", "iperf3.upload", "iperf3.download"),
    "osu": ("latency", "bibw", "alltoall"),
    "ior": ("ior.scratch", "fio.scratch.write", "fio.scratch.read"),
    "hpl": ("hpl",),
}
SAMPLES = sorted(
    path.read_bytes()
    for path in DATA.iterdir()
    if path.is_file() and path.suffix != ".md"
)
PIECES = (
    *(
        b"\n",
        b"\r",
        b"\t",
        b" ",
        b"{",
        b"}",
        b"[",
        b'"',
        b",",
        b"\x1b[",
        b"\x1b]",
        b"nan",
        b"1e999",
        b"-0",
        b"4194304 ",
    ),
    *(
        f"\n@@{NONCE} {kind} ".encode()
        for kind in ("begin", "end", "fact", "note", "missing")
    ),
    *(
        b"hpl",
        b"latency 0",
        b"ior.scratch",
        b"volume.scratch x",
        b"HPL_AI WR01C2R4 1 1 1 1 1 ",
        b"\nN = 1, NB = 1, NPROW = 1, NPCOL = 1, SLOPPY-TYPE = 2\n GFLOPS = 1,",
        b"\n||A|| = 1 ...... FAILED",
    ),
    *(
        b"write,1,2,",
        b"read,",
        b"access,bw(MiB/s),IOPS,\n",
        b'{"type":"result"}',
        b"model name : x",
        b"\xff\xfe",
        b"x86_64",
        b"1.7e308",
        b"\nwrite,1.7e308,1,\nread,1.7e308,1,",
    ),
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A sample with a piece of it replaced."""
    text = draw(st.sampled_from(SAMPLES))
    begin = draw(st.integers(0, len(text)))
    end = min(len(text), begin + draw(st.integers(0, 200)))
    return (
        text[:begin]
        + draw(st.one_of(st.binary(max_size=40), st.sampled_from(PIECES)))
        + text[end:]
    )


bodies = st.one_of(
    st.binary(max_size=400),
    st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join),
    spoiled(),
)


@pytest.mark.parametrize("benchmark", SUITE)
@given(
    texts=st.lists(bodies, min_size=5, max_size=5),
    status=st.sampled_from([0, 0, 0, 1, 137]),
    volume=st.text(max_size=8),
)
@settings(max_examples=examples(30))
def test_parse__any_sections__gives_a_reading_or_the_error(
    benchmark: str, texts: list[bytes], status: int, volume: str
) -> None:
    named = zip(SECTIONS[benchmark], texts, strict=False)
    marked = [
        printed((name, "BODY"), status=status).replace(b"BODY", text)
        for name, text in named
    ]
    facts = printed(
        notes=("fact volume.scratch planned", f"fact volume.{volume} planned")
    )
    check(benchmark, facts + b"".join(marked))


@pytest.mark.parametrize("benchmark", SUITE)
@given(output=bodies)
@settings(max_examples=examples(30))
def test_parse__any_bytes__gives_a_reading_or_the_error(
    benchmark: str, output: bytes
) -> None:
    check(benchmark, output)


def check(benchmark: str, output: bytes) -> None:
    try:
        reading = SUITE[benchmark].parse(output, NONCE)
    except UnreadableOutputError:
        return
    assert isinstance(reading, Reading)
    assert all(0 < measured.number < 1e16 for measured in reading.numbers.values())
    assert not reading.numbers.keys() & reading.left_out.keys()
    measured = {key: one.number for key, one in reading.numbers.items()} | dict(
        reading.texts
    )
    assert all(key and value for key, value in label_texts(measured).items())


HOSTILE = (
    b"\n",
    b" ",
    b"\x1b[",
    b"\x1b]",
    b"\x1b]x",
    b"{",
    b"{\n",
    b'{"a":',
    b"[",
    b"9",
    b"1 ",
    b"\n1 ",
    b"\nHPL_AI ",
    b"\nWR11C2R4 1 1 1 1 1 x",
    b"......",
    b"\n......",
    b"access,bw(MiB/s),IOPS,",
    b"write,",
    b"\nwrite,1,1,",
    f"\n@@{NONCE} begin hpl".encode(),
    f"\n@@{NONCE} end hpl 0".encode(),
    f"\n@@{NONCE} fact volume.x".encode(),
    f"\n@@{NONCE} ".encode(),
    b"\n4194304 1",
    b"model name : x ",
    b"\nmodel name : x",
    b"\nflags : sse ",
    b'\n{"type":"result"}',
    b"\n{}",
    b"# ",
    b"\nIOR-",
    b"\nHPL-AI 1.",
    b"\nN = 1, NB = 1, NPROW = 1\nGFLOPS = 1,",
    b"\nN = 1, NB = 1, NPROW = ",
    b"\n N ",
)
SIZE = 300_000
# What others sections hold while one is hostile: a parser that misses them looks no
# further.
SOUND = {
    "os": "Linux",
    "arch": "x86_64",
    "cpuinfo": "model name : x\nflags : sse2",
    "lscpu": "Model name: x",
}


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [(one, name) for one, names in SECTIONS.items() for name in names],
)
def test_parse__the_same_over_and_over__takes_linear_time(
    benchmark: str, name: str
) -> None:
    """What is quadratic takes minutes for so much; what is linear takes hundredths of a
    second.
    """
    others = {
        other: text
        for other, text in SOUND.items()
        if other in SECTIONS[benchmark] and other != name
    }
    head = (
        printed(*others.items(), notes=("fact volume.scratch planned",))
        + f"\n@@{NONCE} begin {name}\n".encode()
    )
    took_s = dict[bytes, float]()
    for piece in HOSTILE:
        output = (
            head + piece * (SIZE // len(piece)) + f"\n@@{NONCE} end {name} 0\n".encode()
        )
        assert len(output) < MAX_BYTES
        began_s = time.process_time()
        check(benchmark, output)
        took_s[piece] = time.process_time() - began_s
    assert {piece: one_s for piece, one_s in took_s.items() if one_s > 1.0} == {}
