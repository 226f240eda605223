"""SGLang's own code around FlashInfer's mixture of experts, in NVFP4; one side a process.

``python tests/integrations/moe_harness.py FOLDER VERSION SIDE`` prints one JSON object. SIDE is
``stock``, or ``plugin``: after SGLang's own `load_plugins()`, which finds fp4aot's entry point,
called after SGLang's modules and FlashInfer were imported, as in its scheduler process.

What is called are the functions that ``moe_runner/flashinfer_cutlass.py`` registers for the runner
``flashinfer_cutlass``, as SGLang's `FusedOpPool` gives them out, on its own dataclasses: with
bfloat16 tokens, with tokens that were quantized before they were gathered, and after an all-to-all,
where this rank has half of the experts and the result is written where the dispatcher wants it.
Each call is watched as in `start`; the result is compared, bit for bit, with `fp4aot`'s operator on
the same tensors.

`sglang_package` says what of SGLang is real and what stands in. Besides:

*Published*: the server arguments that SGLang's `override_server_args` makes for its own tests.
*Replaced*: ``is_flashinfer_available`` is True, because SGLang looks for a GPU in it; the group of
    tensor-parallel ranks has one rank, because it is only asked for its size; and without a GPU
    `torch.cuda.device`, which FlashInfer enters with the tensors' device, does nothing.

Without a GPU, FlashInfer takes the CPU for a GPU of capability 12.0 and has nothing to compile
with, as in `sglang_harness`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integrations.run import MOE_CASES as CASES  # noqa: E402
from integrations.sglang_harness import (  # noqa: E402
    _Log,
    capability,
    describe,
    import_flashinfer,
    make_parser,
    since_start,
    temporary_files,
)
from integrations.start import Watch  # noqa: E402

SIDES = ("stock", "plugin")
REAL = (
    "sglang/srt/layers/moe/moe_runner/base.py",
    "sglang/srt/layers/moe/moe_runner/flashinfer_cutlass.py",
    "sglang/srt/layers/moe/token_dispatcher/flashinfer.py",
    "sglang/srt/layers/moe/token_dispatcher/standard.py",
    "sglang/srt/layers/moe/topk.py",
)
TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 12, 256, 128, 4, 2
RANKS = 2


@dataclass(frozen=True)
class Experts:
    """The experts of one rank and their tokens, in NVFP4.

    Parameters
    ----------
    tokens, input_scale
        bfloat16, and the global scale that they are quantized with.
    values, block_scales
        The same, quantized.
    selected, weights
        The experts of each token, among those of `RANKS` ranks, and their weights.
    fc1, fc2
        Packed weights of all experts, uint8.
    scales
        The six `quant_scales`; block scales are uint8.
    """

    tokens: torch.Tensor
    input_scale: torch.Tensor
    values: torch.Tensor
    block_scales: torch.Tensor
    selected: torch.Tensor
    weights: torch.Tensor
    fc1: torch.Tensor
    fc2: torch.Tensor
    scales: tuple[torch.Tensor, ...]

    def on_one_rank(self) -> torch.Tensor:
        """Select among the experts that are here."""
        return self.selected % EXPERTS


def make_experts(device: str) -> Experts:
    """Quantize random experts and tokens, with fp4aot's operators."""
    import fp4aot

    generator = torch.Generator().manual_seed(21)

    def quantized(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        made = []
        for _ in range(EXPERTS):
            weight = (torch.randn(rows, columns, generator=generator) / columns**0.5).to(device)
            scale = (448 * 6 / weight.abs().amax()).reshape(1)
            made.append((*fp4aot.fp4_quantize(weight.bfloat16(), scale), scale))
        values, block_scales, scales = zip(*made, strict=True)
        return torch.stack(values), torch.stack(block_scales), torch.cat(scales)

    fc1, fc1_block_scales, fc1_scale = quantized(2 * INTERMEDIATE, HIDDEN)
    fc2, fc2_block_scales, fc2_scale = quantized(HIDDEN, INTERMEDIATE)
    tokens = torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16().to(device)
    input_scale = (448 * 6 / tokens.float().abs().amax()).reshape(1)
    inner_scale = torch.tensor([448 * 6 / 8.0], device=device)
    logits = torch.randn(TOKENS, RANKS * EXPERTS, generator=generator)
    weights, selected = logits.softmax(-1).topk(TOP_K)
    values, block_scales = fp4aot.fp4_quantize(tokens, input_scale)
    return Experts(
        *(tokens, input_scale, values, block_scales, selected.to(device), weights.to(device)),
        *(fc1, fc2),
        (
            *(input_scale, fc1_block_scales, 1 / (input_scale * fc1_scale)),
            *(inner_scale, fc2_block_scales, 1 / (inner_scale * fc2_scale)),
        ),
    )


def mixture(experts: Experts, selected: torch.Tensor, **options: Any) -> torch.Tensor:
    """Call fp4aot's function itself, on what has the tensors' own dtypes."""
    import fp4aot

    return fp4aot.cutlass_fused_moe(
        options.pop("input", experts.tokens),
        selected.int(),
        experts.weights,
        experts.fc1,
        experts.fc2,
        torch.bfloat16,
        experts.scales,
        **options,
    )


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two results are equal in every bit."""
    return left.dtype == right.dtype and torch.equal(
        left.view(torch.uint8), right.view(torch.uint8)
    )


def main() -> int:
    arguments = make_parser(__doc__, SIDES).parse_args()
    with temporary_files(arguments):
        print(json.dumps(run(arguments)))
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start as a server does, then make each call."""
    device = arguments.device
    seconds = {"torch": since_start()}
    flashinfer = import_flashinfer(arguments.bundle)
    seconds["flashinfer"] = since_start()
    from integrations.sglang_package import bring_up

    sglang = bring_up(arguments.folder, arguments.version)
    server = Server.of(sglang)
    log: list[str] = []
    if arguments.side == "plugin":
        logger = logging.getLogger("sglang.srt.plugins")
        logger.setLevel(logging.INFO)
        logger.addHandler(_Log(log))
        sglang.load_plugins()
    seconds["sglang"] = since_start()
    watch = Watch()
    events: dict[str, dict[str, list[str]]] = {}
    found: dict[str, str] = {}
    bound = flashinfer.fused_moe.cutlass_fused_moe
    with torch.no_grad(), capability(flashinfer, device), published(sglang), any_device(device):
        experts = make_experts(device)
        for name in CASES:
            call, expected = server.case(name, experts)
            with watch() as events[name]:
                try:
                    got = call()
                    if device == "cuda":
                        torch.cuda.synchronize()
                except Exception as error:
                    found[name] = describe(error)
                    seconds.setdefault("first failure", since_start())
                    continue
                seconds.setdefault("first result", since_start())
            found[name] = "right" if same(got, expected()) else "another result"
    for name in ("compilation.compile", "compilation.backend"):
        sglang.module(name)  # `not_listed` asks for them.
    files = set(sglang.files())
    return {
        "version": arguments.version,
        "side": arguments.side,
        "device": device,
        "torch": torch.__version__,
        "flashinfer": flashinfer.__version__,
        "prebuilt": arguments.bundle is not None,
        "bound": bound_to(bound),
        "log": log,
        "seconds": seconds,
        "cases": found,
        "events": {name: what for name, what in events.items() if what},
        "not_listed": sglang.not_listed()
        + [f"not imported: {name}" for name in REAL if name not in files],
    }


@dataclass(frozen=True)
class Server:
    """What of SGLang is called, and with what.

    Parameters
    ----------
    runner, base, standard, all_to_all, topk
        Its modules.
    fused_finalize
        What it asks of FlashInfer.
    """

    runner: Any
    base: Any
    standard: Any
    all_to_all: Any
    topk: Any
    fused_finalize: bool

    @classmethod
    def of(cls, sglang: Any) -> Server:
        """Import the modules, also those that a call would import."""
        sglang.module("layers.moe.moe_runner.flashinfer_trtllm")
        runner = sglang.module("layers.moe.moe_runner.flashinfer_cutlass")
        runner.is_flashinfer_available = lambda: True
        return cls(
            runner,
            sglang.module("layers.moe.moe_runner.base"),
            sglang.module("layers.moe.token_dispatcher.standard"),
            sglang.module("layers.moe.token_dispatcher.flashinfer"),
            sglang.module("layers.moe.topk"),
            bool(sglang.module("environ").envs.SGLANG_FLASHINFER_MOE_FUSED_FINALIZE.get()),
        )

    def case(
        self, name: str, experts: Experts
    ) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
        """Return SGLang's call of one case, and fp4aot's own."""
        selected, options = experts.on_one_rank(), {"use_fused_finalize": self.fused_finalize}
        if name == "bfloat16":
            dispatched = self._standard(experts.tokens, None, selected, experts)
            return self._call("none", dispatched, experts), lambda: mixture(
                experts, selected, **options
            )
        if name == "quantized before":
            packed = {"input": experts.values, "input_sf": experts.block_scales}
            dispatched = self._standard(experts.values, experts.block_scales, selected, experts)
            return self._call("none", dispatched, experts), lambda: mixture(
                experts, selected, **packed, **options
            )
        # Tokens none of whose experts are here are not written on a GPU.
        buffers = [torch.full_like(experts.tokens, 7.0) for _ in range(2)]
        dispatched = self.all_to_all.FlashinferDispatchOutput(
            *(experts.tokens, None, self._topk(experts.selected, experts)), moe_output=buffers[0]
        )
        rank = {"ep_size": RANKS, "ep_rank": 1}
        return self._call("flashinfer", dispatched, experts, **rank), lambda: mixture(
            *(experts, experts.selected),
            **(rank | options),
            enable_alltoall=True,
            output=buffers[1],
        )

    def _topk(self, selected: torch.Tensor, experts: Experts) -> Any:
        return self.topk.StandardTopKOutput(experts.weights, selected, None)

    def _standard(
        self,
        tokens: torch.Tensor,
        scales: torch.Tensor | None,
        selected: torch.Tensor,
        experts: Experts,
    ) -> Any:
        return self.standard.StandardDispatchOutput(tokens, scales, self._topk(selected, experts))

    def _call(
        self, dispatcher: str, dispatched: Any, experts: Experts, ep_size: int = 1, ep_rank: int = 0
    ) -> Callable[[], torch.Tensor]:
        fused = self.base.FusedOpPool.get_fused_func(dispatcher, "flashinfer_cutlass")
        scales = list(experts.scales)
        for index in (1, 4):
            scales[index] = scales[index].view(torch.float8_e4m3fn)
        quantized = self.runner.FlashInferCutlassMoeQuantInfo(
            quant_type="fp4",
            w13_weight=experts.fc1,
            w2_weight=experts.fc2,
            quant_scales=scales,
            output_dtype=torch.bfloat16,
            apply_routed_scaling_factor=False,
        )
        layer = types.SimpleNamespace(
            moe_tp_size=1, moe_tp_rank=0, moe_ep_size=ep_size, moe_ep_rank=ep_rank
        )
        config = self.base.MoeRunnerConfig(activation="silu", is_gated=True, layer=layer)
        return lambda: fused(dispatched, quantized, config).hidden_states


@contextmanager
def published(sglang: Any) -> Iterator[None]:
    """Publish server arguments, and a group of one rank."""
    context = sglang.module("runtime_context")
    group = types.SimpleNamespace(world_size=1)
    with (
        context._CONTEXT.override_server_args(),
        context.get_parallel().override(tp_group=group),
    ):
        yield


@contextmanager
def any_device(device: str) -> Iterator[None]:
    """Let `torch.cuda.device` take the CPU where that is the device."""
    real = torch.cuda.device
    if device == "cpu":
        torch.cuda.device = lambda _: contextlib.nullcontext()
    try:
        yield
    finally:
        torch.cuda.device = real


def bound_to(function: Any) -> str:
    """Name the module whose code runs when a function is called."""
    while not hasattr(function, "__globals__") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function.__globals__["__name__"]


if __name__ == "__main__":
    sys.exit(main())
