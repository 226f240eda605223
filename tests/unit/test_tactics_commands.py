"""`python -m fp4aot tune` and `tactics`: what they print, write, and return."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_tactics_active import Operator
from test_tactics_flashinfer_cache import CUTLASS, make_cache, make_key
from test_tactics_measure import FakeDevice, fail, nothing
from test_tactics_shapes import LLAMA_3_8B
from test_tactics_table import WHEEL, make_entry, make_section, make_table

from fp4aot import __main__ as program
from fp4aot._gpus import Gpu
from fp4aot._tactics import active, commands, file, machine, trials, tune
from fp4aot._tactics.machine import Machine
from fp4aot._tactics.table import Table

B200 = Gpu(0, "NVIDIA B200", (10, 0))
H200 = Gpu(1, "NVIDIA H200", (9, 0))
RTX = Gpu(2, "NVIDIA GeForce RTX 5090", (12, 0))
SMALL = replace(
    WHEEL,
    tactic_count=lambda major, _: {10: 3, 12: 2}.get(major, 0),
    has_moe=lambda major, _: major == 10,
)


@dataclass
class Setup:
    """A fake machine, and how to run the program on it."""

    machine: Machine
    device: FakeDevice
    operator: Operator
    run: Callable[..., int]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Setup]:
    monkeypatch.setattr(active, "_state", active._State())
    monkeypatch.chdir(tmp_path)
    device = FakeDevice({-1: 20.0, 0: 22.0, 1: 10.0, 2: 15.0})
    operator = Operator()
    prepared: list[Gpu] = []
    fake = Machine(
        gpus=(B200, H200, RTX),
        wheel=SMALL,
        carried=("10.0a", "12.0f"),
        set_tables=operator,
        make_bench=lambda gpu: prepared.append(gpu) or device.bench(),  # type: ignore[func-returns-value]
        moe_tactic_count=lambda _, product, fused: 2 if product == 1 else 3 if fused else 1,
    )
    found = Setup(fake, device, operator, lambda *arguments: program.main(list(arguments)))
    for function in (tune.run, commands.import_cache):
        module = tune if function is tune.run else commands
        wrapped = partial(function, make_machine=lambda: found.machine)
        monkeypatch.setattr(module, function.__name__, wrapped)
    for name in ("show", "check", "merge_files"):
        wrapped = partial(getattr(commands, name), make_wheel=lambda: found.machine.wheel)
        monkeypatch.setattr(commands, name, wrapped)
    yield found
    assert not torch.cuda.is_initialized()


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    (tmp_path / "shapes.txt").write_text("64x128\n32 64\n")
    return "shapes.txt"


# tune


def test_tune_writes_and_prints_a_table(
    setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "60", "64", "300") == 0
    table, notes = file.read("fp4aot-tactics.json", SMALL)
    assert notes == []
    (section,) = table.sections
    assert (section.device, section.capability, section.origin) == ("NVIDIA B200", (10, 0), "tune")
    assert (section.driver, section.cuda_runtime) == ("580.95.05", "13.0")
    rows = [(e.n, e.k, e.m, e.measured_m, e.tactic) for e in section.entries]
    assert rows == [
        *((32, 64, 1, 1, 1), (32, 64, 33, 64, 1), (32, 64, 257, 512, 1)),
        *((64, 128, 1, 1, 1), (64, 128, 33, 64, 1), (64, 128, 257, 512, 1)),
    ]
    assert {e.out_dtype for e in section.entries} == {"bfloat16"}
    assert {(e.microseconds, e.default_microseconds) for e in section.entries} == {(10.0, 20.0)}
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    head = "NxK M dtype default us best us ratio tactic layers"
    assert lines[0].split() == head.split()
    assert lines[3].split() == ["64x128", "33-64", "bfloat16", "20.0", "10.0", "2.00", "1"]
    assert "6 entries for cuda:0 (NVIDIA B200, compute capability 10.0)" in printed.out
    assert "FP4AOT_TACTICS=fp4aot-tactics.json" in printed.out
    assert "[6/6] 32x64 M=512 bfloat16  about 0:00 left" in printed.err
    assert "6 cases on cuda:0" in printed.err


def test_tune_prints_json_and_nothing_else(
    setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.device.faults[2] = nothing
    command = ("tune", "--shapes", shapes, "--m", "8", "--out", "table.json", "--json")
    assert setup.run(*command) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is True
    assert (data["device"], data["compute_capability"]) == ("NVIDIA B200", "10.0")
    first = data["measurements"][0]
    assert (first["n"], first["m"], first["tactic"]) == (64, 5, 1)
    assert first["all_microseconds"] == {"-1": 20.0, "0": 22.0, "1": 10.0}
    assert "results differ" in first["excluded"]["2"]
    assert data["out"] == "table.json"


def test_tune_says_which_tactics_it_excluded(
    setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.device.faults[0] = fail("shared memory is too small")
    setup.device.faults[2] = nothing
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "2") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "excluded" in line]
    assert lines == [
        "excluded: tactic 0 in 4 of 4 cases, 64x128 M=1 bfloat16: shared memory is too small",
        "excluded: tactic 2 in 4 of 4 cases, 64x128 M=1 bfloat16: 64 of 64 results differ from the "
        "default tactic's, by up to inf",
    ]


def test_tune_covers_every_bucket_and_dtype(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ROUNDS", 1)
    monkeypatch.setattr(trials, "REPETITIONS", 1)
    (tmp_path / "one.json").write_text("[[32, 32]]")
    assert setup.run("tune", "--shapes", "one.json", "--dtype", "float16", "bfloat16") == 0
    table, _ = file.read("fp4aot-tactics.json", SMALL)
    starts = {c.m for c in table.choices()}
    assert starts == {
        *(1, 2, 3, 5, 9, 17, 33, 65, 129),
        *range(257, 2048, 256),
        *range(2049, 4096, 512),
        4097,
    }
    assert len(table) == 2 * len(starts)


def test_tune_takes_a_model(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LLAMA_3_8B | {"hidden_size": 128, "intermediate_size": 80, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert setup.run("tune", "--shapes", ".", "--tp", "2", "--m", "1") == 0
    printed = capsys.readouterr()
    assert "qkv_proj" in printed.out
    skipped = "skipped 40x128 (gate_proj, up_proj): N and K must be divisible by 32"
    assert skipped in printed.err
    assert "skipped:  128x40 (down_proj)" in printed.out
    table, _ = file.read("fp4aot-tactics.json", SMALL)
    assert {(c.n, c.k) for c in table.choices()} == {
        *((768, 128), (512, 128), (128, 128), (128, 512)),
    }


def test_tune_excludes_what_it_is_told(setup: Setup, shapes: str) -> None:
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "--exclude", "1", "0") == 0
    assert {c.tactic for c in file.read("fp4aot-tactics.json", SMALL)[0].choices()} == {2}
    assert {0, 1}.isdisjoint(setup.device.calls)


def test_tune_takes_the_table_in_force_away(setup: Setup, shapes: str) -> None:
    """With it, tactic -1 would be the table's choice."""
    active.load(make_table(make_entry(tactic=1)), SMALL, setup.operator)
    seen = []
    call = setup.device.call
    setup.machine = replace(
        setup.machine,
        make_bench=lambda _: replace(
            setup.device.bench(),
            call=lambda *arguments, **options: (
                seen.append(len(setup.operator.rows)),
                call(*arguments, **options),
            ),
        ),
    )
    assert setup.run("tune", "--shapes", shapes, "--m", "1") == 0
    assert set(seen) == {0}


def test_tune_adds_to_a_table(setup: Setup, shapes: str) -> None:
    sections = (
        make_section(replace(make_entry(1, 0), n=64, k=128), make_entry(33, 2)),
        make_section(make_entry(1, 1), device=RTX.name, capability=RTX.capability),
    )
    file.write(Table(sections), "table.json")
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "--out", "table.json") == 0
    choices = file.read("table.json", SMALL)[0].choices()
    assert [(c.major, c.n, c.k, c.m, c.tactic) for c in choices] == [
        *((10, 32, 64, 1, 1), (10, 64, 128, 1, 1), (10, 4096, 2048, 33, 2), (12, 4096, 2048, 1, 1)),
    ]


def test_tune_reports_what_could_not_be_measured(
    setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def large(right: torch.Tensor) -> torch.Tensor:
        if right.shape == (2, 64):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right

    setup.device.faults[-1] = large
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "2", "4") == 1
    printed = capsys.readouterr()
    assert "FAILED:   64x128 M=2 bfloat16: CUDA out of memory" in printed.out
    assert len(file.read("fp4aot-tactics.json", SMALL)[0]) == 5


@pytest.mark.parametrize("what", ["crash", "interrupt"])
def test_what_was_measured_before_the_end_is_kept(
    what: str, setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(right: torch.Tensor) -> torch.Tensor:
        if right.shape != (2, 64):
            return right
        if what == "interrupt":
            raise KeyboardInterrupt
        setup.device.lost = True
        raise RuntimeError("an illegal memory access was encountered")

    setup.device.faults[2] = end
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "2", "4") == 1
    assert [c.m for c in file.read("fp4aot-tactics.json", SMALL)[0].choices()] == [1]
    out = capsys.readouterr().out
    assert "STOPPED:" in out
    assert ("--exclude 2" in out) == (what == "crash")


def test_nothing_measured_nothing_written(
    setup: Setup, shapes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.device.faults[-1] = fail("no")
    assert setup.run("tune", "--shapes", shapes, "--m", "1") == 1
    assert "no table was written" in capsys.readouterr().out
    assert not (tmp_path / "fp4aot-tactics.json").exists()


# tune, refused before anything is measured


def refused(setup: Setup, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert setup.run(*arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert setup.device.calls == []
    last = printed.err.splitlines()[-1]
    assert last.startswith("error: fp4aot.tactics: ")
    return last


def test_no_gpu_is_said_before_anything_else(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.machine = replace(setup.machine, gpus=())
    message = refused(setup, capsys, "tune", "--shapes", "nowhere")
    assert "PyTorch sees no GPU on this machine" in message


def test_a_gpu_without_a_gemm_is_said_before_anything_else(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(setup, capsys, "tune", "--shapes", "nowhere", "--device", "cuda:1")
    assert "no FP4 GEMM for cuda:1 (NVIDIA H200, compute capability 9.0)" in message
    assert "it has them for 10.0a, 12.0f" in message
    setup.machine = replace(setup.machine, carried=())
    message = refused(setup, capsys, "tune", "--shapes", "nowhere", "--device", "cuda:1")
    assert "no architecture at all" in message


@pytest.mark.parametrize("device", ["cuda:3", "cpu", "cuda:x", "cuda:-1", "0", "cuda:00"])
def test_no_such_device(device: str, setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(setup, capsys, "tune", "--shapes", "nowhere", "--device", device)
    assert f"got '{device}', expected one of cuda:0 (NVIDIA B200" in message


def test_the_device_is_chosen(setup: Setup, shapes: str) -> None:
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "--device", "cuda:2") == 0
    (section,) = file.read("fp4aot-tactics.json", SMALL)[0].sections
    assert (section.device, section.capability) == (RTX.name, (12, 0))
    assert 2 not in setup.device.calls
    assert setup.run("tune", "--shapes", shapes, "--m", "1", "--device", "cuda") == 0


def test_a_table_that_does_not_fit_is_not_added_to(
    setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write(make_table(make_entry(), plan_hash="cd" * 32), "table.json")
    message = refused(setup, capsys, "tune", "--shapes", shapes, "--out", "table.json")
    assert "plan_hash" in message
    assert "choose another --out" in message


def test_no_folder_for_the_table(
    setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(setup, capsys, "tune", "--shapes", shapes, "--out", "no/table.json")
    assert "there is no such folder" in message


def test_no_shape_that_fits(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shapes.txt").write_text("48 64")
    assert "no shape is left to tune" in refused(setup, capsys, "tune", "--shapes", "shapes.txt")


@pytest.mark.parametrize(
    "arguments",
    [
        ("tune",),
        ("tune", "--shapes", "a", "--m", "0"),
        ("tune", "--shapes", "a", "--m", "²"),
        ("tune", "--shapes", "a", "--tp", "x"),
        ("tune", "--shapes", "a", "--dtype", "float32"),
        ("tactics",),
        ("tactics", "check"),
        ("tactics", "merge", "a"),
        ("tactics", "import", "a", "--out", "b", "--capability", "120"),
        ("tactics", "import", "a", "--out", "b", "--rounding", "nearest"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], setup: Setup) -> None:
    with pytest.raises(SystemExit) as left:
        setup.run(*arguments)
    assert left.value.code == 2


# tactics


def output(setup: Setup, capsys: pytest.CaptureFixture[str], *arguments: str, rc: int = 0) -> Any:
    assert setup.run("tactics", *arguments) == rc
    return capsys.readouterr().out


@pytest.fixture
def tables(setup: Setup) -> tuple[str, str]:
    file.write(make_table(make_entry(1, -1), make_entry(2, 0), make_entry(33, 2)), "a.json")
    rtx = make_section(make_entry(1, 1), device=RTX.name, capability=RTX.capability)
    file.write(Table((rtx,)), "b.json")
    return "a.json", "b.json"


def test_show(setup: Setup, tables: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(setup, capsys, "show", "a.json").splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["10.0", "bfloat16", "4096x2048", "1", "default"],
        ["10.0", "bfloat16", "4096x2048", "2-32", "0"],
        ["10.0", "bfloat16", "4096x2048", "33-", "2"],
    ]
    assert lines[-1] == "a.json: 3 entries"
    data = json.loads(output(setup, capsys, "show", "a.json", "--json"))
    assert data == file.read("a.json", SMALL)[0].to_json()


def test_show_what_is_in_force(
    setup: Setup, tables: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(setup, capsys, "show") == ("in force: no entries: FlashInfer's default is used\n")
    active.load("b.json", SMALL, setup.operator)
    assert "12.0        bfloat16  4096x2048  1-       1" in output(setup, capsys, "show")


def test_check(setup: Setup, tables: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert output(setup, capsys, "check", *tables).splitlines() == [
        "a.json: 3 entries, for NVIDIA B200 (10.0)",
        "b.json: 1 entries, for NVIDIA GeForce RTX 5090 (12.0)",
    ]
    file.write(make_table(make_entry(tactic=9), driver="1.0"), "c.json")
    text = output(setup, capsys, "check", "a.json", "c.json", "none.json", rc=1)
    assert "got 9, expected -1 to 2" in text
    assert "none.json: cannot be read" in text
    data = json.loads(output(setup, capsys, "check", "c.json", "a.json", "--json", rc=1))
    assert [item["fits"] for item in data] == [False, True]
    assert "got 9" in data[0]["error"]


def test_merge(setup: Setup, tables: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    text = output(setup, capsys, "merge", *tables, "--out", "fleet.json")
    assert text == (
        "fleet.json: 4 entries, for NVIDIA B200 (10.0), NVIDIA GeForce RTX 5090 (12.0)\n"
    )
    assert len(file.read("fleet.json", SMALL)[0]) == 4
    file.write(make_table(make_entry(1, 1), device="NVIDIA GB200", driver="1.0"), "c.json")
    text = output(setup, capsys, "merge", "a.json", "c.json", "--out", "fleet.json")
    assert "note: compute capability 10.0 has sections of NVIDIA B200 and NVIDIA GB200" in text
    assert "note: c.json: sections[0], NVIDIA GB200 (10.0), was measured with driver 1.0" in text
    data = json.loads(output(setup, capsys, "merge", "a.json", "--out", "d.json", "--json"))
    assert (data["file"], data["entries"], data["notes"]) == ("d.json", 3, [])


def test_merge_refuses_what_does_not_fit(setup: Setup, tables: tuple[str, str]) -> None:
    file.write(make_table(make_entry(), plan_hash="cd" * 32), "c.json")
    assert setup.run("tactics", "merge", *tables, "c.json", "--out", "fleet.json") == 1
    assert not Path("fleet.json").exists()


def test_import(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    others = {make_key(2, runner="CudnnFp4GemmRunner"): ["CudnnFp4GemmRunner", 1]}
    Path("cache.json").write_text(json.dumps(make_cache({1: 2, 4: 1}, others)))
    text = output(setup, capsys, "import", "cache.json", "--out", "a.json")
    assert text.splitlines() == [
        "cache.json: 2 results of CUTLASS for mm_fp4 taken, each for both output dtypes; "
        "FlashInfer has none for other M: 4 entries keep the default there",
        "skipped: 1 of CudnnFp4GemmRunner, which is not in this wheel",
        "a.json: 8 entries, for NVIDIA B200 (10.0)",
    ]
    choices = file.read("a.json", SMALL)[0].choices()
    assert [(c.m, c.tactic) for c in choices[:4]] == [(1, 2), (2, -1), (3, 1), (5, -1)]
    data = json.loads(output(setup, capsys, "import", "cache.json", "--out", "b.json", "--json"))
    assert (data["taken"], data["gaps"], data["entries"]) == (2, 4, 8)


def test_import_adds_to_a_table(
    setup: Setup, tables: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cache.json").write_text(json.dumps(make_cache({1: 2, 64: 1})))
    output(setup, capsys, "import", "cache.json", "--out", "a.json")
    choices = [c for c in file.read("a.json", SMALL)[0].choices() if c.out_dtype == "bfloat16"]
    # What was measured stays.
    assert [(c.m, c.tactic) for c in choices] == [
        *((1, -1), (2, 0), (3, -1), (5, -1), (9, -1), (17, -1), (33, 2), (65, -1)),
    ]


def test_import_for_a_gpu_that_is_not_here(setup: Setup) -> None:
    Path("cache.json").write_text(json.dumps(make_cache({1: 1}, gpu="NVIDIA RTX PRO 6000")))
    command = ("tactics", "import", "cache.json", "--out", "a.json")
    assert setup.run(*command) == 1
    assert setup.run(*command, "--capability", "12.0") == 0
    (section,) = file.read("a.json", SMALL)[0].sections
    assert (section.device, section.capability) == ("NVIDIA RTX PRO 6000", (12, 0))


def test_import_of_nothing_fails(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"('fp8_gemm', 'X', ((1, 2),), ())": ["X", 1]}
    Path("cache.json").write_text(json.dumps(make_cache({}, others)))
    text = output(setup, capsys, "import", "cache.json", "--out", "a.json", rc=1)
    assert "skipped: 1 of another operator" in text
    assert "nothing was written" in text
    assert not Path("a.json").exists()


def test_import_with_chosen_buckets(setup: Setup) -> None:
    cache = make_cache({}, {make_key(100): [CUTLASS, 1]})
    Path("cache.json").write_text(json.dumps(cache))
    command = ("tactics", "import", "cache.json", "--out", "a.json")
    assert setup.run(*command) == 1
    assert setup.run(*command, "--rounding", "down") == 0
    assert [c.m for c in file.read("a.json", SMALL)[0].choices()] == [100, 100]


# The machine


def test_capabilities_are_found_by_name(setup: Setup) -> None:
    assert setup.machine.find_capability("NVIDIA GeForce RTX 5090") == (12, 0)
    assert setup.machine.find_capability("NVIDIA GeForce RTX 509") is None


def test_the_first_device_is_the_default(setup: Setup) -> None:
    assert machine.choose(setup.machine, "cuda") == B200
    assert machine.choose(setup.machine, "cuda:2") == RTX
