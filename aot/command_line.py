"""What the commands share: options, reading them, and how an error ends a command."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from aot import pipeline
from aot.errors import AotError, DiskFullError, is_disk_full
from aot.pipeline import Prepared

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
Architectures = Annotated[
    str, typer.Option(help="Only these of the preset's targets, such as 10.0a,12.0f.")
]
Platform = Annotated[
    str, typer.Option(help="x86_64 or aarch64: what the wheel runs on; empty for this machine.")
]
Jobs = Annotated[int, typer.Option(min=0, help="Compilers at once; 0 for the cores there are.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def megabytes(text: str) -> int | None:
    """Read a memory limit; None for an empty one."""
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"--memory-limit is {text!r}; expected megabytes, such as 8000")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def prepare(
    preset: str, build_root: Path, cuda: str, flashinfer: str, architectures: str, platform: str
) -> Prepared:
    """Prepare a build as the options of a command say, and tell a person what is going on."""
    return pipeline.prepare(
        preset,
        build_root,
        cuda=cuda or None,
        flashinfer=flashinfer or None,
        architectures=names(architectures),
        machine=platform or None,
        report=report_step,
    )


def print_json(data: Any) -> None:
    """Print data for a machine that a person can read too."""
    print(json.dumps(data, indent=2, default=str))


def report_step(text: str) -> None:
    """Say what is going on."""
    ERR.print(f"[dim]{text}[/dim]", highlight=False)


def run(app: typer.Typer) -> None:
    """Run one command; an error of ours is printed as it is and gives its own exit code."""
    # `kill`, and a CI job that is cancelled, end a command as Ctrl-C does: it stops its compilers.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except AotError as error:
        _fail(error)
    except OSError as cause:
        if not is_disk_full(cause):
            raise
        _fail(
            DiskFullError(
                f"no space is left on the disk for {cause.filename or 'a file'}; free some and "
                "start again: what is finished is kept"
            )
        )


def _fail(error: AotError) -> NoReturn:
    ERR.print(f"[bold red]{type(error).__name__}[/bold red]: ", end="")
    ERR.print(str(error), markup=False, highlight=False, soft_wrap=True)
    sys.exit(error.exit_code)
