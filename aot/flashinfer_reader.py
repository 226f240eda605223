"""Runs inside the pinned FlashInfer environment: prints FlashInfer's own compile commands as JSON.

Standard library and FlashInfer only: the pipeline's packages are not installed there. Each argument
is a generator, ``package.module:function``. FlashInfer's targets, toolkit and work folder are set
by the caller through its environment variables.
"""

import importlib
import json
import shlex
import sys
import sysconfig


def describe(generator: str) -> dict[str, object]:
    """One specification: its name and, for each source, FlashInfer's compiler and arguments."""
    module_name, function_name = generator.split(":")
    specification = getattr(importlib.import_module(module_name), function_name)()
    units = []
    for entry in specification.get_compile_commands():
        arguments = shlex.split(entry["command"])
        source = entry["file"]
        # What remains is flags: the compiler, the source and the object are the pipeline's to say.
        flags = arguments[1 : arguments.index("-o")]
        at = flags.index("-c")
        del flags[at : at + 2]
        units.append({"source": source, "flags": flags})
    return {
        "generator": generator,
        "name": specification.name,
        "units": units,
        "needs_device_linking": specification.needs_device_linking,
        "extra_ldflags": list(specification.extra_ldflags or []),
    }


def main() -> None:
    """Answer for the generators on the command line."""
    flashinfer = importlib.import_module("flashinfer")

    answer = {
        "flashinfer": flashinfer.__version__,
        "python_include": sysconfig.get_path("include"),
        "specifications": [describe(generator) for generator in sys.argv[1:]],
    }
    # FlashInfer's logger may print: the answer is the last line.
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
