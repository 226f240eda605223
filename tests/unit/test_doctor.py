"""The doctor: what does not fit, and what to do about it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fp4aot import _doctor, _gpus
from fp4aot._doctor import Device, Report, describe_device, device_operators, find_problems, render
from fp4aot._manifest import Manifest, Module, Target

HOPPER = Target(9, 0, "a")


def make_manifest(
    cuda: str = "13.0",
    quantization: str = "12.0f",
    *,
    lowered: bool = False,
    minimum_driver: str = "",
) -> Manifest:
    compiled_for = tuple(map(Target.parse, quantization.split()))
    # One that is lowered has KV dequantization for Hopper as it is.
    targets, kv = (
        ((HOPPER,), (HOPPER,)) if lowered else (compiled_for, (HOPPER, Target(12, 0, "f")))
    )
    return Manifest(
        version="0.1.0+lowered" if lowered else "0.1.0",
        preset="quick",
        plan_hash="ab" * 32,
        versions=(
            *(("cuda", cuda), ("cuda_compiler", f"{cuda}.88"), ("flashinfer", "0.7.2")),
            *([("minimum_driver", minimum_driver)] if minimum_driver else []),
        ),
        lowering="0123456789abcdef" if lowered else "",
        modules=(
            Module(
                *("fp4_quantization", "quantization"),
                *(targets, compiled_for),
                (
                    ("fp4_quantize", "fp4_quantize"),
                    ("mxfp4_dequantize_host", "mxfp4_dequantize_host"),
                ),
            ),
            Module(
                *("fp4_kv_dequant", "kv_cache"),
                *(kv, kv),
                (("nvfp4_kv_dequant", "nvfp4_kv_dequantize"),),
            ),
        ),
        library_name="libfp4aot.so",
        library_size=1,
        library_sha256="cd" * 32,
    )


MANIFEST = make_manifest()
LOWERED = make_manifest(lowered=True)
BOTH = ("fp4_quantize", "nvfp4_kv_dequantize")


def device(capability: tuple[int, int], index: int = 0, manifest: Manifest = MANIFEST) -> Device:
    return describe_device(manifest, _gpus.Gpu(index, "a GPU", capability))


def report(
    driver: str | None = "13.0",
    torch_cuda: str | None = "13.0",
    devices: tuple[Device, ...] = (),
    manifest: Manifest = MANIFEST,
) -> Report:
    problems = tuple(find_problems(manifest, driver, torch_cuda, devices))
    return Report(manifest, "3.12.1", "2.11.0", torch_cuda, driver, devices, problems)


# Devices


def test_host_operators_need_no_device() -> None:
    assert device_operators(MANIFEST) == list(BOTH)


@pytest.mark.parametrize(
    ("capability", "runs", "missing"),
    [
        ((12, 0), BOTH, ()),
        # DGX Spark runs the family image of 12.0 (case 9).
        ((12, 1), BOTH, ()),
        ((9, 0), BOTH[1:], BOTH[:1]),
        ((10, 0), (), BOTH),
        ((8, 9), (), BOTH),
    ],
)
def test_operators_are_sorted_by_what_runs(
    capability: tuple[int, int], runs: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    assert device(capability, 3) == Device(3, "a GPU", capability, runs, missing)


def test_an_image_of_12_0_alone_does_not_run_on_12_1() -> None:
    found = device((12, 1), manifest=make_manifest(quantization="12.0a"))
    assert found.missing == ("fp4_quantize",)
    assert device((12, 1), manifest=make_manifest(quantization="12.0a 12.1a")).missing == ()


# Problems


@pytest.mark.parametrize(
    ("driver", "torch_cuda", "capabilities"),
    [
        ("13.0", "13.0", [(12, 0)]),
        ("13.0", "13.0", [(12, 1)]),
        # The library brings its own runtime: torch may be of another CUDA, within the driver's.
        ("13.2", "12.8", [(12, 0), (12, 1)]),
        ("14.0", "13.0", [(12, 0)]),
        # A driver and CUDA torch, and no GPU to be seen; or neither.
        ("13.0", "13.0", []),
        (None, None, []),
        (None, "13.0", []),
    ],
)
def test_machines_that_fit(
    driver: str | None, torch_cuda: str | None, capabilities: list[tuple[int, int]]
) -> None:
    devices = tuple(device(c, i) for i, c in enumerate(capabilities))
    assert find_problems(MANIFEST, driver, torch_cuda, devices) == []


@pytest.mark.parametrize(
    ("supported", "driver", "cuda", "minimum", "remedy"),
    [
        # The driver's version is known, and what the wheel needs: the numbers decide.
        ("12.8", "570.86.15", "13.0", "580", "update the driver to 580 or newer"),
        ("12.4", "550.54.14", "12.9", "575", "update the driver to 575 or newer"),
        ("13.0", "580.65.06", "13.5", "580.82.07", "update the driver to 580.82.07 or newer"),
        # One of the two is not: CUDA's major versions decide.
        ("12.8", None, "13.0", "580", "update the driver to 580 or newer"),
        ("12.8", "570.86.15", "13.0", "", "update the driver to one for CUDA 13"),
        ("12.8", None, "13.0", "", "update the driver to one for CUDA 13"),
        # A wheel for the driver that there is helps where that driver knows every Blackwell.
        (
            *("12.9", "575.57.08", "13.0", "580"),
            "update the driver to 580 or newer, or install the fp4aot wheel for CUDA 12",
        ),
        (
            *("12.9", None, "13.0", ""),
            "update the driver to one for CUDA 13, or install the fp4aot wheel for CUDA 12",
        ),
        ("11.8", "520.61.05", "12.9", "575", "update the driver to 575 or newer"),
        ("11.8", None, "12.9", "", "update the driver to one for CUDA 12"),
        # "9" comes after "13" as text.
        ("9.2", None, "13.0", "", "update the driver to one for CUDA 13"),
        ("9.2", "99.0", "13.0", "580", "update the driver to 580 or newer"),
    ],
)
def test_a_driver_that_is_too_old(
    supported: str, driver: str | None, cuda: str, minimum: str, remedy: str
) -> None:
    manifest = make_manifest(cuda, minimum_driver=minimum)
    (problem,) = find_problems(manifest, supported, "13.0", (), driver_version=driver)
    name = f"the NVIDIA driver {driver} supports" if driver else "the NVIDIA driver supports"
    assert problem.what.startswith(f"{name} CUDA {supported} ")
    assert f"contains the CUDA {cuda} runtime" in problem.what
    assert problem.remedy == remedy


@pytest.mark.parametrize(
    ("supported", "driver", "cuda", "minimum"),
    [
        ("13.0", "580.65.06", "13.0", "580"),
        # Within a major version of CUDA an older driver will do.
        ("13.0", "580.65.06", "13.5", "580"),
        ("13.0", "580.00", "13.5", "580"),  # Jetson Thor
        ("13.0", None, "13.5", "580"),
        ("13.0", "580.65.06", "13.5", ""),
        ("12.9", "575.57.08", "12.9", "575"),
        # A newer major version runs what is older.
        ("13.5", "610.43.02", "12.9", "575"),
        ("13.0", None, "9.0", ""),
        # A library that is newer than the kernel's part (cuda-compat) knows the wheel's CUDA.
        ("13.0", "570.133.20", "13.0", "580"),
        # No CUDA, so nothing for the wheel to run on: the CPU reference it is.
        (None, "550.54.14", "13.0", "580"),
        (None, None, "13.0", "580"),
    ],
)
def test_a_driver_that_is_new_enough(
    supported: str | None, driver: str | None, cuda: str, minimum: str
) -> None:
    manifest = make_manifest(cuda, minimum_driver=minimum)
    assert find_problems(manifest, supported, "13.0", (), driver_version=driver) == []


def test_an_old_cuda_library_before_a_new_driver() -> None:
    manifest = make_manifest("13.0", minimum_driver="580")
    (problem,) = find_problems(manifest, "12.4", "13.0", (), driver_version="580.65.06")
    assert "the NVIDIA driver 580.65.06 supports CUDA 12.4" in problem.what
    assert "libcuda.so.1" in problem.remedy
    assert "update" not in problem.remedy


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC "
            "2024\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
            "550.54.14",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  "
            "(dvs-builder@U22-I3-H04-01-5)\nGCC version:  gcc version 13.3.0\n",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.00  Release", "580.00"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.76", "515.76"),
        ("GCC version:  gcc version 12.3.0\n", None),
        ("NVRM version: something else\nGCC version:  gcc version 12.3.0\n", None),
        ("", None),
        ("\xff\xfe", None),
    ],
)
def test_the_kernel_tells_its_driver(text: str, version: str | None, tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(text, encoding="latin-1")
    assert _gpus.driver_version(path) == version


def test_a_kernel_without_the_driver_tells_nothing(tmp_path: Path) -> None:
    assert _gpus.driver_version(tmp_path / "absent") is None
    assert _gpus.driver_version(tmp_path) is None


@pytest.mark.parametrize(
    ("supported", "driver", "line"),
    [
        ("13.0", "580.65.06", "580.65.06, CUDA 13.0"),
        ("13.0", None, "CUDA 13.0"),
        (
            None,
            "580.65.06",
            "580.65.06 in the kernel, without its CUDA library (libcuda.so.1) here",
        ),
        (None, None, "none"),
    ],
)
def test_the_driver_is_named(supported: str | None, driver: str | None, line: str) -> None:
    found = replace(report(driver=supported), driver_version=driver)
    assert f"  driver   {line}\n" in render(found)
    data = found.to_json()
    assert (data["driver_version"], data["driver_cuda"]) == (driver, supported)


def test_cpu_torch_on_a_machine_with_a_driver() -> None:
    (problem,) = find_problems(MANIFEST, "13.0", None, ())
    assert "this PyTorch is a CPU build" in problem.what
    assert problem.remedy == "install a CUDA build of PyTorch"


@pytest.mark.parametrize(
    ("capability", "missing", "carried", "remedy"),
    [
        ((9, 0), "cannot run fp4_quantize:", ["12.0f"], "use a Blackwell GPU"),
        ((8, 9), "cannot run fp4_quantize, nvfp4_kv", ["9.0a", "12.0f"], "use a Blackwell GPU"),
        ((10, 3), "cannot run fp4_quantize, nvfp4_kv", ["9.0a", "12.0f"], "covers compute cap"),
    ],
)
def test_an_uncovered_device_is_named_with_what_there_is(
    capability: tuple[int, int], missing: str, carried: list[str], remedy: str
) -> None:
    (problem,) = find_problems(MANIFEST, "13.0", "13.0", (device((12, 0)), device(capability, 1)))
    major, minor = capability
    assert f"cuda:1 (a GPU, compute capability {major}.{minor}) {missing}" in problem.what
    assert set(re.findall(r"\d+\.\d[af]", problem.what)) == set(carried)
    assert remedy in problem.remedy
    if capability >= (10, 0):
        assert f"{major}.{minor}" in problem.remedy


def test_every_problem_is_listed() -> None:
    devices = (device((9, 0), 0), device((12, 0), 1), device((10, 0), 2))
    found = find_problems(MANIFEST, "12.9", "12.8", devices)
    assert len(found) == 3


@pytest.mark.parametrize(
    ("number", "text"), [(13000, "13.0"), (12080, "12.8"), (13050, "13.5"), (0, None)]
)
def test_cudas_number_is_a_version(number: int, text: str | None) -> None:
    assert _doctor._version_text(number) == text


# The report


def test_no_gpu_is_no_problem_and_is_said() -> None:
    found = report(driver=None, torch_cuda=None)
    assert found.ok
    assert "No GPU" in found.verdict
    assert "CPU reference" in found.verdict
    text = render(found)
    assert "driver   none" in text
    assert "(CPU build)" in text
    assert "PROBLEM" not in text


def test_all_is_well() -> None:
    found = report(devices=(device((12, 0)), device((12, 1), 1)))
    assert found.ok
    assert found.verdict == "All operators run on all devices present."
    text = render(found)
    assert "cuda:0   a GPU, compute capability 12.0" in text
    assert "cuda:1   a GPU, compute capability 12.1" in text
    assert "missing" not in text
    assert text.count("runs:    fp4_quantize, nvfp4_kv_dequantize") == 2
    assert found.verdict in text


def test_a_report_for_people_has_every_problem_and_its_remedy() -> None:
    found = report("12.8", "12.8", (device((9, 0)), device((8, 9), 1)))
    assert not found.ok
    lines = render(found).splitlines()
    assert len(found.problems) == 3
    for problem in found.problems:
        at = lines.index(f"PROBLEM  {problem.what}")
        assert lines[at + 1] == f"DO       {problem.remedy}"
    assert "           missing: fp4_quantize" in lines
    assert "           runs:    nothing" in lines
    assert found.verdict in lines
    assert "does not fit" in found.verdict


def test_the_wheel_is_described() -> None:
    text = render(report())
    assert "fp4aot 0.1.0 (preset quick, FlashInfer 0.7.2, CUDA 13.0.88, plan abababababab)" in text
    assert re.search(r"fp4_kv_dequant +9\.0a 12\.0f +nvfp4_kv_dequantize", text)
    assert re.search(r"fp4_quantization +12\.0f +fp4_quantize, mxfp4_dequantize_host", text)
    assert "PyTorch  2.11.0 (CUDA 13.0)" in text
    assert "driver   CUDA 13.0" in text


def test_a_report_for_machines_has_all_of_it() -> None:
    found = report(devices=(device((9, 0)),))
    data = json.loads(json.dumps(found.to_json()))
    assert data["ok"] is False
    assert data["verdict"] == found.verdict
    assert data["wheel"]["modules"] == {
        "fp4_quantization": ["12.0f"],
        "fp4_kv_dequant": ["9.0a", "12.0f"],
    }
    assert data["wheel"]["versions"]["cuda"] == "13.0"
    assert (data["driver_cuda"], data["torch_cuda"]) == ("13.0", "13.0")
    (row,) = data["devices"]
    assert row["capability"] == [9, 0]
    assert row["missing"] == ["fp4_quantize"]
    (problem,) = data["problems"]
    assert set(problem) == {"what", "remedy"}


# A wheel whose kernels are lowered to Hopper


def test_a_lowered_wheel_is_named_at_the_top_of_the_report() -> None:
    lines = render(report(manifest=LOWERED)).splitlines()
    assert lines[0].startswith("fp4aot 0.1.0+lowered (preset quick, ")
    assert lines[1] == LOWERED.label
    assert "LOWERED" in lines[1]
    assert "LOWERED" not in render(report())


def test_a_lowered_module_says_what_it_is_lowered_from() -> None:
    text = render(report(manifest=LOWERED))
    assert re.search(r"fp4_quantization +9\.0a \(lowered from 12\.0f\) +fp4_quantize,", text)
    # What Hopper runs as it is was not lowered, and the columns stay apart.
    assert re.search(r"fp4_kv_dequant +9\.0a {2,}nvfp4_kv_dequantize", text)
    assert "lowered from" not in render(report())


def test_a_report_for_machines_tells_a_lowered_wheel() -> None:
    assert report(manifest=LOWERED).to_json()["wheel"]["lowered"] is True
    assert report().to_json()["wheel"]["lowered"] is False


@pytest.mark.parametrize("capability", [(12, 0), (12, 1), (10, 0), (8, 0), (8, 9)])
def test_a_device_that_is_no_hopper_is_sent_to_another_wheel(capability: tuple[int, int]) -> None:
    found = device(capability, 2, LOWERED)
    assert (found.runs, found.missing) == ((), BOTH)
    (problem,) = find_problems(LOWERED, "13.0", "13.0", (found,))
    major, minor = capability
    assert problem.what.startswith(f"cuda:2 (a GPU, compute capability {major}.{minor}) cannot run")
    assert "lowered to compute capability 9.0" in problem.what
    assert problem.remedy == "install a fp4aot wheel whose version has no '+lowered'"
    # A Blackwell GPU is what such a device lacks with the other wheel, and not with this one.
    assert "Blackwell" not in problem.remedy
    assert not report(devices=(found,), manifest=LOWERED).ok


def test_a_hopper_runs_all_of_a_lowered_wheel() -> None:
    hopper = device((9, 0), manifest=LOWERED)
    assert (hopper.runs, hopper.missing) == (BOTH, ())
    found = report(devices=(hopper,), manifest=LOWERED)
    assert found.ok
    # Nobody takes it for a machine on which all is well.
    assert "lowered" in found.verdict
    assert found.verdict != report(devices=(device((12, 0)),)).verdict


def test_a_hopper_beside_a_blackwell_is_no_problem_of_its_own() -> None:
    devices = (device((9, 0), 0, LOWERED), device((12, 0), 1, LOWERED))
    (problem,) = find_problems(LOWERED, "13.0", "13.0", devices)
    assert problem.what.startswith("cuda:1 ")


# Operators that the wheel does not hold


def test_operators_without_a_kernel_are_absent_and_a_problem_where_there_is_a_gpu() -> None:
    absent = _doctor.absent_operators(MANIFEST)
    assert "mm_fp4" in absent
    assert "scaled_fp4_grouped_quantize" in absent
    assert not set(BOTH) & set(absent)
    assert "e2m1_and_ufp8sf_scale_to_float" not in absent, "it needs no compiled kernel"
    assert find_problems(MANIFEST, None, None, (), absent) == []
    (problem,) = find_problems(MANIFEST, "13.0", "13.0", (device((12, 0)),), absent)
    assert "preset quick" in problem.what
    assert "mm_fp4" in problem.what
    assert "dense" in problem.remedy


def test_an_operator_that_shares_a_kernel_is_listed() -> None:
    manifest = replace(
        MANIFEST,
        modules=(
            Module(
                *("fp4_quantization", "quantization"),
                *((Target(12, 0, "f"),),) * 2,
                (
                    (
                        "silu_and_mul_scaled_nvfp4_experts_quantize",
                        "silu_and_mul_scaled_nvfp4_experts_quantize",
                    ),
                    ("fp4_gemm_tactic_num", "_mm_fp4_tactic_count"),
                ),
            ),
        ),
    )
    expected = ["scaled_fp4_grouped_quantize", "silu_and_mul_scaled_nvfp4_experts_quantize"]
    assert device_operators(manifest) == expected
    assert not set(expected) & set(_doctor.absent_operators(manifest))
