"""The settings of SLURM_TRANSPORT=rest: which are needed, and which process keeps the
key.
"""

import base64
from pathlib import Path

import pytest

from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import SettingsError, load

KEY = base64.b64encode(bytes(range(200, 232))).decode()
REST = {
    "SLURM_TRANSPORT": "rest",
    "SLURMRESTD_URL": "unix:///run/slurmrestd/socket",
    "SLURM_JWT_KEY": KEY,
    "BENCHMARK_DISABLE": "true",
}


def lines(*needs: Need, **changes: str) -> list[str]:
    with pytest.raises(SettingsError) as error:
        load(*needs, environment={**REST, **changes})
    return error.value.lines


def test_load__rest__needs_the_key_and_the_url_and_no_ssh() -> None:
    assert load(Need.SLURM, environment=REST).slurm_jwt_key is not None
    missing = lines(Need.SLURM, SLURM_JWT_KEY="", SLURMRESTD_URL="")
    assert [line.partition(":")[0] for line in missing] == [
        "SLURMRESTD_URL",
        "SLURM_JWT_KEY",
    ]


def test_load__rest__only_the_slurm_worker_keeps_the_key() -> None:
    for needs in ((), (Need.SSH_PUBLIC,), (Need.NOTIFY,)):
        assert load(*needs, environment=REST).slurm_jwt_key is None
    ssh_key_is_given = {**REST, "SLURM_SSH_PRIVATE_KEY": ""}
    assert load(Need.SLURM, environment=ssh_key_is_given).slurm_ssh_private_key is None


def test_load__key_file__is_read_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "jwt_hs256.key"
    file.write_bytes(b"\n\0 \xff" * 8 + b"\n")
    environment = {**REST, "SLURM_JWT_KEY": "", "SLURM_JWT_KEY_FILE": str(file)}
    key = load(Need.SLURM, environment=environment).slurm_jwt_key
    assert key is not None
    assert base64.b64decode(key.get_secret_value()) == file.read_bytes()


@pytest.mark.parametrize(
    "key", ["short", base64.b64encode(b"x" * 31).decode(), "no base64 !" * 8]
)
def test_load__malformed_key__is_named_and_not_shown(key: str) -> None:
    (line,) = lines(Need.SLURM, SLURM_JWT_KEY=key)
    assert line.startswith("SLURM_JWT_KEY: found a value that is not shown")


@pytest.mark.parametrize(
    "url",
    [
        "https://slurm.example.com:6820",
        "http://127.0.0.1:6820",
        "http://[::1]:6820",
        "unix:///run/s",
    ],
)
def test_load__url_that_keeps_the_token__is_taken(url: str) -> None:
    assert (
        load(Need.SLURM, environment={**REST, "SLURMRESTD_URL": url}).slurmrestd_url
        == url
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://slurm.example.com:6820",
        "http://10.0.0.1:6820",
        "unix://run/s",
        "https://slurm.example.com",
        "ftp://a:1",
    ],
)
def test_load__url_that_shows_the_token__is_refused(url: str) -> None:
    (line,) = lines(Need.SLURM, SLURMRESTD_URL=url)
    assert line.startswith("SLURMRESTD_URL: ")


def test_load__rest_with_benchmarks_or_accounting__is_refused() -> None:
    found = lines(Need.SLURM, BENCHMARK_DISABLE="false", SLURM_ACCOUNTING="true")
    assert [line.partition(":")[0] for line in found] == [
        "BENCHMARK_DISABLE",
        "SLURM_ACCOUNTING",
    ]


def test_load__job_environment__has_none_of_slurms_own() -> None:
    environment = {
        **REST,
        "SLURM_JOB_ENVIRONMENT": 'PATH=/opt/bin:/bin SITE="two words"',
    }
    assert load(Need.SLURM, environment=environment).slurm_job_environment == {
        "PATH": "/opt/bin:/bin",
        "SITE": "two words",
    }
    (line,) = lines(Need.SLURM, SLURM_JOB_ENVIRONMENT="SLURM_CONF=/x")
    assert line.startswith("SLURM_JOB_ENVIRONMENT: ")


def test_load__rest_and_an_account_of_customers__is_one_line() -> None:
    (line,) = lines(Need.SLURM, SLURM_CUSTOMER_ACCOUNT="grid")
    assert line.startswith("SLURM_CUSTOMER_ACCOUNT: found 'grid'; expected nothing, as")
