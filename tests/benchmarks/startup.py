"""Import and first call, each in a fresh process: ``python startup.py fp4aot`` is one sample."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

if not __package__:
    # In place of this folder, whose modules have names that others may mean.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import names
from benchmarks.results import Measurement, summarize

PACKAGES = ("fp4aot", "flashinfer")


def sample(package: str, bundle: Path | None) -> dict[str, float]:
    """Time one import and one first call in this process, in milliseconds.

    torch is imported, and the GPU in use, before. FlashInfer has its library prebuilt.
    """
    import torch

    if package == "flashinfer":
        from flashinfer_beside import use

        if bundle is None:
            raise ValueError("FlashInfer is imported from a bundle: pass --bundle")
        use.prepare(bundle)
    start = time.perf_counter()
    module = __import__(package)
    imported = time.perf_counter() - start
    if package == "flashinfer":
        use.forbid_compilation()
    x = torch.randn(1, 256, device="cuda").to(torch.bfloat16)
    scale = (448 * 6 / x.float().abs().max()).reshape(1)
    torch.cuda.synchronize()
    start = time.perf_counter()
    module.fp4_quantize(x, scale)
    torch.cuda.synchronize()
    called = time.perf_counter() - start
    return {names.IMPORT: imported * 1000, names.FIRST_CALL: called * 1000}


def measure(
    packages: Iterable[str],
    bundle: Path | None,
    samples: int,
    run: Callable[[str, Path | None], dict[str, float]] | None = None,
) -> list[Measurement]:
    """Take samples in turns, after one for each that fills the caches and does not count."""
    run = run or run_sample
    packages = tuple(packages)
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(samples + 1):
        for package in packages:
            for group, milliseconds in run(package, bundle).items():
                if turn > 0:
                    found.setdefault((group, package), []).append(milliseconds)
    return [
        summarize(
            group, f"import {package}" if group == names.IMPORT else package, package, "ms", v
        )
        for (group, package), v in sorted(
            found.items(), key=lambda item: item[0][0] != names.IMPORT
        )
    ]


def run_sample(package: str, bundle: Path | None) -> dict[str, float]:
    """Run this file in a new process.

    Raises
    ------
    RuntimeError
        With its output, when it fails.
    """
    # Byte code is kept, as it is of installed packages.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, __file__, package, *(["--bundle", str(bundle)] if bundle else [])]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--bundle", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(sample(arguments.package, arguments.bundle)))


if __name__ == "__main__":
    main()
