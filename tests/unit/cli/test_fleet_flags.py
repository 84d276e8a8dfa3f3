"""Flags of `supervisor run` as settings."""

import re
from pathlib import Path

import pytest

from supervisor_tasks.cli.fleet_flags import FlagError, Flags, read_flags
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.config.variables import switches, variables

MIGRATE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "migrate-from-go.md"
KNOWN = {
    "SLURM_SSH_ADMIN_USER",
    "SLURM_PARTITION",
    "TLS_ENABLE",
    "ETH_PRIVATE_KEY_FILE",
    "BENCHMARK_ENV",
}


def read(*words: str) -> Flags:
    return read_flags(words, KNOWN, {"TLS_ENABLE"})


@pytest.mark.parametrize(
    "words",
    [
        ("--slurm.ssh.admin-user", "root"),
        ("--slurm-ssh-admin-user=root",),
        ("--SLURM_SSH_ADMIN_USER", "root"),
        ("-slurm.ssh.admin-user=root",),
    ],
)
def test_read_flags__ways_to_write_one__are_the_same(words: tuple[str, ...]) -> None:
    assert read(*words) == Flags({"SLURM_SSH_ADMIN_USER": "root"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--tls.enable",), {"TLS_ENABLE": "true"}),
        (
            ("--tls.enable", "--slurm.partition", "x"),
            {"TLS_ENABLE": "true", "SLURM_PARTITION": "x"},
        ),
        (("--tls.enable", "false"), {"TLS_ENABLE": "false"}),
        (("--tls.enable=false",), {"TLS_ENABLE": "false"}),
        (("--slurm.partition", "--odd"), {"SLURM_PARTITION": "--odd"}),
        (("--slurm.partition=",), {"SLURM_PARTITION": ""}),
        (("--benchmark.env=A=b,C=d",), {"BENCHMARK_ENV": "A=b,C=d"}),
        (("--eth.private-key-file", "/k"), {"ETH_PRIVATE_KEY_FILE": "/k"}),
    ],
)
def test_read_flags__switches_and_values__become_settings(
    words: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert read(*words) == Flags(expected)


def test_read_flags__embedded__is_no_setting() -> None:
    assert read("--embedded", "--slurm.partition", "x") == Flags(
        {"SLURM_PARTITION": "x"}, embedded=True
    )
    assert read("--embedded=false") == Flags()


@pytest.mark.parametrize("word", ["1", "yes", "on", "True"])
def test_read_flags__switch_in_another_word__is_on(word: str) -> None:
    assert read(f"--embedded={word}") == Flags(embedded=True)


def test_read_flags__switch_that_is_no_word_for_it__says_what_is_expected() -> None:
    with pytest.raises(FlagError, match="--embedded: found 'ture'; expected true"):
        read("--embedded=ture")


def test_read_flags__wrong_ones__all_are_named_with_the_nearest() -> None:
    with pytest.raises(FlagError) as raised:
        read("--slurm.partiton", "main", "stray", "--tls.enable", "--slurm.partition")
    first, second, third = str(raised.value).splitlines()
    assert first.startswith(
        "--slurm.partiton: found no setting of that name; expected a flag of"
    )
    assert first.endswith("the nearest is --slurm-partition")
    assert second.startswith("stray: found no setting")
    assert (
        third
        == "--slurm.partition: found no value; expected one, as in --slurm.partition VALUE"
    )


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_read_flags__every_setting__has_one(name: str) -> None:
    flag = "--" + name.replace("_", ".")
    assert read_flags([flag, "true"], variables(), switches()).settings == {
        name.upper(): "true"
    }


def flags_of_the_go_program() -> list[tuple[str, str]]:
    """Each flag in the table of migrate-from-go.md, with its variable."""
    rows = re.findall(r"^\| (`-.*?) \| (.*?) \|$", MIGRATE.read_text(), re.MULTILINE)
    found = []
    for flags, variables_of_row in rows:
        variable = re.findall(r"`(\w+)`", variables_of_row)[0]
        found += [(flag, variable) for flag in re.findall(r"`(-[-.\w]+)`", flags)]
    return found


@pytest.mark.parametrize(("flag", "variable"), flags_of_the_go_program())
def test_read_flags__of_the_go_program__are_its_variables(
    flag: str, variable: str
) -> None:
    assert read_flags([flag, "true"], variables(), switches()).settings == {
        variable: "true"
    }


def test_read_flags__labels_and_variables__are_given_once_each() -> None:
    words = [
        "--label",
        "a=b",
        "-l",
        "c=d",
        "--metascheduler.label=e=f",
        "--benchmark.env",
        "X=1",
        "--benchmark.env=Y=2",
    ]
    found = read_flags(words, variables(), switches()).settings
    assert found == {"METASCHEDULER_LABELS": "a=b,c=d,e=f", "BENCHMARK_ENV": "X=1,Y=2"}


def test_switches__usage_of_the_go_program__are_its_flags_without_a_value() -> None:
    assert {
        "TLS_ENABLE",
        "SBATCH_TLS_ENABLE",
        "SBATCH_TLS_INSECURE",
        "TRACE",
        "BENCHMARK_DISABLE",
    } <= switches()
    assert "SLURM_PARTITION" not in switches()
