"""Has py_ecc's BLS signatures imported at their first use.

eth_keyfile, which web3 imports, needs them for the key files of Ethereum's validators.
We read no such file. py_ecc computes tables at its import: a third of the CPU time that
`import web3` takes.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

MODULE = "py_ecc.bls"
IMPORTED_BY_ETH_KEYFILE = "G2ProofOfPossession"


def make_lazy() -> None:
    """Have the next import of the module give a lazy one."""
    sys.meta_path.insert(0, _finder)


def _imported() -> ModuleType:
    """The real module, in place of the lazy one."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        del sys.modules[MODULE]
    return import_module(MODULE)


class _LazyScheme:
    """The signature scheme. Reading an attribute imports it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_imported(), IMPORTED_BY_ETH_KEYFILE), name)


class _LazyModule(ModuleType):
    """Has the scheme. Reading any other name imports the real module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import asks for __path__ and the like
            raise AttributeError(name)
        return getattr(_imported(), name)


class _LazyLoader(SourceFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _LazyModule(spec.name)
        setattr(module, IMPORTED_BY_ETH_KEYFILE, _LazyScheme())
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run yet."""


class _Finder:
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _LazyLoader(fullname, spec.origin)
        return spec


_finder = _Finder()
