"""Which group has which colour: eight colours, then the same with a texture.

The colours themselves are in ``page.css``, for a light and for a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aot.build_report.figures import Group

COLOURS: Final = 8
TEXTURES: Final = ("", "stripes", "dots")


def colours(groups: Sequence[Group]) -> Mapping[str, str]:
    """Return the classes of each group of which something was started, by its name.

    Parameters
    ----------
    groups
        The first get the colours that are easiest to tell apart.
    """
    shown = [group.name for group in groups if group.started]
    return {
        name: f"c{index % COLOURS} {texture(index)}".strip() for index, name in enumerate(shown)
    }


def texture(index: int) -> str:
    """Return the texture of a group by its place."""
    return TEXTURES[index // COLOURS % len(TEXTURES)]


def swatch(classes: str) -> str:
    """Draw a square in a group's colour."""
    return (
        f'<svg class="swatch {classes}" width="12" height="12" aria-hidden="true">'
        f"{filled(classes)}</svg>"
    )


def filled(classes: str, title: str = "") -> str:
    """Draw what fills a bar or a square that has the same classes, and its texture upon it.

    Parameters
    ----------
    classes
        As `colours` returns them, and others; they belong to the element around it.
    title
        Markup of what is shown when it is pointed at.
    """
    shown = f"<title>{title}</title>" if title else ""
    parts = [f'<rect width="100%" height="100%" rx="2">{shown}</rect>']
    parts += [
        f'<rect class="texture" width="100%" height="100%" fill="url(#{name})"/>'
        for name in TEXTURES
        if name and name in classes.split()
    ]
    return "".join(parts)


DEFINITIONS: Final = (
    "<defs>"
    '<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="mark" width="2.2" height="6"/></pattern>'
    '<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<circle class="mark" cx="2.5" cy="2.5" r="1.3"/></pattern>'
    "</defs>"
)
"""What the textures are drawn with; once in a page."""
