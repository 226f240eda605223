"""How numbers and foreign text are written in a build's report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import Final

from aot.build_report.figures import OUTCOMES, Outcome

MISSING: Final = "\N{EN DASH}"
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_TERMINAL_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def safe(text: str) -> str:
    """Write text from elsewhere so that it is nothing but text, in an element or an attribute."""
    plain = _TERMINAL_COLOURS.sub("", text).replace("\r\n", "\n")
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", plain))


def duration(seconds: float | None) -> str:
    """Write a duration: ``0.24 s``, ``8.3 s``, ``42 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if seconds is None:
        return MISSING
    whole = round(seconds)
    if seconds < 0.005:
        return f"0{_NO_BREAK}s"
    if seconds < 0.995:
        return f"{seconds:.2f}{_NO_BREAK}s"
    if seconds < 9.95:
        return f"{seconds:.1f}{_NO_BREAK}s"
    if whole < 60:
        return f"{whole}{_NO_BREAK}s"
    if whole < 3600:
        return f"{whole // 60}{_NO_BREAK}min {whole % 60:02d}{_NO_BREAK}s"
    minutes = round(seconds / 60)
    return f"{minutes // 60}{_NO_BREAK}h {minutes % 60:02d}{_NO_BREAK}min"


def tick(seconds: float) -> str:
    """Write a time of the axis as shortly as it can be: ``30 s``, ``10 min``, ``1 h 30``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60
    if whole == 0 or seconds != whole:
        return f"{seconds:g}{_NO_BREAK}s" if seconds else "0"
    if hours:
        rest = minutes % 60
        return f"{hours}{_NO_BREAK}h" + (f"{_NO_BREAK}{rest:02d}" if rest else "")
    if minutes:
        rest = whole % 60
        return f"{minutes}:{rest:02d}" if rest else f"{minutes}{_NO_BREAK}min"
    return f"{whole}{_NO_BREAK}s"


def size(megabytes: float | None) -> str:
    """Write an amount of memory: ``6.3 GB``."""
    if megabytes is None:
        return MISSING
    digits = 2 if 0 < megabytes < 95 else 1
    return f"{megabytes / 1000:.{digits}f}{_NO_BREAK}GB"


def factor(value: float | None) -> str:
    """Write a ratio: ``1.24x``, with a multiplication sign."""
    return MISSING if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def percent(share: float) -> str:
    """Write a share: ``94 %``, and ``<1 %`` for one that is not nothing."""
    if 0 < share < 0.005:
        return f"&lt;1{_NO_BREAK}%"
    return f"{share * 100:.0f}{_NO_BREAK}%"


def counted(number: int, thing: str) -> str:
    """Write ``1 unit`` or ``2 units``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def counts_in_words(counts: Mapping[Outcome, int]) -> str:
    """Write ``54 compiled, 20 from the cache``."""
    return ", ".join(f"{counts[name]} {OUTCOMES[name]}" for name in OUTCOMES if name in counts)


def moment(text: str) -> str:
    """Write a time in ISO 8601 for people; return anything else as it is."""
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S %Z}".rstrip()
    except ValueError:
        return text
