"""The entry point of the group ``sglang.srt.plugins``.

SGLang loads it in its main process and in each scheduler, from 0.5.11 on. Its modules bind
FlashInfer's functions as globals, some by names of their own (`_flashinfer_fp4_quantize` in
``fp4_utils.py``), and its custom operators call those: `enable` replaces them there. SGLang's
`HookRegistry` is not used: it imports the modules that it patches, in processes that would not.
"""

from __future__ import annotations

import logging

from fp4aot.integrations import plugin


def activate() -> None:
    """Route FlashInfer's FP4 functions to the operators in this process. Never raises."""
    plugin.activate(logging.getLogger("sglang.srt.plugins.fp4aot"))
