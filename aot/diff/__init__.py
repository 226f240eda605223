"""What changed between two wheels, in the terms in which they are built."""

from aot.diff.compare import SECTIONS, Change, Difference, compare
from aot.diff.report import print_difference
from aot.diff.wheel import WheelContent, read_wheel

__all__ = [
    "SECTIONS",
    "Change",
    "Difference",
    "WheelContent",
    "compare",
    "print_difference",
    "read_wheel",
]
