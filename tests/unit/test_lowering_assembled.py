"""Every replacement, assembled for Hopper by the real assembler.

Needs a CUDA toolkit: the one that a build installs, or any other that `aot.toolchain` finds.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aot import catalog, toolchain
from aot.errors import ToolchainError
from aot.lowering.lower import lower_text
from aot.lowering.table import RULES
from aot.lowering.tensor_map_coordinates import WRAPPED_FUNCTIONS, compiler_flags
from aot.lowering.toolkit import make_toolkit
from aot.pipeline import object_cache_program

ROOT = Path(__file__).resolve().parents[2]
LOWERING = ROOT / "aot" / "lowering"
EIGHT = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}"
FOUR = "{%rd1, %rd2, %rd3, %rd4}"
CONTROL = "clusterlaunchcontrol"
MMA = "mma.sync.aligned{0}.m16n8k64.row.col{1}.f32.e2m1.e2m1.f32.ue4m3"
KIND = ".kind::mxf4nvf4.block_scale.scale_vec::4X"
TILE = (
    "{%f1, %f2, %f3, %f4},{%r1, %r2, %r3, %r4},{%r5, %r6},{%f1, %f2, %f3, %f4},"
    "{%r7},{%rs1, %rs1},{%r8},{0, %rs2}"
)
MIXED = ".kind::mxf8f6f4.block_scale.scale_vec::1X"
ARRIVAL = "mbarrier::complete_tx::bytes"

# By the target whose PTX has it. Where both have an instruction, one is enough.
INSTRUCTIONS = {
    "sm_100a": (
        "cvt.rn.satfinite.e2m1x2.f32 %b1, %f1, %f2;",
        "cvt.rn.f16x2.e2m1x2 %r1, %b1;",
        "cvt.rp.satfinite.ue8m0x2.f32 %rs1, %f1, %f2;",
        "cvt.rn.bf16x2.ue8m0x2 %r1, %rs1;",
        *(
            f"redux.sync.{op}{abs_}{nan}.f32 %f1, %f2, %r1;"
            for op in ("max", "min")
            for abs_ in ("", ".abs")
            for nan in ("", ".NaN")
        ),
        f"ld.global.v8.b32 {EIGHT}, [%rd1+-32];",
        "ld.global.nc.v8.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, [%rd1];",
        f"ld.global.v4.b64 {FOUR}, [%rd1+64];",
        f"st.global.v8.b32 [%rd1], {EIGHT};",
        f"st.global.v4.b64 [%rd5+-64], {FOUR};",
    ),
    "sm_120f": (
        f"{MMA.format(KIND, '')} {TILE};",
        f"{MMA.format('', KIND)} {TILE};",
        *(
            f"mma.sync.aligned{MIXED}.m16n8k32.row.col.f32.{a}.{b}.f32.ue8m0 {TILE};"
            for a, b in (("e4m3", "e2m1"), ("e2m1", "e5m2"), ("e2m1", "e2m1"), ("e4m3", "e5m2"))
        ),
        f"mma.sync.aligned.m16n8k32.row.col{MIXED}.f32.e5m2.e2m1.f32.ue8m0 {TILE};",
        "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%r1, %r2, %r3, %r4}, [%r1+-32];",
        "ldmatrix.sync.aligned.m8n16.x2.shared::cta.b8x16.b4x16_p64 {%r1, %r2}, [%r5];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r1}, [%r5];",
        f"{CONTROL}.try_cancel.async.shared::cta.{ARRIVAL}.b128 [%r1], [%r2];",
        f"{CONTROL}.try_cancel.async.shared::cta.{ARRIVAL}.multicast::cluster::all.b128 "
        "[%r1], [%r2];",
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%rd1], 0, %r1;",
        "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%rd1], 0, %rd2;",
        f"{CONTROL}.query_cancel.is_canceled.pred.b128 %p1, %c1;",
        f"{CONTROL}.query_cancel.get_first_ctaid.v4.b32.b128 {{%r1, %r2, %r3, _}}, %c1;",
        f"{CONTROL}.query_cancel.get_first_ctaid::y.b32.b128 %r1, %c1;",
        f"cp.async.bulk.tensor.3d.shared::cta.global.{ARRIVAL}.L2::cache_hint "
        "[%r1], [%rd1, {%r2, %r3, %r4}], [%r5], %rd2;",
        f"cp.async.bulk.tensor.1d.shared::cluster.global.{ARRIVAL} [%r1], [%rd1, {{%r2}}], [%r5];",
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%rd1, {%r2, %r3, %r4, 0}], [%r1];",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group "
        "[%rd1, {%r2, %r3}], [%r1];",
        "cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1, {%r2, %r3}];",
    ),
}
SOURCE = """
__global__ void k(unsigned* out, float x, float y) {
  asm("{.reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %1, %2; mov.b32 %0, {b, 0, 0, 0};}"
      : "=r"(*out) : "f"(x), "f"(y));
}
void launch(unsigned* out) { k<<<1, 1>>>(out, 1, 2); }
"""
GUARDS = ("", "@%p2 ", "@!%p2 ")


@pytest.fixture(scope="module")
def cuda() -> toolchain.Toolkit:
    try:
        return toolchain.find(catalog.DEFAULT_CUDA, ROOT / "build" / "toolchain")
    except ToolchainError:
        pytest.skip("NOT TESTED: assembling for Hopper, because no CUDA 13.0 toolkit is there")


def kernel(target: str, statements: list[str]) -> str:
    declared = "".join(
        f".reg .{kind} %{name}<10>;\n"
        for kind, name in (
            ("b8", "b"),
            ("b16", "rs"),
            ("b32", "r"),
            ("b64", "rd"),
            ("f32", "f"),
            ("pred", "p"),
            ("b128", "c"),
        )
    )
    body = "\n".join(statements)
    return (
        f".version 9.0\n.target {target}\n.address_size 64\n"
        f".visible .entry k()\n{{\n{declared}{body}\nret;\n}}\n"
    )


def assemble(cuda: toolchain.Toolkit, folder: Path, target: str, text: str) -> str:
    (folder / "k.ptx").write_text(text)
    command = [
        cuda.root / "bin/ptxas",
        f"-arch={target}",
        folder / "k.ptx",
        "-o",
        folder / "k.cubin",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_every_replacement_assembles(target: str, cuda: toolchain.Toolkit, tmp_path: Path) -> None:
    statements = [guard + one for one in INSTRUCTIONS[target] for guard in GUARDS]
    text = kernel(target, statements)
    # It is what the Blackwell's assembler takes, and what Hopper's does not.
    assert assemble(cuda, tmp_path, target, text) == ""
    if target == "sm_100a":
        refused = assemble(cuda, tmp_path, "sm_90a", text.replace(target, "sm_90a"))
        assert refused.count("line") >= len(statements)
    assert assemble(cuda, tmp_path, "sm_90a", lower_text(text)) == ""


def test_every_rule_is_assembled() -> None:
    opcodes = [one.split()[0] for group in INSTRUCTIONS.values() for one in group]
    unused = [r.pattern.pattern for r in RULES if not any(r.pattern.fullmatch(o) for o in opcodes)]
    assert unused == []


def test_nvcc_compiles_through_the_toolkit(cuda: toolchain.Toolkit, tmp_path: Path) -> None:
    folder = make_toolkit(cuda.root, tmp_path / "toolkit")
    source = tmp_path / "k.cu"
    source.write_text(SOURCE)
    command = [folder / "bin/nvcc", "-gencode=arch=compute_100a,code=sm_100a", "-c", source]
    subprocess.run([*command, "-o", tmp_path / "k.o"], check=True, capture_output=True, text=True)
    listing = subprocess.run(
        [cuda.root / "bin/cuobjdump", "--list-elf", tmp_path / "k.o"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "sm_90a" in listing
    assert "sm_100a" not in listing
    # What cannot be lowered stops nvcc, and says why.
    source.write_text('__global__ void bad() { asm volatile("tcgen05.wait::ld.sync.aligned;"); }\n')
    done = subprocess.run(
        [*command, "-o", tmp_path / "bad.o"], check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "in _Z3badv: tcgen05.wait::ld.sync.aligned" in done.stderr


def test_an_object_cache_tells_the_toolkits_apart(cuda: toolchain.Toolkit, tmp_path: Path) -> None:
    program = object_cache_program()
    if program is None:
        pytest.skip("NOT TESTED: the object cache, because there is no sccache")
    lowering = make_toolkit(cuda.root, tmp_path / "toolkit")
    (tmp_path / "k.cu").write_text(SOURCE)
    # A server of its own.
    variables = {"SCCACHE_DIR": tmp_path / "cache", "SCCACHE_SERVER_UDS": tmp_path / "socket"}
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SCCACHE")}
    environ |= {name: str(path) for name, path in variables.items()}

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            words, check=True, capture_output=True, text=True, cwd=tmp_path, env=environ
        )
        return done.stdout

    try:
        for root, image in ((cuda.root, "sm_100a"), (lowering, "sm_90a"), (cuda.root, "sm_100a")):
            nvcc = root / "bin/nvcc"
            run(program, nvcc, "-gencode=arch=compute_100a,code=sm_100a", "-c", "k.cu", "-o", "k.o")
            assert f".{image}.cubin" in run(cuda.root / "bin/cuobjdump", "--list-elf", "k.o")
            (tmp_path / "k.o").unlink()
    finally:
        run(program, "--stop-server")


def test_the_tensor_map_wrapper_compiles(cuda: toolchain.Toolkit, tmp_path: Path) -> None:
    target = tmp_path / "tensor_map.o"
    subprocess.run(
        [
            *("g++", "-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Werror", *compiler_flags()),
            *(f"-isystem{cuda.root / 'include'}", "-c", LOWERING / "tensor_map.cpp", "-o", target),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    symbols = subprocess.run(
        ["nm", "--extern-only", "--format=posix", target],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in WRAPPED_FUNCTIONS:
        assert f"__wrap_{name} T" in symbols
        assert f"__real_{name} U" in symbols
