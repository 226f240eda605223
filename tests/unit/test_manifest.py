"""What a wheel says of itself, as the run side reads it; and the licence notices."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from plans import module_of, plan_of, roots_of

from aot.errors import BuildError, PlanError
from aot.files import write_json
from aot.manifest import (
    Compilers,
    compilers_of,
    hash_operator_sources,
    make_manifest,
    make_provenance,
    read_plan,
    write_notices,
)
from aot.plan import BuildPlan, Roots, Unit
from aot.presets import PRESETS
from aot.wheel_maker import NOTICES
from fp4aot import _manifest

ROWS = PRESETS["quick"].modules
PLAN = plan_of(
    *map(module_of, ROWS),
    preset="quick",
    tvm_ffi_sources=("a.cc",),
    added_host_flags=("-fno-gnu-unique",),
)


def roots(folder: Path) -> Roots:
    site, cuda = folder / "venv/site-packages", folder / "toolkit/nvidia/cu13"
    return roots_of(site, cuda=cuda, workspace=folder / "flashinfer")


# The manifest


def test_the_run_side_reads_what_the_build_side_writes(tmp_path: Path, library: Path) -> None:
    write_json(tmp_path / "_manifest.json", make_manifest(PLAN, library, "1.2.3"))
    manifest = _manifest.read(tmp_path)
    assert (manifest.version, manifest.preset) == ("1.2.3", "quick")
    assert manifest.plan_hash == PLAN.hash
    assert manifest.cuda_version == "13.0"
    assert dict(manifest.versions) == {
        "flashinfer": "0.7.2",
        "tvm_ffi": "0.1.15",
        "cuda": "13.0",
        "cuda_compiler": "13.0.88",
        "torch_minimum": "2.10",
        "torch_headers": "2.13.0",
        "minimum_driver": "580",
    }
    assert [module.name for module in manifest.modules] == [row.name for row in ROWS]
    for module, row in zip(manifest.modules, ROWS, strict=True):
        assert module.family == row.family
        assert tuple(map(str, module.targets)) == row.architectures
        assert dict(module.functions) == {
            function.name: function.operator for function in row.functions if function.operator
        }


def test_a_cuda_version_that_is_not_released_names_no_driver(library: Path) -> None:
    versions = dataclasses.replace(PLAN.versions, cuda="13.1")
    manifest = make_manifest(dataclasses.replace(PLAN, versions=versions), library, "1.2.3")
    assert manifest["versions"]["cuda"] == "13.1"
    assert "minimum_driver" not in manifest["versions"]


def test_a_lowered_plan_is_read_with_both_of_its_targets(tmp_path: Path, library: Path) -> None:
    first, *others = PLAN.modules
    plan = dataclasses.replace(
        PLAN,
        modules=(
            dataclasses.replace(first, images=("9.0a",)),
            *(dataclasses.replace(m, architectures=("9.0a",), images=("9.0a",)) for m in others),
        ),
        lowering="0123456789abcdef",
    )
    write_json(tmp_path / "_manifest.json", make_manifest(plan, library, "1.2.3+lowered"))
    manifest = _manifest.read(tmp_path)
    assert manifest.version == "1.2.3+lowered"
    assert (manifest.lowering, manifest.is_lowered) == ("0123456789abcdef", True)
    assert manifest.plan_hash == plan.hash
    targets = [[*map(str, module.targets)] for module in manifest.modules]
    assert targets == [["9.0a"]] * len(PLAN.modules)
    compiled_for = [[*map(str, module.compiled_for)] for module in manifest.modules]
    assert compiled_for == [["12.0f"], *[["9.0a"]] * (len(PLAN.modules) - 1)]
    # Both sides say it in the same words.
    for ours, theirs in zip(plan.modules, manifest.modules, strict=True):
        assert ours.targets == theirs.targets_text
    assert manifest.modules[0].targets_text == "9.0a (lowered from 12.0f)"


def test_a_wheel_to_use_is_not_lowered(tmp_path: Path, library: Path) -> None:
    write_json(tmp_path / "_manifest.json", make_manifest(PLAN, library, "1.2.3"))
    manifest = _manifest.read(tmp_path)
    assert (manifest.lowering, manifest.is_lowered) == ("", False)
    for ours, theirs in zip(PLAN.modules, manifest.modules, strict=True):
        assert theirs.compiled_for == theirs.targets
        assert ours.targets == theirs.targets_text


def test_the_library_is_identified(library: Path) -> None:
    data = make_manifest(PLAN, library, "1")["library"]
    content = library.read_bytes()
    assert data == {
        "name": "libfp4aot.so",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_a_plan_is_read_back_with_its_roots(tmp_path: Path) -> None:
    where = roots(tmp_path)
    write_json(tmp_path / "plan.json", PLAN.to_json())
    write_json(tmp_path / "roots.json", {name: str(path) for name, path in vars(where).items()})
    assert read_plan(tmp_path) == (PLAN, where)

    write_json(tmp_path / "plan.json", PLAN.to_json() | {"preset": "full"})
    with pytest.raises(PlanError, match="make it anew"):
        read_plan(tmp_path)


# The provenance

COMPILERS = Compilers("13.0.88", "g++ (Debian 12.2.0-14) 12.2.0", "12.2.0")
UNIT = Unit("csrc_a", "@FLASHINFER@/csrc/a.cu", "cuda", ("-O3", "-g"), "ab" * 32)


def test_the_provenance_has_every_unit_and_gives_the_plan_back() -> None:
    plan = dataclasses.replace(
        PLAN, modules=(dataclasses.replace(PLAN.modules[0], units=(UNIT,)), PLAN.modules[1])
    )
    sources = {"files": {"a.cpp": "cd" * 32}, "sha256": "ef" * 32}
    data = json.loads(json.dumps(make_provenance(plan, COMPILERS, sources)))
    (unit,) = data["plan"]["modules"][0]["units"]
    assert (unit["name"], unit["source"]) == ("csrc_a", "@FLASHINFER@/csrc/a.cu")
    assert (unit["sha256"], unit["flags"]) == ("ab" * 32, ["-O3", "-g"])
    assert BuildPlan.from_json(data["plan"]) == plan
    assert data["compilers"] == {
        "nvcc": "13.0.88",
        "host": "g++ (Debian 12.2.0-14) 12.2.0",
        "host_version": "12.2.0",
    }
    assert data["operator_sources"] == sources


def test_the_manifest_that_every_import_reads_has_no_units(library: Path) -> None:
    plan = dataclasses.replace(
        PLAN, modules=(dataclasses.replace(PLAN.modules[0], units=(UNIT,) * 300),)
    )
    text = json.dumps(make_manifest(plan, library, "1"))
    assert "csrc_a" not in text
    assert len(text) < 5000


def test_operator_sources_are_hashed_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "b.cpp").write_text("b")
    (tmp_path / "torch" / "a.h").write_text("a")
    (tmp_path / "hidden.map").write_text("")
    first = hash_operator_sources(tmp_path)
    assert first["files"] == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in (("b.cpp", b"b"), ("hidden.map", b""), ("torch/a.h", b"a"))
    }
    (tmp_path / "b.cpp.orig").write_text("not compiled")
    assert hash_operator_sources(tmp_path) == first

    (tmp_path / "b.cpp").write_text("c")
    changed = hash_operator_sources(tmp_path)
    (tmp_path / "b.cpp").write_text("b")
    (tmp_path / "b.cpp").rename(tmp_path / "c.cpp")
    renamed = hash_operator_sources(tmp_path)
    assert len({data["sha256"] for data in (first, changed, renamed)}) == 3


def test_every_operator_source_of_this_checkout_is_hashed() -> None:
    csrc = Path(__file__).parents[2] / "wheels" / "fp4aot" / "csrc"
    assert {*hash_operator_sources(csrc)["files"]} == {
        str(path.relative_to(csrc))
        for path in csrc.rglob("*")
        if path.is_file() and path.parent.name != "modules"
    }


def test_no_operator_sources_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="holds no operator sources"):
        hash_operator_sources(tmp_path)


def compiler(path: Path, name: str, version: str) -> Path:
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{name}"; echo more; '
        f'else echo "{version}"; fi\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0", "12.2.0"),
        ("g++ (GCC) 14.2.1 20250110 (Red Hat 14.2.1-7)", "14.2.1"),
    ],
)
def test_the_host_compiler_is_asked(tmp_path: Path, name: str, version: str) -> None:
    found = compilers_of(PLAN, compiler(tmp_path / "cxx", name, version))
    assert found == Compilers("13.0.88", name, version)


@pytest.mark.parametrize(("name", "version"), [("", "12.2.0"), ("g++", "unknown"), ("g++", "")])
def test_a_compiler_that_does_not_say_who_it_is(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(BuildError, match="calls itself"):
        compilers_of(PLAN, compiler(tmp_path / "cxx", name, version))


def test_a_compiler_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="who it is"):
        compilers_of(PLAN, tmp_path / "none")


# The notices

NOTICE = "/*\n * Copyright (c) somebody\n * Licensed under the Apache License\n */\n#pragma once\n"


@pytest.fixture
def installed(tmp_path: Path) -> Roots:
    """As much of the packages as the notices come from."""
    where = roots(tmp_path)
    site = where.tvm_ffi.parent
    spdlog = "spdlog/include/spdlog"
    for path, text in {
        site / "flashinfer_python-0.7.2.dist-info/licenses/LICENSE": "FlashInfer's",
        site / "apache_tvm_ffi-0.1.15.dist-info/licenses/LICENSE": "TVM-FFI's",
        site / "apache_tvm_ffi-0.1.15.dist-info/licenses/NOTICE": "TVM-FFI's notice",
        # Older packages have it one folder further up.
        site / "torch-2.13.0.dist-info/LICENSE": "torch's",
        where.flashinfer / "cutlass/include/cutlass/cutlass.h": NOTICE,
        where.flashinfer / "cccl/cub/cub/cub.cuh": NOTICE,
        where.flashinfer / "csrc/nv_internal/cpp/kernels/quantization.cu": NOTICE,
        where.flashinfer / spdlog / "spdlog.h": "// Copyright\n// MIT License\n#pragma once\n",
        where.flashinfer / spdlog / "fmt/bundled/fmt.license.rst": "fmt's",
        where.tvm_ffi / "include/dlpack/dlpack.h": "/*!\n * Copyright\n *\n\n */\ncode\n",
        tmp_path / "toolkit/nvidia_cuda_runtime-13.0.dist-info/licenses/License.txt": "NVIDIA's",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return where


def test_everybody_whose_code_is_linked_in_has_a_notice(installed: Roots, tmp_path: Path) -> None:
    folder = tmp_path / "notices"
    folder.mkdir()
    (folder / "outdated.txt").write_text("of an older build")
    write_notices(installed, folder)
    names = {path.name for path in folder.iterdir()}
    assert "outdated.txt" not in names
    for owner in NOTICES:
        assert any(name.startswith(f"{owner}-") for name in names), owner
    assert all(any(name.startswith(f"{owner}-") for owner in NOTICES) for name in names)
    assert (folder / "pytorch-LICENSE.txt").read_text() == "torch's"
    assert (folder / "cuda-runtime-LICENSE.txt").read_text() == "NVIDIA's"


def test_only_the_comment_at_the_head_is_taken(installed: Roots, tmp_path: Path) -> None:
    write_notices(installed, tmp_path / "notices")
    text = (tmp_path / "notices" / "cutlass-NOTICE.txt").read_text()
    assert "Licensed under the Apache License" in text
    assert "#pragma once" not in text
    spdlog = (tmp_path / "notices" / "spdlog-NOTICE.txt").read_text()
    assert spdlog == "// Copyright\n// MIT License\n"


@pytest.mark.parametrize("name", ["EULA.txt", "LICENSE"])
def test_an_installed_toolkit_has_its_terms_in_its_folder(
    installed: Roots, tmp_path: Path, name: str
) -> None:
    cuda = tmp_path / "usr/local/cuda"
    cuda.mkdir(parents=True)
    (cuda / name).write_text("terms")
    write_notices(dataclasses.replace(installed, cuda=cuda), tmp_path / "notices")
    assert (tmp_path / "notices" / "cuda-runtime-LICENSE.txt").read_text() == "terms"


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("site-packages/flashinfer_python-*/**/LICENSE", "flashinfer_python.* ships no LICENSE"),
        ("site-packages/apache_tvm_ffi-*/**/NOTICE", "apache_tvm_ffi.* ships no NOTICE"),
        ("site-packages/torch-*/**/LICENSE", "torch.* ships no LICENSE"),
        ("**/cutlass.h", r"cutlass\.h is not there"),
        ("**/fmt.license.rst", r"fmt\.license\.rst is not there"),
        ("**/dlpack.h", r"dlpack\.h is not there"),
        ("**/License.txt", "no licence of the CUDA runtime"),
    ],
)
def test_a_missing_notice_is_an_error(
    installed: Roots, tmp_path: Path, pattern: str, complaint: str
) -> None:
    (found,) = [
        path
        for base in (tmp_path / "venv", tmp_path / "toolkit")
        for path in base.glob(pattern)
        if path.is_file()
    ]
    found.unlink()
    with pytest.raises(BuildError, match=complaint):
        write_notices(installed, tmp_path / "notices")


def test_a_header_that_lost_its_notice_is_an_error(installed: Roots, tmp_path: Path) -> None:
    header = installed.flashinfer / "cccl/cub/cub/cub.cuh"
    header.write_text("// only a comment\n#pragma once\n// License: below the code\n")
    with pytest.raises(BuildError, match=r"cub\.cuh does not begin with a licence notice"):
        write_notices(installed, tmp_path / "notices")
