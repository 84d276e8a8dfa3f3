"""The end of a grid does not depend on SLURM ending its jobs."""

from pathlib import Path

import pytest

from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import end_jobs


def test_end_jobs__slurm_does_not_end_them__is_told_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users = Users(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no squeue
    end_jobs(tmp_path, users)
    assert f"jobs of {tmp_path} did not end" in capsys.readouterr().err
