"""Targets: parsing, order, devices, and what can be built with FP4."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.architectures import (
    FIRST_TOOLKIT,
    Architecture,
    check_fp4_buildable,
    fp4_rejection,
    parse_list,
    target_for,
)
from aot.errors import ArchitectureError, ToolchainError

SUFFIXED = ["9.0a", "10.0a", "10.3a", "11.0a", "12.0a", "12.0f", "12.1a"]


@pytest.mark.parametrize("text", [*SUFFIXED, "7.5", "8.0", "8.9", "12.0"])
def test_text_round_trips(text: str) -> None:
    assert str(Architecture.parse(text)) == text


@pytest.mark.parametrize("text", SUFFIXED)
def test_compiler_form_round_trips(text: str) -> None:
    architecture = Architecture.parse(text)
    for prefix in ("", "sm_", "compute_"):
        assert Architecture.from_sm(prefix + architecture.sm) == architecture


@given(
    st.builds(
        Architecture,
        st.integers(10, 99),
        st.integers(0, 9),
        st.sampled_from(["", "a", "f"]),
    )
)
def test_every_target_round_trips_in_both_forms(architecture: Architecture) -> None:
    assert Architecture.parse(str(architecture)) == architecture
    assert Architecture.from_sm(architecture.sm) == architecture


def test_flags() -> None:
    architecture = Architecture.parse("12.0f")
    assert architecture.sm == "120f"
    assert architecture.compute == "compute_120f"
    assert architecture.gencode == "-gencode=arch=compute_120f,code=sm_120f"


@pytest.mark.parametrize(
    "text", ["", "12", "120", "12.0b", "12.0af", "12.0 f", "12.00", "sm_120", "x.y", "1,2", "-1.0"]
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ArchitectureError, match="cannot read"):
        Architecture.parse(text)


@pytest.mark.parametrize("text", ["", "sm_", "sm_9", "sm_120x", "12.0f", "sm-120", "lto_120"])
def test_malformed_compiler_form_is_refused(text: str) -> None:
    with pytest.raises(ArchitectureError, match="cannot read"):
        Architecture.from_sm(text)


@pytest.mark.parametrize("text", ["8.0a", "8.9f", "9.0f"])
def test_a_suffix_that_cannot_exist_is_refused(text: str) -> None:
    with pytest.raises(ArchitectureError, match="no target"):
        Architecture.parse(text)


def test_order_is_by_number_not_by_text() -> None:
    texts = ["12.1a", "9.0a", "12.0f", "8.0", "10.3a", "12.0a", "12.0", "10.0a"]
    ordered = [str(one) for one in sorted(map(Architecture.parse, texts))]
    assert ordered == ["8.0", "9.0a", "10.0a", "10.3a", "12.0", "12.0a", "12.0f", "12.1a"]


@pytest.mark.parametrize(
    ("target", "runs", "refuses"),
    [
        ("9.0a", [(9, 0)], [(8, 9), (10, 0)]),
        ("10.0a", [(10, 0)], [(10, 3), (11, 0), (12, 0)]),
        ("12.0a", [(12, 0)], [(12, 1), (10, 0)]),
        ("12.0f", [(12, 0), (12, 1)], [(10, 0), (11, 0), (13, 0)]),
        ("12.1a", [(12, 1)], [(12, 0)]),
        ("12.1f", [(12, 1)], [(12, 0)]),
        ("8.0", [(8, 0), (8, 6), (8, 9)], [(9, 0), (7, 5)]),
        ("8.6", [(8, 6), (8, 9)], [(8, 0)]),
    ],
)
def test_which_image_runs_where(
    target: str, runs: list[tuple[int, int]], refuses: list[tuple[int, int]]
) -> None:
    architecture = Architecture.parse(target)
    assert all(architecture.runs_on(capability) for capability in runs)
    assert not any(architecture.runs_on(capability) for capability in refuses)


@pytest.mark.parametrize("text", ["9.0a 12.0f", "12.0f, 9.0a", "9.0a;12.0f;9.0a", " 9.0a\n12.0f "])
def test_lists_are_sorted_and_unique(text: str) -> None:
    assert [str(one) for one in parse_list(text)] == ["9.0a", "12.0f"]


@pytest.mark.parametrize("text", ["", "  ", ",;"])
def test_an_empty_list_is_nothing_to_build(text: str) -> None:
    with pytest.raises(ArchitectureError, match="nothing to build"):
        parse_list(text)
    with pytest.raises(ArchitectureError, match="nothing to build"):
        check_fp4_buildable([], "13.0")


# None: this compiler has no target for the device, and must say so.
@pytest.mark.parametrize(
    ("capability", "on_12_8", "on_12_9", "on_13"),
    [
        ((8, 0), "8.0", "8.0", "8.0"),
        ((9, 0), "9.0a", "9.0a", "9.0a"),
        ((10, 0), "10.0a", "10.0a", "10.0a"),
        ((10, 3), None, "10.3a", "10.3a"),
        ((11, 0), None, None, "11.0a"),
        ((12, 0), "12.0a", "12.0f", "12.0f"),
        ((12, 1), None, "12.0f", "12.0f"),
    ],
)
def test_target_of_a_device(
    capability: tuple[int, int], on_12_8: str | None, on_12_9: str | None, on_13: str | None
) -> None:
    expected_by_version = {
        "12.8": on_12_8,
        "12.8.93": on_12_8,
        "12.9": on_12_9,
        "12.10": on_12_9,
        "13.0": on_13,
        "13.5": on_13,
    }
    for version, expected in expected_by_version.items():
        if expected is None:
            with pytest.raises(ArchitectureError, match=f"CUDA {re.escape(version)}"):
                target_for(capability, version)
        else:
            target = target_for(capability, version)
            assert str(target) == expected
            assert target.runs_on(capability)


@pytest.mark.parametrize("version", ["12.9", "13.0"])
def test_12_1_gets_a_target_of_its_own_on_request(version: str) -> None:
    assert str(target_for((12, 1), version, own_target=True)) == "12.1a"
    with pytest.raises(ArchitectureError, match=re.escape("12.1a needs CUDA 12.9")):
        target_for((12, 1), "12.8", own_target=True)


@pytest.mark.parametrize("capability", [(10, 7), (12, 2), (13, 0)])
def test_an_unknown_device_is_refused(capability: tuple[int, int]) -> None:
    with pytest.raises(ArchitectureError, match="no FP4 target is known"):
        target_for(capability, "13.0")


@pytest.mark.parametrize("version", ["11.8", "12.4.131", "12.7"])
def test_a_toolkit_that_builds_fp4_out_is_refused_by_its_own_version(version: str) -> None:
    with pytest.raises(ToolchainError, match=re.escape(version)):
        check_fp4_buildable([Architecture.parse("10.0a")], version)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9.0a", "garbage"),
        ("8.0", "garbage"),
        ("10.0", "write 10.0a or 10.0f"),
        ("12.0", "write 12.0a or 12.0f"),
        ("13.0a", "not among"),
    ],
)
def test_targets_without_fp4_are_rejected_with_a_reason(text: str, reason: str) -> None:
    assert reason in str(fp4_rejection(Architecture.parse(text), "13.0"))


def test_the_error_prints_every_verdict() -> None:
    with pytest.raises(ArchitectureError) as caught:
        check_fp4_buildable(map(Architecture.parse, ["10.0a", "12.0", "12.0f"]), "12.8")
    message = str(caught.value)
    assert "10.0a: accepted" in message
    assert "12.0: cannot assemble" in message
    assert "12.0f: needs CUDA 12.9" in message


def test_everything_is_accepted_by_cuda_13() -> None:
    targets = [*map(Architecture.parse, FIRST_TOOLKIT)]
    check_fp4_buildable(targets, "13.0")
    assert all(fp4_rejection(target, "13.0") is None for target in targets)


@pytest.mark.parametrize("version", ["", "thirteen"])
def test_a_malformed_version_is_refused(version: str) -> None:
    with pytest.raises(ToolchainError, match="not a CUDA version"):
        target_for((10, 0), version)
