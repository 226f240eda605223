"""A few calls of every operator, for compute-sanitizer: ``python tests/gpu/sanitizer_pass.py``.

Inputs come from the CPU and results go back to it, so that nearly all kernels that run are this
package's own. Run it with ``PYTORCH_NO_CUDA_MEMORY_CACHING=1``: then each tensor is an allocation
of its own, and an access just beyond it is seen.

Prints one line for each result; the last is "done".

With ``--products-into-buffers`` products are written only to buffers that have been filled before:
initcheck does not see that bulk tensor copies (TMA) write memory, and would report every product
that is copied back. Nor does it see what they read, which is how the GEMM reads its factors. So a
mixture of experts then gets a workspace that has been filled, in which its products lie; and so do
grouped products, whose kernels exchange the words of their tensor maps for new ones, which counts
as reading the old.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from gpusuite import grouped, mixture
from gpusuite.memory import poisoned_like, raw
from gpusuite.mixture import INSIDE, LINEAR, SWIZZLED
from gpusuite.wheel import IN_PLACE, ON_EVERY_DEVICE, covers

from fp4aot import cutlass_fused_moe_workspace_size
from fp4aot._selftest.case import blocks
from fp4aot._selftest.checks import out_form
from fp4aot._selftest.inputs import cases
from fp4aot.operators.quantize import fp4_quantize

PRODUCTS_INTO_BUFFERS = "--products-into-buffers"
MOST_BYTES = 64 << 10
MOST_CASES = 3
GEMM_TACTICS = 2
# They have inputs and judgements of their own below.
APART = ("cutlass_fused_moe", *grouped.OPERATORS)


def is_short(case, seen: int) -> bool:
    """Choose what is small; all formats of the one operator that has several kernels."""
    if case.operator == "fp4_quantize" and "many rows" in case.variant:
        return True
    tensors = [a for a in case.arguments if isinstance(a, torch.Tensor)]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return seen == 0 or (
        size <= MOST_BYTES and (seen < MOST_CASES or case.operator == "fp4_quantize")
    )


def main() -> None:
    seen: Counter[str] = Counter()
    for case in cases():
        if case.operator in ON_EVERY_DEVICE or case.devices != "any" or not covers(case.operator):
            continue
        if case.operator in APART or not is_short(case, seen[case.operator]):
            continue
        seen[case.operator] += 1
        if case.operator in IN_PLACE:
            call_in_place(case)
            continue
        call(case.operator, case.variant, case.arguments, case.reference, case.tie_tolerance)
        if case.operator == "mm_fp4":
            for tactic in range(GEMM_TACTICS):
                arguments = (*case.arguments, tactic)
                variant = f"{case.variant}, tactic {tactic}"
                call(case.operator, variant, arguments, case.reference, case.tie_tolerance)
    odd_rows()
    mixtures()
    groups()
    assert seen, "this wheel holds no image for this device"
    print("done")


def odd_rows() -> None:
    """Add rows that fill no tile of the kernel with bulk copies, in every layout."""
    if not covers("fp4_quantize"):
        return
    values = blocks(torch.Generator().manual_seed(1), 1025, 512).to(torch.bfloat16)
    scale = (2600 / values.float().abs().max()).reshape(1)
    for name, flags in {
        "128x4": (True, False),
        "8x4": (True, True),
        "linear": (False, False),
    }.items():
        arguments = (values, scale, 16, False, *flags)
        call("fp4_quantize", f"1025 rows, {name}", arguments, fp4_quantize, 2e-3)


def mixtures() -> None:
    """Add mixtures of experts: both prologues, and experts that are nowhere."""
    if not covers("cutlass_fused_moe"):
        return
    for source, tokens, routing, fused in (
        (INSIDE, 5, "padding", False),
        (SWIZZLED, 33, "out of range", True),
        (LINEAR, 3, "nowhere", False),
        (INSIDE, 260, "out of range", True),
    ):
        # Linear scales come in rows of whole groups of four.
        sizes = (192 if source == LINEAR else 160, 96, 4, 2)
        on_cpu = mixture.draw(
            tokens, *sizes, source=source, routing=routing, biases=True, device="cpu"
        )
        on_gpu, expected = on_cpu.to("cuda"), on_cpu.run()
        results = {}
        if PRODUCTS_INTO_BUFFERS not in sys.argv:
            results["returned"] = on_gpu.run(use_fused_finalize=fused)
        size = cutlass_fused_moe_workspace_size(
            tokens,
            *sizes,
            x_dtype=on_gpu.input.dtype,
            weight_dtype=torch.uint8,
            output_dtype=on_gpu.dtype,
            use_fused_finalize=fused,
        )
        # From the CPU: a kernel of torch's that fills them would be checked as well.
        workspace = torch.full((size,), 0xFF, dtype=torch.uint8).cuda()
        out = poisoned_like(expected, 0).cuda()
        results["written"] = on_gpu.run_into(out, workspace, use_fused_finalize=fused)
        torch.cuda.synchronize()
        for name, got in results.items():
            error = float((got.cpu().double() - expected.double()).norm())
            norm = float(expected.double().norm())
            differing = int((got.cpu() != expected).sum())
            print(
                f"cutlass_fused_moe, {source}, {routing}, {name}, error {error:.3g} of {norm:.3g}: "
                f"{differing} of {expected.numel()} differ"
            )
            assert error <= 2e-2 * norm
    sys.stdout.flush()


def groups() -> None:
    """Add grouped products, some of them empty."""
    for operator in grouped.OPERATORS:
        if not covers(operator):
            continue
        on_cpu = grouped.draw(operator, (4, 0, 132, 8), 40, 256, device="cpu")
        on_gpu, expected = on_cpu.to("cuda"), on_cpu.run()
        for swap_ab in (False, True):
            out = poisoned_like(expected, 0).cuda()
            with filled_allocations() if PRODUCTS_INTO_BUFFERS in sys.argv else nullcontext():
                on_gpu.run_into(out, swap_ab=swap_ab)
            torch.cuda.synchronize()
            differing = int((out.cpu() != expected).sum())
            print(f"{operator}, swap_ab={swap_ab}: {differing} of {expected.numel()} differ")
            torch.testing.assert_close(out.cpu(), expected, rtol=2**-6, atol=1e-3)
    sys.stdout.flush()


@contextmanager
def filled_allocations():
    """Let torch fill what it allocates: a workspace that the operator allocates itself."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        # Else the pass would show what it does not.
        assert int(torch.empty(1, dtype=torch.uint8, device="cuda").cpu()) == 255
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(False)


def call(operator, variant, arguments, reference, tolerance) -> None:
    packet = getattr(torch.ops.fp4aot, operator)
    moved = tuple(a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments)
    expected = reference(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    results = expected
    if operator != "mm_fp4" or PRODUCTS_INTO_BUFFERS not in sys.argv:
        results = packet.default(*moved)
        results = results if isinstance(results, tuple) else (results,)
    inputs, names = out_form(packet, moved)
    # From the CPU: a kernel of torch's that fills them would be checked as well.
    buffers = {name: poisoned_like(e, 0).cuda() for name, e in zip(names, expected, strict=True)}
    packet.out(*inputs, **buffers)
    torch.cuda.synchronize()
    for name, got, want in zip(names, results, expected, strict=True):
        differing = int((got.cpu() != want).sum())
        into = int((buffers[name].cpu() != want).sum())
        print(f"{operator}, {variant}, {name}: {differing}, {into} of {want.numel()} differ")
        limit = 16 + max(tolerance, 0.0) * want.numel()
        assert max(differing, into) <= limit
    sys.stdout.flush()


def call_in_place(case) -> None:
    moved = [a.cuda() if isinstance(a, torch.Tensor) else a for a in case.arguments]
    getattr(torch.ops.fp4aot, case.operator)(*moved)
    torch.cuda.synchronize()
    case.reference(*case.arguments)  # writes to the self-test's own, which nobody needs any more
    for got, want in zip(moved, case.arguments, strict=True):
        if not isinstance(want, torch.Tensor):
            continue
        differing = int((raw(got.cpu()) != raw(want)).sum())
        print(f"{case.operator}, {case.variant}: {differing} of {want.numel()} differ")
        assert differing <= 16 + case.tie_tolerance * want.numel()


if __name__ == "__main__":
    main()
