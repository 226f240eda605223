"""The C++ programs of docs/cpp, built as its page says and run with no Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cpp_programs import LIBRARY, build


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return build("call_operators.cpp", tmp_path_factory.mktemp("cpp"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    # Nothing of this interpreter's environment: no PYTHONPATH, no LD_LIBRARY_PATH.
    return subprocess.run(command, env={}, capture_output=True, text=True, check=False)


def test_the_operator_with_a_cpp_cpu_kernel(program):
    done = run(program, LIBRARY, "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["equal", "no"]


def test_a_library_that_is_not_there_is_named(program, tmp_path):
    done = run(program, tmp_path / "libfp4aot.so", "cpu")
    assert done.returncode == 2
    assert str(tmp_path / "libfp4aot.so") in done.stderr


def test_another_library_has_no_operators(program):
    """What the program finds, our library has brought."""
    done = run(program, "libdl.so.2", "cpu")
    assert done.returncode == 2
    assert "fp4aot::mxfp4_dequantize_host" in done.stderr
