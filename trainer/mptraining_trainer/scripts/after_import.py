"""A function that is called when a package has been imported, or at once if it already is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Loader(Loader):
    def __init__(self, loader: Loader, call: Callable[[ModuleType], None]) -> None:
        self._loader, self._call = loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The package's own loader reads its resources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call(module)


class _Finder(MetaPathFinder):
    def __init__(self, package: str, call: Callable[[ModuleType], None]) -> None:
        self._package, self._call = package, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._package:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = _Loader(found.loader, self._call)
                return found
        return None


@contextmanager
def after_import(package: str, call: Callable[[ModuleType], None]) -> Iterator[None]:
    """In the block, call `call` with the top-level package once it has been imported."""
    if package in sys.modules:
        call(sys.modules[package])
        yield
        return
    finder = _Finder(package, call)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
