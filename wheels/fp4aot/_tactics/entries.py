"""One line of a table: the tactics of one shape and bucket, of `mm_fp4` or `cutlass_fused_moe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

OUT_DTYPES = ("bfloat16", "float16")
"""The output dtypes of both; the position is the number that the operators know them by."""

DEFAULT_TACTIC = -1
"""FlashInfer's own choice, which it makes without a table."""


class Choice(NamedTuple):
    """One row of what `mm_fp4` looks up.

    Attributes
    ----------
    major, minor
        Compute capability.
    out_dtype
        ``"bfloat16"`` or ``"float16"``.
    n, k
        Sizes of the weight.
    m
        Smallest M of the bucket; it ends where the next one starts.
    tactic
        Position in the list of the wheel's GEMM for this capability; -1 for FlashInfer's default.
    """

    major: int
    minor: int
    out_dtype: str
    n: int
    k: int
    m: int
    tactic: int


class MoeChoice(NamedTuple):
    """One row of what `cutlass_fused_moe` looks up.

    Attributes
    ----------
    major, minor
        Compute capability.
    output_dtype
        ``"bfloat16"`` or ``"float16"``.
    quantized_input
        Whether the input comes packed, with its block scales.
    use_fused_finalize
        As in the call.
    hidden_size, intermediate_size, experts
        Of one rank.
    top_k
        Experts of each token.
    tokens
        Smallest number of tokens of the bucket; it ends where the next one starts.
    gemm1_tactic, gemm2_tactic
        Positions in the lists of the two products; -1 for FlashInfer's default.
    """

    major: int
    minor: int
    output_dtype: str
    quantized_input: bool
    use_fused_finalize: bool
    hidden_size: int
    intermediate_size: int
    experts: int
    top_k: int
    tokens: int
    gemm1_tactic: int
    gemm2_tactic: int


@dataclass(frozen=True)
class Entry:
    """The tactic of one weight shape, output dtype and bucket of M.

    Parameters
    ----------
    n, k, out_dtype, m, tactic
        As in `Choice`.
    measured_m
        The M that was measured, or None where nothing was: an imported entry, or a gap.
    microseconds, default_microseconds
        Median times of this tactic and of the default there.
    """

    n: int
    k: int
    out_dtype: str
    m: int
    tactic: int
    measured_m: int | None = None
    microseconds: float | None = None
    default_microseconds: float | None = None

    @property
    def key(self) -> tuple[int, int, str, int]:
        """What one section has at most one entry for."""
        return self.n, self.k, self.out_dtype, self.m

    @property
    def evidence(self) -> int:
        """Return 2 for a measured entry, 1 for an imported tactic, 0 for a gap in a cache."""
        return _evidence(self.microseconds, self.tactic)

    def __str__(self) -> str:
        return f"N={self.n}, K={self.k}, {self.out_dtype}, M={self.m}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return _to_json(self)


@dataclass(frozen=True, order=True)
class Mixture:
    """What a table knows a mixture of experts by; the fields are those of `MoeChoice`."""

    hidden_size: int
    intermediate_size: int
    experts: int
    top_k: int
    output_dtype: str
    quantized_input: bool
    use_fused_finalize: bool


@dataclass(frozen=True)
class MoeEntry(Mixture):
    """The tactics of one mixture of experts and bucket of tokens.

    Parameters
    ----------
    tokens, gemm1_tactic, gemm2_tactic
        As in `MoeChoice`.
    gemm1_count, gemm2_count
        How many tactics the two products have. Only the device can tell, so the entry does.
    measured_tokens
        The number that was measured, or None where nothing was: an imported entry, or a gap.
    microseconds, default_microseconds
        Median times of the whole call with these tactics, and with the defaults.
    """

    tokens: int
    gemm1_tactic: int
    gemm2_tactic: int
    gemm1_count: int
    gemm2_count: int
    measured_tokens: int | None = None
    microseconds: float | None = None
    default_microseconds: float | None = None

    @property
    def key(self) -> tuple[int, int, int, int, str, bool, bool, int]:
        """What one section has at most one entry for."""
        return (
            self.hidden_size,
            self.intermediate_size,
            self.experts,
            self.top_k,
            self.output_dtype,
            self.quantized_input,
            self.use_fused_finalize,
            self.tokens,
        )

    @property
    def evidence(self) -> int:
        """Return 2 for a measured entry, 1 for imported tactics, 0 for a gap in a cache."""
        return _evidence(self.microseconds, self.gemm1_tactic, self.gemm2_tactic)

    def __str__(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}, "
            f"{self.experts} experts, top_k={self.top_k}, {self.output_dtype}, "
            f"quantized_input={self.quantized_input}, "
            f"use_fused_finalize={self.use_fused_finalize}, tokens={self.tokens}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return _to_json(self)


def _evidence(microseconds: float | None, *tactics: int) -> int:
    if microseconds is not None:
        return 2
    return 0 if set(tactics) == {DEFAULT_TACTIC} else 1


def _to_json(entry: Entry | MoeEntry) -> dict[str, Any]:
    return {name: value for name, value in vars(entry).items() if value is not None}
