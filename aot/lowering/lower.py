"""Rewrite PTX for Blackwell into PTX for Hopper, a few lines at a time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Chunk, Instruction, Statement, chunks, kernel_name
from aot.lowering.table import BLACKWELL_ONLY, HINTS, RULES

SOURCES: Final = ("sm_100a", "sm_120f")
"""The targets whose PTX can be lowered."""
TARGET: Final = "sm_90a"
"""What it is lowered to."""

_TARGET_LINE: Final = re.compile(r"\s*\.target\s+(?P<name>\w+)")
_MOST_REPORTED = 20


class Lowering:
    """One PTX file on its way.

    Attributes
    ----------
    counts
        How many instructions of each opcode were rewritten.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kernel = "(outside of a kernel)"
        self._refused: list[str] = []

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the rewritten text; what was on a line stays on that line.

        Raises
        ------
        LoweringError
            After the last line, with every instruction that could not be lowered; before it, when
            the PTX is for a target that is not known here.
        """
        targeted = False
        for chunk in chunks(lines):
            text = chunk.text
            if not targeted and (match := _TARGET_LINE.match(text)):
                targeted = True
                yield text[: match.start("name")] + _target(match["name"]) + text[match.end() :]
                continue
            if ".entry" in text or ".func" in text:
                self._kernel = kernel_name(text) or self._kernel
            yield self._chunk(chunk) if HINTS.search(text) else text
        if self._refused:
            more = len(self._refused) - _MOST_REPORTED
            shown = self._refused[:_MOST_REPORTED] + ([f"and {more} more"] if more > 0 else [])
            raise LoweringError(
                f"{TARGET} lacks what this PTX uses, and nothing in aot/lowering/table.py "
                "replaces it:\n" + "\n".join(f"  {one}" for one in shown)
            )

    def _chunk(self, chunk: Chunk) -> str:
        return "".join(
            statement.before + self._statement(statement) for statement in chunk.statements()
        )

    def _statement(self, statement: Statement) -> str:
        instruction = statement.instruction()
        if instruction is None:
            return statement.text
        try:
            replacement = _rewrite(instruction)
        except LoweringError as reason:
            self._refused.append(describe(self._kernel, statement.line, str(reason)))
            return statement.text
        if replacement is None:
            return statement.text
        self.counts[instruction.opcode] += 1
        return replacement + "\n" * statement.text.count("\n")


def lower_text(text: str) -> str:
    """Rewrite a whole PTX text.

    Raises
    ------
    LoweringError
        As `Lowering.lines`.
    """
    return "".join(Lowering().lines(text.splitlines(keepends=True)))


def lower_file(source: Path, target: Path) -> Counter[str]:
    """Rewrite a file, and say how many instructions of each kind were replaced.

    Raises
    ------
    LoweringError
        As `Lowering.lines`, with the file's name.
    """
    lowering = Lowering()
    try:
        with (
            source.open(encoding="utf-8", errors="surrogateescape", newline="\n") as reader,
            target.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as writer,
        ):
            writer.writelines(lowering.lines(reader))
    except LoweringError as reason:
        raise LoweringError(f"{source}: {reason}") from None
    return lowering.counts


def lowered_target(target: str) -> str:
    """Return what machine code for a target, such as ``"sm_120f"``, is made for instead.

    What Hopper or something older runs as it is stays.

    Raises
    ------
    LoweringError
        When it can neither stay nor be lowered.
    """
    if target in SOURCES:
        return TARGET
    number = re.fullmatch(r"sm_(\d+)[af]?", target)
    if number and int(number[1]) < 100:
        return target
    raise LoweringError(f"{target} cannot be lowered to {TARGET}; build for {' or '.join(SOURCES)}")


def describe(kernel: str, line: int, text: str) -> str:
    """Say where something is; the names of template kernels run to thousands of characters."""
    shown = kernel if len(kernel) <= 160 else f"{kernel[:100]}…{kernel[-40:]}"
    return f"line {line}, in {shown}: {text}"


def _rewrite(instruction: Instruction) -> str | None:
    """Return the replacement, or nothing where the instruction can stay."""
    opcode = instruction.opcode
    for rule in RULES:
        if rule.hint in opcode and rule.pattern.fullmatch(opcode):
            return rule.rewrite(instruction)
    for hint, pattern in BLACKWELL_ONLY:
        if hint in opcode and pattern.fullmatch(opcode):
            raise LoweringError(opcode)
    return None


def _target(name: str) -> str:
    if name not in SOURCES:
        raise LoweringError(
            f"the PTX is for {name}; only {' and '.join(SOURCES)} can be lowered to {TARGET}"
        )
    return TARGET
