"""compute-sanitizer over a short pass of every operator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpusuite.wheel import OPERATORS, covers, did_not_run, not_applicable

pytestmark = pytest.mark.subject("compute-sanitizer")

PASS = Path(__file__).parent / "sanitizer_pass.py"
SUMMARY = {
    "memcheck": r"ERROR SUMMARY: (\d+) error",
    "initcheck": r"ERROR SUMMARY: (\d+) error",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazard",
}

# What was wrong, in which kernel, beside which allocation: without backtraces of the host.
TELLING = re.compile(
    r"^={9} +(?:Invalid|Uninitialized|Race|Error|Access|and is|.*hazard|ERROR|RACECHECK|at ).*",
    re.MULTILINE,
)


def count_errors(tool: str, output: str) -> int:
    """Read the tool's summary; without one it did not get to its end."""
    found = re.findall(SUMMARY[tool], output)
    assert found, output[-3000:]
    return max(map(int, found))


@pytest.mark.parametrize("tool", SUMMARY)
def test_short_pass(details, tool):
    if not any(covers(operator) for operator in OPERATORS):
        not_applicable("this wheel holds no image for this device")
    program = shutil.which("compute-sanitizer")
    if program is None:
        did_not_run("no compute-sanitizer on PATH")
    arguments = ["--products-into-buffers"] if tool == "initcheck" else []
    done = subprocess.run(
        [program, "--tool", tool, "--print-limit", "20", sys.executable, str(PASS), *arguments],
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    output = done.stdout + done.stderr
    print(output[-6000:])
    if "Device not supported" in output:
        did_not_run("compute-sanitizer does not support this device here")
    errors = count_errors(tool, output)
    calls = output.count(" differ\n")
    details.compared(f"results under {tool}, errors of any kind", calls, errors)
    if arguments:
        details.note("initcheck sees neither reads nor writes of bulk tensor copies (TMA)")
    assert errors == 0, "\n".join(TELLING.findall(output)[:40])
    assert re.search(r"^done$", output, re.MULTILINE), output[-3000:]
