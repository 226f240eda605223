"""Makes the source tree importable as the package, without a built library.

Importing ``fp4aot`` loads the library. Here the package is entered beside its ``__init__``: its
modules are importable, and the operators are those of the Python implementations alone. Tests that
need no wheel import this for its effect, in their conftest.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

package = types.ModuleType("fp4aot")
package.__path__ = [str(ROOT / "wheels" / "fp4aot")]
sys.modules["fp4aot"] = package

from operator_namespace import operators  # noqa: E402 (needs the package)

# Modules of the package look their operators up when they are imported.
_operators = operators("fp4aot")
_operators.__enter__()

# How long an example takes says something about the machine, not about the code.
settings.register_profile("fp4aot", deadline=None)
settings.load_profile("fp4aot")
