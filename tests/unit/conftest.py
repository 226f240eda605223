"""Unit tests run on the source tree, without a built library.

Importing ``fp4aot`` loads the library. Here the package is entered beside its ``__init__``: its
modules are importable, and the operators are those of the Python implementations alone.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]

package = types.ModuleType("fp4aot")
package.__path__ = [str(ROOT / "wheels" / "fp4aot")]
sys.modules["fp4aot"] = package
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from operator_namespace import operators  # noqa: E402 (needs the path)

# Modules of the package look their operators up when they are imported.
_operators = operators("fp4aot")
_operators.__enter__()

# How long an example takes says something about the machine, not about the code.
settings.register_profile("fp4aot", deadline=None)
settings.load_profile("fp4aot")
