"""From a plan to a finished wheel: compile, audit, tag, and only then put it where people look."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aot import progress, report
from aot.architectures import Architecture
from aot.audit import (
    DeviceUnit,
    LibraryExpectation,
    WheelExpectation,
    WheelReport,
    as_json,
    audit_wheel,
    require_passed,
)
from aot.build import compile_objects, link_wheel
from aot.compile.admission import Limits
from aot.compile.events import Listener
from aot.compile.record import BuildRecord
from aot.costs import UnitCost
from aot.errors import BuildError
from aot.pipeline import SOURCE_DATE_EPOCH, Prepared, prefix_maps
from aot.plan import BuildPlan
from aot.process import run
from aot.progress import clock

LIBRARY = "fp4aot/libfp4aot.so"
NOTICES = (
    *("flashinfer", "tensorrt-llm", "cutlass", "cccl", "spdlog", "fmt"),
    *("apache-tvm-ffi", "dlpack", "pytorch", "cuda-runtime"),
)
"""Whose code is compiled or linked into the library."""
RECORDS = (
    "fp4aot/_manifest.json",
    "fp4aot/_provenance.json",
    "fp4aot-*.dist-info/sboms/fp4aot.cdx.json",
)
"""What a wheel tells of itself."""


@dataclass(frozen=True)
class FinishedWheel:
    """A wheel that has passed its audit.

    Parameters
    ----------
    wheel
        The file, under its final name.
    plan
        What it was built from.
    seconds
        Wall time of compiling and linking.
    record
        What the compilers and the object cache did, job by job.
    units
        What each translation unit of FlashInfer's modules has cost.
    audit
        What is in it.
    """

    wheel: Path
    plan: BuildPlan
    seconds: float
    record: BuildRecord
    units: tuple[UnitCost, ...]
    audit: WheelReport

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "wheel": str(self.wheel),
            "size": self.audit.size,
            "sha256": self.audit.sha256,
            "plan_hash": self.plan.hash,
            "versions": asdict(self.plan.versions),
            "lowering": self.plan.lowering,
            "modules": {module.name: module.images for module in self.plan.modules},
            "build_seconds": round(self.seconds, 1),
            "cache_hits": self.record.cache_hits,
            "cache_misses": self.record.cache_misses,
            "peak_megabytes": self.record.peak_megabytes,
            "limit_megabytes": self.record.limit_megabytes,
            "module_reports": [module.to_json() for module in self.module_reports()],
            "audit": as_json(self.audit),
        }

    def module_reports(self) -> tuple[report.ModuleReport, ...]:
        """Put together what each module has and has cost."""
        return report.module_reports(
            [module.name for module in self.plan.modules],
            [one for library in self.audit.libraries for one in library.modules],
            self.units,
        )

    def module_table(self) -> Table:
        """Return the closing table of the modules."""
        return report.table(self.module_reports(), self.audit.size)

    def table(self) -> Table:
        """Return the closing summary."""
        table = Table(show_header=False, title=self.wheel.name, title_justify="left")
        table.add_row("size", f"{self.audit.size / 1e6:.2f} MB")
        table.add_row("SHA-256", self.audit.sha256)
        for module in self.plan.modules:
            table.add_row(module.name, module.targets)
        record = self.record
        words = [f"{clock(self.seconds)} min"]
        if record.cache_hits is not None:
            words.append(f"object cache: {record.cache_hits} hits, {record.cache_misses} misses")
        if record.samples:
            words.append(f"at most {record.peak_megabytes} of {record.limit_megabytes} MB")
        table.add_row("build", ", ".join(words))
        return table


def expectation(prepared: Prepared) -> WheelExpectation:
    """Say what the audit must find in a wheel of this plan."""
    units = tuple(
        DeviceUnit(module.name, unit.name, tuple(map(Architecture.parse, module.images)))
        for module in prepared.plan.modules
        for unit in module.units
        if unit.language == "cuda"
    )
    library = LibraryExpectation(
        images=Counter(target for unit in units for target in unit.architectures),
        forbidden_prefixes=tuple(folder for folder, _ in prefix_maps(prepared)),
        units=units,
        machine=prepared.plan.machine,
    )
    return WheelExpectation(libraries={LIBRARY: library}, notices=NOTICES, files=RECORDS)


def build_wheel(
    prepared: Prepared, out: Path, limits: Limits, console: Console, listen: Listener
) -> FinishedWheel:
    """Build a wheel, audit it, give it its platform tag and move it to `out`.

    Parameters
    ----------
    prepared
        What `aot.pipeline.prepare` returned.
    out
        Folder for the wheel; it gets one only if the audit passes.
    limits
        Compilers at once, and their memory.
    console
        Shows the progress of linking and of the audit.
    listen
        Is told what the compilers do.

    Raises
    ------
    BuildError, AuditError
        Naming what failed.
    """
    with tempfile.TemporaryDirectory(dir=prepared.folders.root, prefix=".audit-") as name:
        start = time.monotonic()
        record, units = compile_objects(prepared, limits, listen)
        linked = link_wheel(prepared, Path(name), limits, console)
        seconds = time.monotonic() - start
        wanted = expectation(prepared)
        with progress.reading(console) as reading:
            first = audit_wheel(linked, wanted, prepared.toolkit, reading)
        require_passed(first)
        tagged = tag(linked, first.platform)
        second = audit_wheel(tagged, wanted, prepared.toolkit, earlier=first)
        require_passed(second)
        out.mkdir(parents=True, exist_ok=True)
        final = out.resolve() / tagged.name
        tagged.replace(final)
    return FinishedWheel(final, prepared.plan, seconds, record, units, second)


def tag(wheel: Path, platform: str) -> Path:
    """Give a wheel another platform tag, in its name and its metadata.

    Returns
    -------
    Path
        The renamed wheel, in the same folder.
    """
    done = run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform, wheel],
        purpose=f"tag {wheel.name} as {platform}",
        error=BuildError,
        environ={"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, **os.environ},
    )
    renamed = wheel.with_name(done.stdout.strip().splitlines()[-1])
    if not renamed.is_file():
        raise BuildError(f"tagging {wheel.name} left no {renamed.name}")
    return renamed
