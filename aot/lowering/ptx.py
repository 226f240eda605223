"""PTX text as statements: read line by line, parsed only where something may have to be rewritten.

A statement ends at a semicolon. Braces at the start of a statement open and close a scope; within
an instruction they enclose a vector, and within a directive an initializer. Inline assembly puts
several statements on a line, or spreads one over several lines; both occur in what nvcc emits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from aot.lowering.errors import LoweringError

_PIECE: Final = re.compile(
    r"""//[^\n]*            # comment to the end of the line
      | /\*.*?\*/           # comment
      | "(?:[^"\\]|\\.)*"   # string, of a directive
      | [;{}]
      | [^;{}/"]+
      | .                   # a lone slash or quotation mark
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMENT_OR_STRING: Final = re.compile(rf'{_COMMENT.pattern}|"(?:[^"\\]|\\.)*"', re.DOTALL)
_LABEL: Final = re.compile(r"[A-Za-z_$%][\w$]*\s*:(?!:)")
_SCOPED_DIRECTIVE: Final = re.compile(r"\.(?:visible|weak|extern|common|entry|func|section)\b")
_INSTRUCTION: Final = re.compile(
    r"(?:(?P<guard>@!?[\w$%]+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*);\s*", re.DOTALL
)
_ENTRY: Final = re.compile(r"^\s*(?:\.\w+\s+)*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(?P<name>[\w$]+)")
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Instruction:
    """One instruction, taken apart.

    Parameters
    ----------
    guard
        ``"@%p1 "`` or ``"@!%p1 "``, with a blank to write it before an instruction, or nothing.
    opcode
        With all its modifiers: ``"cvt.rn.satfinite.e2m1x2.f32"``.
    operands
        As written; vectors and addresses stay whole.
    """

    guard: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def predicate(self) -> str:
        """The guard as an operand, ``"%p1"`` or ``"!%p1"``, or nothing."""
        return self.guard.strip().removeprefix("@")

    def expect(self, count: int) -> tuple[str, ...]:
        """Return the operands, if there are so many.

        Raises
        ------
        LoweringError
            When there are more or fewer.
        """
        if len(self.operands) != count:
            raise LoweringError(
                f"{self.opcode} has {len(self.operands)} operands, and is only understood "
                f"with {count}"
            )
        return self.operands


@dataclass(frozen=True)
class Statement:
    """A piece of PTX: an instruction, a directive, a brace of a scope, or what lies between.

    Parameters
    ----------
    before
        Blanks, comments and labels before it.
    text
        The statement, with its semicolon; empty where there is none.
    line
        Where `text` begins; lines are counted from 1.
    """

    before: str
    text: str
    line: int

    def instruction(self) -> Instruction | None:
        """Take it apart, or return nothing when it is no instruction."""
        if not self.text or self.text[0] in ".{}":
            return None
        match = _INSTRUCTION.fullmatch(_COMMENT.sub(" ", self.text))
        if match is None:
            return None
        guard = f"{match['guard']} " if match["guard"] else ""
        return Instruction(guard, match["opcode"], split_operands(match["operands"]))


@dataclass(frozen=True)
class Chunk:
    """Whole lines that begin and end between statements, and the number of the first one."""

    text: str
    line: int

    def statements(self) -> Iterator[Statement]:
        """Split it; the parts' texts, joined, are the chunk's."""
        before, body, line = "", "", self.line
        for piece in _PIECE.findall(self.text):
            if piece.startswith(("//", "/*")):
                if body:
                    body += piece
                else:
                    before += piece
                continue
            if not body:
                # Nothing but blanks, comments and labels so far.
                start = _leading(piece)
                before, piece = before + piece[:start], piece[start:]  # noqa: PLW2901
                if not piece:
                    continue
            body += piece
            scope = piece in "{}" and (body == piece or _opens_scope(body))
            if piece == ";" or scope:
                yield Statement(before, body, line + before.count("\n"))
                line += before.count("\n") + body.count("\n")
                before, body = "", ""
        if before or body:
            yield Statement(before, body, line + before.count("\n"))


def chunks(lines: Iterable[str]) -> Iterator[Chunk]:
    """Group lines so that no statement is cut; nearly every chunk is one line."""
    pending, first = "", 1
    for number, line in enumerate(lines, start=1):
        if not pending:
            first = number
            if line.endswith(";\n") and "/" not in line:
                yield Chunk(line, number)
                continue
        pending += line
        if _complete(pending):
            yield Chunk(pending, first)
            pending = ""
    if pending:
        yield Chunk(pending, first)


def kernel_name(line: str) -> str | None:
    """Return the name of the function that a line declares."""
    match = _ENTRY.match(line)
    return match["name"] if match else None


def split_operands(text: str) -> tuple[str, ...]:
    """Split at the commas that are in no bracket."""
    found, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            found.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return (*found, last) if found or last else ()


def vector(operand: str, count: int) -> tuple[str, ...]:
    """Return the elements of a vector operand such as ``{%r1, %r2}``.

    Raises
    ------
    LoweringError
        When it is no vector of so many elements.
    """
    elements = split_operands(operand[1:-1]) if operand[:1] == "{" and operand[-1:] == "}" else ()
    if len(elements) != count:
        raise LoweringError(f"the operand {operand} is not a vector of {count} elements")
    return elements


def _complete(text: str) -> bool:
    """Tell whether the text ends between statements."""
    bare = _COMMENT_OR_STRING.sub("", text) if "/" in text or '"' in text else text
    if '"' in bare or "/*" in bare:
        return False
    last = bare.rpartition(";")[2]
    position = 0
    while position < len(last):
        start = position + _leading(last[position:])
        if start < len(last) and last[start] in "{}":
            start += 1
        if start == position:
            break
        position = start
    # Directives end with their line or go on in lines that begin with none of the words we look
    # for; the parentheses are those of a kernel's parameters.
    return position >= len(last) or last[position] in ".()"


def _leading(text: str) -> int:
    """Length of the blanks and labels that a text begins with."""
    position = 0
    while True:
        blank = len(text) - len(text[position:].lstrip())
        label = _LABEL.match(text, blank)
        if label is None:
            return blank
        position = label.end()


def _opens_scope(body: str) -> bool:
    """Tell whether a brace at the end of a directive opens a body and not an initializer."""
    return body[-1] == "{" and _SCOPED_DIRECTIVE.match(body) is not None and "=" not in body
