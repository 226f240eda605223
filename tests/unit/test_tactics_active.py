"""What is in force: loading, at import and by a call."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_tactics_table import (
    WHEEL,
    make_entry,
    make_imported,
    make_moe_entry,
    make_section,
    make_table,
)

from fp4aot import tactics
from fp4aot._manifest import Manifest
from fp4aot._tactics import active, at_import, file, in_force, wheel
from fp4aot._tactics.entries import Choice
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.table import Table

ROOT = Path(__file__).resolve().parents[2]


class Operator:
    """Stands in for `_set_mm_fp4_tactics` and `_set_cutlass_fused_moe_tactics`."""

    def __init__(self) -> None:
        self.tables: list[torch.Tensor] = []
        self.moe_tables: list[torch.Tensor] = []

    def __call__(self, table: torch.Tensor, moe_table: torch.Tensor) -> None:
        for given, columns in ((table, 7), (moe_table, 12)):
            assert given.dtype == torch.int64
            assert given.device.type == "cpu"
            assert given.dim() == 2
            assert given.shape[1] == columns
        self.tables.append(table)
        self.moe_tables.append(moe_table)

    @property
    def rows(self) -> list[list[int]]:
        return self.tables[-1].tolist()

    @property
    def moe_rows(self) -> list[list[int]]:
        return self.moe_tables[-1].tolist()


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    monkeypatch.setattr(active, "_state", active._State())
    return Operator()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


# By a call


def test_a_file_becomes_the_operators_rows(operator: Operator, path: Path) -> None:
    half = replace(make_entry(1, 7), out_dtype="float16")
    sections = (
        make_section(make_entry(33, 5), make_entry(1, -1), half),
        make_section(make_entry(1, 2), capability=(12, 1), device="NVIDIA GB10"),
    )
    file.write(Table(sections), path)
    summary = active.load(path, WHEEL, operator)
    assert operator.rows == [
        [10, 0, 0, 4096, 2048, 1, -1],
        [10, 0, 0, 4096, 2048, 33, 5],
        [10, 0, 1, 4096, 2048, 1, 7],
        [12, 1, 0, 4096, 2048, 1, 2],
    ]
    assert (summary.entries, summary.warnings) == (4, ())
    assert summary.devices == ("NVIDIA B200 (10.0)", "NVIDIA GB10 (12.1)")
    assert str(summary) == (
        f"{path}: 4 entries in force, for NVIDIA B200 (10.0), NVIDIA GB10 (12.1)"
    )
    assert active.table().choices()[1] == Choice(10, 0, "bfloat16", 4096, 2048, 33, 5)


def test_mixtures_become_rows_of_their_own(operator: Operator, path: Path) -> None:
    other = make_moe_entry(1, -1, 31, output_dtype="float16", quantized_input=True)
    separate = make_moe_entry(1, 4, 15, use_fused_finalize=False, gemm2_count=16)
    file.write(make_table(make_entry(), moe_entries=(other, make_moe_entry(), separate)), path)
    assert active.load(path, WHEEL, operator).entries == 4
    assert len(operator.rows) == 1
    assert operator.moe_rows == [
        [10, 0, 0, 0, 0, 6144, 2048, 32, 8, 1, 4, 15],
        [10, 0, 0, 0, 1, 6144, 2048, 32, 8, 33, 5, 17],
        [10, 0, 1, 1, 1, 6144, 2048, 32, 8, 1, -1, 31],
    ]
    active.load(make_table(make_entry()), WHEEL, operator)
    assert operator.moe_tables[-1].shape == (0, 12)


def test_loading_replaces_and_adding_merges(operator: Operator) -> None:
    active.load(make_table(make_entry(1, 1)), WHEEL, operator)
    active.load(make_table(make_entry(2, 2)), WHEEL, operator)
    assert [row[5:] for row in operator.rows] == [[2, 2]]
    summary = active.load(make_table(make_entry(1, 3)), WHEEL, operator, add=True)
    assert [row[5:] for row in operator.rows] == [[1, 3], [2, 2]]
    assert summary.entries == 2


def test_clearing(operator: Operator) -> None:
    active.load(make_table(make_entry()), WHEEL, operator)
    active.clear(operator)
    assert operator.tables[-1].shape == (0, 7)
    assert active.table() == Table()
    active.load(make_table(make_entry(1)), WHEEL, operator, add=True)
    assert len(operator.rows) == 1


@pytest.mark.parametrize(
    "table",
    [
        make_table(make_entry(), plan_hash="cd" * 32),
        make_table(make_entry(tactic=32)),
        make_table(make_entry(m=0)),
        make_table(make_entry(), capability=(9, 0)),
    ],
)
def test_what_is_refused_changes_nothing(table: Table, operator: Operator) -> None:
    active.load(make_table(make_entry(1, 1)), WHEEL, operator)
    with pytest.raises(TacticsError, match="the given table: field 'sections"):
        active.load(table, WHEEL, operator, add=True)
    assert len(operator.tables) == 1
    assert [choice.m for choice in active.table().choices()] == [1]


def test_an_operator_that_refuses_leaves_the_list_as_it_was(operator: Operator) -> None:
    active.load(make_table(make_entry(1, 1)), WHEEL, operator)

    def refuse(*_: torch.Tensor) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        active.load(make_table(make_entry(2, 2)), WHEEL, refuse)
    assert [choice.m for choice in active.table().choices()] == [1]


def test_warnings_are_issued_and_returned(operator: Operator) -> None:
    table = make_table(make_entry(), driver="570.1")
    with pytest.warns(UserWarning, match=r"driver 570\.1 and this machine has 580\.95\.05"):
        summary = active.load(table, WHEEL, operator)
    assert len(summary.warnings) == 1
    two = Table((make_section(make_entry()), make_section(make_entry(1), device="NVIDIA GB200")))
    with pytest.warns(UserWarning, match=r"NVIDIA B200 and NVIDIA GB200"):
        active.load(two, WHEEL, operator)


def test_a_default_device_is_not_touched(operator: Operator) -> None:
    with torch.device("meta"):
        active.load(make_table(make_entry()), WHEEL, operator)
        active.clear(operator)


# At import


def test_nothing_is_loaded_at_import_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert not at_import.is_asked_for(tmp_path, {})
    assert not at_import.is_asked_for(tmp_path, {"FP4AOT_TACTICS": ""})
    assert at_import.is_asked_for(tmp_path, {"FP4AOT_TACTICS": "table.json"})
    (tmp_path / "tactics.json").touch()
    assert at_import.is_asked_for(tmp_path, {})


def load_at_import(operator: Operator, package: Path, environment: dict[str, str]) -> None:
    active.load_at_import(lambda: WHEEL, operator, package, environment)


def test_nothing_asked_nothing_done(operator: Operator, tmp_path: Path) -> None:
    def unexpected(*_: torch.Tensor) -> None:
        raise AssertionError("the wheel has no GEMM, perhaps: its operators must not be touched")

    for environment in ({}, {"FP4AOT_TACTICS": ""}):
        active._state.import_done = False
        active.load_at_import(unexpected, unexpected, tmp_path, environment)
    assert operator.tables == []


def test_the_variable_names_the_table(operator: Operator, path: Path, tmp_path: Path) -> None:
    file.write(make_table(make_entry(1, 1)), path)
    load_at_import(operator, tmp_path, {"FP4AOT_TACTICS": str(path)})
    assert [row[5:] for row in operator.rows] == [[1, 1]]


def test_a_table_in_the_package_is_used_unless_another_is_named(
    operator: Operator, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    file.write(make_table(make_entry(1, 1)), package / "tactics.json")
    file.write(make_table(make_entry(2, 2)), path)
    load_at_import(operator, package, {})
    assert [row[5:] for row in operator.rows] == [[1, 1]]
    monkeypatch.setattr(active, "_state", active._State())
    load_at_import(operator, package, {"FP4AOT_TACTICS": str(path)})
    assert [row[5:] for row in operator.rows] == [[2, 2]]


def test_no_other_place_is_read(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("tactics.json", "fp4aot-tactics.json"):
        file.write(make_table(make_entry()), tmp_path / name)
    package = tmp_path / "package"
    package.mkdir()
    load_at_import(operator, package, {})
    assert operator.tables == []


def test_a_reload_keeps_what_was_loaded_since(
    operator: Operator, path: Path, tmp_path: Path
) -> None:
    file.write(make_table(make_entry(1, 1)), path)
    environment = {"FP4AOT_TACTICS": str(path)}
    load_at_import(operator, tmp_path, environment)
    active.load(make_table(make_entry(2, 2)), WHEEL, operator)
    load_at_import(operator, tmp_path, environment)
    assert [row[5:] for row in operator.rows] == [[2, 2]]


@pytest.mark.parametrize("content", [None, "{", "other wheel"])
def test_a_named_table_that_cannot_be_used_stops_the_import(
    content: str | None, operator: Operator, path: Path, tmp_path: Path
) -> None:
    if content == "other wheel":
        file.write(make_table(make_entry(), plan_hash="cd" * 32), path)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(ImportError) as caught:
        load_at_import(operator, tmp_path, {"FP4AOT_TACTICS": str(path)})
    message = str(caught.value)
    for part in (str(path), "FP4AOT_TACTICS", "unset the variable", "default tactics are used"):
        assert part in message
    # Corrected, the next attempt succeeds.
    file.write(make_table(make_entry()), path)
    load_at_import(operator, tmp_path, {"FP4AOT_TACTICS": str(path)})
    assert len(operator.rows) == 1


def test_a_damaged_table_in_the_package_stops_the_import(
    operator: Operator, tmp_path: Path
) -> None:
    (tmp_path / "tactics.json").write_text("{")
    with pytest.raises(ImportError, match="fp4aot is damaged: pip install --force-reinstall"):
        load_at_import(operator, tmp_path, {})


# The public functions


@pytest.fixture
def public(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setattr(wheel, "this_wheel", lambda _=None: WHEEL)
    monkeypatch.setattr(tactics, "_set_tables", operator)
    return operator


def test_load_active_clear(public: Operator, path: Path) -> None:
    assert tactics.active() == []
    file.write(make_table(make_entry()), path)
    assert tactics.load(path).entries == 1
    assert tactics.load(str(path), add=True).entries == 1
    assert tactics.active() == [Choice(10, 0, "bfloat16", 4096, 2048, 33, 5)]
    assert tactics.active_moe() == []
    tactics.load(make_table(moe_entries=(make_moe_entry(),)), add=True)
    assert [choice.gemm2_tactic for choice in tactics.active_moe()] == [17]
    assert len(tactics.active()) == 1
    tactics.clear()
    assert tactics.active() == []
    assert tactics.active_moe() == []
    assert public.rows == public.moe_rows == []


# What FlashInfer's autotuner found


def test_tuned_rows_are_in_force_beside_the_loaded_table(public: Operator) -> None:
    other = replace(make_imported(1, 9), n=512)
    tuned = make_table(make_imported(1, 7), make_imported(33, 8), other)
    line = active.set_tuned(tuned, public)
    assert line == "3 rows for 2 shapes from FlashInfer's autotuner are in force"
    assert [choice.tactic for choice in tactics.active()] == [9, 7, 8]
    # The user's rows win, for the whole shape: rows of two tables would not fit together.
    tactics.load(make_table(make_entry(17, 5)))
    assert [(choice.m, choice.tactic) for choice in tactics.active()] == [(1, 9), (17, 5)]
    assert [row[5:] for row in public.rows] == [[1, 9], [17, 5]]
    tactics.clear()
    assert tactics.active() == []
    tactics.load(make_table(make_entry(17, 5)))
    line = active.set_tuned(tuned, public)
    assert line.endswith("; 1 of them keep the rows of the loaded table")
    assert active.set_tuned(Table(), public) != ""
    assert [choice.tactic for choice in tactics.active()] == [5]


def test_the_same_again_changes_nothing(public: Operator) -> None:
    tuned = make_table(make_imported(1, 7), moe_entries=(make_moe_entry(),))
    assert active.set_tuned(tuned, public)
    given = len(public.tables)
    assert active.set_tuned(replace(tuned), public) == ""
    assert len(public.tables) == given


def test_what_operators_refuse_leaves_the_tables_as_they_were(public: Operator) -> None:
    active.set_tuned(make_table(make_imported(1, 7)), public)

    def refuse(*tables: torch.Tensor) -> None:
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        active.set_tuned(make_table(make_imported(1, 8)), refuse)
    assert [choice.tactic for choice in tactics.active()] == [7]


def test_what_is_in_force_is_described(public: Operator, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    (line,) = in_force.read(environment).lines()
    assert "no table is loaded" in line
    assert "FP4AOT_TACTICS" in line
    tactics.load(make_table(make_entry(1), make_entry(17)))
    folder = tmp_path / "sglang/flashinfer/autotune/0.7.2/sm120/0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "rank_tp0_pp0_dp0.json").write_text("{}")
    other = tmp_path / "elsewhere/flashinfer_autotune_cache/0.7.2/120f/abcdef"
    other.mkdir(parents=True)
    (other / "autotune_configs.json").write_text("{}")
    environment["VLLM_CACHE_ROOT"] = str(tmp_path / "elsewhere")
    loaded, vllm, sglang = in_force.read(environment).lines()
    assert "2 rows for 1 shapes on NVIDIA B200 (10.0), from tune" in loaded
    assert vllm.endswith("autotune_configs.json")
    assert sglang.endswith("rank_tp0_pp0_dp0.json")


def test_merge_returns_a_table_to_load(public: Operator, tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for m, path in enumerate(paths, start=1):
        file.write(make_table(make_entry(m, m)), path)
    table = tactics.merge(paths)
    assert public.tables == []
    tactics.load(table)
    assert [row[5:] for row in public.rows] == [[1, 1], [2, 2]]
    file.write(make_table(make_entry(), plan_hash="cd" * 32), paths[1])
    with pytest.raises(TacticsError, match=r"b\.json.*plan_hash"):
        tactics.merge(paths)


def test_the_import_hook_asks_for_this_wheel(
    public: Operator, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(make_table(make_entry()), path)
    manifest = Manifest("0.1.0", "dense", "ab" * 32, (), "", (), "", 0, "")
    monkeypatch.setenv("FP4AOT_TACTICS", str(path))
    tactics._load_at_import(manifest, tmp_path)
    assert len(public.rows) == 1


def test_every_public_name_is_there() -> None:
    assert all(hasattr(tactics, name) for name in tactics.__all__)


PROGRAM = """
import sys, types
package = types.ModuleType("fp4aot")
package.__path__ = [sys.argv[1]]
sys.modules["fp4aot"] = package
import torch
library = torch.library.Library("fp4aot", "DEF")
library.define("_mm_fp4_tactic_count(int major, int minor) -> int")
library.define("_set_mm_fp4_tactics(Tensor table) -> ()")
library.define("_set_cutlass_fused_moe_tactics(Tensor table) -> ()")
library.define("_has_kernel(str function, int major, int minor) -> bool")
everywhere = "CompositeExplicitAutograd"
library.impl("_mm_fp4_tactic_count", lambda major, minor: 32, everywhere)
library.impl("_has_kernel", lambda function, *_: function == "nvfp4_moe", everywhere)
for setter in ("_set_mm_fp4_tactics", "_set_cutlass_fused_moe_tactics"):
    library.impl(setter, lambda table: print(table.tolist()), "CPU")
from fp4aot import _manifest, tactics
from pathlib import Path
before = set(sys.modules)
manifest = _manifest.Manifest(
    "0.1.0", "dense", "ab" * 32, (("cuda", "13.0"), ("flashinfer", "0.7.2")), "", (), "", 0, "")
tactics._load_at_import(manifest, Path(sys.argv[2]))
print(len(tactics.active()), torch.cuda.is_initialized())
print([name for name in sys.modules if name.startswith("fp4aot._tactics.")])
"""


def test_loading_at_import_touches_no_gpu_and_imports_no_command(tmp_path: Path) -> None:
    """Through real operators, in a process of its own."""
    path = tmp_path / "table.json"
    file.write(make_table(make_entry(), moe_entries=(make_moe_entry(),), driver=None), path)
    package = str(ROOT / "wheels" / "fp4aot")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, package, str(tmp_path)],
        env={"FP4AOT_TACTICS": str(path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows, moe_rows, state, modules = done.stdout.splitlines()
    assert rows == "[[10, 0, 0, 4096, 2048, 33, 5]]"
    assert moe_rows == "[[10, 0, 0, 0, 1, 6144, 2048, 32, 8, 33, 5, 17]]"
    assert state == "1 False"
    for name in ("tune", "commands", "trials", "machine", "shapes", "flashinfer_cache"):
        assert f"fp4aot._tactics.{name}" not in modules


def test_nothing_is_warned_of_when_all_is_well(operator: Operator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        active.load(make_table(make_entry()), WHEEL, operator)
