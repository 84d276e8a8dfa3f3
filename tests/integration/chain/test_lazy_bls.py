"""supervisor_tasks.chain.lazy_bls, in an interpreter that has imported nothing yet."""

import subprocess
import sys

import pytest

from devgrid import REPOSITORY

IMPORTED_LATE = "py_ecc.optimized_bls12_381"


def run(*lines: str) -> str:
    argv = [sys.executable, "-c", "\n".join(["import sys", *lines])]
    ended = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "package", ["supervisor_tasks.tasks", "devgrid.chain.chain", "devgrid.services"]
)
def test_make_lazy__web3_imported__computes_no_tables(package: str) -> None:
    printed = run(
        f"import {package}, web3",
        f"print('eth_keyfile' in sys.modules, '{IMPORTED_LATE}' in sys.modules)",
    )
    assert printed == "True False\n"


def test_lazy_scheme__key_file_of_a_validator__is_written_and_read() -> None:
    printed = run(
        "import supervisor_tasks, eth_keyfile",
        "from eth_keyfile.keyfile import create_keyfile_json, decode_keyfile_json",
        "made = create_keyfile_json(b'1' * 32, b'word', version=4, iterations=2)",
        "print(decode_keyfile_json(made, b'word'))",
        f"print('{IMPORTED_LATE}' in sys.modules)",
    )
    assert printed == f"{b'1' * 32!r}\nTrue\n"


@pytest.mark.parametrize(
    "statement",
    [
        "from py_ecc.bls import G2Basic as found",
        "import py_ecc.bls; found = py_ecc.bls.G2Basic",
        "import eth_keyfile, py_ecc.bls; found = py_ecc.bls.G2Basic",
        "import eth_keyfile; from py_ecc.bls.ciphersuites import G2Basic as found",
    ],
)
def test_lazy_module__another_name__is_the_real_ones(statement: str) -> None:
    printed = run(
        f"import supervisor_tasks; {statement}",
        "from py_ecc.bls.ciphersuites import G2Basic",
        "print(found is G2Basic, 'sign' in dir(G2Basic) or 'Sign' in dir(G2Basic))",
    )
    assert printed == "True True\n"
