"""The public names of the package, read from its sources without importing it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import griffe

from _site.source import ROOT

PACKAGE = "fp4aot"


@dataclass(frozen=True)
class PublicName:
    """One name that users import.

    Parameters
    ----------
    path
        As it is used: ``fp4aot.mm_fp4``, ``fp4aot.nn.NVFP4Linear``.
    object
        What it is: a function, a class, or an attribute.
    source
        The file that defines it, relative to the repository.
    """

    path: str
    object: griffe.Object
    source: str


class UnknownNameError(Exception):
    """A page that names something that the package does not have."""


@functools.cache
def package() -> griffe.Module:
    """Read the package; nothing is imported or compiled."""
    loader = griffe.GriffeLoader(
        search_paths=[ROOT / "wheels"], allow_inspection=False, docstring_parser="numpy"
    )
    loaded = loader.load(PACKAGE)
    loader.resolve_aliases(implicit=False, external=False)
    if not isinstance(loaded, griffe.Module):
        raise UnknownNameError(f"{PACKAGE} in {ROOT / 'wheels'} is no package")
    return loaded


def find(path: str) -> PublicName:
    """Look a name up.

    Raises
    ------
    UnknownNameError
        When there is none.
    """
    inner = path.removeprefix(f"{PACKAGE}.")
    try:
        found = package()[inner]
    except KeyError:
        raise UnknownNameError(
            f"{path} is not in wheels/fp4aot; correct the page that names it"
        ) from None
    target = found.final_target if isinstance(found, griffe.Alias) else found
    source = target.filepath
    if isinstance(source, list):
        raise UnknownNameError(f"{path} is a package without a file")
    return PublicName(path, target, str(source.relative_to(ROOT)))


def exported(module: str) -> Iterator[str]:
    """Yield the full names in the `__all__` of a module, modules among them left out.

    Parameters
    ----------
    module
        ``"fp4aot"``, ``"fp4aot.nn"``, ...
    """
    found = package() if module == PACKAGE else package()[module.removeprefix(f"{PACKAGE}.")]
    for name in found.exports or ():
        member = found.members.get(str(name))
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if target is None or isinstance(target, griffe.Module) or str(name).startswith("__"):
            continue
        yield f"{module}.{name}"
