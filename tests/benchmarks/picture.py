"""Draw a run as SVG: ``python tests/benchmarks/picture.py REPORT.json PICTURE.svg``.

Plain code, one file, its own background: it reads the same in a light and in a dark README.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

if not __package__:
    # In place of this folder, whose modules have names that others may mean.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import names
from benchmarks.results import Measurement, Report, read
from benchmarks.table import LOWERED, number

COLORS = {"fp4aot": "#1a7f37", "flashinfer": "#8250df", "torch": "#848d97"}
LABELS = {"fp4aot": "fp4aot", "flashinfer": "FlashInfer", "torch": "PyTorch, for scale"}

WIDTH = 860
BAR_LEFT = 372
BAR_RIGHT = 790
ROW = 22
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Panel:
    """One group: a heading, and which of its contenders are shown, in this order."""

    heading: str
    group: str
    contenders: tuple[str, ...]


def _named(function: str, *patterns: str) -> tuple[str, ...]:
    return tuple(pattern.format(function) for pattern in patterns)


PANELS = (
    Panel(
        "fp4_quantize, [1, 256] bfloat16",
        names.QUANTIZE_SMALL,
        (
            names.ONE_KERNEL,
            *_named("fp4_quantize", names.OURS_OUT, names.OURS_OVERLOAD, names.OURS),
            names.OURS_COMPILED_CHAIN,
            names.OURS_REPLAY_CHAIN,
            names.THEIRS_INNER,
            *_named("fp4_quantize", names.THEIRS, names.THEIRS_CUSTOM, names.THEIRS_OP),
        ),
    ),
    Panel(
        "16 fp4_linear layers, m = 1, n = k = 256: time of one",
        names.STACK,
        (
            names.STACK_OUT,
            names.STACK_EAGER,
            names.STACK_COMPILED,
            names.STACK_REDUCED,
            names.STACK_THEIRS,
        ),
    ),
    *(
        Panel(
            f"{function}, m = {m}, n = k = {size}",
            group(m, size),
            (names.OURS.format(function), names.THEIRS.format(theirs)),
        )
        for m, size in ((1, 256), (16, 4096))
        for function, theirs, group in (
            ("mm_fp4", "mm_fp4", names.gemm_group),
            ("fp4_linear", names.THEIRS_LAYER, names.linear_group),
        )
    ),
    Panel(
        f"cutlass_fused_moe, 16 tokens, 2 of {names.MOE_EXPERTS} experts, {names.MOE_SIZE} wide",
        names.moe_group(16),
        _named("cutlass_fused_moe", names.OURS_BUFFERS, names.OURS, names.THEIRS),
    ),
)


def draw(report: Report, panels: Sequence[Panel] = PANELS) -> str:
    """Return the SVG.

    Parameters
    ----------
    report
        Panels of which it has no number are left out.
    panels
        What is shown.
    """
    shown = [(panel, _members(report, panel)) for panel in panels]
    shown = [(panel, members) for panel, members in shown if members]
    longest = max((one.q3 for _, members in shown for one in members), default=1.0)
    body: list[str] = []
    y = 92
    for panel, members in shown:
        body.append(_text(24, y, panel.heading, size=14, weight="600"))
        y += 12
        base = next((one for one in members if one.family == "fp4aot" and _is_eager(one)), None)
        for one in members:
            body += _bar(one, y, longest, base)
            y += ROW
        y += 26
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y + 40}' "
        f"width='{WIDTH}' height='{y + 40}' role='img' {FONT}>",
        f"<title>{escape(_title(report))}</title>",
        f"<rect x='.5' y='.5' width='{WIDTH - 1}' height='{y + 39}' rx='8' fill='#ffffff' "
        "stroke='#d1d9e0'/>",
        _text(24, 34, _title(report), size=17, weight="600"),
        *_legend(report),
        *body,
        *(
            _text(24, y + 16 * line, text, size=11, color="#59636e")
            for line, text in enumerate(_footer(report))
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _members(report: Report, panel: Panel) -> list[Measurement]:
    found = (report.find(panel.group, contender) for contender in panel.contenders)
    return [one for one in found if one is not None]


def _is_eager(one: Measurement) -> bool:
    return one.contender.startswith("fp4aot.")


def _title(report: Report) -> str:
    return f"Host time of one call, µs (less is better); {report.machine['device']}"


def _footer(report: Report) -> tuple[str, str]:
    beside = f", FlashInfer {report.flashinfer['flashinfer']}" if report.flashinfer else ""
    machine = report.machine
    return (
        f"fp4aot {report.wheel['version']}{beside}, torch {machine['torch']}, driver "
        f"{machine['driver']}, {report.date}.",
        "Bars are medians, whiskers quartiles, of calls taking turns; factors are relative to "
        "the eager fp4aot call.",
    )


def _legend(report: Report) -> list[str]:
    parts, x = [], 24
    present = {one.family for one in report.measurements}
    for family, label in LABELS.items():
        if family in present:
            parts.append(
                f"<rect x='{x}' y='50' width='12' height='12' rx='2' fill='{COLORS[family]}'/>"
            )
            parts.append(_text(x + 18, 60.5, label, size=12))
            x += 44 + 7 * len(label)
    if report.is_lowered:
        parts.append(_text(WIDTH - 24, 60.5, LOWERED, size=12, color="#bc4c00", anchor="end"))
    return parts


def _bar(one: Measurement, y: float, longest: float, base: Measurement | None) -> list[str]:
    scale = (BAR_RIGHT - BAR_LEFT - 96) / longest
    end = BAR_LEFT + one.median * scale
    middle = y + ROW / 2
    low, high = (BAR_LEFT + value * scale for value in (one.q1, one.q3))
    ratio = f"  {one.median / base.median:.2g}x" if base and one is not base else ""
    return [
        _text(BAR_LEFT - 10, middle + 4, one.contender, size=12, anchor="end"),
        f"<rect x='{BAR_LEFT}' y='{y + 4}' width='{max(end - BAR_LEFT, 1):.1f}' "
        f"height='{ROW - 8}' rx='2' fill='{COLORS[one.family]}'/>",
        f"<path d='M{low:.1f} {middle}H{high:.1f}' stroke='#1f2328' stroke-width='1.5'/>",
        _text(max(end, high) + 8, middle + 4, f"{number(one.median)}{ratio}", size=12),
    ]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    weight: str = "400",
    color: str = "#1f2328",
    anchor: str = "start",
) -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' font-weight='{weight}' fill='{color}' "
        f"text-anchor='{anchor}' xml:space='preserve'>{escape(text)}</text>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a report again.")
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    arguments.picture.write_text(draw(read(arguments.report)), encoding="utf-8")


if __name__ == "__main__":
    main()
