"""vLLM's own plugin loader and FlashInfer wrappers, from its wheel; one side a process.

``python tests/integrations/vllm_harness.py FOLDER SIDE`` prints one JSON object. SIDE is ``stock``,
or ``plugin``: after vLLM's own `load_general_plugins()`, which finds fp4aot's entry point.

What is vLLM's own runs as it is: ``plugins``, ``utils.flashinfer``, ``envs``, ``logger``,
``logging_utils`` and the small modules that they import; for the experts
``fused_moe/experts/flashinfer_cutlass_moe.py``, ``fused_moe/activation.py`` and
``quantization/utils/flashinfer_utils.py``. What is not:

*Bare packages* (a path and no code), because their ``__init__`` imports the engine or its layers:
    ``vllm``, and those of `BARE`.

*Seeded*: ``vllm.platforms``, with a platform that says CUDA and capability 12.0: the real one asks
    a driver.

*Placeholders* (`placeholders`): ``regex``, which is not installed here and not used on this path,
    and of vLLM's own those of `OF_VLLM`: base classes and descriptions of the experts, whose
    attributes are set here as vLLM's configuration would.

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

from integrations import moe_harness  # noqa: E402
from integrations.placeholders import Placeholders  # noqa: E402
from integrations.sglang_harness import _Log, capability, describe  # noqa: E402

SIDES = ("stock", "plugin")
_LAYERS = "vllm.model_executor.layers"
BARE = (
    *("vllm.model_executor", _LAYERS, f"{_LAYERS}.fused_moe", f"{_LAYERS}.fused_moe.experts"),
    *(f"{_LAYERS}.quantization", f"{_LAYERS}.quantization.utils"),
)
OF_VLLM = (
    f"{_LAYERS}.fused_moe.config",
    f"{_LAYERS}.fused_moe.modular_kernel",
    f"{_LAYERS}.fused_moe.topk_weight_and_reduce",
    f"{_LAYERS}.quantization.utils.quant_utils",
)


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
    for name in ("vllm", *BARE):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    Placeholders(("regex", *OF_VLLM)).install()
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
    experts = moe_harness.make_experts("cpu")
    selected = experts.on_one_rank()
    packed = {"input": experts.values, "input_sf": experts.block_scales}
    calls["flashinfer_cutlass_fused_moe"] = (
        lambda _: run_experts(experts, selected),
        (moe_harness.mixture(experts, selected, **packed),),
    )
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


def run_experts(experts: moe_harness.Experts, selected: torch.Tensor) -> torch.Tensor:
    """Call `FlashInferExperts.apply`, which calls the wrapper, as vLLM's modular kernel does."""
    module = importlib.import_module(f"{_LAYERS}.fused_moe.experts.flashinfer_cutlass_moe")
    layer = object.__new__(module.FlashInferExperts)
    scales = list(experts.scales)
    for index in (1, 4):
        scales[index] = scales[index].view(torch.float8_e4m3fn)
    layer.a1_gscale, layer.w1_scale, layer.g1_alphas = scales[:3]
    layer.a2_gscale, layer.w2_scale, layer.g2_alphas = scales[3:]
    layer.quant_dtype = layer.weight_quant_dtype = "nvfp4"
    layer.use_deepseek_fp8_block_scale = False
    layer.gemm1_alpha = layer.gemm1_beta = layer.gemm1_clamp_limit = None
    layer.out_dtype = torch.bfloat16
    layer.tp_size, layer.tp_rank, layer.ep_size, layer.ep_rank = 1, 0, 1, 0
    output = torch.full_like(experts.tokens, float("nan"))
    layer.apply(
        output=output,
        hidden_states=experts.values,
        w1=experts.fc1,
        w2=experts.fc2,
        topk_weights=experts.weights,
        topk_ids=selected,
        activation=module.MoEActivation.SILU,
        global_num_experts=moe_harness.EXPERTS,
        expert_map=None,
        a1q_scale=experts.block_scales,
        a2_scale=None,
        workspace13=None,
        workspace2=None,
        expert_tokens_meta=None,
        apply_router_weight_on_input=False,
    )
    return output


if __name__ == "__main__":
    sys.exit(main())
