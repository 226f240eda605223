"""The table of what is verified where says no more than README and the reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _site.evidence import compiled_for, facts, markdown, operators, passed_on_gpu

from aot import presets

ROOT = Path(__file__).resolve().parents[2]
FACTS = facts()
ROWS = {
    line.split("|")[1].strip(" `"): [cell.strip() for cell in line.split("|")[2:-1]]
    for line in markdown([]).text.splitlines()[2:]
}


def test_every_operator_has_a_row():
    assert list(ROWS) == list(operators())
    assert len(ROWS) == len(
        {
            function.operator
            for preset in presets.PRESETS.values()
            for module in preset.modules
            for function in module.functions
            if function.operator and not function.operator.startswith("_")
        }
        | {"scaled_fp4_grouped_quantize"}
        | set(FACTS.plain_torch)
    )


def test_nothing_is_said_to_have_run_on_a_blackwell():
    assert {cells[3] for cells in ROWS.values()} == {"not yet", "—"}


def not_built(readme: str) -> set[str]:
    """The presets that README says are not built yet."""
    text = re.sub(r"\s+", " ", readme)
    lists = re.findall(r"not built yet: ((?:`[^`]+`(?:, | and )?)+)", text)
    names = {name for found in lists for name in re.findall(r"`([^`]+)`", found)}
    return names | set(re.findall(r"`([^`]+)` \((?:planned, )?not built yet", text))


@pytest.mark.parametrize("preset", FACTS.built_presets)
def test_a_built_preset_exists_and_readme_does_not_say_otherwise(preset):
    assert preset in presets.PRESETS
    assert not presets.PRESETS[preset].lowered
    assert preset not in not_built((ROOT / "README.md").read_text())


def test_what_readme_calls_not_built_is_found():
    text = (
        "`quick` (this), `a-12.1a` (planned, not\n  built yet: 12.0f serves 12.1), `b`.\n"
        "Planned and not built yet: `c-12.1a`,\n`d` and `e`; so no `f`. On `g`."
    )
    assert not_built(text) == {"a-12.1a", "c-12.1a", "d", "e"}


def test_the_numbers_are_those_of_the_report():
    passed = passed_on_gpu(FACTS.gpu_reports)
    for name, cells in ROWS.items():
        (count,) = re.findall(r"(\d+) tests passed", cells[2]) or ["0"]
        assert int(count) == (0 if name in FACTS.host else passed.get(name, 0))


def test_targets_come_from_the_catalogue():
    assert compiled_for("mm_fp4", ["dense-12.0f"]) == ("12.0f",)
    assert compiled_for("mm_fp4", ["quick"]) == ()
    assert compiled_for("nvfp4_kv_dequantize", ["quick"]) == ("9.0a", "12.0f")
    assert compiled_for("fp4_quantize", ["dense"]) == ("10.0a", "10.3a", "11.0a", "12.0f")
