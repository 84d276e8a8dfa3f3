"""Stores the batch scripts of the job definition service in files named by the hash of
their content.
"""

import hashlib
import re
import uuid
from pathlib import Path

from devgrid.services.workflow import load, render


def store(folder: Path, workflow_text: str) -> str:
    """Keep the script of a workflow file; returns its batch location hash. Raises
    WorkflowError.
    """
    return store_script(folder, render(load(workflow_text)))


def store_script(folder: Path, script: str) -> str:
    """Keep a script as it is; returns its batch location hash."""
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(script.encode()).hexdigest()
    # the same script may be stored twice at once
    draft = folder / f".{name}-{uuid.uuid4().hex}"
    draft.write_bytes(script.encode())
    draft.replace(folder / name)
    return name


def fetch(folder: Path, name: str) -> str:
    """The script of that hash. Raises KeyError when there is none."""
    file = folder / name
    if not re.fullmatch("[0-9a-f]{64}", name) or not file.exists():
        raise KeyError(name)
    return file.read_bytes().decode()
