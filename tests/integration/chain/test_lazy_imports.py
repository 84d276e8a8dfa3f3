"""supervisor_tasks.chain.lazy_imports, in an interpreter that has imported nothing
yet.
"""

import subprocess
import sys

import pytest

from devgrid import REPOSITORY

IMPORTED_LATE = ("py_ecc", "Crypto.Cipher", "aiohttp.client")


def run(*lines: str) -> str:
    argv = [sys.executable, "-c", "\n".join(["import sys", *lines])]
    ended = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "package", ["supervisor_tasks.tasks", "devgrid.chain.chain", "devgrid.services"]
)
def test_make_lazy__web3_imported__leaves_out_what_is_not_used(package: str) -> None:
    printed = run(
        f"import {package}, web3, eth_account",
        f"print([name in sys.modules for name in {IMPORTED_LATE!r}])",
    )
    assert printed == "[False, False, False]\n"


@pytest.mark.parametrize("version", [3, 4])
def test_lazy_name__key_file__is_written_and_read(version: int) -> None:
    printed = run(
        "import supervisor_tasks",
        "from eth_keyfile import create_keyfile_json, decode_keyfile_json",
        f"made = create_keyfile_json(b'1' * 32, b'word', version={version}, iterations=2)",
        "print(decode_keyfile_json(made, b'word'))",
    )
    assert printed == f"{b'1' * 32!r}\n"


def test_lazy_name__key_file_of_an_account__is_written_and_read() -> None:
    printed = run(
        "import supervisor_tasks",
        "from eth_account import Account",
        "made = Account.encrypt('0x' + '31' * 32, 'word', iterations=2)",
        "print(bytes(Account.decrypt(made, 'word')))",
    )
    assert printed == f"{b'1' * 32!r}\n"


def test_lazy_name__session_of_web3__is_aiohttps() -> None:
    printed = run(
        "import supervisor_tasks, asyncio",
        "from web3.utils import async_exception_handling as web3s",
        "async def main():",
        "    async with web3s.ClientSession() as session: print(type(session))",
        "asyncio.run(main())",
    )
    assert printed == "<class 'aiohttp.client.ClientSession'>\n"


def test_lazy_module__imported_after_a_use__is_the_real_one() -> None:
    printed = run(
        "import supervisor_tasks, eth_keyfile",
        "try: eth_keyfile.load_keyfile('/dev/null')",
        "except ValueError: pass",
        "from eth_keyfile.keyfile import KDFType",
        "print(KDFType)",
    )
    assert printed == "typing.Literal['pbkdf2', 'scrypt']\n"
