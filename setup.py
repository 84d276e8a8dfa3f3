"""Generates the Python code of the .proto files into the wheel. Everything else about
the package is in pyproject.toml.
"""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROTOS = Path("protos")


class BuildWithProtos(build_py):
    """Copies the modules as usual, then adds the generated ones.

    The build takes nothing from an earlier `make protos`: that code is untracked and
    can be old. In a development environment (an editable install) `make protos` writes
    the code beside its sources instead.
    """

    def run(self) -> None:
        """Build the modules."""
        super().run()
        if not self.editable_mode:
            sources = [str(source) for source in sorted(PROTOS.rglob("*.proto"))]
            out = [
                f"--python_out={self.build_lib}",
                f"--grpc_python_out={self.build_lib}",
            ]
            subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, *sources],
                check=True,
            )


setup(cmdclass={"build_py": BuildWithProtos})
