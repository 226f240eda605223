"""The checks, and replacements that are wrong on purpose: each must be noticed.

A control changes the lowered PTX of one program in one place, and names the kernels that must
count mismatches then. A control that goes unnoticed means that the check checks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

KERNELS = {
    "conversions": (
        "e2m1x2_from_f32",
        "guarded_conversion",
        "f16x2_from_e2m1x2",
        "ue8m0x2_from_f32",
        "bf16x2_from_ue8m0x2",
        "redux_max",
        "redux_min",
        "redux_max_abs",
        "redux_min_abs",
        "redux_max_nan",
        "redux_min_nan",
        "redux_max_abs_nan",
        "redux_min_abs_nan",
        "load_store_256_bits",
    ),
    "tensor_cores": (
        "mma_random",
        "mma_exact",
        "mma_one_pair",
        "mma_nan_scale",
        "mixed_mma_random",
        "mixed_mma_exact",
        "mixed_mma_elements",
        "mixed_mma_scales",
        "no_more_work",
    ),
}
"""Kernels that take nothing but the counters, by program."""

ONE_BLOCK = ("guarded_conversion", "load_store_256_bits", "no_more_work")
"""Kernels that are launched with one block; the others share the work among any number."""

TARGETS = {"conversions": "100a", "tensor_cores": "120f"}
"""What each program is compiled for before lowering."""


@dataclass(frozen=True)
class Control:
    """One wrong replacement.

    Parameters
    ----------
    name
        Names the file.
    program
        What is changed.
    old, new
        The change, everywhere in the lowered text.
    notice
        The kernels that must find mismatches.
    """

    name: str
    program: str
    old: str
    new: str
    notice: tuple[str, ...]


def _conversions(name: str, old: str, new: str, *notice: str) -> Control:
    return Control(name, "conversions", old, new, notice)


def _tensor_cores(name: str, old: str, new: str, *notice: str) -> Control:
    return Control(name, "tensor_cores", old, new, notice)


_R = "fp4aot_"
CONTROLS = (
    # Of 2^33 results, eight differ: those with 0.25 or -0.25 in either position.
    _conversions(
        "tie_to_odd",
        "set.gt.s32.f32 fp4aot_step, fp4aot_magnitude, 0f3E800000",
        "set.ge.s32.f32 fp4aot_step, fp4aot_magnitude, 0f3E800000",
        "e2m1x2_from_f32",
    ),
    _conversions(
        "no_sign_of_zero",
        f"and.b32 {_R}sign, {_R}sign, 8",
        f"and.b32 {_R}sign, {_R}sign, 0",
        "e2m1x2_from_f32",
        "guarded_conversion",
    ),
    _conversions(
        "nan_with_sign",
        f"selp.b32 {_R}code, 7, {_R}code, {_R}nan",
        f"mov.b32 {_R}code, {_R}code",
        "e2m1x2_from_f32",
    ),
    _conversions("no_guard", "@!p cvt.u8.u32", "cvt.u8.u32", "guarded_conversion"),
    _conversions(
        "exponent_off_by_one",
        f"mov.b32 {_R}scale, 0x74007400",
        f"mov.b32 {_R}scale, 0x78007400",
        "f16x2_from_e2m1x2",
    ),
    _conversions(
        "tiny_is_one",
        f"setp.le.u32 {_R}tiny, {_R}bits, 0x00400000",
        f"setp.lt.u32 {_R}tiny, {_R}bits, 0x00400000",
        "ue8m0x2_from_f32",
    ),
    _conversions(
        "infinity_is_255",
        f"min.u32 {_R}exponent, {_R}exponent, 254",
        f"min.u32 {_R}exponent, {_R}exponent, 255",
        "ue8m0x2_from_f32",
    ),
    _conversions(
        "no_subnormal",
        f"0x0040, {_R}low, {_R}zero",
        f"0x0000, {_R}low, {_R}zero",
        "bf16x2_from_ue8m0x2",
    ),
    _conversions(
        "nan_wins",
        f"selp.b32 {_R}key, 0x80000000, {_R}key, {_R}nan",
        f"selp.b32 {_R}key, 0x7fffffff, {_R}key, {_R}nan",
        "redux_max",
        "redux_max_abs",
    ),
    _conversions(
        "nan_as_it_came",
        f"selp.b32 {_R}key, 0x7fffffff, {_R}key, {_R}nan;",
        f"mov.b32 {_R}key, {_R}key;",
        "redux_max",
        "redux_min",
        "redux_min_nan",
    ),
    _conversions(
        "bits_as_key",
        f"xor.b32 {_R}key, {_R}key, {_R}flip",
        f"mov.b32 {_R}key, {_R}key",
        "redux_max",
        "redux_min",
        "redux_max_nan",
    ),
    _conversions("second_half_misplaced", "+-80]", "+-64]", "load_store_256_bits"),
    _conversions(
        "address_overwritten",
        f"[{_R}base+16]",
        "[a+16]",
        "load_store_256_bits",
    ),
    _tensor_cores(
        "other_scale_byte",
        f"and.b32 {_R}shift, {_R}shift, 8",
        f"and.b32 {_R}shift, {_R}shift, 4",
        "mma_random",
        "mma_exact",
        "mma_nan_scale",
    ),
    _tensor_cores(
        "one_lane_for_both_rows",
        f"add.u32 {_R}thread, {_R}thread, 1",
        f"add.u32 {_R}thread, {_R}thread, 0",
        "mma_random",
        "mma_exact",
    ),
    _tensor_cores(
        "k_in_another_order",
        "shr.u32 fp4aot_part, %r",
        "shl.b32 fp4aot_part, %r",
        "mma_random",
        "mma_exact",
        "mma_one_pair",
    ),
    _tensor_cores(
        "scale_with_sign",
        "0x007f007f",
        "0x00770077",
        "mma_random",
        "mma_one_pair",
    ),
    _tensor_cores(
        "one_step_of_four_missing",
        f"{{{_R}v0_0, {_R}v1_0, {_R}v0_1, {_R}v1_1}}",
        f"{{{_R}v0_2, {_R}v1_2, {_R}v0_3, {_R}v1_3}}",
        "mma_random",
        "mma_exact",
        "mma_one_pair",
    ),
    _tensor_cores(
        "one_scale_for_both_columns",
        f"add.u32 {_R}thread, {_R}thread, 4",
        f"add.u32 {_R}thread, {_R}thread, 0",
        "mixed_mma_random",
        "mixed_mma_exact",
        "mixed_mma_scales",
    ),
    _tensor_cores(
        "first_byte_of_scales",
        f"shl.b32 {_R}move, {_R}move, 3",
        f"shl.b32 {_R}move, {_R}move, 5",
        "mixed_mma_random",
        "mixed_mma_scales",
    ),
    _tensor_cores(
        "scale_255_is_infinite",
        f"setp.eq.or.u32 {_R}nan, {_R}column0, 255, {_R}nan",
        f"setp.eq.and.u32 {_R}nan, {_R}column0, 255, {_R}nan",
        "mixed_mma_scales",
    ),
    _tensor_cores(
        "all_of_the_exponent_at_once",
        f"shr.s32 {_R}half, {_R}sum, 1",
        f"shr.s32 {_R}half, {_R}sum, 31",
        "mixed_mma_scales",
    ),
    _tensor_cores(
        "half_of_the_bytes",
        ", 0, 0x4342",
        ", 0, 0x4140",
        "mixed_mma_random",
        "mixed_mma_exact",
        "mixed_mma_elements",
    ),
    _tensor_cores(
        "own_half_for_every_row",
        f"shfl.sync.idx.b32 {_R}from, {_R}odd, {_R}lane",
        f"shfl.sync.idx.b32 {_R}from, {_R}odd, {_R}quad",
        "unpacked 4 bits",
    ),
    _tensor_cores(
        "gaps_expected",
        f"shr.u32 {_R}piece, {_R}piece, 1",
        f"shr.u32 {_R}piece, {_R}piece, 0",
        "unpacked 4 bits",
    ),
    _tensor_cores("always_more_work", "mov.pred p1, 0", "mov.pred p1, 1", "no_more_work"),
    _tensor_cores(
        "answer_without_completion",
        "mbarrier.complete_tx.relaxed",
        "mbarrier.expect_tx.relaxed",
        "no_more_work",
    ),
    _tensor_cores(
        "no_map_is_marked",
        f"setp.eq.u32 {_R}tagged, {_R}word, 0x280",
        f"setp.eq.u32 {_R}tagged, {_R}word, 0x780",
        "tensor map of 4 bits",
    ),
    _tensor_cores(
        "other_ratio_of_elements",
        f"selp.b32 {_R}shift, 4, 0",
        f"selp.b32 {_R}shift, 5, 0",
        "tensor map of 4 bits",
    ),
)
