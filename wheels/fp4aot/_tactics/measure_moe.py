"""Measures the tactics of `cutlass_fused_moe` for one shape: of its first product, then its second.

As FlashInfer's tuner does, but in the whole call, the second product with the best first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fp4aot._activations import ActivationType
from fp4aot._layouts import SfLayout, round_up, scale_shape
from fp4aot._tactics.bench import Bench, Operands
from fp4aot._tactics.buckets import start_of
from fp4aot._tactics.entries import DEFAULT_TACTIC, MoeEntry
from fp4aot._tactics.shapes import MoeShape
from fp4aot._tactics.trials import Difference, Times, Trial, describe, parts_of, prepare, try_all

# Another order of float32 additions can change a hidden value's last bit, by that its FP4 code, and
# by that a whole row a little; with fused finalize, rows are added up in the output dtype in any
# order. One expert's part that is missing changes a block by a third of its size or more.
_BLOCK = 32
_TOLERANCE = 0.1


@dataclass(frozen=True)
class MoeCase:
    """What one measurement is of: a mixture, its dtypes and flags, and the bucket of tokens."""

    shape: MoeShape
    output_dtype: str
    quantized_input: bool
    use_fused_finalize: bool
    bucket: int

    def __str__(self) -> str:
        parts = [str(self.shape), f"tokens={self.bucket}", self.output_dtype]
        parts += ["quantized input"] * self.quantized_input
        parts += ["separate finalize"] * (not self.use_fused_finalize)
        return " ".join(parts)


@dataclass(frozen=True)
class MoeMeasurement:
    """What was found for one case.

    Parameters
    ----------
    case
        Which.
    first
        Times of the call with each tactic of the first product, and the second's default.
    second
        With each tactic of the second product, and the best of the first.
    counts
        How many tactics each product has.
    """

    case: MoeCase
    first: Times
    second: Times
    counts: tuple[int, int]

    @property
    def default(self) -> float:
        """Median time with the default tactics."""
        return self.first.default

    @property
    def best(self) -> float:
        """Median time with the chosen tactics."""
        return self.second.best

    @property
    def tactics(self) -> tuple[int, int]:
        """The chosen tactics."""
        return self.first.tactic, self.second.tactic

    def entry(self) -> MoeEntry:
        """Return the table's entry."""
        return MoeEntry(
            *self.case.shape.key,
            output_dtype=self.case.output_dtype,
            quantized_input=self.case.quantized_input,
            use_fused_finalize=self.case.use_fused_finalize,
            tokens=start_of(self.case.bucket),
            gemm1_tactic=self.first.tactic,
            gemm2_tactic=self.second.tactic,
            gemm1_count=self.counts[0],
            gemm2_count=self.counts[1],
            measured_tokens=self.case.bucket,
            microseconds=round(self.best, 3),
            default_microseconds=round(self.default, 3),
        )


def random_operands(case: MoeCase, device: torch.device) -> Operands:
    """Make operands, the same for each run: random weights, and for each token random experts.

    The experts of a token differ, and are chosen among those of all ranks. The activation is
    Swiglu: another costs as much, and a plain one has a first product half as wide.
    """
    generator = torch.Generator(device).manual_seed(0)
    shape, tokens = case.shape, case.bucket
    hidden, inter, experts = shape.hidden_size, shape.intermediate_size, shape.experts
    dtype = getattr(torch, case.output_dtype)

    def codes(*size: int) -> torch.Tensor:
        return torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=generator)

    def scales(*size: int) -> torch.Tensor:
        # Bytes of E4M3: 0x30 is 0.5, 0x47 is 3.75.
        return torch.randint(
            0x30, 0x48, size, dtype=torch.uint8, device=device, generator=generator
        )

    def swizzled(rows: int, columns: int) -> torch.Tensor:
        return scales(experts, round_up(rows, 128), round_up(columns // 16, 4))

    def number(value: float, *size: int) -> torch.Tensor:
        return torch.full(size, value, dtype=torch.float32, device=device)

    # A weight's root mean square is about 5.6. The scales make that of the input about 1, if it is
    # not quantized, of a hidden value 1, of what the activation makes of it 0.6, of a result 1.
    input_scale, hidden_scale = 448 * 6 / 6, 448 * 6 / 16
    options: dict[str, Any] = {
        "activation_type": int(ActivationType.Swiglu),
        "use_fused_finalize": case.use_fused_finalize,
        "ep_size": shape.ep_size,
    }
    if case.quantized_input:
        rows = codes(tokens, hidden // 2)
        options["input_sf"] = scales(*scale_shape(tokens, hidden // 16, SfLayout.layout_128x4))
        first_alpha = 1 / (30 * hidden**0.5)
    else:
        rows = torch.randn(tokens, hidden, device=device, generator=generator).to(dtype)
        first_alpha = 1 / (input_scale * 5.6 * hidden**0.5)
    scores = torch.rand(tokens, experts * shape.ep_size, device=device, generator=generator)
    weights = torch.rand(tokens, shape.top_k, device=device, generator=generator)
    return Operands(
        (
            rows,
            scores.topk(shape.top_k).indices.to(torch.int32),
            (weights + 0.5) / shape.top_k**0.5,
            codes(experts, 2 * inter, hidden // 2),
            codes(experts, hidden, inter // 2),
            number(input_scale),
            swizzled(2 * inter, hidden),
            number(first_alpha, experts),
            number(hidden_scale),
            swizzled(hidden, inter),
            number(1 / (hidden_scale * 0.6 * 5.6 * inter**0.5), experts),
        ),
        torch.empty(tokens, hidden, dtype=dtype, device=device),
        options,
    )


def measure(
    case: MoeCase,
    counts: tuple[int, int],
    bench: Bench,
    excluded: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> MoeMeasurement:
    """Check and measure the defaults and all other tactics.

    Parameters
    ----------
    case
        What to measure.
    counts
        How many tactics each product has.
    bench
        The device.
    excluded
        Those of each that are left out.

    Raises
    ------
    CaseError, DeviceLostError
        As in `try_all`.
    """
    operands = prepare(str(case), lambda: random_operands(case, bench.device), bench)

    def run(first: int, second: int) -> None:
        bench.call_moe(
            *operands.arguments,
            **operands.options,
            gemm1_tactic=first,
            gemm2_tactic=second,
            out=operands.out,
        )

    def trial(product: int, best: int) -> Trial:
        return Trial(
            f"product {product} of {case}",
            lambda tactic: run(tactic, best) if product == 1 else run(best, tactic),
            operands.out,
            disagreement,
            exclude=f"--exclude-gemm{product}",
        )

    tactics = [
        [tactic for tactic in range(count) if tactic not in left_out]
        for count, left_out in zip(counts, excluded, strict=True)
    ]
    first = try_all(trial(1, DEFAULT_TACTIC), tactics[0], bench)
    second = try_all(trial(2, first.tactic), tactics[1], bench)
    return MoeMeasurement(case, first, second, counts)


def disagreement(result: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Compare two results of the same mixture, by blocks of a row; None when they agree.

    Parameters
    ----------
    result, reference
        `[T, H]` of the same dtype. The reference is finite.
    """
    parts = parts_of(reference)
    usual = sum(float(reference[part].float().square().sum()) for part in parts) / reference.numel()

    def differences() -> Iterator[Difference]:
        for part in parts:
            truth = _blocks(reference[part])
            error = (_blocks(result[part]) - truth).square().mean(-1)
            yield (error / truth.square().mean(-1).clamp(min=usual)).sqrt(), _TOLERANCE

    blocks = f"{reference.numel() // _BLOCK} blocks of {_BLOCK} results"
    return describe(differences(), blocks, " of their size")


def _blocks(rows: torch.Tensor) -> torch.Tensor:
    return rows.float().reshape(len(rows), -1, _BLOCK)
