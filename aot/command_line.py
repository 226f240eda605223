"""What the commands share: options, reading them, and how an error ends a command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from aot.errors import AotError

_LOG_WIDTH = 120


def _console(stderr: bool = False) -> Console:
    """Write as wide as the terminal; into files and logs, so wide that tables keep their words."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _LOG_WIDTH
    return console


OUT = _console()
ERR = _console(stderr=True)

DEFAULT_BUILD_ROOT = Path(__file__).resolve().parent.parent / "build"

Preset = Annotated[str, typer.Option(help="Modules and architectures; see `presets`.")]
Cuda = Annotated[str, typer.Option(help="CUDA toolkit version; empty for the default.")]
FlashInfer = Annotated[str, typer.Option(help="FlashInfer version; empty for the default.")]
BuildRoot = Annotated[Path, typer.Option(help="Folder for everything that is written.")]
MemoryLimit = Annotated[
    str, typer.Option(help="Megabytes for all compilers together; empty for what is free.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def megabytes(text: str) -> int | None:
    """Read a memory limit; None for an empty one."""
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"--memory-limit is {text!r}; expected megabytes, such as 8000")
    return int(text)


def report_step(text: str) -> None:
    """Say what is going on."""
    ERR.print(f"[dim]{text}[/dim]", highlight=False)


def run(app: typer.Typer) -> None:
    """Run one command; an error of ours is printed as it is and gives its own exit code."""
    try:
        app()
    except AotError as error:
        ERR.print(f"[bold red]{type(error).__name__}[/bold red]: ", end="")
        ERR.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
