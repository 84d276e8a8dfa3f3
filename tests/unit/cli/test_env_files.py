"""The files from which `supervisor run` takes variables."""

import os
from pathlib import Path

import pytest

from supervisor_tasks.cli.env_files import EnvFileError, files_in, variables_of


def written(folder: Path, name: str, text: str, mode: int = 0o600) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(mode)
    return file


def test_variables_of__both_files__the_local_one_wins(tmp_path: Path) -> None:
    written(tmp_path, ".env", "CHAIN_ID=1\nCLUSTER_NAME='a # b'\n# a comment\n")
    written(tmp_path, ".env.local", 'export CHAIN_ID="2"\n')
    files = files_in(tmp_path)
    assert [file.name for file in files] == [".env.local", ".env"]
    assert variables_of(files) == {"CHAIN_ID": "2", "CLUSTER_NAME": "a # b"}


def test_files_in__folder_without_any__is_none(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert files_in(tmp_path) == []
    assert variables_of([]) == {}


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_variables_of__others_may_write_to_the_file__is_an_error(
    tmp_path: Path, mode: int
) -> None:
    file = written(tmp_path, ".env", "CHAIN_ID=1\n", mode)
    with pytest.raises(EnvFileError, match=f"found mode {mode:o} .*expected"):
        variables_of([file])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_variables_of__file_of_another_user__is_an_error(tmp_path: Path) -> None:
    file = written(tmp_path, ".env", "CHAIN_ID=1\n")
    os.chown(file, 12345, -1)
    with pytest.raises(EnvFileError, match="of user 12345"):
        variables_of([file])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("CHAIN_ID\n", "found CHAIN_ID without a value"),
        ("A=\udcff\n", "cannot be read"),
    ],
)
def test_variables_of__wrong_content__is_an_error(
    tmp_path: Path, text: str, error: str
) -> None:
    file = tmp_path / ".env"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(EnvFileError, match=error):
        variables_of([file])
