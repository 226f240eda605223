"""The closing report of a build: what each module adds to the wheel, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from aot.audit import ModuleImages
from aot.compile.record import Origin
from aot.costs import UnitCost
from aot.progress import clock


@dataclass(frozen=True)
class ModuleReport:
    """One module of a wheel.

    Parameters
    ----------
    name
        Its name.
    images
        What it has for each of its targets.
    units
        Its translation units.
    """

    name: str
    images: tuple[ModuleImages, ...]
    units: tuple[UnitCost, ...]

    @property
    def seconds(self) -> float | None:
        """Wall time of compiling it, all units together; None where one was never measured."""
        costs = [unit.cost for unit in self.units]
        known = [cost.seconds for cost in costs if cost is not None]
        return sum(known) if costs and len(known) == len(costs) else None

    @property
    def megabytes(self) -> int | None:
        """Peak memory of the largest compiler process of all its units, as far as known."""
        return max(
            (unit.cost.megabytes for unit in self.units if unit.cost and unit.cost.megabytes),
            default=None,
        )

    @property
    def origins(self) -> str:
        """Say where its objects are from: ``"1 compiled, 16 from the cache"``."""
        words: dict[Origin, str] = {
            "compiled": "compiled",
            "cache": "from the cache",
            "kept": "kept",
            "imported": "from shards",
        }
        counts = Counter(unit.origin for unit in self.units)
        return ", ".join(f"{counts[origin]} {words[origin]}" for origin in words if counts[origin])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "architectures": {
                one.architecture: {
                    "images": one.images,
                    "size": one.size,
                    "packed_size": one.packed_size,
                    "instructions": list(one.instructions),
                }
                for one in self.images
            },
            "compile_seconds": None if self.seconds is None else round(self.seconds, 1),
            "peak_megabytes": self.megabytes,
            "units": [asdict(unit) for unit in self.units],
        }


def module_reports(
    names: Sequence[str], images: Sequence[ModuleImages], units: Sequence[UnitCost]
) -> tuple[ModuleReport, ...]:
    """Put together what the audit has found and what the build has measured.

    Parameters
    ----------
    names
        The modules.
    images, units
        Those of all modules.
    """
    return tuple(
        ModuleReport(
            name,
            tuple(one for one in images if one.module == name),
            tuple(one for one in units if one.module == name),
        )
        for name in names
    )


def table(modules: Sequence[ModuleReport], wheel_size: int) -> Table:
    """Return the closing table: a row for each module and target.

    Parameters
    ----------
    modules
        What is in the wheel.
    wheel_size
        Bytes of the wheel. What is not device code is host code, most of it the launchers.
    """
    result = Table(title="What each module adds to the wheel, and costs", title_justify="left")
    for heading in ("Module", "Target"):
        result.add_column(heading, overflow="fold")
    for heading in ("Images", "Code, MB", "In wheel, MB", "Compiled in, min", "Memory, GB"):
        result.add_column(heading, justify="right")
    result.add_column("Units, in this build")
    for module in modules:
        for index, one in enumerate(module.images):
            cells = [one.architecture, str(one.images), _mb(one.size), _mb(one.packed_size)]
            if index == 0:
                result.add_row(module.name, *cells, *_costs(module))
            else:
                result.add_row("", *cells)
    images = [one for module in modules for one in module.images]
    packed = sum(one.packed_size for one in images)
    result.add_row("host code and notices", "", "", "", _mb(wheel_size - packed))
    total = [str(sum(one.images for one in images)), _mb(sum(one.size for one in images))]
    result.add_row("whole wheel", "", *total, _mb(wheel_size), *_total_costs(modules))
    return result


def _mb(size: int) -> str:
    return "<0.01" if 0 < size < 5000 else f"{size / 1e6:.2f}"


def _costs(module: ModuleReport) -> tuple[str, str, str]:
    return (
        "?" if module.seconds is None else clock(module.seconds),
        "?" if module.megabytes is None else f"{module.megabytes / 1000:.1f}",
        module.origins,
    )


def _total_costs(modules: Sequence[ModuleReport]) -> tuple[str, str, str]:
    everything = ModuleReport("", (), tuple(unit for module in modules for unit in module.units))
    return _costs(everything)
