"""The closing report: what each module adds to the wheel, and what it cost."""

from __future__ import annotations

import json

from rich.console import Console

from aot.audit import ModuleImages
from aot.costs import Cost, UnitCost
from aot.report import ModuleReport, module_reports, table

IMAGES = (
    ModuleImages("gemm", "10.0a", 9, 9_500_000, 1_250_000, ("ACQBULK", "UTCOMMA.4X")),
    ModuleImages("gemm", "11.0a", 9, 9_600_000, 1_260_000, ("ACQBULK",)),
    ModuleImages("kv", "12.0f", 1, 70_000, 4_000),
)
UNITS = (
    UnitCost("gemm", "a", "compiled", 138.0, Cost(138.0, 5100)),
    UnitCost("gemm", "b", "cache", 7.0, Cost(140.0, 5300)),
    UnitCost("kv", "c", "kept", 0.0, None),
)


def rows(names: tuple[str, ...] = ("gemm", "kv")) -> tuple[ModuleReport, ...]:
    return module_reports(names, IMAGES, UNITS)


def printed(modules: tuple[ModuleReport, ...], size: int = 4_300_000) -> list[list[str]]:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table(modules, size))
    lines = [line for line in captured.get().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_times_are_summed_and_the_largest_memory_counts() -> None:
    gemm, kv = rows()
    assert (gemm.seconds, gemm.megabytes) == (278.0, 5300)
    assert (kv.seconds, kv.megabytes) == (None, None)
    assert [one.architecture for one in gemm.images] == ["10.0a", "11.0a"]


def test_a_sum_with_a_part_missing_is_not_shown() -> None:
    (gemm,) = module_reports(["gemm"], (), (*UNITS, UnitCost("gemm", "z", "cache", 1.0, None)))
    assert gemm.seconds is None
    assert gemm.megabytes == 5300


def test_units_are_counted_by_where_their_objects_are_from() -> None:
    origins = ("compiled", "cache", "kept", "imported", "imported", None)
    units = tuple(UnitCost("gemm", "a", origin, 1.0, None) for origin in origins)
    (gemm,) = module_reports(["gemm"], IMAGES, units)
    shown = printed((gemm,))[0][-1]
    assert shown == "1 compiled, 1 from the cache, 1 kept, 2 from shards"


def test_a_module_without_units_has_no_time() -> None:
    assert ModuleReport("x", (), ()).seconds is None


def test_the_table_has_a_row_for_each_module_and_target() -> None:
    assert printed(rows()) == [
        ["gemm", "10.0a", "9", "9.50", "1.25", "4:38", "5.3", "1 compiled, 1 from the cache"],
        ["", "11.0a", "9", "9.60", "1.26", "", "", ""],
        ["kv", "12.0f", "1", "0.07", "<0.01", "?", "?", "1 kept"],
        ["host code and notices", "", "", "", "1.79", "", "", ""],
        [
            "whole wheel",
            "",
            "19",
            "19.17",
            "4.30",
            "?",
            "5.3",
            "1 compiled, 1 from the cache, 1 kept",
        ],
    ]


def test_the_report_is_plain_data() -> None:
    gemm, kv = [json.loads(json.dumps(row.to_json())) for row in rows()]
    assert gemm["architectures"]["10.0a"] == {
        "images": 9,
        "size": 9_500_000,
        "packed_size": 1_250_000,
        "instructions": ["ACQBULK", "UTCOMMA.4X"],
    }
    assert (gemm["compile_seconds"], gemm["peak_megabytes"]) == (278.0, 5300)
    assert gemm["units"][1] == {
        "module": "gemm",
        "unit": "b",
        "origin": "cache",
        "seconds": 7.0,
        "cost": {"seconds": 140.0, "megabytes": 5300},
    }
    assert (kv["compile_seconds"], kv["units"][0]["cost"]) == (None, None)
