"""The marks on bars: a cross for a failure, a number for a unit that was started again."""

from __future__ import annotations


def cross(radius: float) -> str:
    """Draw a cross in a circle around the origin."""
    arm = radius * 0.45
    return (
        f'<circle class="failed" r="{radius:g}"/>'
        f'<path class="cross" d="M{-arm:g} {-arm:g}L{arm:g} {arm:g}M{-arm:g} {arm:g}'
        f'L{arm:g} {-arm:g}"/>'
    )


def number(value: int, radius: float) -> str:
    """Draw a number in a circle around the origin."""
    return (
        f'<circle class="again" r="{radius:g}"/>'
        f'<text class="again" y="{radius * 0.5:g}" text-anchor="middle">{value}</text>'
    )


def key(drawing: str) -> str:
    """Make a picture of its own of a mark, for the legend."""
    return (
        '<svg class="key" width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true">'
        f"{drawing}</svg>"
    )
