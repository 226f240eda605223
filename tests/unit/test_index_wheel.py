"""What may be published: wheels made here, and made wrong in one way each."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import platform
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aot.errors import AuditError
from aot.index import collect, read_wheel
from aot.presets import PRESETS

MACHINE = platform.machine()


def modules_of(preset: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the targets and the operators of each module of a preset, as a wheel names them."""
    return {
        module.name: (
            list(module.architectures),
            [function.operator for function in module.functions if function.operator],
        )
        for module in PRESETS[preset].modules
    }


DENSE, QUICK = modules_of("dense-12.0f"), modules_of("quick")
OF_HOPPER = {
    operator for targets, operators in QUICK.values() if "9.0a" in targets for operator in operators
}


@dataclass
class Recipe:
    """A wheel to make; tests change one thing of it."""

    version: str = "0.1.0"
    cuda: str = "13.0"
    preset: str = "dense-12.0f"
    modules: dict[str, tuple[list[str], list[str]]] = field(default_factory=lambda: DENSE)
    tag: str = f"py3-none-manylinux_2_17_{MACHINE}"
    requires: str = "torch>=2.10"
    minimum_driver: str = "580"
    seed: int = 1
    change_manifest: Callable[[dict[str, Any]], Any] = lambda manifest: None
    change_files: Callable[[dict[str, bytes]], Any] = lambda files: None
    name: str = ""

    def manifest(self, library: bytes) -> dict[str, Any]:
        modules = [
            {
                "name": name,
                "family": "family",
                "architectures": targets,
                "compiled_for": targets,
                "functions": {f"{operator}_function": operator for operator in operators},
            }
            for name, (targets, operators) in self.modules.items()
        ]
        return {
            "version": self.version,
            "preset": self.preset,
            "plan_hash": hashlib.sha256(str(self).encode()).hexdigest(),
            "versions": {
                **{"cuda": self.cuda, "flashinfer": "0.7.2", "torch_minimum": "2.10"},
                **({"minimum_driver": self.minimum_driver} if self.minimum_driver else {}),
            },
            "lowering": "",
            "modules": copy.deepcopy(modules),
            "library": {
                "name": "libfp4aot.so",
                "size": len(library),
                "sha256": hashlib.sha256(library).hexdigest(),
            },
        }

    def files(self) -> dict[str, bytes]:
        library = random.Random(self.seed).randbytes(4096)
        manifest = self.manifest(library)
        self.change_manifest(manifest)
        info = f"fp4aot-{self.version}.dist-info"
        metadata = (
            f"Metadata-Version: 2.1\nName: fp4aot\nVersion: {self.version}\n"
            f"Requires-Python: >=3.10\nRequires-Dist: {self.requires}\n\nKernels.\n"
        )
        files = {
            "fp4aot/__init__.py": b'"""Kernels."""\n',
            "fp4aot/libfp4aot.so": library,
            "fp4aot/_manifest.json": json.dumps(manifest).encode(),
            f"{info}/METADATA": metadata.encode(),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\n"
            f"Tag: {self.tag}\n".encode(),
        }
        self.change_files(files)
        lines = [
            f"{name},sha256={_record(content)},{len(content)}" for name, content in files.items()
        ]
        files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
        return files

    def make(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (self.name or f"fp4aot-{self.version}-{self.tag}.whl")
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in self.files().items():
                archive.writestr(zipfile.ZipInfo(name), content)
        return path


def _record(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def test_a_good_wheel_is_read_whole(tmp_path: Path) -> None:
    path = Recipe().make(tmp_path)
    wheel = read_wheel(path)
    assert str(wheel.version) == "0.1.0"
    assert wheel.machines == (MACHINE,)
    assert wheel.requires_python == ">=3.10"
    assert wheel.requires_torch == ">=2.10"
    assert wheel.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert wheel.size == path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        assert wheel.metadata == archive.read("fp4aot-0.1.0.dist-info/METADATA")
    assert (wheel.contents.cuda, wheel.contents.flashinfer) == ("13.0", "0.7.2")
    assert wheel.contents.preset == "dense-12.0f"
    assert list(map(str, wheel.contents.targets)) == ["9.0a", "12.0f"]


def test_operators_by_device(tmp_path: Path) -> None:
    contents = read_wheel(Recipe().make(tmp_path)).contents
    assert {"nvfp4_kv_dequantize", "nvfp4_quantize_append_paged_kv_cache"} <= OF_HOPPER
    assert contents.operators_on((9, 0)) == OF_HOPPER
    assert contents.operators_on((10, 0)) == frozenset()
    everything = contents.operators_on((12, 1))
    assert OF_HOPPER | {"mm_fp4", "fp4_quantize", "nvfp4_kv_quantize"} <= everything
    assert not {"mxfp4_dequantize_host", "_mm_fp4_tactic_count"} & everything


def lower(manifest: dict[str, Any]) -> None:
    manifest["lowering"] = "61038b5392a5ec50"


def lower_unsaid(manifest: dict[str, Any]) -> None:
    manifest["modules"][0]["architectures"] = ["9.0a"]


def replace_metadata(old: str, new: str) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        (name,) = (name for name in files if name.endswith("/METADATA"))
        assert old.encode() in files[name]
        files[name] = files[name].replace(old.encode(), new.encode())

    return change


BAD = {
    "lowered": (Recipe(change_manifest=lower), "is lowered: .* never published"),
    "lowered without a word": (Recipe(change_manifest=lower_unsaid), "is lowered"),
    "a local version does not hide it": (
        Recipe(version="0.1.0+lowered", change_manifest=lower),
        "is lowered",
    ),
    "renamed": (
        Recipe(name=f"fp4aot-0.2.0-py3-none-manylinux_2_17_{MACHINE}.whl"),
        "0.2.0 by its name, 0.1.0 by its metadata and 0.1.0 by its manifest",
    ),
    "metadata of another version": (
        Recipe(change_files=replace_metadata("Version: 0.1.0", "Version: 0.1.1")),
        "0.1.1 by its metadata",
    ),
    "manifest of another version": (
        Recipe(change_manifest=lambda manifest: manifest.update(version="0.3.0")),
        "0.3.0 by its manifest",
    ),
    "another project's name": (
        Recipe(name=f"torch-2.10-py3-none-manylinux_2_17_{MACHINE}.whl"),
        "a wheel of torch",
    ),
    "another project's metadata": (
        Recipe(change_files=replace_metadata("Name: fp4aot", "Name: torch")),
        "the project 'torch'",
    ),
    "no wheel name": (Recipe(name="fp4aot.whl"), "not the name of a wheel"),
    "never audited": (Recipe(tag=f"py3-none-linux_{MACHINE}"), "not a manylinux wheel"),
    "no manifest": (
        Recipe(change_files=lambda files: files.pop("fp4aot/_manifest.json")),
        "has no fp4aot/_manifest.json",
    ),
    "no metadata": (
        Recipe(change_files=lambda files: files.pop("fp4aot-0.1.0.dist-info/METADATA")),
        "holds 0 files .dist-info/METADATA",
    ),
    "manifest without a field": (
        Recipe(change_manifest=lambda manifest: manifest.pop("lowering")),
        "manifest cannot be read .*lowering",
    ),
    "manifest that is a list": (
        Recipe(change_files=lambda files: files.update({"fp4aot/_manifest.json": b"[1]"})),
        "manifest cannot be read",
    ),
    "manifest with an unknown target": (
        Recipe(modules={"m": (["12.0x"], ["fp4_quantize"])}),
        "manifest cannot be read .*12.0x",
    ),
    "CUDA that would be a path": (Recipe(cuda="../13"), r"says CUDA '\.\./13'"),
    "driver that is no version": (Recipe(minimum_driver="R580"), r"says driver 'R580'; expected"),
    "another library": (
        Recipe(change_files=lambda files: files.update({"fp4aot/libfp4aot.so": b"other"})),
        "not the one of its manifest",
    ),
    "no library": (
        Recipe(change_files=lambda files: files.pop("fp4aot/libfp4aot.so")),
        "does not hold fp4aot/libfp4aot.so",
    ),
    "unreadable requirement": (Recipe(requires="torch>>2"), "cannot be read as a wheel"),
}


@pytest.mark.parametrize(("recipe", "message"), BAD.values(), ids=BAD.keys())
def test_bad_wheels_are_refused_by_name(recipe: Recipe, message: str, tmp_path: Path) -> None:
    path = recipe.make(tmp_path)
    with pytest.raises(AuditError, match=message) as caught:
        read_wheel(path)
    assert str(path) in str(caught.value)


def test_a_wheel_cut_off_is_refused(tmp_path: Path) -> None:
    path = Recipe().make(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(AuditError, match="cannot be read as a wheel"):
        read_wheel(path)


def test_a_flipped_bit_in_any_file_is_refused(tmp_path: Path) -> None:
    path = Recipe().make(tmp_path)
    data = bytearray(path.read_bytes())
    position = data.index(b'"""Kernels."""')
    data[position + 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(AuditError, match=r"fp4aot/__init__\.py in it is damaged"):
        read_wheel(path)


# The whole folder


def test_one_index_per_cuda_version(tmp_path: Path) -> None:
    recipes = {"a": Recipe(), "b": Recipe(cuda="13.5"), "c": Recipe(cuda="12.9", version="0.2.0")}
    for folder, recipe in recipes.items():
        recipe.make(tmp_path / folder)
    assert recipes["a"].make(tmp_path / "a").name == recipes["b"].make(tmp_path / "b").name
    indexes = collect(tmp_path)
    assert [index.name for index in indexes] == ["cu135", "cu130", "cu129"]
    assert [wheel.contents.cuda for index in indexes for wheel in index.wheels] == [
        *("13.5", "13.0", "12.9"),
    ]


def test_newest_first_by_version_not_by_name(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.0rc1"):
        Recipe(version=version).make(tmp_path)
    (index,) = collect(tmp_path)
    assert [str(wheel.version) for wheel in index.wheels] == ["0.10.0", "0.10.0rc1", "0.9.0"]


def test_the_same_wheel_twice_is_one(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        Recipe().make(tmp_path / folder)
    (index,) = collect(tmp_path)
    assert len(index.wheels) == 1


@pytest.mark.parametrize(
    "other",
    [
        Recipe(seed=2),
        Recipe(preset="quick", modules=QUICK),
        Recipe(seed=2, tag=f"py3-none-manylinux_2_28_{MACHINE}"),
        Recipe(seed=2, name=f"fp4aot-0.1.0-1-py3-none-manylinux_2_17_{MACHINE}.whl"),
    ],
    ids=["same name", "another preset", "another C library", "build number"],
)
def test_a_version_twice_with_different_content(other: Recipe, tmp_path: Path) -> None:
    paths = Recipe().make(tmp_path / "a"), other.make(tmp_path / "b")
    with pytest.raises(AuditError, match=r"are both version 0\.1\.0 for CUDA 13\.0") as caught:
        collect(tmp_path)
    assert all(str(path) in str(caught.value) for path in paths)


def test_one_version_for_two_processors_is_fine(tmp_path: Path) -> None:
    for machine in ("x86_64", "aarch64"):
        Recipe(tag=f"py3-none-manylinux_2_28_{machine}").make(tmp_path)
    (index,) = collect(tmp_path)
    assert len(index.wheels) == 2


def test_every_reason_is_told(tmp_path: Path) -> None:
    Recipe().make(tmp_path / "a")
    Recipe(seed=2).make(tmp_path / "b")
    Recipe(version="0.1.0+lowered", change_manifest=lower).make(tmp_path)
    (tmp_path / "fp4aot-0.5.0-py3-none-any.whl").write_bytes(b"no archive")
    with pytest.raises(AuditError) as caught:
        collect(tmp_path)
    text = str(caught.value)
    for reason in ("are both version", "is lowered", "not a manylinux wheel"):
        assert reason in text


def test_no_wheel_at_all(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="there is no wheel in"):
        collect(tmp_path)
