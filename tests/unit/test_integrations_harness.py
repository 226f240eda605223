"""The harness around the servers' code, without their code."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from integrations import placeholders, render, run, start, wheels


def a_wheel(file: Path) -> wheels.Wheel:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("package/module.py", "answer = 42\n")
        archive.writestr("package/kernels/csrc/deep/kernel.cu", "// 1")
        archive.writestr("package/compiled.so", "\x7fELF")
        archive.writestr("package-1.0.dist-info/METADATA", "Name: package\n")
        archive.writestr("package-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return wheels.Wheel("package", "1.0", "cp311-cp311-linux_x86_64", digest, 1)


def test_source_alone_is_unpacked(tmp_path):
    wheel = a_wheel(tmp_path / "a.whl")
    target = wheels.unpack(wheel, tmp_path / "a.whl", tmp_path / "out" / str(wheel))
    found = {path.relative_to(target).as_posix() for path in target.rglob("*")}
    assert found == {
        *("package", "package/module.py", "package/kernels", "package/kernels/csrc"),
        *("package-1.0.dist-info", "package-1.0.dist-info/METADATA", "unpacked.sha256"),
    }
    # Whole: nothing is downloaded.
    assert wheels.provide(wheel, tmp_path / "out") == target


def test_another_file_is_refused(tmp_path):
    wheel = a_wheel(tmp_path / "a.whl")
    with (tmp_path / "a.whl").open("ab") as file:
        file.write(b"more")
    with pytest.raises(wheels.WrongWheelError, match=wheel.sha256):
        wheels.unpack(wheel, tmp_path / "a.whl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_hash_is_one(tmp_path):
    assert all(len(bytes.fromhex(wheel.sha256)) == 32 for wheel in wheels.ALL)
    assert len({wheel.sha256 for wheel in wheels.ALL}) == len(wheels.ALL)


def test_placeholders_do_nothing_and_can_be_mentioned(monkeypatch):
    finder = placeholders.Placeholders(("absent_package",))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    program = """
from absent_package.deep import Base, decorate, Kind
import absent_package
class Derived(Base, total=False): pass
@decorate
def plain(): return 1
@decorate(option=2)
def optional(x: Kind | None, y: Kind[int]) -> "Kind": return 2
"""
    names: dict = {}
    exec(program, names)
    assert names["plain"]() == 1
    assert names["optional"](1, 2) == 2
    assert finder.used == {"absent_package", "absent_package.deep"}
    with pytest.raises(AttributeError, match="__version__"):
        _ = names["absent_package"].__version__
    for name in finder.used:
        del sys.modules[name]


GOOD = {
    "version": "0.5.21",
    "side": "plugin",
    "device": "cuda",
    "graphs": "compile",
    "bound": "fp4aot.integrations._flashinfer.call, sglang's operator",
    "sizes": [4, 8],
    "traces": True,
    "error": "",
    "pieces": 6,
    "split_pieces": 5,
    "captured": 12,
    "wanted": 12,
    "equal": True,
    "graph_breaks": 0,
    "not_listed": [],
}
FAILED = {
    "version": "0.5.11",
    "side": "stock",
    "bound": "flashinfer.api_logging, directly",
    "traces": False,
    "error": "Unsupported: builtin `_thread.allocate_lock`",
    "pieces": 0,
    "split_pieces": 0,
    "captured": 0,
    "wanted": 0,
    "equal": None,
}


def test_good_results_have_no_problems():
    assert run.problems(GOOD) == []
    assert run.problems(GOOD | FAILED) == []
    assert run.problems(GOOD | {"graphs": "breakable", "traces": None}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"bound": "flashinfer.api_logging, directly"},
        {"traces": False},
        {"error": "RuntimeError: no"},
        {"pieces": 5},
        {"captured": 11},
        {"captured": 0, "wanted": 0},
        {"equal": False},
        {"equal": None},
        {"graph_breaks": 1},
        {"not_listed": ["sglang.srt.layers"]},
        # Stock FlashInfer works after all, or fails in another way.
        FAILED | {"error": "ValueError: another"},
        FAILED | {"traces": True},
        FAILED | {"bound": GOOD["bound"]},
    ],
    ids=str,
)
def test_a_bad_result_is_a_problem(change):
    assert run.problems(GOOD | change)


def test_a_process_that_died_is_a_problem():
    died = {"version": "0.5.11", "side": "stock", "graphs": "compile", "error": "exit status -11"}
    assert run.problems(died) == ["exit status -11"]
    assert run.start_problems({"error": "exit status 1"}) == ["exit status 1"]


def test_the_start_must_show_what_stock_does():
    stock = {"side": "stock", "prebuilt": False, "errors": {}}
    first = {"process": ["ninja"], "file": ["lock"], "lock": ["fcntl.flock"]}
    assert run.start_problems(stock | {"events": {"first fp4_quantize": first}}) == []
    for kind in first:
        less = {name: what for name, what in first.items() if name != kind}
        assert run.start_problems(stock | {"events": {"first fp4_quantize": less}})
    prebuilt = stock | {"prebuilt": True}
    assert run.start_problems(prebuilt | {"events": {"first fp4_quantize": first}}) == []
    assert run.start_problems(prebuilt | {"events": {}})
    ours = {"side": "fp4aot", "prebuilt": False, "errors": {}, "events": {}}
    assert run.start_problems(ours) == []
    assert run.start_problems(ours | {"events": {"mm_fp4": {"import": ["json"]}}})
    assert run.start_problems(ours | {"errors": {"mm_fp4": "RuntimeError"}})


EXPERTS = {
    "side": "plugin",
    "device": "cpu",
    "bound": "fp4aot.integrations._flashinfer.call",
    "seconds": {"sglang": 7.0, "first result": 7.25},
    "cases": dict.fromkeys(run.MOE_CASES, "right"),
    "events": {},
    "not_listed": [],
}
STOCK_EXPERTS = EXPERTS | {
    "side": "stock",
    "bound": "flashinfer.api_logging",
    "seconds": {"sglang": 7.0},
    "cases": dict.fromkeys(run.MOE_CASES, "RuntimeError: Ninja build failed."),
    "events": {"bfloat16": {"process": ["ninja"], "file": ["a", "b"], "lock": ["fcntl.flock"]}},
}


def test_the_experts_must_be_right_and_stock_must_look_for_a_compiler():
    assert run.moe_problems(EXPERTS) == run.moe_problems(STOCK_EXPERTS) == []
    assert run.moe_problems({"error": "exit status 1"}) == ["exit status 1"]
    for change in (
        {"bound": "flashinfer.api_logging"},
        {"cases": EXPERTS["cases"] | {"all-to-all": "another result"}},
        {"cases": {"bfloat16": "right"}},
        {"events": {"bfloat16": {"lock": ["fcntl.flock"]}}},
        {"not_listed": ["not imported: x"]},
    ):
        assert run.moe_problems(EXPERTS | change), change
    for change in (
        {"bound": EXPERTS["bound"]},
        {"cases": EXPERTS["cases"]},
        {"events": {}},
        {"events": {"bfloat16": {"process": ["ninja"], "file": ["a"]}}},
    ):
        assert run.moe_problems(STOCK_EXPERTS | change), change
    on_gpu = STOCK_EXPERTS | {"device": "cuda", "cases": EXPERTS["cases"], "events": {}}
    assert run.moe_problems(on_gpu) == []
    failed = dict.fromkeys(run.MOE_CASES, "RuntimeError: misaligned address")
    assert run.moe_problems(on_gpu | {"cases": failed})


def test_the_table_of_the_experts():
    died = {"side": "plugin", "error": "exit status 1"}
    lines = render.moe_table([STOCK_EXPERTS, EXPERTS, died]).splitlines()
    assert len(lines) == 2 + 3 + 3 + 1
    assert len({line.count("|") for line in lines}) == 1
    assert "| stock | bfloat16 | 1 | 2 | 1 | the first call starts ninja and nvcc" in lines[2]
    assert lines[2].endswith("| none |")
    assert lines[5].endswith("| bfloat16 | 0 | 0 | 0 | right | 0.2 |")
    assert "**did not run**: exit status 1" in lines[-1]


def test_vllms_wrappers_must_change():
    before, after = {"quantize": "RuntimeError"}, {"quantize": "right"}
    assert run.vllm_problems({"before": before, "after": after}) == []
    assert run.vllm_problems({"before": after, "after": after})
    assert run.vllm_problems({"before": before, "after": {"quantize": "another result"}})
    assert run.vllm_problems({"error": "exit status 1"}) == ["exit status 1"]


def test_the_watch_sees_processes_files_and_locks(tmp_path):
    program = f"""
import fcntl, json, subprocess, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from integrations.start import Watch
watch = Watch()
with watch() as nothing:
    open({str(Path(__file__))!r}).close()
with watch() as found:
    with open({str(tmp_path / "written")!r}, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    subprocess.run([sys.executable, "-c", ""])
    import wave
subprocess.run([sys.executable, "-c", ""])
print(json.dumps([nothing, found]))
"""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    nothing, found = json.loads(done.stdout)
    assert nothing == {}
    assert found["file"] == ["written"]
    assert found["lock"] == ["fcntl.flock"]
    assert found["process"]
    assert "wave" in found["import"]
    assert start.PROCESSES[0] == "subprocess.Popen"


def test_tables_show_what_went_wrong():
    good, bad = GOOD | {"problems": []}, GOOD | {"captured": 3, "problems": ["captured is 3"]}
    died = {"version": "0.5.9", "side": "stock", "graphs": "compile", "error": "exit status 1"}
    common = {"torch": "2.11.0", "flashinfer": "0.7.2"}
    timed = {"timed": True, "seconds": {"first result": 12.34, "captured": 56.78}}
    vllm = {"version": "1", "before": {"quantize": "RuntimeError"}, "after": {"quantize": "right"}}
    found = [good | common | timed, bad | common, died]
    text = render.tables({"sglang": found, "start": [], "vllm": vllm})
    assert "| 12.3 | 56.8 |" in text
    assert "| `quantize` | RuntimeError | right |" in text
    assert "| yes | 6 + 5 between | 12 of 12 | yes |" in text
    assert "**captured is 3**" in text
    assert "**did not run**" in text
