"""Variables that were probably meant to be a setting, and what `supervisor config show`
tells.
"""

import json

import pytest
from structlog.testing import capture_logs

from devgrid import REPOSITORY
from supervisor_tasks.config.settings import SECRETS, Settings
from supervisor_tasks.config.variables import (
    mistyped,
    overridden,
    variables_with_a_secret,
    warn_of_mistyped,
)
from tests.support.commands import Result, supervisor

RPC = "https://node.example.org/v1/ABCDEFGH12345678"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SLURM_PARTITON", "SLURM_PARTITION"),
        ("SLURM_SSH_ADRESS", "SLURM_SSH_ADDRESS"),
        ("ETH_PRIVATE_KEY_FIEL", "ETH_PRIVATE_KEY_FILE"),
        ("BENCHMARK_AFFINITY", "BENCHMARK_UCX_AFFINITY"),  # of the Go program's chart
        ("METASCHEDULER_ENDPOINT_RCP", "METASCHEDULER_ENDPOINT_RPC"),
        ("CLAIM_LIMIT", "CLAIM_MAX_WAITING"),  # and not BENCHMARK_TIME_LIMIT
    ],
)
def test_mistyped__name__is_told_with_the_nearest(written: str, meant: str) -> None:
    assert mistyped([written, "SLURM_PARTITION"]) == {written: meant}


@pytest.mark.parametrize(
    "written",
    [
        *(
            "SLURM_SSH_PORT",
            "SBATCH_TLS",
            "TLS_CERTIFICATE",
            "LDAP_BASE_DN",
            "METASCHEDULER_PROVIDER",
        ),
        *(
            "CLAIM_LIMIT",
            "CHAIN_BLOCK_TIME",
            "CALLBACK_PORT",
            "RETENTION_MONTHS",
            "SLURMRESTD_TOKEN",
            "SLURM_JWT_TOKEN",
        ),
        *(
            "SWEEP_PAUSE",
            "SLURM_RETRY_COUNT",
            "SLURM_SINFO_COMMAND",
            "EXPLORER_LINK",
            "WALLET_KEY",
            "NOTIFY_EMAIL",
        ),
    ],
)
def test_mistyped__name_that_only_we_could_read__is_told_if_it_resembles_none(
    written: str,
) -> None:
    assert list(mistyped([written])) == [written]


def test_warn_of_mistyped__twice_in_a_process__logs_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_SSH_PORT", "22")
    warn_of_mistyped.cache_clear()
    with capture_logs() as told:
        warn_of_mistyped()
        warn_of_mistyped()
    warned = [
        line["variable"] for line in told if line["event"] == "variable_not_known"
    ]
    assert warned.count("SLURM_SSH_PORT") == 1


@pytest.mark.parametrize(
    "others",
    [
        *(
            "SLURM_CONF",
            "SLURM_NODELIST",
            "SBATCH_PARTITION",
            "LOGNAME",
            "STATE_DIRECTORY",
            "PATH",
            "LOG_LEVEL",
        ),
        *(
            "LISTEN_FDS",
            "NOTIFY_SOCKET",
            "NVIDIA_VISIBLE_DEVICES",
            "FLOWER_PORT",
            "OTEL_SERVICE_NAME",
            "ETH_RPC_URL",
        ),
    ],
)
def test_mistyped__names_of_other_programs__are_not_told(others: str) -> None:
    assert mistyped([others]) == {}


def test_mistyped__names_that_slurms_programs_read_or_set__are_not_told() -> None:
    names = (
        (REPOSITORY / "tests/data/slurm/variables-slurm-22.05.8.txt")
        .read_text()
        .split()
    )
    assert {
        "SLURM_JOB_ID",
        "SLURM_JWT",
        "SLURM_SUBMIT_DIR",
        "SLURMRESTD_LISTEN",
        "SBATCH_WAIT",
    } <= set(names)
    assert mistyped(names) == {}


def test_mistyped__names_that_compose_reads__are_not_told() -> None:
    lines = (REPOSITORY / "docker" / ".env.example").read_text().splitlines()
    assert (
        mistyped([line.lstrip("# ").partition("=")[0] for line in lines if "=" in line])
        == {}
    )


def shown(**environment: str) -> Result:
    unset = dict.fromkeys(
        (*(name.upper() for name in Settings.model_fields), "DATABASE_URL_FILE")
    )
    result = supervisor("config", "show", "-o", "json", env=unset | environment)
    assert result.exit_code == 0, result.output
    return result


def test_show__each_setting__tells_its_value_and_where_it_came_from() -> None:
    rows = {
        row["setting"]: row
        for row in json.loads(
            shown(SLURM_PARTITION="gpu", CALLBACK_NETWORKS="10.0.0.0/8").stdout
        )
    }
    assert set(rows) == {name.upper() for name in Settings.model_fields}
    assert rows["SLURM_PARTITION"] == {
        "setting": "SLURM_PARTITION",
        "from": "environment",
        "value": "gpu",
    }
    assert rows["CLAIM_BATCH"] == {
        "setting": "CLAIM_BATCH",
        "from": "default",
        "value": 200,
    }
    assert rows["CALLBACK_NETWORKS"]["value"] == "10.0.0.0/8"


def test_show__secrets__are_not_shown() -> None:
    secret = "4c" * 32
    given = {name.upper(): "" for name in SECRETS} | {
        "ETH_PRIVATE_KEY": secret,
        "METASCHEDULER_ENDPOINT_RPC": RPC,
    }
    given |= {
        "DATABASE_URL": "postgresql://user:sesame-open@db/ledger",
        "LDAP_URL": "ldap://user:sesame-too@ldap",
    }
    result = shown(**given)
    rows = {row["setting"]: row["value"] for row in json.loads(result.stdout)}
    assert rows["ETH_PRIVATE_KEY"] == rows["DATABASE_URL"] == "(set, not shown)"
    assert rows["CALLBACK_KEY"] is None
    assert rows["METASCHEDULER_ENDPOINT_RPC"] == "https://node.example.org#1"
    assert not any(word in result.output for word in (secret, "sesame", "ABCDEFGH"))


def test_show__mistyped_variable__is_told_without_its_value() -> None:
    result = shown(ETH_PRIVATE_KYE="4c" * 32)
    assert result.stderr == "ETH_PRIVATE_KYE: no setting; expected ETH_PRIVATE_KEY?\n"


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        pytest.param(
            {"ETH_PRIVATE_KEY": "k"},
            {"ETH_PRIVATE_KEY_FILE": "/f"},
            {"ETH_PRIVATE_KEY_FILE": "/f"},
            id="a file in place of the text",
        ),
        pytest.param(
            {"ETH_PRIVATE_KEY_FILE": "/f"},
            {"ETH_PRIVATE_KEY": "k"},
            {"ETH_PRIVATE_KEY": "k"},
            id="a text in place of the file",
        ),
        pytest.param(
            {"BENCHMARK_ENVIRONMENT": "a=1", "BENCHMARK_HPL_MEMORY_SHARE": "0.5"},
            {"BENCHMARK_ENV": "a=2"},
            {"BENCHMARK_ENV": "a=2", "BENCHMARK_HPL_MEMORY_SHARE": "0.5"},
            id="the Go program's form in place of ours",
        ),
        pytest.param(
            {"PATH": "/bin", "SLURM_PARTITION": "a"},
            {"SLURM_PARTITION": "b"},
            {"PATH": "/bin", "SLURM_PARTITION": "b"},
            id="a setting with one variable",
        ),
    ],
)
def test_overridden__by_flags__has_no_other_variable_of_the_same_setting(
    environment: dict[str, str], flags: dict[str, str], expected: dict[str, str]
) -> None:
    assert overridden(environment, flags) == expected


@pytest.mark.parametrize(
    ("variable", "value", "is_secret"),
    [
        ("ETH_PRIVATE_KEY", "11" * 32, True),
        ("FLOWER_BASIC_AUTH", "user:password", True),
        ("NOTIFY_SLACK_URL", "https://hooks.example.org/key-1", True),
        ("DATABASE_URL", "postgresql://user:password@db.example.org/ledger", True),
        ("DATABASE_URL", "postgresql://user@db.example.org/ledger", False),
        ("BROKER_URL", "redis://:password@redis.example.org/0", True),
        ("BROKER_URL", "redis://redis.example.org/0", False),
        ("LDAP_URL", "ldaps://ldap.example.org", False),
        ("LDAP_BIND_DN", "cn=admin", False),
        ("METASCHEDULER_ENDPOINT_RPC", RPC, True),
        ("METASCHEDULER_ENDPOINT_RPC", f"http://127.0.0.1:8545,{RPC}", True),
        ("METASCHEDULER_ENDPOINT_RPC", "http://127.0.0.1:8545,http://h:1", False),
        ("METASCHEDULER_ENDPOINT_WS", "wss://user:token@node.example.org", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://traces.example.org/key-1", True),
        ("EXPLORER_URL", "https://explorer.example.org/key-1", False),
        ("SLURM_PARTITION", "main", False),
    ],
)
def test_variables_with_a_secret__value_of_a_flag__is_one_or_not(
    variable: str, value: str, is_secret: bool
) -> None:
    assert (variables_with_a_secret({variable: value}) == [variable]) is is_secret
