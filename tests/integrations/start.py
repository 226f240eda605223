"""What a server's first calls do to the machine, and when its first FP4 result is there.

``python tests/integrations/start.py SIDE`` prints one JSON object. SIDE is ``stock`` or ``fp4aot``
(after the plugin's entry point was called). FlashInfer is imported, and then every function that
the plugin replaces is called once under an audit hook, which sees what Python does: processes,
files opened for writing, folders made, files renamed or removed, file locks (`fcntl`, by which
`filelock` works) and imports. What C and C++ code does by itself, it does not see.

Without a GPU, stock FlashInfer gets as far as the compiler, which is not there; see
`sglang_harness`. With ``--bundle`` its modules are prebuilt, as on a machine that has compiled them
before.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

SIDES = ("stock", "fp4aot")
PROCESSES = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.system")
KERNELS = ("sm100", "sm103", "sm120")
LOCKS = ("fcntl.flock", "fcntl.lockf")
FILES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Counts audit events while it is entered, by kind."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self.on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in PROCESSES:
            self._add("process", arguments[0])
        elif event in LOCKS:
            self._add("lock", event)
        elif event in FILES:
            self._add("file", arguments[0])
        elif event == "import":
            self._add("import", arguments[0])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self._add("file", arguments[0])

    def _add(self, kind: str, what: object) -> None:
        self.found.setdefault(kind, []).append(Path(str(what)).name)

    @contextmanager
    def __call__(self) -> Iterator[dict[str, list[str]]]:
        self.found, self.on = {}, True
        try:
            yield self.found
        finally:
            self.on = False


def calls(device: str) -> dict[str, Callable[[Any], Any]]:
    """For each name that the plugin replaces, a call of it, given its owner."""
    import torch

    import fp4aot

    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    x, weight, scale = random(7, 256), random(32, 256), torch.tensor([90.0], device=device)
    values, scales = fp4aot.fp4_quantize(x, scale)
    weights, weight_scales = fp4aot.fp4_quantize(weight, scale)
    mx_values, mx_scales = fp4aot.mxfp4_quantize(x)
    batch = random(3, 5, 128)
    rows = torch.tensor([5, 0, 2], dtype=torch.int32, device=device)
    ones = torch.ones(3, device=device)
    linear = torch.randint(1, 120, (128, 24), generator=generator, dtype=torch.uint8)
    on_device = linear.to(device)
    kv_values, kv_scales = fp4aot.nvfp4_kv_quantize(x, scale)
    pages = torch.randint(0, 255, (4, 16, 2, 32), generator=generator, dtype=torch.uint8)
    page_scales = torch.randint(1, 120, (4, 16, 2, 4), generator=generator, dtype=torch.uint8)
    cache = tuple(pages.to(device) for _ in range(2))
    cache_scales = tuple(page_scales.to(device) for _ in range(2))
    tables = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=device)
    lengths = torch.tensor([20, 17], dtype=torch.int32, device=device)
    rows_to_append = random(3, 2, 64)
    requests, positions, request_starts, last_page_lengths = (
        torch.tensor(numbers, dtype=torch.int32, device=device)
        for numbers in ([0, 1, 1], [19, 15, 16], [0, 2, 4], [4, 1])
    )
    dense = [torch.full((2, 32, 2, 64), 7.0, device=device).bfloat16() for _ in range(2)]
    grouped, group_scales = fp4aot.fp4_quantize(random(8, 256), scale)
    group_weights, group_weight_scales = fp4aot.fp4_quantize(random(128, 256), scale)
    groups = (torch.tensor([0, 8], dtype=torch.int32, device=device),)
    eights = random(8, 256).to(torch.float8_e4m3fn)
    exponents = torch.full((128, 8), 127, dtype=torch.uint8, device=device)
    fc1, fc1_scales = fp4aot.fp4_quantize(random(128, 256), scale)
    fc2, fc2_scales = fp4aot.fp4_quantize(random(256, 64), scale)
    experts = torch.zeros(7, 1, dtype=torch.int32, device=device)
    moe_scales = [scale, fc1_scales[None], 1 / scale, scale, fc2_scales[None], 1 / scale]
    return {
        "fp4_quantize": lambda f: f(x, scale),
        "nvfp4_quantize": lambda f: f(x, scale),
        "mxfp4_quantize": lambda f: f(x),
        "nvfp4_batched_quantize": lambda f: f(batch, scale),
        "scaled_fp4_grouped_quantize": lambda f: f(batch, rows, ones),
        "silu_and_mul_scaled_nvfp4_experts_quantize": lambda f: f(batch, rows, ones),
        "block_scale_interleave": lambda f: f(on_device),
        "e2m1_and_ufp8sf_scale_to_float": lambda f: f(values, scales, 1 / scale),
        "mxfp4_dequantize": lambda f: f(mx_values, mx_scales),
        "mxfp4_dequantize_host": lambda f: f(
            values.cpu(), torch.full((7, 8), 127, dtype=torch.uint8)
        ),
        "shuffle_matrix_a": lambda f: f(on_device, 128),
        "shuffle_matrix_sf_a": lambda f: f(on_device, 128),
        "nvfp4_kv_quantize": lambda f: f(x, scale),
        "nvfp4_kv_dequantize": lambda f: f(kv_values, kv_scales, scale),
        "nvfp4_kv_dequantize_paged": lambda f: f(
            cache, cache_scales, tables, lengths, scale, scale, dense[0], dense[1]
        ),
        "nvfp4_quantize_append_paged_kv_cache": lambda f: f(
            *(rows_to_append, rows_to_append, requests, positions, cache),
            tuple(one.view(torch.float8_e4m3fn) for one in cache_scales),
            *(tables.reshape(-1), request_starts, last_page_lengths, 0.5, 2.0),
        ),
        "mm_fp4": lambda f: f(
            values, weights.T, scales, weight_scales.T, scale, torch.bfloat16, backend="cutlass"
        ),
        "group_gemm_nvfp4_nt_groupwise": lambda f: f(
            grouped, group_weights[None], group_scales, group_weight_scales[None], *groups
        ),
        "group_gemm_mxfp8_mxfp4_nt_groupwise": lambda f: f(
            eights, group_weights[None], exponents, exponents[None], *groups
        ),
        "cutlass_fused_moe": lambda f: f(
            *(x, experts, torch.ones(7, 1, device=device)),
            *(fc1[None].view(torch.int64), fc2[None].view(torch.int64), torch.bfloat16),
            [one.view(torch.int32) if one.dtype == torch.uint8 else one for one in moe_scales],
        ),
        "cutlass_fused_moe_workspace_size": lambda f: f(
            *(7, 256, 64, 1, 1), x_dtype=torch.bfloat16, weight_dtype=torch.int64
        ),
        "get_fp4_quantization_module": lambda f: f("120f"),
        "get_fp4_kv_quantization_module": lambda f: f(),
        "get_fp4_kv_dequantization_module": lambda f: f(),
        **{
            f"gen_{name}": lambda f: f().build_and_load()
            for name in (
                *(f"gemm_{kernels}_module_cutlass_fp4" for kernels in KERNELS),
                *(f"cutlass_fused_moe_{kernels}_module" for kernels in KERNELS),
                "trtllm_utils_module",
            )
        },
    }


def run(side: str, device: str, bundle: Path | None) -> dict[str, Any]:
    """Start as a server does, then call everything."""
    import torch

    from integrations.sglang_harness import capability, describe, import_flashinfer, since_start

    seconds = {"torch": since_start()}

    if bundle is not None:
        # The plugin comes first, and asks which FlashInfer is installed.
        importlib.import_module("flashinfer_beside.use").prepare(bundle)
    if side == "fp4aot":
        importlib.import_module("fp4aot.integrations.sglang").activate()
        seconds["plugin"] = since_start()
    flashinfer = import_flashinfer(bundle)
    seconds["flashinfer"] = since_start()
    x = torch.randn(8, 256, device=device).bfloat16()
    scale = torch.tensor([90.0], device=device)
    watch = Watch()
    events: dict[str, dict[str, list[str]]] = {}
    errors: dict[str, str] = {}
    with capability(flashinfer, device):
        with watch() as events["first fp4_quantize"]:
            try:
                flashinfer.fp4_quantize(x, scale)
                if device == "cuda":
                    torch.cuda.synchronize()
                seconds["first result"] = since_start()
            except Exception as error:
                errors["first fp4_quantize"] = describe(error)
        table = importlib.import_module("fp4aot.integrations._flashinfer.table")
        made = calls(device)
        rows = (*table.PUBLIC_FUNCTIONS, *table.MODULE_GETTERS)
        assert {row.name for row in rows} == set(made), "a replaced function is not called here"
        for row in rows:
            function = getattr(sys.modules[row.module], row.name)
            with watch() as events[row.name]:
                try:
                    made[row.name](function)
                except Exception as error:
                    errors[row.name] = describe(error)
    return {
        "side": side,
        "device": device,
        "flashinfer": flashinfer.__version__,
        "prebuilt": bundle is not None,
        "seconds": seconds,
        "events": {name: found for name, found in events.items() if found},
        "called": list(events),
        "errors": errors,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bundle", type=Path, help="FlashInfer as flashinfer_beside made it")
    parser.add_argument("--cuda-home", help="a toolkit for FlashInfer to compile with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        if not arguments.bundle:
            os.environ["FLASHINFER_WORKSPACE_BASE"] = cache
            os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "12.0f"
            os.environ["CUDA_HOME"] = arguments.cuda_home or str(Path(cache) / "no-toolkit")
        print(json.dumps(run(arguments.side, arguments.device, arguments.bundle)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
