"""The generated C++: compiled against stand-ins for TVM-FFI's header, linked, and run."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from plans import plan_of

from aot.architectures import Architecture
from aot.catalog import Function
from aot.codegen.kernel_table import kernel_table
from aot.codegen.schema_probe import schema_probe
from aot.codegen.symbols import entry_symbol, schema_symbol
from aot.errors import BuildError
from aot.plan import BuildPlan, ModulePlan
from aot.schemas import check_schemas, parse_probe

# As much of TVM-FFI's C API as the generated sources use.
C_API = """
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
extern "C" {
struct TVMFFIObject { const char* text; };
struct TVMFFIAny { int32_t type_index; TVMFFIObject* v_obj; char small[8]; };
struct TVMFFIByteArray { const char* data; size_t size; };
typedef int (*TVMFFISafeCallType)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
enum { kTVMFFISmallStr = 11, kTVMFFIStr = 65 };
}
inline TVMFFIByteArray TVMFFISmallBytesGetContentByteArray(const TVMFFIAny* a) {
  return {a->small, std::strlen(a->small)};
}
struct Long { TVMFFIByteArray bytes; };
inline TVMFFIByteArray* TVMFFIBytesGetByteArrayPtr(TVMFFIObject* o) {
  static TVMFFIByteArray bytes;
  bytes = {o->text, std::strlen(o->text)};
  return &bytes;
}
"""

HEADER = Path(__file__).resolve().parents[2] / "wheels/fp4aot/csrc/flashinfer/kernel_table.h"
ENTRIES = re.search(r"struct KernelEntry.*?kernels_are_lowered;", HEADER.read_text(), re.DOTALL)
# What the table defines; a build compiles it against the whole header.
KERNEL_TABLE_H = f"""
#pragma once
#include <tvm/ffi/c_api.h>
namespace fp4aot {{
struct Image {{ int major; int minor; char suffix; }};
{ENTRIES[0]}
}}
"""

QUANTIZE = Function("quantize", ("DLTensor*", "Optional<DLTensor*>"), operator="fp4_quantize")
BATCHED = Function("batched", ("Tensor",), reason="later")
DEQUANTIZE = Function("dequantize", ("DLTensor*", "int"), operator="dequantize")

PLAN = plan_of(
    ModulePlan("quant_120f", "q", ("12.0f",), ("12.0f",), (), (QUANTIZE, BATCHED)),
    ModulePlan("quant_121", "q", ("12.1a",), ("12.1a",), (), (QUANTIZE,)),
    ModulePlan("kv", "kv", *(("8.0", "9.0a", "12.0f"),) * 2, (), (DEQUANTIZE,)),
    # Nothing in it has an operator: its objects are linked, and no row names it.
    ModulePlan("unused", "q", ("10.0a",), ("10.0a",), (), (BATCHED,)),
)


@pytest.fixture(scope="module")
def gxx() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("NOT TESTED: the generated sources, because this machine has no g++")
    return found


def run_program(gxx: str, folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    headers = {"tvm/ffi/c_api.h": C_API, "flashinfer/kernel_table.h": KERNEL_TABLE_H}
    for name, text in headers.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    paths = []
    for index, source in enumerate(sources):
        paths.append(folder / f"{index}.cpp")
        paths[-1].write_text(source)
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    command = [gxx, *flags, *paths, "-o", folder / "program"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return subprocess.run([folder / "program"], capture_output=True, text=True, check=False)


def test_symbols_of_equal_functions_differ_by_module() -> None:
    names = {
        make(module, function)
        for make in (entry_symbol, schema_symbol)
        for module in ("a", "b")
        for function in ("f", "g")
    }
    assert len(names) == 8


# The table


def table_of(gxx: str, folder: Path, plan: BuildPlan) -> list[str]:
    """Compile the table of a plan, and list its rows; the last line is for all of them."""
    entries = [
        (module.name, function.name)
        for module in plan.modules
        for function in module.functions
        if function.operator
    ]
    bodies = "\n".join(
        f"int {entry_symbol(module, function)}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*)"
        f" {{ return {100 + index}; }}"
        for index, (module, function) in enumerate(entries)
    )
    main = f"""
        #include <cstdio>
        #include "flashinfer/kernel_table.h"
        extern "C" {{
          {bodies}
          char* fp4aot_no_environment(const char*);
          int cudaDeviceGetAttribute(int* value, int attribute, int) {{
            *value = attribute;
            return 0;
          }}
        }}
        int main() {{
          for (size_t i = 0; i < fp4aot::kernel_entry_count; ++i) {{
            const fp4aot::KernelEntry& entry = fp4aot::kernel_entries[i];
            std::printf("%s.%s=%d", entry.module, entry.function,
                        entry.call(nullptr, nullptr, 0, nullptr));
            for (size_t j = 0; j < entry.image_count; ++j) {{
              const fp4aot::Image& image = entry.images[j];
              std::printf(" %d.%d", image.major, image.minor);
              if (image.suffix) std::printf("%c", image.suffix);
            }}
            std::printf("\\n");
          }}
          std::printf(fp4aot::kernels_are_lowered ? "lowered\\n" : "as compiled\\n");
          return fp4aot_no_environment("HOME") == nullptr ? 0 : 1;
        }}
    """
    done = run_program(gxx, folder, kernel_table(plan), main)
    assert done.returncode == 0
    return done.stdout.splitlines()


def test_table_has_one_row_for_each_function_with_an_operator(gxx: str, tmp_path: Path) -> None:
    assert table_of(gxx, tmp_path, PLAN) == [
        "quant_120f.quantize=100 12.0f",
        "quant_121.quantize=101 12.1a",
        "kv.dequantize=102 8.0 9.0a 12.0f",
        "as compiled",
    ]


def test_a_lowered_table_has_the_images_that_there_are(gxx: str, tmp_path: Path) -> None:
    quantization, _, kv, _ = PLAN.modules
    modules = (
        dataclasses.replace(quantization, images=("9.0a",)),
        dataclasses.replace(kv, architectures=("9.0a",), images=("9.0a",)),
    )
    plan = dataclasses.replace(PLAN, modules=modules, lowering="0123456789abcdef")
    assert table_of(gxx, tmp_path, plan) == [
        "quant_120f.quantize=100 9.0a",
        "kv.dequantize=101 9.0a",
        "lowered",
    ]
    # What it was compiled for does not run anywhere.
    assert "{12, 0, 'f'}" not in kernel_table(plan)
    assert "{9, 0, 'a'}" in kernel_table(plan)


def test_table_carries_every_target_of_a_module_in_the_plans_form() -> None:
    text = kernel_table(PLAN)
    for target in ("8.0", "9.0a", "12.0f", "12.1a"):
        one = Architecture.parse(target)
        suffix = f"'{one.suffix}'" if one.suffix else "'\\0'"
        assert f"{{{one.major}, {one.minor}, {suffix}}}" in text


def test_functions_without_an_operator_are_not_kept_alive() -> None:
    assert entry_symbol("quant_120f", "batched") not in kernel_table(PLAN)


# The schema probe

FUNCTIONS = [(module.name, function) for module in PLAN.modules for function in module.functions]


def schema_text(arguments: tuple[str, ...]) -> str:
    """What TVM-FFI returns: JSON, with the schema as JSON text in it."""
    tensor = '{\\"type\\":\\"DLTensor*\\"}'
    optional = f'{{\\"type\\":\\"Optional\\",\\"args\\":[{tensor}]}}'
    types = {"Optional<DLTensor*>": optional}
    params = ",".join(types.get(name, f'{{\\"type\\":\\"{name}\\"}}') for name in arguments)
    return (
        '{"type_schema":"{\\"type\\":\\"ffi.Function\\",\\"named_args\\":'
        f'{{\\"return\\":[{{\\"type\\":\\"None\\"}}],\\"params\\":[{params}]}}}}"}}'
    )


def schema_bodies(answers: dict[tuple[str, str], str]) -> str:
    bodies = "".join(
        f"int {schema_symbol(module, function)}"
        f"(void*, const TVMFFIAny*, int32_t, TVMFFIAny* out) {{ {body} }}\n"
        for (module, function), body in answers.items()
    )
    return f'#include <tvm/ffi/c_api.h>\nextern "C" {{\n{bodies}}}\n'


def answers() -> dict[tuple[str, str], str]:
    return {
        (module, function.name): (
            f'static TVMFFIObject text{{R"_({schema_text(function.arguments)})_"}};'
            "out->type_index = kTVMFFIStr; out->v_obj = &text; return 0;"
        )
        for module, function in FUNCTIONS
    }


def test_probe_prints_what_the_check_reads(gxx: str, tmp_path: Path) -> None:
    done = run_program(gxx, tmp_path, schema_probe(PLAN), schema_bodies(answers()))
    assert done.returncode == 0
    compiled = parse_probe(done.stdout)
    assert [(schema.module, schema.function) for schema in compiled] == [
        (module, function.name) for module, function in FUNCTIONS
    ]
    check_schemas(PLAN, compiled)
    with pytest.raises(BuildError, match=r"kv\.dequantize: the module has no schema"):
        check_schemas(PLAN, [schema for schema in compiled if schema.module != "kv"])


def test_probe_reads_short_texts_and_names_a_function_that_fails(gxx: str, tmp_path: Path) -> None:
    changed = answers()
    changed["kv", "dequantize"] = "(void)out; return -1;"
    changed["unused", "batched"] = (
        'out->type_index = kTVMFFISmallStr; std::strcpy(out->small, "{}"); return 0;'
    )
    done = run_program(gxx, tmp_path, schema_probe(PLAN), schema_bodies(changed))
    assert done.returncode == 1
    assert done.stderr == "no schema of dequantize in kv\n"
    assert done.stdout.splitlines()[-1] == (
        '{"module": "unused", "function": "batched", "metadata": {}}'
    )
