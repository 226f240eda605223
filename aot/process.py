"""Run other programs, and say what happened when one fails."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from aot.errors import AotError


def run(
    command: Sequence[str | Path],
    *,
    purpose: str,
    error: type[AotError],
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what it printed.

    Parameters
    ----------
    command
        The program and its arguments; no shell is involved.
    purpose
        What it is run for, as it reads in ``"cannot <purpose>"``.
    error
        What to raise when it fails.
    cwd, environ
        Folder and complete environment; by default those of this process.

    Raises
    ------
    AotError
        Of the type `error`, with the command, its exit code and its output.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as cause:
        raise error(_not_started(purpose, words, cause)) from cause
    if done.returncode != 0:
        output = "\n".join(part.strip() for part in (done.stdout, done.stderr) if part.strip())
        raise error(_failed(purpose, words, done.returncode, output))
    return done


def lines(
    command: Sequence[str | Path], *, purpose: str, error: type[AotError]
) -> Generator[str, None, None]:
    """Run a program and yield what it prints line by line: nothing is held.

    Close the iterator to stop the program early.

    Raises
    ------
    AotError
        Of the type `error`, when it does not start, or fails at its end.
    """
    words = [str(word) for word in command]
    # A file: a pipe that nobody reads would stop the program when it is full.
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        try:
            program = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                errors="replace",
            )
        except OSError as cause:
            raise error(_not_started(purpose, words, cause)) from cause
        with program:
            try:
                yield from program.stdout or ()
            except GeneratorExit:
                program.kill()
                raise
        if program.returncode != 0:
            complaints.seek(0)
            raise error(_failed(purpose, words, program.returncode, complaints.read()))


def _not_started(purpose: str, words: list[str], cause: OSError) -> str:
    return (
        f"cannot {purpose}: {words[0]} does not start\n"
        f"  command: {shlex.join(words)}\n  reason: {cause}"
    )


def _failed(purpose: str, words: list[str], code: int, output: str) -> str:
    return (
        f"cannot {purpose}\n  command: {shlex.join(words)}\n"
        f"  exit code: {code}\n  output:\n{textwrap.indent(output.strip() or '(none)', '    ')}"
    )


def create_venv(folder: Path, *, error: type[AotError]) -> Path:
    """Create a virtual environment with pip, and return its interpreter.

    Raises
    ------
    AotError
        Of the type `error`, when Python cannot.
    """
    # -I: a build front end puts its own folders on PYTHONPATH, which would shadow the new ones.
    run(
        [sys.executable, "-I", "-m", "venv", folder],
        purpose=f"create a virtual environment in {folder} (Debian splits it off: python3-venv)",
        error=error,
    )
    return folder / "bin" / "python"


def python_with_pip(scratch: Path, *, error: type[AotError]) -> Path:
    """Return an interpreter that can run pip.

    Parameters
    ----------
    scratch
        An existing folder; the isolated environment of a build front end has no pip, and one is
        made in here then.
    error
        What to raise when that fails.
    """
    here = Path(sys.executable)
    try:
        run([here, "-I", "-m", "pip", "--version"], purpose="run pip", error=error)
    except error:
        return create_venv(scratch / "pip", error=error)
    return here


def pip_install(
    python: Path, requirements: Path, *options: str | Path, purpose: str, error: type[AotError]
) -> None:
    """Install what a lock lists, with its hashes, and nothing else.

    Nothing is built: pip takes packages for another machine only then.

    Raises
    ------
    AotError
        Of the type `error`, when pip fails.
    """
    run(
        [
            *(python, "-I", "-m", "pip", "install", "--no-input", "--only-binary=:all:"),
            *("--no-deps", "--require-hashes", *options, "--requirement", requirements),
        ],
        purpose=purpose,
        error=error,
    )
