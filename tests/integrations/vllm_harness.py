"""vLLM's own plugin loader and FlashInfer wrappers, from its wheel; one side a process.

``python tests/integrations/vllm_harness.py FOLDER SIDE`` prints one JSON object. SIDE is ``stock``,
or ``plugin``: after vLLM's own `load_general_plugins()`, which finds fp4aot's entry point.

What is vLLM's own runs as it is: ``plugins``, ``utils.flashinfer``, ``envs``, ``logger``,
``logging_utils`` and the small modules that they import. What is not:

*Bare packages* (a path and no code), because their ``__init__`` imports the engine: ``vllm``.

*Seeded*: ``vllm.platforms``, with a platform that says CUDA and capability 12.0: the real one asks
    a driver.

*Placeholder* (`placeholders`): ``regex``, which is not installed here and not used on this path.

`VLLM_HAS_FLASHINFER_CUBIN` is 1: without it or a compiler on the machine, vLLM takes FlashInfer for
absent and calls nothing of it. vLLM's own operators (``vllm::flashinfer_mm_fp4`` and its like) are
registered for CUDA alone; here their very functions serve CPU tensors too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integrations.placeholders import Placeholders  # noqa: E402
from integrations.sglang_harness import capability, describe  # noqa: E402

SIDES = ("stock", "plugin")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="the unpacked wheel")
    parser.add_argument("side", choices=SIDES)
    arguments = parser.parse_args()
    os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"
    print(json.dumps(run(arguments.folder, arguments.side)))
    return 0


def run(folder: Path, side: str) -> dict[str, Any]:
    """Call each wrapper, before the plugin and after it."""
    flashinfer = importlib.import_module("flashinfer")
    wrappers = bring_up(folder)
    log: list[str] = []
    result: dict[str, Any] = {"side": side, "flashinfer": flashinfer.__version__, "log": log}
    with capability(flashinfer, "cpu"):
        # A wrapper keeps what it has found: it must forget it when the plugin comes later.
        result["before"] = call_all(wrappers)
        if side == "plugin":
            logger = logging.getLogger("vllm.plugins")
            logger.setLevel(logging.INFO)
            logger.addHandler(_Log(log))
            importlib.import_module("vllm.plugins").load_general_plugins()
            result["after"] = call_all(wrappers)
    return result


def bring_up(folder: Path) -> Any:
    """Import ``vllm.utils.flashinfer`` from an unpacked wheel."""
    vllm = types.ModuleType("vllm")
    vllm.__path__ = [str(folder / "vllm")]
    sys.modules["vllm"] = vllm
    Placeholders(("regex",)).install()
    platforms = types.ModuleType("vllm.platforms")
    platforms.current_platform = _Platform()
    sys.modules["vllm.platforms"] = platforms
    define = torch.library.custom_op

    def for_both(*names: Any, device_types: Any = None, **keywords: Any) -> Any:
        return define(*names, **keywords)

    torch.library.custom_op = for_both
    try:
        return importlib.import_module("vllm.utils.flashinfer")
    finally:
        torch.library.custom_op = define


class _Platform:
    """A machine with a GPU of capability 12.0."""

    dispatch_key = "CUDA"

    def is_pin_memory_available(self) -> bool:
        return False

    def is_cuda(self) -> bool:
        return True

    def is_device_capability(self, capability: Any) -> bool:
        return capability in (120, (12, 0))

    def has_device_capability(self, capability: Any) -> bool:
        return capability <= (120 if isinstance(capability, int) else (12, 0))

    def is_device_capability_family(self, capability: int) -> bool:
        return capability // 10 == 12


def call_all(wrappers: Any) -> dict[str, str]:
    """Call vLLM's FP4 wrappers; for each "right", or what went wrong."""
    import fp4aot

    generator = torch.Generator().manual_seed(33)
    x = torch.randn(40, 256, generator=generator).bfloat16()
    w = torch.randn(96, 256, generator=generator).bfloat16()
    scale = torch.tensor([448.0 * 6.0]) / x.float().abs().amax()
    qx, sx = fp4aot.fp4_quantize(x, scale)
    qw, sw = fp4aot.fp4_quantize(w, scale)
    alpha = (1 / scale) ** 2
    expected = fp4aot.mm_fp4(qx, qw.T, sx, sw.T, alpha, torch.bfloat16)
    layout = fp4aot.SfLayout.layout_8x4
    linear = torch.randint(1, 120, (128, 16), generator=generator, dtype=torch.uint8)
    calls = {
        "flashinfer_fp4_quantize": (lambda f: f(x, scale), (qx, sx)),
        "flashinfer_quant_nvfp4_8x4_sf_layout": (
            lambda f: f(x, scale),
            fp4aot.nvfp4_quantize(x, scale, layout),
        ),
        "nvfp4_block_scale_interleave": (
            lambda f: f(linear),
            (fp4aot.block_scale_interleave(linear),),
        ),
        "flashinfer_scaled_fp4_mm": (
            lambda f: f(qx, qw, sx, sw, alpha, torch.bfloat16, backend="cutlass"),
            (expected,),
        ),
    }
    found = {}
    for name, (call, right) in calls.items():
        try:
            got = call(getattr(wrappers, name))
        except Exception as error:
            found[name] = describe(error)
            continue
        got = got if isinstance(got, tuple) else (got,)
        same = all(
            torch.equal(a.view(torch.uint8), b.reshape(a.shape).view(torch.uint8))
            for a, b in zip(got, right, strict=True)
        )
        found[name] = "right" if same else "another result"
    return found


class _Log(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


if __name__ == "__main__":
    sys.exit(main())
