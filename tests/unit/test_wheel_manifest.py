"""The run side's view of what a wheel holds, beside the build side's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.architectures import Architecture
from fp4aot import _manifest
from fp4aot._manifest import Manifest, Module, Target, read

DATA: dict[str, Any] = {
    "version": "0.1.0",
    "preset": "quick",
    "plan_hash": "ab" * 32,
    "versions": {"flashinfer": "0.7.2", "cuda": "13.0", "cuda_compiler": "13.0.88"},
    "lowering": "",
    "modules": [
        {
            "name": "fp4_quantization_120f",
            "family": "quantization",
            "architectures": ["12.0f"],
            "compiled_for": ["12.0f"],
            "functions": {"fp4_quantize": "fp4_quantize", "interleave_sm100": "interleave"},
        },
        {
            "name": "fp4_kv_dequant",
            "family": "kv_cache",
            "architectures": ["9.0a", "12.0f"],
            "compiled_for": ["9.0a", "12.0f"],
            "functions": {"nvfp4_kv_dequant": "nvfp4_kv_dequantize"},
        },
    ],
    "library": {"name": "libfp4aot.so", "size": 3_533_952, "sha256": "cd" * 32},
}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "_manifest.json").write_text(json.dumps(DATA))
    return read(tmp_path)


def module(targets: str, *, compiled_for: str | None = None) -> Module:
    wanted = targets if compiled_for is None else compiled_for
    parsed = (tuple(map(Target.parse, text.split())) for text in (targets, wanted))
    return Module("m", "f", *parsed, ())


# Targets (cases 9, 10)


@pytest.mark.parametrize(
    "text", ["7.5", "8.0", "9.0a", "10.0a", "10.3a", "11.0a", "12.0", "12.0a", "12.0f", "12.1a"]
)
def test_targets_round_trip(text: str) -> None:
    assert str(Target.parse(text)) == text


def test_the_suffix_is_not_dropped() -> None:
    assert Target.parse("12.0f") == Target(12, 0, "f")
    assert Target.parse("10.3a") == Target(10, 3, "a")
    assert Target.parse("12.0") == Target(12, 0, "")


@given(
    st.builds(
        Architecture, st.integers(10, 20), st.integers(0, 9), st.sampled_from(["", "a", "f"])
    ),
    st.tuples(st.integers(8, 20), st.integers(0, 9)),
)
def test_both_sides_agree_on_what_runs_where(
    architecture: Architecture, capability: tuple[int, int]
) -> None:
    target = Target.parse(str(architecture))
    assert target.runs_on(capability) == architecture.runs_on(capability)


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("12.0f", (12, 1), True),
        ("12.0a", (12, 1), False),
        ("12.1a", (12, 0), False),
        ("10.0a", (10, 3), False),
        ("10.0f", (11, 0), False),
        ("9.0a", (9, 0), True),
        ("9.0a", (10, 0), False),
        ("8.0", (8, 9), True),
        ("8.6", (8, 0), False),
    ],
)
def test_what_runs_where(target: str, capability: tuple[int, int], runs: bool) -> None:
    assert Target.parse(target).runs_on(capability) is runs
    assert module(target).runs_on(capability) is runs


def test_a_module_runs_where_one_of_its_images_does() -> None:
    both = module("9.0a 12.0f")
    assert [both.runs_on(c) for c in ((9, 0), (12, 1), (10, 0))] == [True, True, False]
    assert not module("").runs_on((12, 0))


def test_a_lowered_module_runs_where_its_images_do_and_not_where_it_was_compiled_for() -> None:
    lowered = module("9.0a", compiled_for="12.0f")
    assert [lowered.runs_on(c) for c in ((9, 0), (12, 0), (12, 1))] == [True, False, False]


@pytest.mark.parametrize(
    ("targets", "compiled_for", "text"),
    [
        ("12.0f", "12.0f", "12.0f"),
        ("9.0a 12.0f", "9.0a 12.0f", "9.0a 12.0f"),
        ("9.0a", "9.0a", "9.0a"),
        ("9.0a", "12.0f", "9.0a (lowered from 12.0f)"),
        ("9.0a 9.0a", "9.0a 10.0a", "9.0a 9.0a (lowered from 9.0a 10.0a)"),
    ],
)
def test_targets_for_people(targets: str, compiled_for: str, text: str) -> None:
    assert module(targets, compiled_for=compiled_for).targets_text == text


# What is lowered


def test_a_wheel_to_use_is_not_labelled(manifest: Manifest) -> None:
    assert not manifest.is_lowered
    assert manifest.label == ""


def test_a_lowered_wheel_is_labelled(tmp_path: Path) -> None:
    gemm = DATA["modules"][0] | {"architectures": ["9.0a"], "compiled_for": ["12.0f"]}
    data = DATA | {"lowering": "0123456789abcdef", "modules": [gemm]}
    (tmp_path / "_manifest.json").write_text(json.dumps(data))
    lowered = read(tmp_path)
    assert lowered.lowering == "0123456789abcdef"
    assert lowered.is_lowered
    assert lowered.label.startswith("LOWERED: ")
    assert "not for use" in lowered.label
    (row,) = lowered.modules
    assert row.targets == (Target(9, 0, "a"),)
    assert row.compiled_for == (Target(12, 0, "f"),)
    # What an operator can be called on are the images.
    assert lowered.targets_of("fp4_quantize") == (Target(9, 0, "a"),)


@pytest.mark.parametrize("key", ["name", "family", "architectures", "compiled_for", "functions"])
def test_a_module_that_lacks_something_is_refused(tmp_path: Path, key: str) -> None:
    rest = {name: value for name, value in DATA["modules"][0].items() if name != key}
    (tmp_path / "_manifest.json").write_text(json.dumps(DATA | {"modules": [rest]}))
    with pytest.raises(KeyError, match=key):
        read(tmp_path)


# The file


def test_everything_is_read(manifest: Manifest) -> None:
    assert (manifest.version, manifest.preset, manifest.plan_hash) == ("0.1.0", "quick", "ab" * 32)
    assert manifest.cuda_version == "13.0"
    assert manifest.library_name == "libfp4aot.so"
    assert manifest.library_size == 3_533_952
    assert manifest.library_sha256 == "cd" * 32
    first, second = manifest.modules
    assert first.functions == (("fp4_quantize", "fp4_quantize"), ("interleave_sm100", "interleave"))
    assert second.targets == (Target(9, 0, "a"), Target(12, 0, "f"))


def test_a_manifest_can_be_a_key_and_cannot_be_changed(manifest: Manifest) -> None:
    hash(manifest)
    with pytest.raises(AttributeError):
        manifest.version = "2"  # type: ignore[misc]


def test_images_of_an_operator(manifest: Manifest) -> None:
    assert manifest.targets_of("fp4_quantize") == (Target(12, 0, "f"),)
    assert manifest.targets_of("nvfp4_kv_dequantize") == (Target(9, 0, "a"), Target(12, 0, "f"))
    # FlashInfer's name of the function is not the operator's.
    assert manifest.targets_of("interleave_sm100") == ()
    assert manifest.targets_of("interleave") == (Target(12, 0, "f"),)


def test_images_of_several_modules_add_up(tmp_path: Path) -> None:
    second = DATA["modules"][0] | {"name": "fp4_quantization_100", "architectures": ["10.0a"]}
    (tmp_path / "_manifest.json").write_text(
        json.dumps(DATA | {"modules": [*DATA["modules"], second]})
    )
    found = read(tmp_path).targets_of("fp4_quantize")
    assert found == (Target(12, 0, "f"), Target(10, 0, "a"))


@pytest.mark.parametrize("key", DATA)
def test_a_manifest_that_lacks_something_is_refused(tmp_path: Path, key: str) -> None:
    rest = {name: value for name, value in DATA.items() if name != key}
    (tmp_path / "_manifest.json").write_text(json.dumps(rest))
    with pytest.raises(KeyError, match=key):
        read(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_cut_off_manifest_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "_manifest.json").write_text(json.dumps(DATA)[:length])
    with pytest.raises(ValueError, match=r"."):
        read(tmp_path)


def test_a_missing_manifest_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"_manifest\.json"):
        read(tmp_path)


def test_the_package_is_where_its_modules_are() -> None:
    assert Path(_manifest.__file__).parent == _manifest.PACKAGE
