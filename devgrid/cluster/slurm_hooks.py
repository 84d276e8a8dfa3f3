"""Builds the project's hooks and SPANK plugin from plugins/hook and plugins/spank, and
installs them for a private SLURM.
"""

import fcntl
import hashlib
import secrets
import shutil
import subprocess
from pathlib import Path

from devgrid import REPOSITORY

PLUGINS = REPOSITORY / "plugins"
BUILD = REPOSITORY / "build" / "devgrid-plugins"
SUBMIT_KEY = "supervisor-submit.key"


class BuildError(RuntimeError):
    """The build failed. The message contains the output of the compiler."""


def install(folder: Path, spool: Path) -> None:
    """Copy the programs and their settings into a folder of a grid."""
    shutil.copytree(built(), folder, symlinks=True)
    configure(folder, spool)


def install_job_submit(conf: Path) -> None:
    """Copy job_submit.lua into the folder of slurm.conf, with a new key."""
    for name in ("job_submit.lua", "supervisor_submit.lua", "supervisor_sha256.lua"):
        shutil.copy(PLUGINS / name, conf / name)
    key = conf / SUBMIT_KEY
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32) + "\n")
    (conf / "supervisor_submit.conf").write_text(
        f"key_file = {key}\nused_file = {conf}/state/supervisor-used\n"
    )


def configure(folder: Path, spool: Path, **settings: int) -> None:
    """Write the programs' spool.conf. `settings`: max_events, timeout_ms."""
    lines = [f"spool={spool}", *(f"{name}={value}" for name, value in settings.items())]
    (folder / "spool.conf").write_text("\n".join([*lines, ""]))


def built() -> Path:
    """The folder of the programs, built from the present sources. Grids that start at
    the same time wait for one build.
    """
    folder = BUILD / _fingerprint()
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _build(folder)
    return folder


def _fingerprint() -> str:
    sources = [
        PLUGINS / "build.sh",
        *sorted(PLUGINS.glob("hook/*")),
        *sorted(PLUGINS.glob("spank/*")),
    ]
    return hashlib.sha256(
        b"\0".join(source.read_bytes() for source in sources)
    ).hexdigest()[:16]


def _build(folder: Path) -> None:
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    done = subprocess.run([PLUGINS / "build.sh", draft], capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"plugins/build.sh: {done.stderr}")
    draft.rename(folder)
