"""The table of compiled functions that `csrc/flashinfer/kernel_table.h` declares."""

from __future__ import annotations

from collections.abc import Iterator

from aot.architectures import Architecture
from aot.codegen.lowered_device import lowered_functions
from aot.codegen.symbols import entry_symbol
from aot.plan import BuildPlan, ModulePlan

_HEADER = """\
// Generated from the build plan; do not edit.
#include "flashinfer/kernel_table.h"

"""


def kernel_table(plan: BuildPlan) -> str:
    """Return the source of the table: one row for each function that an operator calls."""
    lines = ['extern "C" {']
    for module in plan.modules:
        lines += [
            f"int {entry_symbol(module.name, function.name)}"
            "(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);"
            for function in module.functions
            if function.operator
        ]
    lines += [
        "// The modules' `getenv`: FlashInfer reads its environment on every call, the operators",
        "// take recipes as arguments.",
        "char* fp4aot_no_environment(const char*) { return nullptr; }",
        *lowered_functions(plan),
        '}  // extern "C"',
        "",
        "namespace fp4aot {",
        "namespace {",
        *(line for module in plan.modules for line in _images(module)),
        "}  // namespace",
        "const KernelEntry kernel_entries[] = {",
        *(line for module in plan.modules for line in _entries(module)),
        "};",
        f"const bool kernels_are_lowered = {'true' if plan.lowering else 'false'};",
        "const size_t kernel_entry_count = sizeof(kernel_entries) / sizeof(kernel_entries[0]);",
        "}  // namespace fp4aot",
        "",
    ]
    return _HEADER + "\n".join(lines)


def _images(module: ModulePlan) -> Iterator[str]:
    rows = []
    for name in module.images:
        target = Architecture.parse(name)
        suffix = f"'{target.suffix}'" if target.suffix else "'\\0'"
        rows.append(f"{{{target.major}, {target.minor}, {suffix}}}")
    yield f"const Image images_{module.name}[] = {{{', '.join(rows)}}};"


def _entries(module: ModulePlan) -> Iterator[str]:
    for function in module.functions:
        if function.operator:
            yield (
                f'    {{"{module.name}", "{function.name}", '
                f"{entry_symbol(module.name, function.name)}, "
                f"images_{module.name}, {len(module.images)}}},"
            )
