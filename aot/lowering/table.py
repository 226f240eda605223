"""Which instruction is replaced by what, and which ones Hopper lacks besides."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aot.lowering import (
    block_scaled_mma,
    cluster_launch_control,
    conversions,
    memory,
    mixed_precision_mma,
    reductions,
    tensor_map_coordinates,
    unpacking_loads,
)
from aot.lowering.ptx import Instruction


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Parameters
    ----------
    hint
        A part of every opcode that matches: where no hint occurs, nothing is parsed.
    pattern
        Matches the whole opcode.
    rewrite
        Returns the replacement, or None where the instruction may stay.
    """

    hint: str
    pattern: re.Pattern[str]
    rewrite: Callable[[Instruction], str | None]


def _rule(hint: str, pattern: str, rewrite: Callable[[Instruction], str | None]) -> Rule:
    return Rule(hint, re.compile(pattern), rewrite)


RULES: Final = (
    _rule("e2m1x2", r"cvt\.rn\.satfinite\.e2m1x2\.f32", conversions.e2m1x2_from_f32),
    _rule("e2m1x2", r"cvt\.rn\.f16x2\.e2m1x2", conversions.f16x2_from_e2m1x2),
    _rule("ue8m0x2", r"cvt\.rp\.satfinite\.ue8m0x2\.f32", conversions.ue8m0x2_from_f32),
    _rule("ue8m0x2", r"cvt\.rn\.bf16x2\.ue8m0x2", conversions.bf16x2_from_ue8m0x2),
    _rule(".v8.", r"ld\.global(\.[\w:]+)*\.v8\.[busf]32", memory.load_256_bits),
    _rule(".v8.", r"st\.global(\.[\w:]+)*\.v8\.[busf]32", memory.store_256_bits),
    _rule(".v4.", r"ld\.global(\.[\w:]+)*\.v4\.[busf]64", memory.load_256_bits),
    _rule(".v4.", r"st\.global(\.[\w:]+)*\.v4\.[busf]64", memory.store_256_bits),
    _rule("redux.", r"redux\.sync\.(max|min)(\.abs)?(\.NaN)?\.f32", reductions.redux_f32),
    _rule(
        "kind::",
        r"mma\.sync\.aligned\.kind::mxf4nvf4\.block_scale\.scale_vec::4X"
        r"\.m16n8k64\.row\.col\.f32\.e2m1\.e2m1\.f32\.ue4m3",
        block_scaled_mma.nvfp4_m16n8k64,
    ),
    # ptxas takes the modifiers after the shape as well.
    _rule(
        "kind::",
        r"mma\.sync\.aligned\.m16n8k64\.row\.col\.kind::mxf4nvf4\.block_scale\.scale_vec::4X"
        r"\.f32\.e2m1\.e2m1\.f32\.ue4m3",
        block_scaled_mma.nvfp4_m16n8k64,
    ),
    _rule(
        "kind::",
        r"mma\.sync\.aligned(?=.*\.m16n8k32\.row\.col)(?=.*\.kind::mxf8f6f4\.block_scale"
        r"\.scale_vec::1X)[\w.:]*\.f32\.(e4m3|e5m2|e2m1)\.(e4m3|e5m2|e2m1)\.f32\.ue8m0",
        mixed_precision_mma.mxf8f6f4_m16n8k32,
    ),
    _rule(
        "m8n16",
        r"ldmatrix\.sync\.aligned\.m8n16\.x[124]\.shared(::cta)?\.b8x16\.b4x16_p64",
        unpacking_loads.ldmatrix_b4x16_p64,
    ),
    _rule(
        "clusterlaunchcontrol",
        r"clusterlaunchcontrol\.try_cancel\.async\.shared::cta\.mbarrier::complete_tx::bytes"
        r"(\.multicast::cluster::all)?\.b128",
        cluster_launch_control.try_cancel,
    ),
    _rule(
        "clusterlaunchcontrol",
        r"clusterlaunchcontrol\.query_cancel\.is_canceled\.pred\.b128",
        cluster_launch_control.is_canceled,
    ),
    _rule(
        "clusterlaunchcontrol",
        r"clusterlaunchcontrol\.query_cancel\.get_first_ctaid(::[xyz]|\.v4)\.b32\.b128",
        cluster_launch_control.get_first_ctaid,
    ),
    # Hopper has it; what a coordinate counts may have changed.
    _rule(
        ".tensor.",
        r"cp(\.reduce)?\.async\.bulk(\.prefetch)?\.tensor\.[1-5]d"
        r"(?!.*(im2col|gather4|scatter4|cta_group))[\w.:]*",
        tensor_map_coordinates.tensor_copy,
    ),
    # So it has this; what a dimension counts may have changed.
    _rule(
        "tensormap.replace",
        r"tensormap\.replace\.tile\.[\w.:]+",
        tensor_map_coordinates.replace_field,
    ),
)


BLACKWELL_ONLY: Final = tuple(
    (hint, re.compile(pattern))
    for hint, pattern in (
        ("tcgen05", r"tcgen05\..*"),
        ("kind::", r"w?g?mma\..*kind::.*"),
        ("block_scale", r"w?g?mma\..*block_scale.*"),
        ("e2m1", r"(mma|cvt)\..*e2m1.*"),
        ("e2m3", r"(mma|cvt)\..*e2m3.*"),
        ("e3m2", r"(mma|cvt)\..*e3m2.*"),
        ("ue8m0", r"(mma|cvt)\..*ue8m0.*"),
        ("ue4m3", r"(mma|cvt)\..*ue4m3.*"),
        ("s2f6", r"cvt\..*s2f6.*"),
        (".rs.", r"cvt\.rs\..*"),
        ("redux.", r"redux\..*f32"),
        (".v8.", r"(ld|st)\..*\.v8\..*"),
        (".v4.", r"(ld|st)\..*\.v4\.[busf]64"),
        ("clusterlaunchcontrol", r"clusterlaunchcontrol\..*"),
        ("m16n16", r"(ld|st)matrix\..*"),
        ("m8n16", r"(ld|st)matrix\..*"),
        ("m16n8.", r"(ld|st)matrix\..*"),
        (".f32x2", r"(add|sub|mul|fma)\..*f32x2"),
        ("gather4", r"cp\..*"),
        ("scatter4", r"cp\..*"),
        ("cta_group", r"(cp|tcgen05)\..*"),
        ("im2col::w", r"cp\..*"),
        ("st.bulk", r"st\.bulk.*"),
    )
)
"""Part of the opcode, and the opcode. ptxas refuses them, too; this names more of them at once."""

HINTS: Final = re.compile(
    "|".join(
        sorted(
            {re.escape(one) for one in (*(r.hint for r in RULES), *(h for h, _ in BLACKWELL_ONLY))}
        )
    )
)
"""Where this does not occur in a text, there is nothing to rewrite and nothing to refuse."""
