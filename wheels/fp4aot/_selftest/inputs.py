"""Random arguments for every operator: distinct magnitudes in every block, never zeros.

Everything is drawn on the CPU from one generator, so that each device gets the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import _recipes
from fp4aot._selftest import experts
from fp4aot._selftest.case import Case, blocks
from fp4aot.operators import (
    batched,
    dequantize,
    interleave,
    matmul,
    nvfp4_kv_cache,
    per_token,
    quantize,
)

_SWIZZLED_128X4 = (True, False)
_SWIZZLED_8X4 = (True, True)
_LINEAR = (False, False)
_TIES = 2e-3


def cases(seed: int = 0) -> list[Case]:
    """Return calls that cover the operators' formats, layouts, dtypes and ranks."""
    generator = torch.Generator().manual_seed(seed)
    return [
        *_quantization(generator),
        *_scales(generator),
        *_dequantization(generator),
        *_plain_kv(generator),
        *_paged_kv(generator),
        *_kv_quantization(generator),
        *_kv_append(generator),
        *_recipe_cases(generator),
        *_per_token(generator),
        *_batches(generator),
        *_products(generator),
        *experts.cases(generator),
    ]


def _global_scale(values: torch.Tensor) -> torch.Tensor:
    """Return a scale that uses nearly the whole range, and whose mantissa is not short.

    Under a scale of few bits many scaled values lie exactly on a tie of E2M1, where the GPU's
    approximate reciprocal may choose the other neighbour: up to half a percent of them.
    """
    return (448 * 6 / (1.0173 * values.float().abs().max())).reshape(1)


def _quantization(generator: torch.Generator) -> list[Case]:
    found = []

    def add(variant: str, values: torch.Tensor, scale: torch.Tensor | None, *flags: Any) -> None:
        found.append(Case(quantize.fp4_quantize, variant, (values, scale, *flags), _TIES))

    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        values = blocks(generator, 33, 320).to(dtype)
        name = str(dtype).removeprefix("torch.")
        scale = _global_scale(values)
        add(f"NVFP4 128x4 {name}", values, scale, 16, False, *_SWIZZLED_128X4)
        add(f"NVFP4 8x4 {name}", values, scale, 16, False, *_SWIZZLED_8X4)
        add(f"NVFP4 linear {name}", values, scale, 16, False, *_LINEAR)
        mx_scale = torch.ones(1) if dtype == torch.float8_e4m3fn else None
        add(f"MXFP4 128x4 {name}", values, mx_scale, 32, True, *_SWIZZLED_128X4)
        add(f"MXFP4 linear {name}", values, mx_scale, 32, True, *_LINEAR)
    wide = blocks(generator, 1056, 1024).to(torch.bfloat16)
    add("NVFP4 128x4 many rows", wide, _global_scale(wide), 16, False, *_SWIZZLED_128X4)
    narrow = wide[:, :512].to(torch.float8_e4m3fn).contiguous()
    add("NVFP4 8x4 many rows, fp8", narrow, _global_scale(narrow), 16, False, *_SWIZZLED_8X4)
    batch = blocks(generator, 3, 7, 64).to(torch.bfloat16)
    add("NVFP4 128x4 3-D", batch, _global_scale(batch), 16, False, *_SWIZZLED_128X4)
    rows = blocks(generator, 31, 64).to(torch.bfloat16)
    per_row = 448 * 6 / rows.float().abs().amax(dim=1)
    add("NVFP4 128x4 scale per row", rows, per_row, 16, False, *_SWIZZLED_128X4)
    add("NVFP4 128x4 inversed scale", rows, 1 / per_row, 16, False, *_SWIZZLED_128X4, True)
    column_major = blocks(generator, 48, 64).to(torch.bfloat16).t()
    scale = _global_scale(column_major)
    add("NVFP4 128x4 column major", column_major, scale, 16, False, *_SWIZZLED_128X4)
    return found


def _scales(generator: torch.Generator) -> list[Case]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator)

    forward, reverse = interleave.block_scale_interleave, interleave.block_scale_interleave_reverse
    return [
        Case(forward, "uint8 2-D", (draw(130, 9),)),
        Case(forward, "uint8 3-D", (draw(3, 40, 6),)),
        Case(forward, "bfloat16 2-D", (draw(33, 5).to(torch.bfloat16),)),
        Case(reverse, "uint8 3-D", (draw(2, 256, 8),)),
    ]


def _dequantization(generator: torch.Generator) -> list[Case]:
    values = blocks(generator, 33, 320).to(torch.bfloat16)
    scale = _global_scale(values)
    found = []
    for name, flags in (("128x4", _SWIZZLED_128X4), ("8x4", _SWIZZLED_8X4), ("linear", _LINEAR)):
        packed, scales = quantize.fp4_quantize(values, scale, 16, False, *flags)
        arguments = (packed, scales, 1 / scale, 16, 1, *flags)
        function = dequantize.e2m1_and_ufp8sf_scale_to_float
        found.append(Case(function, f"E4M3 {name}", arguments))
    for number, (name, flags) in enumerate(
        (("128x4", _SWIZZLED_128X4), ("8x4", _SWIZZLED_8X4), ("linear", _LINEAR))
    ):
        packed, scales = quantize.fp4_quantize(values, None, 32, True, *flags)
        found.append(Case(dequantize.mxfp4_dequantize, name, (packed, scales, number)))
    weight = torch.randint(0, 256, (24, 96), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(90, 160, (24, 6), dtype=torch.uint8, generator=generator)
    found.append(
        Case(
            dequantize.mxfp4_dequantize_host,
            "FlashInfer's host code",
            (weight, exponents, 32),
            devices="cpu",
        )
    )
    return found


def _plain_kv(generator: torch.Generator) -> list[Case]:
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        values = blocks(generator, 129, 2048).to(torch.bfloat16)
        scale = _global_scale(values)
        packed, scales = quantize.fp4_quantize(values, scale, 16, False, *_LINEAR)
        arguments = (packed, scales, 1 / scale, dtype)
        name = str(dtype).removeprefix("torch.")
        found.append(Case(nvfp4_kv_cache.nvfp4_kv_dequantize, name, arguments))
    return found


def _paged_kv(generator: torch.Generator) -> list[Case]:
    pages, page_size, heads, batch, tokens = 40, 16, 4, 3, 100
    lengths = torch.tensor([100, 1, 37], dtype=torch.int32)
    tables = torch.randperm(pages, generator=generator)[: batch * 7].reshape(batch, 7)
    found = []
    for layout, (name, order) in enumerate((("NHD", (0, 1, 2, 3)), ("HND", (0, 2, 1, 3)))):
        parts = []
        for dim in (128, 64):
            values = blocks(generator, pages * page_size * heads, dim).to(torch.bfloat16)
            packed, scales = quantize.fp4_quantize(values, torch.ones(1), 16, False, *_LINEAR)
            parts.append(
                [
                    part.reshape(pages, page_size, heads, -1).permute(order).contiguous()
                    for part in (packed, scales)
                ]
            )
        (k_cache, k_scales), (v_cache, v_scales) = parts
        for index_dtype in (torch.int32, torch.int64):
            arguments = (
                *(k_cache, v_cache, k_scales, v_scales, tables.to(index_dtype), lengths),
                *(torch.tensor([0.5]), torch.tensor([2.0]), tokens, torch.bfloat16, layout),
            )
            bits = str(index_dtype).removeprefix("torch.")
            found.append(
                Case(
                    nvfp4_kv_cache.nvfp4_kv_dequantize_paged,
                    f"{name}, {bits} tables",
                    arguments,
                    writes_all=False,
                )
            )
    return found


def _kv_quantization(generator: torch.Generator) -> list[Case]:
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        values = blocks(generator, 65, 2048).to(dtype)
        arguments = (values, 1 / _global_scale(values))
        name = str(dtype).removeprefix("torch.")
        found.append(Case(nvfp4_kv_cache.nvfp4_kv_quantize, name, arguments, _TIES))
    return found


def _kv_append(generator: torch.Generator) -> list[Case]:
    found = []
    for layout, name in enumerate(("NHD", "HND")):
        page = (4, 2) if layout == 0 else (2, 4)
        keys, values = (blocks(generator, 5, 2, 128).to(torch.bfloat16) for _ in range(2))
        caches = [torch.zeros(6, *page, 64, dtype=torch.uint8) for _ in range(2)]
        scales = [torch.zeros(6, *page, 8).to(torch.float8_e4m3fn) for _ in range(2)]
        # Two requests of 7 and 4 tokens on pages 3, 0 and 5; five rows are new.
        requests = ([0, 0, 1, 1, 1], [5, 6, 1, 2, 3], [3, 0, 5], [0, 2, 3], [3, 4])
        rows, positions, *pages = (torch.tensor(r, dtype=torch.int32) for r in requests)
        arguments = (keys, values, rows, positions, *caches, *scales, *pages, 0.037, 0.041, layout)
        append = nvfp4_kv_cache.nvfp4_quantize_append_paged_kv_cache
        found.append(Case(append, name, arguments, _TIES))
    return found


def _recipe_cases(generator: torch.Generator) -> list[Case]:
    found = []
    values = blocks(generator, 65, 320).to(torch.bfloat16)
    scale = _global_scale(values)
    for mode in _recipes.NVFP44Over6ErrMode:
        for fast in (False, True):
            recipe = _recipes.NVFP44Over6Config(448, mode, fast)
            arguments = (values, scale, 16, False, *_SWIZZLED_128X4, False, None)
            found.append(
                Case(
                    quantize.fp4_quantize,
                    f"4-over-6 {mode.name}{', fast errors' if fast else ''}",
                    (*arguments, _recipes.nvfp4_4over6_code(recipe)),
                    _TIES,
                )
            )
    return found


def _per_token(generator: torch.Generator) -> list[Case]:
    operator = per_token.nvfp4_quantize_per_token
    values = blocks(generator, 33, 320).to(torch.bfloat16)
    # A row each, in another order, one of them left out.
    rows = torch.randperm(33, generator=generator).to(torch.int32)
    rows[5] = -1
    inverse = 1 / (448 * 6)
    return [
        Case(operator, "128x4", (values, inverse, None, 0), _TIES),
        Case(operator, "8x4", (values.to(torch.float16), inverse, None, 1), _TIES),
        Case(operator, "linear", (values, inverse, None, 2), _TIES),
        Case(operator, "linear, some rows", (values, inverse, rows, 2), _TIES, writes_all=False),
    ]


def _batches(generator: torch.Generator) -> list[Case]:
    """Whole matrices: what an expert's mask leaves out is unspecified on a GPU."""
    found = []
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        values = blocks(generator, 3, 33, 320).to(dtype)
        name = str(dtype).removeprefix("torch.")
        arguments = (values, _global_scale(values))
        found.append(Case(batched.nvfp4_batched_quantize, name, arguments, _TIES))
    values = blocks(generator, 3, 128, 512).to(torch.bfloat16)
    rows = torch.full((3,), 128, dtype=torch.int32)
    scales = 448 * 6 / (1.0173 * values.float().abs().amax(dim=(1, 2)))
    for operator, tolerance in (
        (batched.scaled_fp4_grouped_quantize, _TIES),
        # A GPU's exponential differs from the CPU's in the last bits too.
        (batched.silu_and_mul_scaled_nvfp4_experts_quantize, 10 * _TIES),
    ):
        found.append(Case(operator, "bfloat16", (values, rows, scales), tolerance))
    return found


def _products(generator: torch.Generator) -> list[Case]:
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        for batch, (m, n, k) in ((None, (33, 96, 352)), (None, (1, 160, 96)), (2, (130, 64, 256))):
            leading = () if batch is None else (batch,)
            parts = []
            for rows in (m, n):
                values = blocks(generator, *leading, rows, k).to(torch.bfloat16)
                matrices = values.unsqueeze(0) if batch is None else values
                packed, scales = batched.nvfp4_batched_quantize(matrices, torch.tensor([37.3]))
                parts += [packed[0], scales[0]] if batch is None else [packed, scales]
            a, a_scales, b, b_scales = parts
            arguments = (a, b.transpose(-2, -1), a_scales, b_scales, torch.tensor([7e-4]), dtype)
            name = str(dtype).removeprefix("torch.")
            variant = f"{name} {'x'.join(map(str, (*leading, m, n, k)))}"
            # A GPU adds in another order: some results round to the neighbour.
            found.append(Case(matmul.mm_fp4, variant, arguments, 0.05))
    return found
