"""The entry point of the group ``vllm.general_plugins``.

vLLM loads it in all its processes. Its wrappers in ``vllm/utils/flashinfer.py`` ask FlashInfer for
a function when they are first called, and keep it.
"""

from __future__ import annotations

import logging
import sys
from types import FunctionType
from typing import Any

from fp4aot.integrations import plugin

_WRAPPERS = "vllm.utils.flashinfer"


def activate() -> None:
    """Route FlashInfer's FP4 functions to the operators in this process. Never raises."""
    # vLLM shows what its own loggers say.
    logger = logging.getLogger("vllm.plugins.fp4aot")
    if not plugin.activate(logger):
        return
    try:
        forget(sys.modules.get(_WRAPPERS))
    except Exception:
        logger.exception("fp4aot: wrappers that vLLM has used before may keep FlashInfer's")


def forget(wrappers: Any) -> int:
    """Let vLLM's lazy wrappers ask FlashInfer again; return how many do.

    Parameters
    ----------
    wrappers
        The module `vllm.utils.flashinfer`, or None.
    """
    count = 0
    for wrapper in list(vars(wrappers).values()) if wrappers is not None else ():
        if not isinstance(wrapper, FunctionType) or "_get_impl" not in wrapper.__code__.co_freevars:
            continue
        index = wrapper.__code__.co_freevars.index("_get_impl")
        cell = (wrapper.__closure__ or ())[index]
        clear = getattr(cell.cell_contents, "cache_clear", None)
        if clear is not None:
            clear()
            count += 1
    return count
