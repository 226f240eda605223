"""What the wrapped programs of a lowering toolkit do: change their arguments, run the real ones.

A target that Hopper runs as it is passes through, and so does a call without a target, such as
``--version``. Every other target but the two that can be lowered is refused: nothing is assembled
for a Blackwell by accident.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from aot.lowering.errors import LoweringError
from aot.lowering.lower import SOURCES, TARGET, describe, lower_file, lowered_target
from aot.lowering.ptx import kernel_name

_ARCHITECTURE: Final = re.compile(r"(?P<option>-arch=|--gpu-name=|--arch=)?(?P<target>sm_\w+)")
_IMAGE: Final = re.compile(
    r"(?P<option>--image3?=)(?P<before>(?:[\w-]+=[^,]*,)*?)"
    r"(?P<name>sm=|profile=(?:sm|compute)_)(?P<target>\w+)(?P<after>,.*)?"
)
_ASSEMBLER_ERROR: Final = re.compile(
    r"ptxas (?P<file>.*), line (?P<line>\d+); (?:error|fatal)\s*:\s*(?P<text>.*)"
)
_ARCHITECTURE_OPTIONS: Final = ("-arch", "--gpu-name", "--arch")


def ptxas(real: str, arguments: Sequence[str]) -> int:
    """Lower the PTX, and assemble it for Hopper.

    Parameters
    ----------
    real
        The toolkit's own program.
    arguments
        Of the command line, without the program.

    Returns
    -------
    int
        The real program's exit code.

    Raises
    ------
    LoweringError
        When something cannot be lowered, or the assembler refuses what is left: with the kernel and
        the instruction as it stood before lowering.
    """
    changed, lowered = _retarget(arguments)
    if not lowered:
        return subprocess.run([real, *changed], check=False).returncode
    inputs = [i for i, argument in enumerate(changed) if argument.endswith(".ptx")]
    if len(inputs) != 1:
        raise LoweringError(
            f"ptxas was called with {len(inputs)} PTX files, and is only understood with one: "
            f"{' '.join(arguments)}"
        )
    source = Path(changed[inputs[0]])
    with tempfile.TemporaryDirectory(prefix="lowering-") as folder:
        target = Path(folder) / source.name
        lower_file(source, target)
        changed[inputs[0]] = str(target)
        done = subprocess.run([real, *changed], capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    refused = [match for match in map(_ASSEMBLER_ERROR.match, done.stderr.splitlines()) if match]
    if done.returncode != 0 and refused:
        # Lines keep their numbers.
        errors = {int(match["line"]): match["text"] for match in reversed(refused)}
        raise LoweringError(
            f"{source}: {TARGET} does not take\n" + "\n".join(_quote(source, errors))
        )
    sys.stderr.write(done.stderr)
    return done.returncode


def fatbinary(real: str, arguments: Sequence[str]) -> int:
    """Label the images as Hopper's, which they are: the real program looks into them.

    Raises
    ------
    LoweringError
        When an image is PTX, which a driver would assemble without lowering, or when a second one
        would be labelled as the first.
    """
    changed, images = [], 0
    for argument in arguments:
        match = _IMAGE.fullmatch(argument)
        name = f"sm_{match['target']}" if match else ""
        if match and (target := lowered_target(name)) != name:
            if "ptx" in match["before"] or "compute" in match["name"]:
                raise LoweringError(
                    f"fatbinary was given PTX for {match['target']}; ask nvcc for machine code "
                    f"alone: code=sm_{match['target']}"
                )
            images += 1
            if images > 1:
                raise LoweringError(
                    "fatbinary was given two images that are lowered to the same target; build for "
                    f"one of {' and '.join(SOURCES)} at a time"
                )
            label = match["name"] + target.removeprefix("sm_")
            changed.append(f"{match['option']}{match['before']}{label}{match['after'] or ''}")
        else:
            changed.append(argument)
    return subprocess.run([real, *changed], check=False).returncode


def nvlink(real: str, arguments: Sequence[str]) -> int:
    """Link for Hopper.

    Raises
    ------
    LoweringError
        When the target cannot be lowered.
    """
    changed, _ = _retarget(arguments)
    return subprocess.run([real, *changed], check=False).returncode


WRAPPED: Final[Mapping[str, Callable[[str, Sequence[str]], int]]] = {
    "ptxas": ptxas,
    "fatbinary": fatbinary,
    "nvlink": nvlink,
}
"""The programs by name."""


def main(name: str, real: str, arguments: Sequence[str]) -> int:
    """Run a wrapped program, and print why it refuses."""
    try:
        return WRAPPED[name](real, arguments)
    except LoweringError as reason:
        sys.stderr.write(f"lowering ({name}): {reason}\n")
        return reason.exit_code


def _retarget(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Replace the target, and tell whether it was one that is lowered."""
    changed, lowered, previous = [], False, ""
    for argument in arguments:
        match = _ARCHITECTURE.fullmatch(argument)
        named = match is not None and (match["option"] or previous in _ARCHITECTURE_OPTIONS)
        previous = argument
        if match and named and (target := lowered_target(match["target"])) != match["target"]:
            lowered = True
            changed.append((match["option"] or "") + target)
        else:
            changed.append(argument)
    return changed, lowered


def _quote(source: Path, errors: Mapping[int, str]) -> list[str]:
    """Say what the lines of the PTX are, and of which kernel."""
    found, kernel = [], "(outside of a kernel)"
    with source.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            kernel = kernel_name(line) or kernel
            if number in errors:
                where = describe(kernel, number, line.strip()[:200])
                found.append(f"  {where}\n    {errors[number]}")
    return found or [f"  line {number}: {text}" for number, text in errors.items()]
