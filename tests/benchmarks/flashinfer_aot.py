"""Runs inside the pinned FlashInfer environment: FlashInfer's own ahead-of-time build.

``python flashinfer_aot.py package.module:generator …`` hands the specifications to
``flashinfer.jit.core.build_jit_specs``, as ``flashinfer.aot`` does: one ninja for all of them. How
many compilers run at once, the toolkit, the targets and the folder are FlashInfer's own environment
variables, set by the caller. Prints JSON: the wall time, and the folder of each module.
"""

import importlib
import json
import sys
import time


def main() -> None:
    core = importlib.import_module("flashinfer.jit.core")
    specifications = []
    for generator in sys.argv[1:]:
        module, function = generator.split(":")
        specifications.append(getattr(importlib.import_module(module), function)())
    start = time.monotonic()
    core.build_jit_specs(specifications, verbose=False, skip_prebuilt=False)
    seconds = time.monotonic() - start
    libraries = {one.name: one.jit_library_path for one in specifications}
    if missing := [name for name, path in libraries.items() if not path.is_file()]:
        raise SystemExit(f"FlashInfer's build left no library of {', '.join(missing)}")
    folders = {name: str(path.parent) for name, path in libraries.items()}
    # FlashInfer's logger may print: the answer is the last line.
    print(json.dumps({"seconds": seconds, "modules": folders}))


if __name__ == "__main__":
    main()
