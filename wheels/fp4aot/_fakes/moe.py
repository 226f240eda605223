"""Results of `cutlass_fused_moe`."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import _checks


def cutlass_fused_moe(*arguments: Any, **options: Any) -> torch.Tensor:
    """Return contiguous `[T, H]` of the output dtype."""
    given, output_dtype = _checks.functional_arguments(*arguments, **options)
    _checks.cutlass_fused_moe(given, output_dtype)
    return given.input.new_empty((given.tokens, given.hidden_size), dtype=output_dtype)


def cutlass_fused_moe_out(
    *arguments: Any,
    workspace_buffer: torch.Tensor | None = None,
    out: torch.Tensor,
    **options: Any,
) -> None:
    """Validate only."""
    given = _checks.MoeArguments(*arguments, **options)
    _checks.cutlass_fused_moe_out(given, workspace_buffer, out)
