"""The C++ program of docs/cpp on the GPU: the operators, through the dispatcher, with no Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from cpp_programs import LIBRARY, build

import fp4aot

OPERATORS = ("fp4_quantize", "nvfp4_kv_dequantize", "mm_fp4")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return build("call_operators.cpp", tmp_path_factory.mktemp("cpp"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    # Of the environment only what says which GPUs there are and where their driver is.
    kept = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_operators_equal_what_cpp_computes(program, capability):
    done = run(program, LIBRARY, "cuda")
    missing = [
        operator
        for operator in OPERATORS
        if not any(t.runs_on(capability) for t in fp4aot._MANIFEST.targets_of(operator))
    ]
    if missing:
        # This wheel has no kernel for this GPU: the program ends with the operator's own error.
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"fp4aot::{missing[0]}" in done.stderr
        assert ".".join(map(str, capability)) in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    results = [line.split()[-1] for line in done.stdout.splitlines()]
    assert results == ["equal"] * 4 + ["no"]


def test_the_cpu_operator_beside_a_cuda_torch(program):
    assert torch.version.cuda is not None
    done = run(program, LIBRARY, "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["equal", "no"]
