"""A program that prints the type schema of every function that a module exports."""

from __future__ import annotations

from aot.codegen.lowered_device import lowered_functions
from aot.codegen.symbols import schema_symbol
from aot.plan import BuildPlan

_PROGRAM = """\
// Generated from the build plan; do not edit. Prints one line of JSON for each exported function.
#include <tvm/ffi/c_api.h>

#include <cstdio>
#include <string>

extern "C" {
%(declarations)s
char* fp4aot_no_environment(const char*) { return nullptr; }
%(lowered)s
}

namespace {

using SchemaFunction = int (*)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

int print_schema(const char* module, const char* function, SchemaFunction schema) {
  TVMFFIAny result{};
  if (schema(nullptr, nullptr, 0, &result) != 0) {
    std::fprintf(stderr, "no schema of %%s in %%s\\n", function, module);
    return 1;
  }
  const TVMFFIByteArray text = result.type_index == kTVMFFISmallStr
                                   ? TVMFFISmallBytesGetContentByteArray(&result)
                                   : *TVMFFIBytesGetByteArrayPtr(result.v_obj);
  std::printf("{\\"module\\": \\"%%s\\", \\"function\\": \\"%%s\\", \\"metadata\\": %%s}\\n",
              module, function, std::string(text.data, text.size).c_str());
  return 0;
}

}  // namespace

int main() {
  int failures = 0;
%(calls)s
  return failures == 0 ? 0 : 1;
}
"""


def schema_probe(plan: BuildPlan) -> str:
    """Return the source of the program."""
    declarations, calls = [], []
    for module in plan.modules:
        for function in module.functions:
            symbol = schema_symbol(module.name, function.name)
            declarations.append(f"int {symbol}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);")
            calls.append(
                f'  failures += print_schema("{module.name}", "{function.name}", {symbol});'
            )
    return _PROGRAM % {
        "declarations": "\n".join(declarations),
        "lowered": "\n".join(lowered_functions(plan)),
        "calls": "\n".join(calls),
    }
