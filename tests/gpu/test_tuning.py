"""Servers tune FlashInfer when they start: the operators use what it finds, tactic by tactic.

Each side is a process of its own (`tuning_side.py`): FlashInfer as it is, with its modules prebuilt
of the wheel's objects, beside FlashInfer with the integration.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from gpusuite.wheel import did_not_run

pytestmark = [
    pytest.mark.subject("FlashInfer's tuning"),
    pytest.mark.needs("mm_fp4", "cutlass_fused_moe"),
]

VARIABLE = "FP4AOT_FLASHINFER_BUNDLE"
PROGRAM = Path(__file__).parent / "tuning_side.py"


def start(side, task, cache, *more):
    return subprocess.Popen(
        [sys.executable, PROGRAM, os.environ[VARIABLE], side, task, str(cache), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    output, errors = process.communicate()
    assert process.returncode == 0, (output + errors)[-6000:]
    return json.loads(output.strip().splitlines()[-1])


def run(*arguments):
    return result(start(*arguments))


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Each side tuned by itself; its cache is in the folder by its name."""
    if not os.environ.get(VARIABLE):
        did_not_run(f"{VARIABLE} names no bundle of FlashInfer (tests/flashinfer_beside/build.py)")
    if importlib.util.find_spec("flashinfer_beside") is None:
        did_not_run("tests/flashinfer_beside is not at hand")
    folder = tmp_path_factory.mktemp("tuned")
    found = {
        side: run(side, "tune", folder / f"{side}.json", "times") for side in ("stock", "fp4aot")
    }
    return folder, found


def test_both_tune(details, caches):
    _, found = caches
    for side, one in found.items():
        with details.case(side):
            assert one["profiled"] > 0
            # What is tuned is not all the default.
            assert len({json.dumps(tactic) for tactic in one["tactics"].values()}) > 3
    # The wheel's kernels were profiled, and FlashInfer loaded none of its own.
    assert found["stock"]["loaded"]
    assert found["fp4aot"]["loaded"] == []
    assert found["stock"]["profiled"] == found["fp4aot"]["profiled"]


@pytest.mark.parametrize("task", ["read", "enter"])
@pytest.mark.parametrize("writer", ["stock", "fp4aot"])
def test_one_cache_gives_the_same_tactics_without_profiling(details, caches, writer, task):
    folder, found = caches
    wanted = found[writer]["tactics"]
    for side in ("stock", "fp4aot"):
        with details.case(f"{side} with the cache of {writer}, by {task}"):
            one = run(side, task, folder / f"{writer}.json")
            assert one["profiled"] == 0
            assert one["tactics"] == wanted


def test_tactics_are_numbered_as_flashinfer_numbers_them(details, caches):
    folder, _ = caches
    stock, ours = (run(side, "kernels", folder)["kernels"] for side in ("stock", "fp4aot"))
    for operation, kernels in stock.items():
        with details.case(operation):
            assert ours[operation] == kernels
            assert len(kernels) > 1
            assert all(kernels)


def test_two_ranks_end_with_equal_tables(caches):
    folder, _ = caches
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [start("fp4aot", "rank", folder, str(rank), port) for rank in (0, 1)]
    first, second = map(result, ranks)
    assert first["tactics"] == second["tactics"]
    assert first["profiled"] == second["profiled"] > 0


def test_device_times(details, caches):
    """No limit here: the ratios are for people. Untuned beside tuned shows what was lost before."""
    folder, found = caches
    stock = found["stock"]["times"]
    times = {
        "the same cache": run("fp4aot", "read", folder / "stock.json", "times")["times"],
        "tuned by itself": found["fp4aot"]["times"],
        "untuned": run("fp4aot", "nothing", folder, "times")["times"],
    }
    for name, one in times.items():
        ratios = sorted(one[shape] / stock[shape] for shape in stock)
        details.error(f"{name}, beside stock tuned: median ratio", statistics.median(ratios))
        details.error(f"{name}, beside stock tuned: worst ratio", ratios[-1])
    report = os.environ.get("FP4AOT_TUNING_REPORT")
    if report:
        tactics = {side: one["tactics"] for side, one in found.items()}
        written = {"microseconds": {"stock tuned": stock, **times}, "tactics": tactics}
        Path(report).write_text(json.dumps(written, indent=1) + "\n")
