"""Stand-ins for packages that are not installed, for modules that only mention them.

A name of such a package is an empty class: it can be subclassed, used as a decorator (which returns
what it decorates) and in annotations. Nothing of it does anything.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        return _attribute(f"{cls.__module__}.{cls.__name__}", name)

    def __or__(cls, other: object) -> Any:
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _new(cls: type, *arguments: Any, **keywords: Any) -> Any:
    if len(arguments) == 1 and not keywords and isinstance(arguments[0], types.FunctionType | type):
        return arguments[0]
    return object.__new__(cls)


def _attribute(owner: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"{owner} is a placeholder and has no {name}")
    body = {
        "__module__": owner,
        "__new__": _new,
        "__init__": lambda self, *arguments, **keywords: None,
        "__init_subclass__": classmethod(lambda cls, **keywords: None),
        "__call__": lambda self, function=None, *arguments, **keywords: function,
    }
    return _Meta(name, (), body)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _attribute(self.__name__, name)


class Placeholders(MetaPathFinder, Loader):
    """Finds the packages named, and everything in them, before the other finders do.

    Parameters
    ----------
    packages
        Dotted names.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        self.packages = tuple(packages)
        self.used: set[str] = set()

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        for package in self.packages:
            if fullname == package or fullname.startswith(f"{package}."):
                return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        self.used.add(spec.name)
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is no code to run."""
