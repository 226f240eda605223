"""Measure an installed wheel on a GPU: ``python tests/benchmarks/run.py --json FILE``.

Host time per call, eager, compiled and replayed; the kernels' time in a replayed graph; import and
first call. With ``--flashinfer BUNDLE`` (see ``tests/flashinfer_beside``) FlashInfer runs beside it
on the same kernels, taking turns; its results must be equal. Standard library and torch only.

The exit code is 0 when everything was measured, whether the speeds to reach were reached or not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

if not __package__:
    # In place of this folder, whose modules have names that others may mean.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from flashinfer_beside import use

import fp4aot
from benchmarks import gemm, graphs, moe, names, quantize, stack, startup, table
from benchmarks.picture import draw
from benchmarks.results import Failure, Measurement, Report, to_json
from benchmarks.targets import judge
from benchmarks.timing import Settings, measure_group

# The capability whose GEMM module a lowered wheel has.
LOWERED_GEMM = (12, 0)


class Run:
    """Collects the measurements of one run, and says what it is doing."""

    def __init__(self, flashinfer: ModuleType | None, settings: Settings) -> None:
        self.flashinfer = flashinfer
        self.settings = settings
        self.measurements: list[Measurement] = []
        self.failures: list[Failure] = []
        self.kernels: list[dict[str, Any]] = []

    def host_times(self, group: str, problem: Any, contenders: Callable[..., Any]) -> None:
        """Time all contenders of a group."""
        say(group)
        measured, failed = measure_group(
            group,
            contenders(problem, self.flashinfer),
            problem.expected(),
            self.settings,
            torch.cuda.synchronize,
        )
        self.measurements += measured
        self.failures += failed

    def gpu_times(self, group: str, rows: int, columns: int) -> None:
        """Compare a replayed graph with the kernels by themselves."""
        say(group)
        problem = quantize.Problem.draw(rows, columns)
        x, scale = problem.x, problem.scale
        functions = {
            "fp4aot": (
                lambda: fp4aot.fp4_quantize(x, scale),
                (names.REPLAYED, names.OWN_TIME),
            )
        }
        if (flashinfer := self.flashinfer) is not None:
            functions["flashinfer"] = (
                lambda: flashinfer.fp4_quantize(x, scale),
                (names.REPLAYED_THEIRS, names.OWN_TIME_THEIRS),
            )
        for family, (function, (replayed, own)) in functions.items():
            self.measurements.append(graphs.replay_times(group, replayed, family, function))
            measured, kernels = graphs.own_times(group, own, family, function)
            self.measurements.append(measured)
            self.kernels.append(kernels)


def say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def measure(
    flashinfer: ModuleType | None, bundle: Path | None, settings: Settings, samples: int
) -> Run:
    """Measure everything. `bundle` is unpacked."""
    run = Run(flashinfer, settings)
    # First: what comes later heats the machine, and fresh processes need none of it.
    say("import and first call")
    packages = ("fp4aot",) if bundle is None else startup.PACKAGES
    run.measurements += startup.measure(packages, bundle, samples)
    for group, shape in ((names.QUANTIZE_SMALL, (1, 256)), (names.QUANTIZE_WIDE, (4, 7168))):
        run.host_times(group, quantize.Problem.draw(*shape), quantize.contenders)
    # What FlashInfer asks for a capability decides which of its GEMM modules it takes.
    lowered = fp4aot._MANIFEST.is_lowered and flashinfer is not None
    with use.as_capability(*LOWERED_GEMM) if lowered else nullcontext():
        for m, size in names.GEMM_SIZES:
            problem = gemm.Problem.draw(m, size)
            run.host_times(names.gemm_group(m, size), problem, gemm.gemm_contenders)
            run.host_times(names.linear_group(m, size), problem, gemm.linear_contenders)
        run.host_times(names.STACK, stack.Problem.draw(256), stack.contenders)
        for tokens in names.MOE_TOKENS if moe.runs_here() else ():
            run.host_times(names.moe_group(tokens), moe.Problem.draw(tokens), moe.contenders)
    run.gpu_times(names.REPLAY_SMALL, 1, 256)
    run.gpu_times(names.REPLAY_LARGE, 4096, 7168)
    return run


def describe_wheel() -> dict[str, Any]:
    manifest = fp4aot._MANIFEST
    return {
        "version": manifest.version,
        "lowered": manifest.is_lowered,
        "lowering": manifest.lowering,
        "plan_hash": manifest.plan_hash,
        "library_sha256": manifest.library_sha256,
        "library_size": manifest.library_size,
        "mixtures": moe.runs_here(),
        "versions": dict(manifest.versions),
    }


def describe_machine() -> dict[str, Any]:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "device": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "driver": driver.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, required=True, help="the report")
    parser.add_argument("--flashinfer", type=Path, help="bundle to run beside")
    parser.add_argument("--picture", type=Path, help="an SVG of the report")
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument("--startup-samples", type=int, default=7)
    parser.add_argument("--allow-missing", action="store_true", help="exit 0 without FlashInfer")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: no GPU, nothing was measured", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        flashinfer, bundle, beside = None, None, None
        if arguments.flashinfer is not None:
            say("unpacking FlashInfer")
            bundle = use.unpack(arguments.flashinfer, Path(scratch) / "flashinfer")
            beside = use.describe(bundle)
            flashinfer = use.import_flashinfer(bundle)
            check_same_kernels(beside)
            beside["absent_dependencies"] = use.absent_dependencies()
        settings = Settings(rounds=arguments.rounds)
        run = measure(flashinfer, bundle, settings, arguments.startup_samples)
    report = Report(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        wheel=describe_wheel(),
        flashinfer=beside,
        machine=describe_machine(),
        settings={**vars(settings), "startup_samples": arguments.startup_samples},
        measurements=tuple(run.measurements),
        failures=tuple(run.failures),
        kernels=tuple(run.kernels),
    )
    verdicts = judge(report)
    data = to_json(report, [verdict.to_json() for verdict in verdicts])
    arguments.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    print(table.render(report, verdicts))
    if arguments.picture is not None:
        arguments.picture.write_text(draw(report), encoding="utf-8")
    missing = [verdict.target.name for verdict in verdicts if verdict.value is None]
    if missing:
        print(f"not measured: {'; '.join(missing)}", file=sys.stderr)
    return 0 if arguments.allow_missing or not missing else 1


def check_same_kernels(beside: dict[str, Any]) -> None:
    """Refuse a bundle of another build than the wheel's: the comparison would be of kernels.

    Raises
    ------
    SystemExit
        Naming both.
    """
    wheel, bundle = fp4aot._MANIFEST.plan_hash, beside["plan_hash"]
    if wheel != bundle:
        raise SystemExit(
            f"error: the wheel is built from plan {wheel[:16]}, the FlashInfer bundle from "
            f"{bundle[:16]}; make the bundle anew from the wheel's build"
        )


if __name__ == "__main__":
    sys.exit(main())
