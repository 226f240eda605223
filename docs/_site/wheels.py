"""Which wheel is for which GPU, from the release matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from _site.page import Page
from _site.source import table
from aot.index.choices import GPUS, Gpu
from aot.matrix import FIRST_BLACKWELL, WheelRow, read_matrix
from aot.matrix_report import gpus, markdown_table

_SOURCES = ("wheels/matrix.toml", "aot/matrix.py", "aot/matrix_report.py", "aot/index/choices.py")


def markdown(_: Sequence[str]) -> Page:
    """Write one table by GPU, and the one of every wheel."""
    rows = read_matrix().wheels()
    head = ("GPU", "compute capability", "the wheel's code for", "Linux", "CUDA versions")
    by_gpu = table(head, (line for gpu in GPUS for line in _lines(gpu, rows)))
    return Page(f"{by_gpu}\n### Every wheel of a release\n\n{markdown_table(rows)}\n", _SOURCES)


def _lines(gpu: Gpu, rows: Sequence[WheelRow]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each kind of machine that can have the GPU."""
    for platform in dict.fromkeys(row.platform for row in rows):
        serving = [
            (row, found)
            for row in rows
            if row.platform == platform
            for found in gpus(row)
            if found.capability == gpu.capability
        ]
        if serving:
            targets = {_target(row, gpu) for row, _ in serving}
            limit = "" if gpu.capability >= FIRST_BLACKWELL else ", KV cache dequantization alone"
            versions = [row.cuda for row, _ in serving]
            every = [row.cuda for row in rows if row.platform == platform]
            yield (
                serving[0][1].name,
                ".".join(map(str, gpu.capability)),
                ", ".join(sorted(targets)) + limit,
                platform,
                "all" if versions == every else ", ".join(versions),
            )


def _target(row: WheelRow, gpu: Gpu) -> str:
    """Return the target whose code runs: the device's own before its family's."""
    return str(max(one for one in row.architectures if one.runs_on(gpu.capability)))
