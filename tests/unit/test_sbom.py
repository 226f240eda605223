"""The bill of materials: what it lists, that it is valid, and that it is the same every time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from plans import VERSIONS, module_of, plan_of

from aot.diff.wheel import _components
from aot.errors import BuildError
from aot.manifest import Compilers
from aot.plan import BuildPlan, Roots
from aot.presets import PRESETS
from aot.sbom import make_sbom, parts

ROW = PRESETS["quick"].modules[0]
PLAN = plan_of(
    module_of(PRESETS["quick"].modules[0]),
    preset="quick",
    versions=dataclasses.replace(VERSIONS, tvm_ffi="0.1.15.post2"),
    tvm_ffi_sources=("a.cc",),
)
COMPILERS = Compilers("13.0.88", "g++ (Debian 12.2.0-14) 12.2.0", "12.2.0")
STATIC = b"!<arch>\nthe runtime"
HEADERS = {
    "flashinfer/cutlass/include/cutlass/version.h": (
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 5\n#define CUTLASS_PATCH 0\n"
        "#ifdef CUTLASS_VERSIONS_GENERATED\n"
    ),
    "flashinfer/cccl/libcudacxx/include/cuda/std/__cccl/version.h": (
        "#define CCCL_VERSION 3006012\n#define CCCL_MAJOR_VERSION (CCCL_VERSION / 1000000)\n"
    ),
    "flashinfer/spdlog/include/spdlog/version.h": (
        "#define SPDLOG_VER_MAJOR 1\n#define SPDLOG_VER_MINOR 14\n#define SPDLOG_VER_PATCH 1\n"
    ),
    "flashinfer/spdlog/include/spdlog/fmt/bundled/core.h": "  #  define FMT_VERSION 100201\n",
    "tvm_ffi/include/dlpack/dlpack.h": (
        "#define DLPACK_MAJOR_VERSION 1\n#define DLPACK_MINOR_VERSION 3\n"
    ),
    "toolkit/nvidia_cuda_runtime-13.0.96.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: 13.0.96\n\nText\n"
    ),
}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """As much of the packages as the versions come from."""
    for name, text in HEADERS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    cuda = tmp_path / "toolkit/nvidia/cu13"
    (cuda / "lib").mkdir(parents=True)
    (cuda / "lib" / "libcudart_static.a").write_bytes(STATIC)
    return Roots(
        flashinfer=tmp_path / "flashinfer",
        tvm_ffi=tmp_path / "tvm_ffi",
        torch=tmp_path / "torch",
        cuda=cuda,
        python_include=tmp_path / "include",
        workspace=tmp_path / "workspace",
    )


def static(roots: Roots) -> Path:
    return roots.cuda / "lib" / "libcudart_static.a"


def by_name(text: str) -> dict[str, dict]:
    return {item["name"]: item for item in json.loads(text)["components"]}


def test_it_is_valid_cyclonedx(roots: Roots, library: Path) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    for epoch in (None, "1767225600"):
        text = make_sbom(PLAN, roots, library, "1.0+lowered", COMPILERS, static(roots), epoch)
        assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"type": "library"', '"type": "book"')) is not None


def test_every_part_has_its_version_licence_and_package_url(roots: Roots, library: Path) -> None:
    components = by_name(make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots)))
    assert {
        name: (item.get("version"), item["purl"], _licence(item))
        for name, item in components.items()
    } == {
        "flashinfer-python": ("0.7.2", "pkg:pypi/flashinfer-python@0.7.2", "Apache-2.0"),
        "apache-tvm-ffi": (
            "0.1.15.post2",
            "pkg:pypi/apache-tvm-ffi@0.1.15.post2",
            "Apache-2.0",
        ),
        "torch": ("2.13.0", "pkg:pypi/torch@2.13.0", "BSD-3-Clause"),
        "nvidia-cuda-runtime": (
            "13.0.96",
            "pkg:pypi/nvidia-cuda-runtime@13.0.96",
            "NVIDIA CUDA Toolkit End User License Agreement",
        ),
        "cutlass": ("4.5.0", "pkg:github/nvidia/cutlass@v4.5.0", "BSD-3-Clause"),
        "cccl": (
            "3.6.12",
            "pkg:github/nvidia/cccl@v3.6.12",
            "Apache-2.0 WITH LLVM-exception AND Apache-2.0 AND BSD-3-Clause",
        ),
        "spdlog": ("1.14.1", "pkg:github/gabime/spdlog@v1.14.1", "MIT"),
        "fmt": ("10.2.1", "pkg:github/fmtlib/fmt@10.2.1", "MIT"),
        "dlpack": ("1.3", "pkg:github/dmlc/dlpack@v1.3", "Apache-2.0"),
        "TensorRT-LLM": (None, "pkg:github/nvidia/tensorrt-llm", "Apache-2.0"),
        "libstdc++": (
            "12.2.0",
            "pkg:generic/gnu/libstdc%2B%2B@12.2.0",
            "GPL-3.0-or-later WITH GCC-exception-3.1",
        ),
    }


def _licence(component: dict) -> str:
    (entry,) = component["licenses"]
    licence = entry.get("license", {})
    return entry.get("expression") or licence.get("id") or licence["name"]


def test_the_wheel_itself_and_the_files_are_identified(roots: Roots, library: Path) -> None:
    data = json.loads(make_sbom(PLAN, roots, library, "1.0+lowered", COMPILERS, static(roots)))
    root = data["metadata"]["component"]
    assert (root["name"], root["version"]) == ("fp4aot", "1.0+lowered")
    assert root["purl"] == "pkg:pypi/fp4aot@1.0%2Blowered"
    (file,) = root["components"]
    assert file["name"] == "libfp4aot.so"
    expected = hashlib.sha256(library.read_bytes()).hexdigest()
    assert file["hashes"] == [{"alg": "SHA-256", "content": expected}]
    (archive,) = next(c for c in data["components"] if "components" in c)["components"]
    assert archive["hashes"][0]["content"] == hashlib.sha256(STATIC).hexdigest()
    said = {item["name"]: item["value"] for item in data["metadata"]["properties"]}
    assert said == {
        "fp4aot:plan_hash": PLAN.hash,
        "fp4aot:preset": "quick",
        "fp4aot:nvcc": "13.0.88",
        "fp4aot:host_compiler": COMPILERS.host,
    }


def test_what_comes_inside_what(roots: Roots, library: Path) -> None:
    data = json.loads(make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots)))
    edges = {row["ref"]: row.get("dependsOn", []) for row in data["dependencies"]}
    inside = ["TensorRT-LLM", "cccl", "cutlass", "fmt", "spdlog"]
    assert edges["flashinfer-python"] == inside
    assert edges["apache-tvm-ffi"] == ["dlpack"]
    assert edges["fp4aot"] == [
        *("apache-tvm-ffi", "flashinfer-python", "libstdc++", "nvidia-cuda-runtime", "torch")
    ]
    assert set(edges) == {
        "fp4aot",
        *(part.name for part in parts(PLAN, roots, COMPILERS, static(roots))),
    }


def test_equal_inputs_give_equal_bytes_wherever_they_are(
    roots: Roots, library: Path, tmp_path: Path
) -> None:
    first = make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots))
    assert make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots)) == first
    assert "timestamp" not in first
    assert str(tmp_path) not in first
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    other = moved / library.name
    other.write_bytes(library.read_bytes())
    assert make_sbom(PLAN, roots, other, "1.0", COMPILERS, static(roots)) == first


def test_other_inputs_have_another_serial_number(roots: Roots, library: Path) -> None:
    def serial(plan: BuildPlan, version: str) -> str:
        return json.loads(make_sbom(plan, roots, library, version, COMPILERS, static(roots)))[
            "serialNumber"
        ]

    numbers = [serial(PLAN, "1.0"), serial(PLAN, "1.1")]
    numbers.append(serial(dataclasses.replace(PLAN, preset="full"), "1.0"))
    library.write_bytes(b"\x7fELF of other operator sources")
    numbers.append(serial(PLAN, "1.0"))
    assert len(set(numbers)) == 4
    assert all(number.startswith("urn:uuid:") for number in numbers)


def test_the_time_is_that_of_the_sources(roots: Roots, library: Path) -> None:
    text = make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots), "1767225600")
    assert json.loads(text)["metadata"]["timestamp"] == "2026-01-01T00:00:00+00:00"
    assert "timestamp" not in make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots), "")
    for wrong in ("today", "-1", "1.5", "9" * 30):
        with pytest.raises(BuildError, match="SOURCE_DATE_EPOCH is"):
            make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots), wrong)


def test_an_installed_toolkit_says_its_version_in_the_plan(roots: Roots, tmp_path: Path) -> None:
    cuda = tmp_path / "usr/local/cuda"
    (cuda / "lib64").mkdir(parents=True)
    runtime_file = cuda / "lib64" / "libcudart_static.a"
    runtime_file.write_bytes(STATIC)
    library = tmp_path / "libfp4aot.so"
    library.write_bytes(b"")
    runtime = by_name(make_sbom(PLAN, roots, library, "1.0", COMPILERS, runtime_file))[
        "nvidia-cuda-runtime"
    ]
    assert runtime["version"] == "13.0"
    assert runtime["purl"] == "pkg:generic/nvidia/nvidia-cuda-runtime@13.0"


@pytest.mark.parametrize("name", [name for name in HEADERS if name.endswith(".h")])
def test_a_version_that_is_not_where_it_was_is_an_error(
    roots: Roots, library: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text(path.read_text().replace("#define", "//").replace("#  define", "//"))
    with pytest.raises(BuildError, match=rf"{path.name} defines no \w+"):
        make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots))
    path.unlink()
    with pytest.raises(BuildError, match=rf"{path.name} is not there"):
        make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots))


def test_no_static_runtime(roots: Roots, library: Path) -> None:
    static(roots).unlink()
    with pytest.raises(OSError, match=r"libcudart_static\.a"):
        make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots))


def test_aot_diff_reads_it(roots: Roots, library: Path) -> None:
    components = _components(
        make_sbom(PLAN, roots, library, "1.0", COMPILERS, static(roots)).encode()
    )
    assert components is not None
    assert components["cutlass"] == "4.5.0, BSD-3-Clause"
    assert components["TensorRT-LLM"] == "no version, Apache-2.0"
    assert set(components) == {part.name for part in parts(PLAN, roots, COMPILERS, static(roots))}
