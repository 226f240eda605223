"""Which operators the C++ sources define, and whether each row of a plan has one.

An operator is defined by a macro whose name begins with ``FP4AOT_`` and whose first argument is the
operator: ``FP4AOT_OPERATOR(mm_fp4, …``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from aot.errors import PlanError
from aot.plan import BuildPlan

_DEFINITION: Final = re.compile(r"FP4AOT_[A-Z_]+\(\s*(\w+),")


def defined_operators(folder: Path) -> frozenset[str]:
    """Name the operators that the sources in ``wheels/fp4aot/csrc/operators`` define."""
    return frozenset(
        name for path in folder.glob("*.cpp") for name in _DEFINITION.findall(path.read_text())
    )


def check_operators(plan: BuildPlan, folder: Path) -> None:
    """Refuse a plan with a row whose operator no source defines.

    Raises
    ------
    PlanError
        Naming the rows, their operators and the folder.
    """
    defined = defined_operators(folder)
    problems = [
        f"  {module.name}.{function.name}: {function.operator}"
        for module in plan.modules
        for function in module.functions
        if function.operator and function.operator not in defined
    ]
    if problems:
        raise PlanError(
            f"aot/catalog.py has rows whose operators no source in {folder} defines:\n"
            + "\n".join(problems)
            + "\ndefine them there with FP4AOT_OPERATOR or FP4AOT_FUNCTION, or correct `operator=`"
        )
