"""Taking over blocks that have not started yet: on Hopper, there are none to take.

A kernel with such a scheduler is launched with a block for each tile. Where a block asks for
another tile to work on and is told that there is none, each block computes its own tile and ends.
"""

from __future__ import annotations

from aot.lowering.ptx import Instruction, vector
from aot.lowering.scope import scope


def try_cancel(instruction: Instruction) -> str:
    """``clusterlaunchcontrol.try_cancel.async….b128 [response], [mbarrier]``.

    Asynchronously writes 16 opaque bytes to shared memory and reports their arrival to the
    mbarrier. Here the 16 bytes are zero and written at once; the fence puts them before the
    completion, which the readers wait for. A ``.multicast`` response goes to every block of the
    cluster: with more than one block the replacement stops the kernel, because it reaches only its
    own.
    """
    response, barrier = instruction.expect(2)
    guard, predicate = instruction.guard, instruction.predicate
    more_than_one = (
        f".and.u32 $many, $blocks, 1, {predicate}" if predicate else ".u32 $many, $blocks, 1"
    )
    return scope(
        {".b32": "blocks zero", ".pred": "many"},
        [
            "mov.u32 $blocks, %cluster_nctarank",
            f"setp.gt{more_than_one}",
            "@$many trap",
            "mov.b32 $zero, 0",
            f"{guard}st.shared.v4.b32 {response}, {{$zero, $zero, $zero, $zero}}",
            f"{guard}fence.acq_rel.cta",
            f"{guard}mbarrier.complete_tx.relaxed.cta.shared::cta.b64 {barrier}, 16",
        ],
    )


def is_canceled(instruction: Instruction) -> str:
    """``clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response``: false."""
    target, _ = instruction.expect(2)
    return f"{instruction.guard}mov.pred {target}, 0;"


def get_first_ctaid(instruction: Instruction) -> str:
    """``clusterlaunchcontrol.query_cancel.get_first_ctaid….b32.b128``.

    Undefined where nothing was canceled, and here nothing ever is: zeros.
    """
    target, _ = instruction.expect(2)
    targets = vector(target, 4) if target.startswith("{") else (target,)
    writes = [f"{instruction.guard}mov.b32 {one}, 0;" for one in targets if one != "_"]
    return " ".join(writes)
