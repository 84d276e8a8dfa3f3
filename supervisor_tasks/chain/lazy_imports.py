"""Has modules that web3 imports, and that we do not use, imported at their first use.

The reader of encrypted key files needs ciphers and py_ecc, which computes tables at its
import. aiohttp, for asynchronous HTTP, reads the system's certificates at its import.
"""

import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = ("aiohttp", "eth_keyfile.keyfile")


def make_lazy() -> None:
    """Have the next import of each module give a lazy one."""
    sys.meta_path.insert(0, _finder)


def _imported(module: str) -> ModuleType:
    """The real module, in place of the lazy one."""
    if module in _finder.lazy:
        _finder.lazy.remove(module)
        sys.modules.pop(module, None)
    return import_module(module)


class _LazyName:
    """A function or class of a module. Calling it imports the module. web3 uses the
    others in annotations only.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return getattr(_imported(self._module), self._name)(*arguments, **named)

    def __or__(self, other: object) -> "_LazyName":
        return self


class _LazyModule(ModuleType):
    """Has each name that is asked for."""

    def __getattr__(self, name: str) -> _LazyName:
        if name.startswith("__"):  # the import asks for __path__ and the like
            raise AttributeError(name)
        return _LazyName(self.__name__, name)


class _LazyLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run yet."""


class _Finder:
    def __init__(self) -> None:
        self.lazy = set(MODULES)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname not in self.lazy:
            return None
        return ModuleSpec(fullname, _LazyLoader())


_finder = _Finder()
