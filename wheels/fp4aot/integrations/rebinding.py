"""Replaces objects wherever modules have bound them, by identity, and never anything else.

``from flashinfer import fp4_quantize as quantize`` leaves a binding in the importing module, which
replacing the function in its own module does not reach.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

Pair = tuple[Any, Any]


def rebind(pairs: Iterable[Pair]) -> list[str]:
    """Bind the second of each pair wherever a module has bound the first.

    Parameters
    ----------
    pairs
        What to look for, and what to put in its place.

    Returns
    -------
    list of str
        The bindings that changed, as "module.name".

    Notes
    -----
    Only global names of imported modules are seen: not `functools.partial` objects, closures, or
    attributes of classes and instances.
    """
    wanted = {id(old): (old, new) for old, new in pairs}
    changed = []
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType):
            continue
        # Not getattr and setattr: lazy modules import half a library when they are asked.
        namespace = vars(module)
        for name, value in list(namespace.items()):
            pair = wanted.get(id(value))
            if pair is not None:
                namespace[name] = pair[1]
                changed.append(f"{module_name}.{name}")
    return changed
