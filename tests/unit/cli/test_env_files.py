"""The files from which `supervisor run` takes variables."""

import os
from pathlib import Path

import pytest

from supervisor_tasks.cli.env_files import EnvFileError, files_here, variables_of


def written(folder: Path, name: str, text: str, mode: int = 0o600) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(mode)
    return file


def test_variables_of__both_files__the_local_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "CHAIN_ID=1\nCLUSTER_NAME='a # ${HOME}'\n# a comment\n\nDATABASE_URL=d\n"
    written(tmp_path, ".env", text)
    written(tmp_path, ".env.local", 'export CHAIN_ID="2"\nDATABASE_URL_FILE=/f\n')
    files = files_here()
    assert [file.name for file in files] == [".env.local", ".env"]
    assert variables_of(files) == {
        "CHAIN_ID": "2",
        "CLUSTER_NAME": "a # ${HOME}",
        "DATABASE_URL_FILE": "/f",
    }


def test_files_here__folder_without_any__is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").mkdir()
    monkeypatch.chdir(tmp_path)
    assert files_here() == []
    assert variables_of([]) == {}


def test_files_here__folder_is_gone__is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert files_here() == []


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
        ("A=1\nCHAIN_ID\n", "line 2: found no NAME=VALUE"),
        ("A='not closed\n", "line 1: found no NAME=VALUE"),
        ("KEY=-----BEGIN\nb3BlbnNza==\n-----END\n", "line 3: found no NAME=VALUE"),
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
