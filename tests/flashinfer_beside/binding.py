"""FlashInfer's own binding of a module of which our wheel builds the FP4 part alone.

Such a module is compiled in our wheel with an entry of ours in place of FlashInfer's binding, which
names every dtype. Here FlashInfer's binding is compiled after all, with the flags that it has in
FlashInfer, and linked with the wheel's other objects; what it names and the wheel does not build,
runners of other dtypes, becomes a function that ends the process with its reason. So FlashInfer's
Python runs its real path down to the wheel's own kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot import process
from aot.codegen.lowered_device import lowered_functions, lowered_symbols
from aot.errors import BuildError, PlanError
from aot.link_selection import ObjectSymbols, read_symbols
from aot.lowering.toolkit import make_toolkit
from aot.plan import BuildPlan, ModulePlan, Roots, Unit

EXPORT = "__tvm_ffi_"


@dataclass(frozen=True)
class Binding:
    """What FlashInfer has where our wheel has an entry of its own.

    Parameters
    ----------
    sources
        FlashInfer's files, within its ``csrc``.
    in_place_of
        The units of ours that are left out, where the wheel has them. The first it must have; its
        flags are those of FlashInfer's binding.
    idle
        Functions that FlashInfer's Python calls when it loads the module, and that concern nothing
        of FP4: they exist, and do nothing.
    """

    sources: tuple[str, ...]
    in_place_of: tuple[str, ...]
    idle: tuple[str, ...] = ()


BINDINGS: Mapping[str, Binding] = {
    "fused_moe_120": Binding(
        ("fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu",),
        ("modules_nvfp4_moe",),
        # Where FP8 kernels that are compiled on the device's machine find their headers.
        ("set_deepgemm_jit_include_dirs",),
    ),
    "gemm_sm120": Binding(
        ("group_gemm_sm120_binding.cu",),
        ("modules_nvfp4_group_gemm_sm120", "modules_mxfp4_group_gemm_sm120"),
    ),
}

# Namespaces as they are written within a mangled name, and the grouped GEMMs, which have none.
_OF_FLASHINFER = re.compile(r"^_Z.*(12tensorrt_llm|10flashinfer|9deep_gemm|7cutlass|\d+Cutlass)")
# Tables of virtual functions, type information and its names.
_DATA = re.compile(r"^_ZT[VIST]")


def objects_with_binding(
    plan: BuildPlan,
    roots: Roots,
    module: ModulePlan,
    objects: Mapping[str, Path],
    scratch: Path,
    compiler: Path,
) -> list[Path]:
    """Return what a module is linked from when FlashInfer's binding takes the place of our entry.

    Parameters
    ----------
    plan, roots, module
        The build, and the module in it.
    objects
        The module's objects in our wheel, by unit.
    scratch
        Where to make what is missing.
    compiler
        The host compiler.

    Raises
    ------
    PlanError
        When the module has no such entry.
    BuildError
        When something does not compile.
    """
    binding = BINDINGS[module.name]
    unit = next((unit for unit in module.units if unit.name == binding.in_place_of[0]), None)
    if unit is None:
        raise PlanError(
            f"{module.name} has no unit {binding.in_place_of[0]}: its binding is not replaced, or "
            "by another; correct BINDINGS"
        )
    nvcc = _nvcc(plan, roots, scratch)
    ours = [path for name, path in objects.items() if name not in binding.in_place_of]
    theirs = [_compile(roots, unit, source, nvcc, compiler, scratch) for source in binding.sources]
    merged = scratch / f"{module.name}.merged.o"
    renames = [f"--redefine-sym={old}={new}" for old, new in lowered_symbols(module).items()]
    process.run(
        ["ld", "-r", "-o", merged, *ours, *theirs],
        purpose=f"merge {module.name} with FlashInfer's binding",
        error=BuildError,
    )
    if renames:
        process.run(
            ["objcopy", *renames, merged], purpose=f"rename in {module.name}", error=BuildError
        )
    stubs = scratch / f"{module.name}.stubs.cpp"
    functions = "\n".join(lowered_functions(plan)) if renames else ""
    stubs.write_text(stub_source(absent(read_symbols(merged)), binding.idle, functions))
    compiled = stubs.with_suffix(".o")
    process.run(
        [compiler, "-std=c++17", "-O1", "-fPIC", "-c", stubs, "-o", compiled],
        purpose=f"compile the stubs of {module.name}",
        error=BuildError,
    )
    return [merged, compiled]


def absent(symbols: ObjectSymbols) -> list[str]:
    """List FlashInfer's symbols that are named and nowhere defined."""
    return absent_from(symbols.undefined - symbols.defined)


def absent_from(undefined: Iterable[str]) -> list[str]:
    """Pick FlashInfer's among the names of undefined symbols."""
    return sorted(name for name in undefined if _OF_FLASHINFER.search(name))


def stub_source(missing: Iterable[str], idle: Iterable[str], functions: str = "") -> str:
    """Write C++ that defines what is missing.

    Parameters
    ----------
    missing
        Symbols: functions that end the process, and tables that hold nothing.
    idle
        Functions exported to TVM-FFI that do nothing and return None.
    functions
        More C functions.
    """
    lines = [
        "#include <cstdio>",
        "#include <cstdlib>",
        "#include <cstdint>",
        'extern "C" {',
        functions,
        "__attribute__((used)) static void flashinfer_beside_is_absent() {",
        '  std::fputs("this bundle of FlashInfer holds FP4 kernels alone\\n", stderr);',
        "  std::abort();",
        "}",
    ]
    for index, name in enumerate(missing):
        if _DATA.match(name):
            lines.append(
                f'__attribute__((weak, aligned(16))) char absent_{index}[4096] __asm__("{name}");'
            )
        else:
            lines.append(
                f'void absent_{index}() __asm__("{name}") '
                '__attribute__((weak, alias("flashinfer_beside_is_absent")));'
            )
    for name in idle:
        lines.append(f"int {EXPORT}{name}(void*, const void*, int32_t, void*) {{ return 0; }}")
    return "\n".join([*lines, "}", ""])


def _nvcc(plan: BuildPlan, roots: Roots, scratch: Path) -> Path:
    """Find the compiler of the plan: where machine code is lowered, the binding's is too."""
    root = make_toolkit(roots.cuda, scratch / "toolkit") if plan.lowering else roots.cuda
    return root / "bin" / "nvcc"


def _compile(
    roots: Roots, unit: Unit, source: str, nvcc: Path, compiler: Path, scratch: Path
) -> Path:
    path = roots.flashinfer / "csrc" / source
    out = scratch / f"{path.stem}.o"
    flags = [roots.expand(flag) for flag in unit.flags]
    process.run(
        [nvcc, "-ccbin", compiler, *flags, "-c", path, "-o", out],
        purpose=f"compile {path.name}, which takes minutes",
        error=BuildError,
    )
    return out
