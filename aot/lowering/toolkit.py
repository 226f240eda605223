"""A folder that looks like a CUDA toolkit, and whose compiler makes code for Hopper.

nvcc looks for its programs beside the path that it was called by. So a folder of links does, with
three programs of our own among them; the command line that compiles for ``sm_100a`` or ``sm_120f``
stays as it is. nvcc itself is a copy: sccache follows a link to it, and would answer with what the
real programs made of the same source. Of a copy, it takes the programs beside it into account, each
by its content. That names the lowering's sources: when they change, PTX is assembled anew, and what
took long, compiling to PTX, is not repeated.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from aot import files
from aot.lowering.errors import LoweringError
from aot.lowering.programs import WRAPPED

SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS: Final = ("include", "lib", "lib64", "nvvm", "targets", "nvvm-prev", "share")


def make_toolkit(real: Path, folder: Path) -> Path:
    """Make, or bring up to date, a lowering toolkit.

    Parameters
    ----------
    real
        The root of the toolkit that does the work.
    folder
        Where to make it; what else is in there is removed.

    Returns
    -------
    Path
        `folder`; its compiler is ``bin/nvcc``.

    Raises
    ------
    LoweringError
        When the real toolkit lacks a program, or `folder` is no toolkit of ours.
    """
    real = real.resolve()
    missing = [name for name in ("nvcc", *WRAPPED) if not (real / "bin" / name).is_file()]
    if missing:
        raise LoweringError(f"the toolkit in {real} has no {', '.join(missing)} in its bin folder")
    marker = folder / ".lowering"
    if folder.exists() and not marker.is_file() and any(folder.iterdir()):
        raise LoweringError(f"{folder} is not a lowering toolkit, and is not overwritten")
    stamp = f"{real}\n{sys.executable}\n{SOURCE_ROOT}\n{digest()}\n"
    if marker.is_file() and marker.read_text() == stamp:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    marker.touch()
    for name in _FOLDERS:
        if (real / name).exists():
            (folder / name).symlink_to(real / name)
    for path in sorted((real / "bin").iterdir()):
        if path.name in WRAPPED:
            _write_wrapper(folder / "bin" / path.name, path)
        elif path.name == "nvcc":
            shutil.copy2(path, folder / "bin" / path.name)
        else:
            (folder / "bin" / path.name).symlink_to(path)
    marker.write_text(stamp)
    return folder


def digest() -> str:
    """Hash of all that decides what a kernel is lowered to, short enough for a file's name."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in {".py", ".cpp"}:
            state.update(f"{path.name}\n".encode() + path.read_bytes())
    return state.hexdigest()[:16]


def _write_wrapper(path: Path, real: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from aot.lowering.programs import main; "
        "sys.exit(main(sys.argv[2], sys.argv[3], sys.argv[4:]))"
    )
    words = [sys.executable, "-I", "-c", program, str(SOURCE_ROOT), path.name, str(real)]
    files.write_text(
        path,
        "#!/bin/sh\n"
        # The object cache takes the content of a program for its version.
        f"# lowers to Hopper; sources {digest()}\n"
        f'exec {shlex.join(words)} "$@"\n',
    )
    path.chmod(0o755)
