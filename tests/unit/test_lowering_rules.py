"""What each instruction is replaced by. Scalar replacements are executed, on the CPU."""

from __future__ import annotations

import math
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering.interpreter import Machine, half_to_float, to_bits, to_float

from aot.lowering.errors import LoweringError
from aot.lowering.lower import lower_text
from aot.lowering.tensor_map_coordinates import TYPE_MASK, TYPE_OFFSET, TYPE_TAG, compiler_flags

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
KIND = ".kind::mxf4nvf4.block_scale.scale_vec::4X"
MMA = f"mma.sync.aligned{KIND}.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3"
OPERANDS = (
    "{%f1, %f2, %f3, %f4},{%r1, %r2, %r3, %r4},{%r5, %r6},{%f5, %f6, %f7, %f8},"
    "{%r7},{0, %rs1},{%r8},{%rs2, 3}"
)

# Float32 at and beside everything that a conversion has to decide.
EDGES = sorted(
    {
        bits + step & 0xFFFFFFFF
        for base in (
            0.0,
            0.25,
            0.5,
            0.75,
            1.25,
            1.75,
            2.5,
            3.5,
            5.0,
            6.0,
            1e30,
            2.0**-126,
            2.0**-127,
        )
        for bits in struct.unpack("<2I", struct.pack("<2f", base, -base))
        for step in (-1, 0, 1)
    }
    | {0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x00000001}
)
BITS = st.one_of(st.sampled_from(EDGES), st.integers(0, 0xFFFFFFFF))


def run(statement: str, **registers: int) -> Machine:
    lowered = lower_text(f"{statement}\n")
    assert lowered.endswith("\n")
    assert lowered.count("\n") == 1
    return Machine(**registers).run(lowered)


def e2m1(bits: int) -> int:
    """Nearest value, ties to the even code."""
    value = to_float(bits)
    if math.isnan(value):
        return 7
    distance = [abs(min(abs(value), 1e9) - candidate) for candidate in E2M1]
    best = min(range(8), key=lambda code: (distance[code], code % 2))
    return best | bits >> 31 << 3


def ue8m0(bits: int) -> int:
    value = abs(to_float(bits))
    if math.isnan(value):
        return 255
    return next((code for code in range(255) if 2.0 ** (code - 127) >= value), 254)


@given(BITS, BITS)
def test_float32_to_e2m1(high: int, low: int) -> None:
    machine = run("cvt.rn.satfinite.e2m1x2.f32 d, a, b;", a=high, b=low)
    assert machine.registers["d"] == e2m1(high) << 4 | e2m1(low)


@pytest.mark.parametrize("bits", EDGES)
def test_float32_at_every_edge(bits: int) -> None:
    both = run("cvt.rn.satfinite.e2m1x2.f32 d, a, a;", a=bits).registers["d"]
    assert both == e2m1(bits) << 4 | e2m1(bits)
    both = run("cvt.rp.satfinite.ue8m0x2.f32 d, a, a;", a=bits).registers["d"]
    assert both == ue8m0(bits) << 8 | ue8m0(bits)


@pytest.mark.parametrize("codes", range(256))
def test_e2m1_to_float16(codes: int) -> None:
    result = run("cvt.rn.f16x2.e2m1x2 d, a;", a=codes).registers["d"]
    for code, half in ((codes & 15, result & 0xFFFF), (codes >> 4, result >> 16)):
        assert math.copysign(1, half_to_float(half)) == (-1 if code & 8 else 1)
        assert abs(half_to_float(half)) == E2M1[code & 7]


@given(BITS, BITS)
def test_float32_to_ue8m0(high: int, low: int) -> None:
    machine = run("cvt.rp.satfinite.ue8m0x2.f32 d, a, b;", a=high, b=low)
    assert machine.registers["d"] == ue8m0(high) << 8 | ue8m0(low)


def test_ue8m0_to_bfloat16() -> None:
    for code in range(256):
        result = run("cvt.rn.bf16x2.ue8m0x2 d, a;", a=code << 8 | 200).registers["d"]
        assert result & 0xFFFF == 200 << 7
        high = to_float(result >> 16 << 16)
        assert math.isnan(high) if code == 255 else high == 2.0 ** (code - 127)


@pytest.mark.parametrize(
    "statement",
    [
        "cvt.rn.satfinite.e2m1x2.f32 d, a, a;",
        "cvt.rn.f16x2.e2m1x2 d, a;",
        "cvt.rp.satfinite.ue8m0x2.f32 d, a, a;",
        "cvt.rn.bf16x2.ue8m0x2 d, a;",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 d, a;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 d, a;",
    ],
)
def test_a_guard_decides_over_the_result(statement: str) -> None:
    for guard, p, written in (
        ("", 0, True),
        ("@p ", 1, True),
        ("@p ", 0, False),
        ("@!p ", 0, True),
        ("@!p ", 1, False),
    ):
        machine = run(guard + statement, a=0x40000000, p=p, d=0xABCD)
        assert (machine.registers["d"] != 0xABCD) is written


def test_an_answer_of_no_more_work() -> None:
    text = (
        "@p1 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, c;"
    )
    assert lower_text(text) == "@p1 mov.b32 %r1, 0; @p1 mov.b32 %r2, 0; @p1 mov.b32 %r3, 0;"
    opcode = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
    lowered = lower_text(f"@!%p3 {opcode} [%r1], [%r2];")
    assert "setp.gt.and.u32 fp4aot_many, fp4aot_blocks, 1, !%p3; @fp4aot_many trap;" in lowered
    order = [
        lowered.index(f"@!%p3 {word}") for word in ("st.shared", "fence.acq_rel", "mbarrier.comp")
    ]
    assert order == sorted(order)
    assert lowered.count("@!%p3") == 3
    assert "[%r2], 16;" in lowered


@pytest.mark.parametrize(
    ("statement", "lowered"),
    [
        (
            "@%p1 ld.global.nc.L1::no_allocate.v8.f32 {a, b, c, d, e, f, g, h}, [%rd1];",
            "@%p1 ld.global.nc.L1::no_allocate.v4.f32 {a, b, c, d}, [%rd1+0]; "
            "@%p1 ld.global.nc.L1::no_allocate.v4.f32 {e, f, g, h}, [%rd1+16];",
        ),
        (
            "ld.global.v8.u32 {a, b, c, d, e, f, g, h}, [ %rd1 + -48 ];",
            "ld.global.v4.u32 {a, b, c, d}, [%rd1+-48]; ld.global.v4.u32 {e, f, g, h}, [%rd1+-32];",
        ),
        (
            "ld.global.v4.b64 {a, b, c, d}, [sym+0x20];",
            "ld.global.v2.b64 {a, b}, [sym+32]; ld.global.v2.b64 {c, d}, [sym+48];",
        ),
        (
            "@!p st.global.v8.b32 [%rd2+16], {a, b, c, d, e, f, g, h};",
            "@!p st.global.v4.b32 [%rd2+16], {a, b, c, d}; "
            "@!p st.global.v4.b32 [%rd2+32], {e, f, g, h};",
        ),
        (
            "@p ld.global.v4.b64 {%rd1, %rd2, %rd3, %rd4}, [%rd1+8];",
            "{ .reg .b64 fp4aot_base; mov.b64 fp4aot_base, %rd1; "
            "@p ld.global.v2.b64 {%rd1, %rd2}, [fp4aot_base+8]; "
            "@p ld.global.v2.b64 {%rd3, %rd4}, [fp4aot_base+24]; }",
        ),
    ],
)
def test_256_bits_are_two_times_128(statement: str, lowered: str) -> None:
    assert lower_text(statement) == lowered


@pytest.mark.parametrize("modifiers", ["max", "min", "max.abs", "min.NaN", "max.abs.NaN"])
def test_the_key_of_a_reduction_orders_as_float32_does(modifiers: str) -> None:
    lowered = lower_text(f"@%p7 redux.sync.{modifiers}.f32 d, a, m;")
    before, reduction, after = re.split(r"(@%p7 redux[^;]*;)", lowered)
    assert reduction == f"@%p7 redux.sync.{modifiers[:3]}.s32 fp4aot_key, fp4aot_key, m;"
    assert "@%p7 mov.b32 d, fp4aot_key;" in after

    def key(bits: int) -> int:
        found = Machine(a=bits).run(before).registers["fp4aot_key"]
        return found - (1 << 32) if found >> 31 else found

    def back(value: int) -> int:
        return (
            Machine(fp4aot_key=value & 0xFFFFFFFF, **{"%p7": 1})
            .run(after.replace("@%p7 ", ""))
            .registers["d"]
        )

    numbers = [bits for bits in EDGES if not math.isnan(to_float(bits))]
    if "abs" in modifiers:
        numbers = [bits & 0x7FFFFFFF for bits in numbers]
    ordered = sorted(set(numbers), key=lambda b: (to_float(b), b >> 31 == 0))
    keys = [key(bits) for bits in ordered]
    assert keys == sorted(set(keys))
    assert [back(one) for one in keys] == ordered
    nan_is_highest = ("max" in modifiers) == ("NaN" in modifiers)
    for nan in (0x7FC00000, 0xFFFFFFFF, 0x7F800001):
        assert key(nan) > keys[-1] if nan_is_highest else key(nan) < keys[0]
        assert back(key(nan)) == 0x7FFFFFFF


def test_the_tensor_core_instruction() -> None:
    lowered = lower_text(f"@%p9 {MMA} {OPERANDS};")
    assert lowered.count("@%p9 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 4
    assert lowered.count("@%p9 shfl.sync.idx.b32") == 3
    assert lowered.count("@%p9 mov.f32 %f") == 4
    assert "cvt.u32.u16 fp4aot_thread, %rs1;" in lowered
    assert "mov.b32 fp4aot_thread, 3;" in lowered
    # Every pair of k is used once, and by A's two rows and B's column together.
    for rows, columns in (((0, 1), 4), ((2, 3), 5)):
        for pair in (0, 2):
            a = ", ".join(f"fp4aot_v{r}_{p}" for p in (pair, pair + 1) for r in rows)
            b = ", ".join(f"fp4aot_v{columns}_{p}" for p in (pair, pair + 1))
            assert lowered.count(f"{{{a}}}, {{{b}}}") == 1
    # The modifiers may come after the shape.
    moved = MMA.replace(KIND, "").replace(".row.col", f".row.col{KIND}")
    assert lower_text(f"@%p9 {moved} {OPERANDS};") == lowered


def test_scaled_elements() -> None:
    """The part of the tensor core instruction that one lane computes for itself."""
    lowered = lower_text(f"{MMA} {OPERANDS};")
    conversion = re.search(
        r"shr.u32 fp4aot_part, %r1, 0;.*?(?=shr.u32 fp4aot_part, %r2, 0;)", lowered
    )
    assert conversion is not None
    for scale, word in ((0x3C00, 0x76543210), (0x4900, 0xFEDCBA98), (0x1800, 0x31F7A0C5)):
        machine = Machine(fp4aot_s0=scale * 0x10001, fp4aot_unit=0x74007400, **{"%r1": word})
        machine.run(conversion[0])
        for nibble in range(8):
            half = machine.registers[f"fp4aot_v0_{nibble % 4}"] >> (16 * (nibble // 4)) & 0xFFFF
            code = word >> 4 * nibble & 15
            expected = E2M1[code & 7] * half_to_float(scale) * (-1 if code & 8 else 1)
            assert half_to_float(half) == expected


@pytest.mark.parametrize(
    "operands", [OPERANDS.replace("{0,", "{1,"), OPERANDS.replace(",{%r8}", "")]
)
def test_a_tensor_core_instruction_that_is_not_understood(operands: str) -> None:
    with pytest.raises(LoweringError, match="scale_vec::4X"):
        lower_text(f"{MMA} {operands};")


MIXED = (
    "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col"
    ".f32.{a}.{b}.f32.ue8m0"
)
FP8 = {"e4m3": 0x38, "e5m2": 0x3C}
"""The code of 1."""


@pytest.mark.parametrize(("a", "b"), [("e4m3", "e2m1"), ("e2m1", "e5m2")])
def test_the_tensor_core_instruction_of_fp8_by_fp4(a: str, b: str) -> None:
    opcode = MIXED.format(a=a, b=b)
    lowered = lower_text(f"@%p9 {opcode} {OPERANDS};")
    assert lowered.count("@%p9 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 2
    assert lowered.count("@%p9 shfl.sync.idx.b32") == 4
    assert lowered.count("@%p9 mov.f32 %f") == 4
    # A's four registers, then B's two: two conversions of FP8 each, or four steps of FP4.
    fp8, words = (a, 4) if a in FP8 else (b, 2)
    assert lowered.count(f"cvt.rn.f16x2.{fp8}x2") == 2 * words
    assert lowered.count("mul.rn.f16x2") == 2 * (6 - words)
    # Each half is used once, and by A's two rows and B's column together.
    for rows, column in (((0, 1), 4), ((2, 3), 5)):
        left = ", ".join(f"fp4aot_e{row}_{half}" for half in (0, 1) for row in rows)
        assert lowered.count(f"{{{left}}}, {{fp4aot_e{column}_0, fp4aot_e{column}_1}}") == 1
    # The modifiers may come after the shape.
    kind = ".kind::mxf8f6f4.block_scale.scale_vec::1X"
    moved = opcode.replace(kind, "").replace(".row.col", f".row.col{kind}")
    assert lower_text(f"@%p9 {moved} {OPERANDS};") == lowered


def test_bytes_of_four_bits() -> None:
    """E2M1 in the bits 2 to 5 of a byte, the others of which are ignored."""
    lowered = lower_text(f"{MIXED.format(a='e2m1', b='e4m3')} {OPERANDS};")
    conversion = re.search(
        r"prmt.b32 fp4aot_part, %r1, 0, 0x4140;.*?(?=prmt.b32 fp4aot_part, %r2)", lowered
    )
    assert conversion is not None
    for codes in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (15, 14, 13, 12)):
        word = sum((code << 2 | 0xC3) << 8 * i for i, code in enumerate(codes))
        machine = Machine(fp4aot_unit=0x74007400, **{"%r1": word}).run(conversion[0])
        for i, code in enumerate(codes):
            half = machine.registers[f"fp4aot_e0_{i // 2}"] >> 16 * (i % 2) & 0xFFFF
            assert half_to_float(half) == E2M1[code & 7] * (-1 if code & 8 else 1)


def test_a_scale_that_no_float_holds_in_one_step() -> None:
    lowered = lower_text(f"{MIXED.format(a='e4m3', b='e2m1')} {OPERANDS};")
    scaling = re.search(r"add.s32 fp4aot_sum.*?(?=selp.f32)", lowered)
    assert scaling is not None

    def scaled(row: int, column: int, product: float) -> float:
        machine = Machine(fp4aot_row0=row, fp4aot_column0=column, fp4aot_p0=to_bits(product))
        return to_float(machine.run(scaling[0]).registers["fp4aot_p0"])

    assert scaled(127, 127, 1.5) == 1.5
    assert scaled(254, 20, 1.0) == 2.0**20
    assert scaled(1, 250, 3.0) == 3 * 2.0**-3
    assert scaled(0, 127, 1.0) == 2.0**-127
    assert scaled(0, 0, 448.0) == 0.0
    assert scaled(254, 254, 1.0) == math.inf


LDMATRIX = "ldmatrix.sync.aligned.m8n16.x{count}.shared.b8x16.b4x16_p64"


def test_where_unpacked_elements_are_looked_for() -> None:
    lowered = lower_text(f"{LDMATRIX.format(count=4)} {{%r1, %r2, %r3, %r4}}, [%r5+16];")
    place = re.search(r"add.s32 fp4aot_at.*?(?=ldmatrix)", lowered)
    assert place is not None
    base = 3 * 1024
    for row in range(16):
        for piece in range(8):
            at = base + row * 128 + (piece ^ row % 8) * 16
            machine = Machine(**{"%r5": at - 16}).run(place[0])
            packed = base + row * 128 + (piece // 2 ^ row % 8) * 16
            assert machine.registers["fp4aot_at"] == packed
            assert machine.registers["fp4aot_odd"] == piece % 2


def test_nibbles_are_spread_over_bytes() -> None:
    lowered = lower_text(f"{LDMATRIX.format(count=1)} {{%r1}}, [%r5];")
    spread = re.search(r"shr.u32 fp4aot_got.*?(?=mov.b32 %r1)", lowered)
    assert spread is not None
    for shift, word in ((0, 0xFFFF4321), (16, 0xCBA9FFFF)):
        machine = Machine(fp4aot_got=word, fp4aot_shift=shift).run(spread[0])
        nibbles = [word >> shift + 4 * i & 15 for i in range(4)]
        assert machine.registers["fp4aot_got"] == sum(n << 8 * i for i, n in enumerate(nibbles))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_lane_asks_the_lane_that_knows(count: int) -> None:
    elements = ", ".join(f"%r{i + 1}" for i in range(count))
    lowered = lower_text(f"@%p1 {LDMATRIX.format(count=count)} {{{elements}}}, [%r9];")
    assert lowered.count("@%p1 ldmatrix.sync.aligned.m8n8") == 1
    assert lowered.count("@%p1 shfl.sync.idx.b32") == 2 * count
    with pytest.raises(LoweringError, match="not a vector"):
        lower_text(f"{LDMATRIX.format(count=count)} {{%r1, %r2, %r3}}, [%r9];")


def test_a_copy_looks_at_its_map() -> None:
    opcode = (
        "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    )
    lowered = lower_text(f"@%p1 {opcode} [%r1], [%rd1, {{%r2, %r3, %r4}}], [%r5], %rd2;")
    assert f"@%p1 ld.b32 fp4aot_word, [%rd1+{TYPE_OFFSET}];" in lowered
    assert f"@%p1 {opcode} [%r1], [%rd1, {{fp4aot_first, %r3, %r4}}], [%r5], %rd2;" in lowered
    setup = re.search(r"and.b32 fp4aot_word.*?shr.s32 fp4aot_first, %r2, fp4aot_shift", lowered)
    assert setup is not None
    for word, first in (
        (TYPE_TAG, 8),
        (TYPE_TAG | 0x00040020, 8),
        (TYPE_TAG ^ 0x80, 128),
        (0, 128),
    ):
        machine = Machine(fp4aot_word=word, **{"%r2": 128}).run(setup[0])
        assert machine.registers["fp4aot_first"] == first
    # Where the guard keeps the map from being read, no mark is seen.
    unread = re.search(r"mov.b32 fp4aot_word, (0x\w+);", lowered)
    assert unread is not None
    assert int(unread[1], 16) & TYPE_MASK != TYPE_TAG


@pytest.mark.parametrize(
    ("statement", "rewritten"),
    [
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];", True),
        (
            "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group "
            "[%rd1, {%r1}], [%r3];",
            True,
        ),
        ("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%rd1, {a, b, c, d, e}];", True),
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[%r1], [%rd1, {a, b, c}], [%r2], {%rs1};",
            False,
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [b], c, [d];",
            False,
        ),
    ],
)
def test_which_copies_look(statement: str, rewritten: bool) -> None:
    assert (lower_text(statement) != statement) is rewritten


REPLACE = "tensormap.replace.tile"
DIMENSION = f"{REPLACE}.global_dim.shared::cta.b1024.b32"


def test_a_kernel_that_writes_the_first_dimension_of_a_map_looks_too() -> None:
    lowered = lower_text(f"@%p1 {DIMENSION} [%rd1], 0, %r2;")
    assert f"@%p1 ld.shared::cta.b32 fp4aot_word, [%rd1+{TYPE_OFFSET}];" in lowered
    assert f"@%p1 {DIMENSION} [%rd1], 0, fp4aot_size;" in lowered
    setup = re.search(r"and.b32 fp4aot_word.*?shr.u32 fp4aot_size, %r2, fp4aot_shift", lowered)
    assert setup is not None
    for word, size in ((TYPE_TAG, 8), (TYPE_TAG ^ 0x80, 128), (0, 128)):
        machine = Machine(fp4aot_word=word, **{"%r2": 128}).run(setup[0])
        assert machine.registers["fp4aot_size"] == size


@pytest.mark.parametrize(
    "statement",
    [
        f"{DIMENSION} [%rd1], 1, %r2;",
        f"{DIMENSION} [%rd1], 0x4, %r2;",
        f"{REPLACE}.global_stride.shared::cta.b1024.b64 [%rd1], 0, %rd2;",
        f"{REPLACE}.global_address.global.b1024.b64 [%rd1], %rd2;",
    ],
)
def test_what_counts_rows_or_bytes_in_a_map_stays(statement: str) -> None:
    assert lower_text(statement) == statement


@pytest.mark.parametrize(
    "statement",
    [
        f"{REPLACE}.box_dim.shared::cta.b1024.b32 [%rd1], 0, %r2;",
        f"{REPLACE}.elemtype.shared::cta.b1024.b32 [%rd1], 13;",
        f"{DIMENSION} [%rd1], %r9, %r2;",
    ],
)
def test_other_changes_of_a_map_are_refused(statement: str) -> None:
    with pytest.raises(LoweringError, match=r"tensormap\.replace"):
        lower_text(f".target sm_120f\n{statement}\n")


def test_both_sides_look_at_the_same_place() -> None:
    assert compiler_flags() == tuple(
        f"-DFP4AOT_TENSOR_MAP_TYPE_{name}={value:#x}u"
        for name, value in (("OFFSET", TYPE_OFFSET), ("MASK", TYPE_MASK), ("TAG", TYPE_TAG))
    )
    assert TYPE_TAG & ~TYPE_MASK == 0 < TYPE_MASK


KERNEL = (
    ".target sm_100a\n.visible .entry kernel_{n}(\n.param .u64 p\n)\n{{\n\tret;\n\t{body}\n}}\n"
)


@pytest.mark.parametrize(
    "statement",
    [
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;",
        "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e2m1.f32 {a}, {b}, {c}, {d};",
        "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1"
        ".f32.ue8m0 {a}, {b}, {c}, {d}, {e}, {f, g}, {h}, {i, j};",
        "cvt.rn.satfinite.e2m3x2.f32 %rs1, %f1, %f2;",
        "cvt.rn.satfinite.relu.e2m1x2.f32 b, %f1, %f2;",
        "cvt.rz.satfinite.ue8m0x2.f32 %rs1, %f1, %f2;",
        "cvt.rs.satfinite.e2m1x4.f32 %rs1, {a, b, c, d}, r;",
        "ld.volatile.v8.b32 {a, b, c, d, e, f, g, h}, [%rd1];",
        "fma.rn.f32x2 %rd1, %rd2, %rd3, %rd4;",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {a, b}, [%r1];",
        "redux.sync.add.f32 %f1, %f2, %r1;",
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%rd1], [%rd2];",
        "cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes "
        "[a], [b, {c, d}], [e];",
    ],
)
def test_what_is_not_in_the_table_is_refused_by_name(statement: str) -> None:
    text = KERNEL.format(n=1, body="ret;") + KERNEL.format(n=2, body=statement)
    with pytest.raises(LoweringError) as caught:
        lower_text(text.replace(".target sm_100a\n", "", 1).replace("sm_100a", "sm_120f"))
    assert f"line 14, in kernel_2: {statement.split(maxsplit=1)[0]}" in str(caught.value)


def test_every_refusal_is_listed_and_long_lists_end() -> None:
    body = "\n".join(["tcgen05.wait::ld.sync.aligned;"] * 30)
    with pytest.raises(LoweringError) as caught:
        lower_text(KERNEL.format(n=1, body=body))
    assert str(caught.value).count("tcgen05") == 20
    assert "and 10 more" in str(caught.value)


def test_what_hopper_has_stays_as_it_is() -> None:
    text = KERNEL.format(
        n="float_e2m1x2",
        body="\n".join(
            (
                "ld.param.u64 %rd1, [kernel_float_e2m1x2_param_0+64]; // cvt.rn.f16x2.e2m1x2 d, s;",
                "/* not;",
                "cvt.rn.f16x2.e2m1x2 d, s; // either */",
                "redux.sync.max.s32 %r1, %r2, %r3;",
                "ld.global.v4.u32 {a, b, c, d}, [%rd1];",
                "ld.shared.v2.u64 {%rd2, %rd3}, [%r1];",
                "cvt.rn.f16x2.e4m3x2 %r1, %rs1;",
                "ldmatrix.sync.aligned.x4.m8n8.shared.b16 {a, b, c, d}, [%r1];",
            )
        ),
    )
    assert lower_text(text) == text.replace("sm_100a", "sm_90a")


@pytest.mark.parametrize("target", ["sm_103a", "sm_120a", "sm_100", "sm_90a"])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(LoweringError, match=f"for {target}; only sm_100a and sm_120f"):
        lower_text(f".version 9.0\n.target {target}\n")


def test_lines_keep_their_numbers() -> None:
    text = ".target sm_120f, debug\n{\ncvt.rn.f16x2.e2m1x2\n d,\n s; ret;\n}\nret;\n"
    lowered = lower_text(text).splitlines()
    assert len(lowered) == len(text.splitlines())
    assert lowered[0] == ".target sm_90a, debug"
    assert lowered[4:] == [" ret;", "}", "ret;"]
