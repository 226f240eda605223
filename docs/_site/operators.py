"""Functions and classes as their docstrings describe them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import griffe

from _site.page import Page
from _site.public_names import PublicName, find, package
from _site.source import ROOT, code

_LABELS = {
    griffe.DocstringSectionKind.parameters: "Parameters",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
    griffe.DocstringSectionKind.raises: "Raises",
}


def markdown(names: Sequence[str]) -> Page:
    """Describe each name; a line of the block is a full name, as in ``fp4aot.mm_fp4``."""
    found = [find(name) for name in names]
    return Page(
        "\n\n".join(itertools.chain.from_iterable(map(_entry, found))),
        sorted({name.source for name in found}),
    )


def module_docstring(names: Sequence[str]) -> Page:
    """Show what a module's docstring says after its first line."""
    (name,) = names
    module = package()[name.partition(".")[2]]
    _, _, text = (module.docstring.value if module.docstring else "").partition("\n")
    # A title is underlined; code follows a paragraph that ends in two colons.
    text = re.sub(r"^(.+)\n-{3,}$", r"## \1", text, flags=re.MULTILINE)
    return Page(_prose(text), (str(module.filepath.relative_to(ROOT)),))


def _entry(name: PublicName) -> Iterator[str]:
    yield f"## {code(name.path.rpartition('.')[2])}"
    yield from _described(name.path, name.object)


def _described(path: str, thing: griffe.Object) -> Iterator[str]:
    """Yield a signature, and what belongs to it, fenced with more colons than its content."""
    if isinstance(thing, griffe.Function):
        yield "\n".join([f":::::{{py:function}} {path}{_signature(thing)}", *_body(thing), ":::::"])
    elif isinstance(thing, griffe.Class):
        yield "\n".join([f"::::::{{py:class}} {path}", *_class_body(thing), "::::::"])
    else:
        yield "\n".join([f":::::{{py:data}} {path}", *_body(thing), ":::::"])


def _signature(function: griffe.Function) -> str:
    """Write the parameters as Python does, without `self`."""
    words: list[str] = []
    kinds = griffe.ParameterKind
    seen_marker = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kinds.keyword_only and not seen_marker:
            words.append("*")
            seen_marker = True
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        seen_marker |= parameter.kind is kinds.var_positional
        text = f"{star}{parameter.name}"
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not star:
            text += f" = {parameter.default}"
        words.append(text)
    returned = f" -> {function.returns}" if function.returns is not None else ""
    return f"({', '.join(words)}){returned}"


def _class_body(thing: griffe.Class) -> Iterator[str]:
    yield from _body(thing)
    for name, member in thing.members.items():
        if name.startswith("_") or not isinstance(member, griffe.Function | griffe.Attribute):
            continue
        if member.docstring is None:
            continue
        if isinstance(member, griffe.Function):
            kind = "classmethod" if "classmethod" in member.labels else "method"
            flag = ["    :classmethod:"] if kind == "classmethod" else []
            yield "\n".join(
                [
                    f":::::{{py:method}} {name}{_signature(member)}",
                    *(line.strip() for line in flag),
                    "",
                    *_body(member),
                    ":::::",
                ]
            )
        else:
            yield "\n".join([f":::::{{py:attribute}} {name}", *_body(member), ":::::"])
        yield ""


def _body(thing: griffe.Object) -> Iterator[str]:
    """Yield the docstring, section by section."""
    yield ""
    if thing.docstring is None:
        if isinstance(thing, griffe.Attribute) and thing.value is not None:
            yield f"Another name of {code(str(thing.value))}."
        yield ""
        return
    for section in thing.docstring.parse("numpy"):
        yield from _section(section)
        yield ""


def _section(section: griffe.DocstringSection) -> Iterator[str]:
    kind, value = section.kind, section.value
    if kind is griffe.DocstringSectionKind.text:
        yield _prose(value)
    elif kind in _LABELS:
        yield f"**{_LABELS[kind]}**\n"
        yield from _definitions(value)
    elif kind is griffe.DocstringSectionKind.examples:
        for part, text in value:
            yield text if part is griffe.DocstringSectionKind.text else f"```pycon\n{text}\n```"
            yield ""
    elif kind is griffe.DocstringSectionKind.admonition:
        title = section.title or value.annotation
        yield f"**{title.removesuffix('s')}.** {_prose(value.description)}"
    else:
        raise NotImplementedError(f"a docstring section of kind {kind.value}")


def _definitions(items: Iterable[Any]) -> Iterator[str]:
    """Yield a definition list; names that share a description share an entry."""
    for description, group in itertools.groupby(items, key=lambda item: item.description):
        members = list(group)
        names = [item.name for item in members if getattr(item, "name", "")]
        kinds = {str(item.annotation) for item in members if item.annotation is not None}
        term = ", ".join(map(code, names))
        if not names:
            term = ", ".join(code(str(item.annotation)) for item in members)
        elif len(kinds) == 1 and not _is_parameter(members[0]):
            term += f" ({code(kinds.pop())})"
        yield term
        first, *rest = _prose(description).splitlines() or [""]
        yield f": {first}"
        yield from (f"  {line}" if line else "" for line in rest)
        yield ""


def _is_parameter(item: object) -> bool:
    """Whether the type is in the signature already."""
    return isinstance(item, griffe.DocstringParameter)


def _prose(text: str) -> str:
    """Turn the little of reStructuredText that docstrings have into Markdown.

    A paragraph that ends in two colons is followed by indented code, in Markdown too.
    """
    return text.replace("::\n\n", ":\n\n").strip()
