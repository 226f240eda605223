"""``python -m aot.lowering TOOLKIT FOLDER``: make a lowering toolkit by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aot.lowering.errors import LoweringError
from aot.lowering.toolkit import make_toolkit


def main() -> int:
    """Make the toolkit that the command line names, and print its compiler."""
    parser = argparse.ArgumentParser(prog="python -m aot.lowering", description=__doc__)
    parser.add_argument("toolkit", type=Path, help="root of a CUDA toolkit")
    parser.add_argument("folder", type=Path, help="where to make the lowering toolkit")
    given = parser.parse_args()
    try:
        print(make_toolkit(given.toolkit, given.folder) / "bin" / "nvcc")
    except LoweringError as reason:
        sys.stderr.write(f"{reason}\n")
        return reason.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
