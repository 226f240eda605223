"""Calls a function each time that a package has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[], None]


class AfterImport(MetaPathFinder):
    """Finds a package as the other finders do, and runs an action after its code.

    Parameters
    ----------
    package
        A top-level name.
    action
        What to run. It must not raise: an import would fail that worked before.
    """

    def __init__(self, package: str, action: Action) -> None:
        self._package = package
        self._action = action

    def install(self) -> None:
        """Ask this finder first. Installing twice is installing once."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Do not ask this finder any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find the package, with a loader that runs the action; nothing else is found here."""
        if fullname != self._package:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None


class _Loader(Loader):
    """Runs a module by its own loader, and then an action."""

    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader: importlib.resources and inspect ask it for more.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action()
