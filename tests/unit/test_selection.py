"""Which part of a module is built, by rules over what FlashInfer lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot import presets
from aot.errors import PlanError
from aot.selection import OWN_SOURCES, Selection

SELECTION = Selection(
    sources=("runner_fp4.cu", "*.cpp"),
    containing={"launcher_*.generated.cu": "FP4, FP4"},
    replaced={"binding.cu": "ours.cu"},
)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """What FlashInfer lists: launchers are named alike and say inside what they are for."""
    texts = {
        "runner_fp4.cu": "",
        "runner_fp8.cu": "FP4, FP4",
        "logger.cpp": "",
        "launcher_0.generated.cu": "LAUNCH(FP4, FP4, half)",
        "launcher_1.generated.cu": "LAUNCH(FP8, FP4, half)",
        "binding.cu": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in texts]


def test_takes_names_and_texts_that_fit(sources: list[Path]) -> None:
    chosen = SELECTION.choose("moe", sources)
    kept = {source.name for source, like in chosen.items() if source == like}
    assert kept == {"runner_fp4.cu", "logger.cpp", "launcher_0.generated.cu"}


def test_a_source_of_ours_gets_the_flags_of_what_it_replaces(sources: list[Path]) -> None:
    chosen = SELECTION.choose("moe", sources)
    assert chosen[OWN_SOURCES / "ours.cu"].name == "binding.cu"
    assert "binding.cu" not in {source.name for source in chosen}


@pytest.mark.parametrize(
    ("gone", "rule"),
    [
        ("runner_fp4.cu", "runner_fp4.cu"),
        ("logger.cpp", "*.cpp"),
        ("launcher_0.generated.cu", "launcher_*.generated.cu"),
        ("binding.cu", "binding.cu"),
    ],
)
def test_a_rule_that_fits_nothing_is_named(sources: list[Path], gone: str, rule: str) -> None:
    left = [source for source in sources if source.name != gone]
    with pytest.raises(PlanError) as error:
        SELECTION.choose("moe", left)
    assert f"moe: no source of FlashInfer's fits '{rule}' any more" in str(error.value)


def test_launchers_that_no_longer_name_their_dtypes_are_noticed(sources: list[Path]) -> None:
    for source in sources:
        source.write_text("nothing")
    with pytest.raises(PlanError, match="launcher_"):
        SELECTION.choose("moe", sources)


def test_every_source_of_ours_in_the_catalogue_is_there() -> None:
    selections = [
        module.selection
        for preset in presets.PRESETS.values()
        for module in preset.modules
        if module.selection
    ]
    named = {ours for selection in selections for ours in selection.replaced.values()}
    assert {path.name for path in OWN_SOURCES.iterdir()} == named
