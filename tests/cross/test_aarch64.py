"""The aarch64 wheel in an emulator: it loads, is whole, and its operators agree on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

from elftools.elf.elffile import ELFFile
from emulated import EmulatedPython
from packaging.utils import parse_wheel_filename

MINUTES = 60.0
WHEEL_TESTS = Path(__file__).resolve().parents[1] / "wheel"


def test_its_name_and_its_library_are_of_one_machine(wheel: Path, python: EmulatedPython) -> None:
    platforms = {tag.platform for tag in parse_wheel_filename(wheel.name)[3]}
    assert all(name.startswith("manylinux_") and name.endswith("_aarch64") for name in platforms)
    with (python.site / "fp4aot" / "libfp4aot.so").open("rb") as stream:
        assert ELFFile(stream).header.e_machine == "EM_AARCH64"


def test_it_loads_beside_the_oldest_torch(python: EmulatedPython) -> None:
    program = (
        "import platform, torch, fp4aot; "
        "print(platform.machine(), torch.__version__, torch.cuda.is_initialized(), "
        "torch.ops.fp4aot.fp4_quantize.default._schema.name)"
    )
    machine, torch, initialised, name = python.run(
        "-c", program, timeout=5 * MINUTES
    ).stdout.split()
    assert (machine, initialised, name) == ("aarch64", "False", "fp4aot::fp4_quantize")
    assert torch.startswith("2.10.")


def test_doctor_finds_nothing_wrong_but_that_there_is_no_gpu(python: EmulatedPython) -> None:
    done = python.run("-m", "fp4aot", "doctor", "--json", timeout=5 * MINUTES)
    report = json.loads(done.stdout)
    assert report["devices"] == []
    assert report["problems"] == []


def test_the_installed_files_are_those_of_the_wheel(python: EmulatedPython) -> None:
    python.run("-m", "fp4aot", "doctor", "--verify", timeout=5 * MINUTES)


def test_a_damaged_library_is_found(python: EmulatedPython) -> None:
    library = python.site / "fp4aot" / "libfp4aot.so"
    whole = library.read_bytes()
    try:
        library.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        done = python.run("-m", "fp4aot", "doctor", "--verify", timeout=5 * MINUTES, check=False)
    finally:
        library.write_bytes(whole)
    assert done.returncode != 0
    assert "libfp4aot.so" in done.stdout + done.stderr


def test_every_operator_passes_its_self_test(python: EmulatedPython) -> None:
    """Eager, out form, fake, and one graph; among them FlashInfer's own host code for aarch64."""
    done = python.run("-m", "fp4aot", "selftest", "--json", timeout=20 * MINUTES, check=False)
    outcomes = json.loads(done.stdout)["outcomes"]
    failed = [one for one in outcomes if one["result"] == "FAILED"]
    assert not failed, failed
    passed = {one["operator"] for one in outcomes if one["result"] == "passed"}
    assert {"fp4_quantize", "mm_fp4", "mxfp4_dequantize_host", "cutlass_fused_moe"} <= passed


def test_the_tests_of_importing_pass(python: EmulatedPython) -> None:
    """Reload, fork, spawn, threads, damaged copies: in children of the emulated interpreter."""
    python.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", WHEEL_TESTS / "test_import.py"),
        timeout=30 * MINUTES,
    )
