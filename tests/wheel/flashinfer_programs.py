"""Programs that run where FlashInfer itself is, from the environment of the build.

They run in that environment's interpreter, which has PyTorch for the CPU and FlashInfer, and see of
this one only the installed wheel. There is no GPU: routed calls run the reference, and what
FlashInfer does itself fails in FlashInfer's code, which is how the two are told apart.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path

import fp4aot

BUILD = Path(__file__).resolve().parents[2] / "build"

PREAMBLE = """
import inspect, sys, types
import torch
import fp4aot
from fp4aot.integrations import IntegrationError
from fp4aot.integrations import flashinfer as integration
from fp4aot.integrations._flashinfer import table

ROWS = (*table.PUBLIC_FUNCTIONS, *table.MODULE_GETTERS)
NAMES = tuple(row.name for row in ROWS)
generator = torch.Generator().manual_seed(5)

def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=generator).to(dtype)

def bindings(objects):
    "Where any of some objects is bound."
    ids = {id(one) for one in objects}
    return {
        (module.__name__, name): value
        for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)
        for name, value in list(vars(module).items()) if id(value) in ids
    }

def same(left, right):
    "Results are equal in kind, dtype, shape, strides and values."
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype and left.shape == right.shape
            and left.stride() == right.stride()
            and torch.equal(*(one.contiguous().view(torch.uint8) for one in (left, right)))
        )
    return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))

def is_flashinfers(function, *arguments, **keywords):
    "Whether a call fails in FlashInfer's code, for want of a GPU."
    try:
        function(*arguments, **keywords)
    except Exception as error:
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_globals.get("__name__", ""))
            trace = trace.tb_next
        return any(name.split(".")[0] == "flashinfer" for name in frames)
    return False
"""


def output_of(command: list[str | Path], environ: dict[str, str], check: bool) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Programs:
    """Runs programs where FlashInfer and the installed wheel are.

    Parameters
    ----------
    folder
        An empty one, for what the programs see of this environment and for what FlashInfer writes.
    """

    def __init__(self, folder: Path) -> None:
        # Of the FlashInfer that this build used; others may be there too.
        roots = json.loads((BUILD / "wheel/plan/roots.json").read_text())
        self._python = Path(roots["torch"]).parents[3] / "bin/python"
        self._site = folder / "site"
        self._workspace = folder / "workspace"
        self._site.mkdir()
        self._workspace.mkdir()
        (self._site / "fp4aot").symlink_to(Path(fp4aot.__file__).parent)
        metadata = Path(str(importlib.metadata.distribution("fp4aot").locate_file("")))
        (dist_info,) = metadata.glob("fp4aot-*.dist-info")
        (self._site / dist_info.name).symlink_to(dist_info)
        self._inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLASHINFER_", "FP4AOT_", "PYTHON"))
        }

    def __call__(
        self, program: str, *, check: bool = True, path: tuple[Path, ...] = (), **environ: str
    ) -> str:
        """Run a program after `PREAMBLE`; return what it printed."""
        folders = os.pathsep.join(map(str, (*path, self._site)))
        own = {"PYTHONPATH": folders, "FLASHINFER_WORKSPACE_BASE": str(self._workspace)}
        command = [self._python, "-c", PREAMBLE + program]
        return output_of(command, self._inherited | own | environ, check)
