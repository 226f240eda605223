"""What the planned sources export to TVM-FFI, against the catalogue, before they are compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from aot.errors import PlanError
from aot.plan import BuildPlan, ModulePlan, Roots

# At the beginning of a line: neither in a comment nor in the definition of a macro.
_EXPORT: Final = re.compile(
    r"^[ \t]*TVM_FFI_DLL_EXPORT(?:_TYPED_FUNC\(\s*|\s+int\s+__tvm_ffi_)(\w+)", re.MULTILINE
)


def check_exports(plan: BuildPlan, roots: Roots) -> None:
    """Refuse a plan whose sources export what its rows do not list, or lack what they list.

    Raises
    ------
    PlanError
        Naming each function, its module and the source file.
    """
    problems = [problem for module in plan.modules for problem in _problems(module, roots)]
    if problems:
        raise PlanError(
            f"FlashInfer {plan.versions.flashinfer} exports other functions than aot/catalog.py "
            "lists:\n" + "\n".join(problems)
        )


def _problems(module: ModulePlan, roots: Roots) -> list[str]:
    exported = {
        name: path
        for unit in module.units
        for path in [Path(roots.expand(unit.source))]
        for name in _EXPORT.findall(path.read_text(errors="replace"))
    }
    listed = {function.name for function in module.functions}
    places = ", ".join(sorted({path.name for path in exported.values()})) or "none of its sources"
    return [
        *(
            f"  {module.name}: {exported[name]} exports {name}; it wants a row in "
            "aot/catalog.py, with an operator or a reason for having none"
            for name in sorted(exported.keys() - listed)
        ),
        *(
            f"  {module.name}: no source exports {name} (exports are in: {places}); FlashInfer "
            "has dropped the function: remove its row from aot/catalog.py"
            for name in sorted(listed - exported.keys())
        ),
    ]
