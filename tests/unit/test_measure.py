"""Which unit a compiler works on, by its command line, and how much memory it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aot import measure
from aot.measure import Process, Watch, running_compilers, watching
from aot.plan import BuildPlan, ModulePlan, Roots, Unit, Versions

ROOTS = Roots(
    flashinfer=Path("/e/site-packages/flashinfer/data"),
    tvm_ffi=Path("/e/site-packages/tvm_ffi"),
    torch=Path("/e/site-packages/torch"),
    cuda=Path("/cuda"),
    python_include=Path("/python/include"),
    workspace=Path("/build/flashinfer"),
)
GEMM = "@WORKSPACE@/.cache/flashinfer/0.7.2/{}/generated/gen/fp4_gemm_cutlass_half_128_64_128.cu"


def unit(name: str, source: str, language: str = "cuda") -> Unit:
    return Unit(name, source, language, (), "0" * 64, 700, 10)


def module(name: str, targets: tuple[str, ...], *units: Unit) -> ModulePlan:
    return ModulePlan(name, "family", targets, targets, units, ())


QUANTIZATION = (
    unit("kernels_quantization", "@FLASHINFER@/csrc/kernels/quantization.cu"),
    unit("common_logger", "@FLASHINFER@/csrc/common/logger.cpp", "c++"),
)
PLAN = BuildPlan(
    preset="test",
    versions=Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0"),
    modules=(
        module("q100", ("10.0a",), *QUANTIZATION),
        module("q120f", ("12.0f",), *QUANTIZATION),
        module("gemm", ("10.0a", "11.0a"), unit("gen_gemm", GEMM.format("100a_110a"))),
        module("gemm_sm120", ("12.0f",), unit("gen_gemm", GEMM.format("120f"))),
    ),
    tvm_ffi_sources=(),
    added_host_flags=(),
)
QUANTIZATION_SOURCE = "/e/site-packages/flashinfer/data/csrc/kernels/quantization.cu"
LOGGER_SOURCE = "/e/site-packages/flashinfer/data/csrc/common/logger.cpp"
GEMM_SOURCE = GEMM.format("100a_110a").replace("@WORKSPACE@", "/build/flashinfer")
GEMM_120_SOURCE = GEMM.format("120f").replace("@WORKSPACE@", "/build/flashinfer")


@pytest.fixture
def watch() -> Watch:
    return Watch(PLAN, ROOTS)


def cicc(source: str, target: str, megabytes: int) -> Process:
    # As the object cache runs it: in a folder of its own, on a file of its own.
    arguments = (
        *("cicc", "--c++17", "--orig_src_file_name", source, "--orig_src_path_name", source),
        *("-arch", f"compute_{target}", "-m64", "x_0.cpp1.ii", "-o", "/tmp/sccache_nvccA/a.ptx"),
    )
    return Process("cicc", arguments, megabytes)


def host(module_name: str, unit_name: str, megabytes: int, *more: str) -> Process:
    arguments = (
        *("cc1plus", "-quiet", "/tmp/sccache_nvccA/x_0.cudafe1.cpp", "-dumpdir"),
        *(f"/build/wheel/units/{module_name}/", "-dumpbase", f"{unit_name}.cpp", *more),
    )
    return Process("cc1plus", arguments, megabytes)


def test_the_largest_process_of_a_unit_counts(watch: Watch) -> None:
    watch.observe([cicc(GEMM_SOURCE, "100a", 5000), host("gemm", "gen_gemm", 900)])
    watch.observe([cicc(GEMM_SOURCE, "110a", 5200)])
    watch.observe([cicc(GEMM_SOURCE, "110a", 100)])
    assert watch.peaks == {"gemm/gen_gemm": 5200}
    assert watch.compiled == {"gemm/gen_gemm"}


def test_sources_of_equal_name_are_told_apart_by_their_folder(watch: Watch) -> None:
    watch.observe([cicc(GEMM_SOURCE, "100a", 5000), cicc(GEMM_120_SOURCE, "120f", 6600)])
    assert watch.peaks == {"gemm/gen_gemm": 5000, "gemm_sm120/gen_gemm": 6600}


def test_a_source_that_modules_share_is_known_by_its_target(watch: Watch) -> None:
    watch.observe(
        [cicc(QUANTIZATION_SOURCE, "120f", 1300), cicc(QUANTIZATION_SOURCE, "100a", 1200)]
    )
    assert watch.peaks == {
        "q100/kernels_quantization": 1200,
        "q120f/kernels_quantization": 1300,
    }


def test_a_source_that_modules_share_is_nobodys_without_a_target(watch: Watch) -> None:
    shared = ("cudafe++", "--orig_src_path_name", QUANTIZATION_SOURCE, "--m64", "x_0.cpp4.ii")
    watch.observe([Process("cudafe++", shared, 900)])
    assert watch.peaks == {}
    own = ("cudafe++", "--orig_src_path_name", GEMM_120_SOURCE, "--m64", "x_0.cpp4.ii")
    watch.observe([Process("cudafe++", own, 1300)])
    assert watch.peaks == {"gemm_sm120/gen_gemm": 1300}
    # Its results are kept by the object cache too: alone, it is no compilation.
    assert watch.compiled == set()


def test_the_host_compiler_is_known_by_its_object(watch: Watch) -> None:
    watch.observe([host("q120f", "kernels_quantization", 700)])
    assert watch.peaks == {"q120f/kernels_quantization": 700}
    assert watch.compiled == set()


def test_a_source_of_the_host_compiler_is_compiled_by_it(watch: Watch) -> None:
    watch.observe([host("q100", "common_logger", 150, LOGGER_SOURCE)])
    assert watch.peaks == {"q100/common_logger": 150}
    assert watch.compiled == {"q100/common_logger"}


def test_preprocessing_is_no_compilation(watch: Watch) -> None:
    # Which is all that the object cache does for a unit that it has.
    arguments = ("cc1plus", "-E", "-quiet", GEMM_120_SOURCE, "-dumpbase", "gen_gemm.cu")
    watch.observe([Process("cc1plus", arguments, 200)])
    watch.observe([host("q100", "common_logger", 90, LOGGER_SOURCE, "-E")])
    assert watch.peaks == {}
    assert watch.compiled == set()


def test_other_peoples_compilers_do_not_count(watch: Watch) -> None:
    elsewhere = GEMM_120_SOURCE.replace("/build/", "/other/build/")
    watch.observe(
        [
            cicc(elsewhere, "120f", 9000),
            cicc(GEMM_120_SOURCE, "90a", 9000),
            host("other", "gen_gemm", 9000),
            host("gemm", "gen_gemm_too", 9000),
            Process("cc1plus", ("cc1plus", "hello.cpp"), 9000),
        ]
    )
    assert watch.peaks == {}


# The processes of this machine


def fake_proc(folder: Path, number: int, name: str, line: str, peak: int | None) -> None:
    place = folder / str(number)
    place.mkdir()
    (place / "comm").write_text(f"{name}\n")
    (place / "cmdline").write_text(line.replace(" ", "\0") + "\0")
    memory = f"VmPeak:\t 999999 kB\nVmHWM:\t   {peak} kB\nVmRSS:\t 1 kB\n" if peak else ""
    (place / "status").write_text(f"Name:\t{name}\n{memory}")


def test_compilers_are_read_from_proc(tmp_path: Path) -> None:
    fake_proc(tmp_path, 10, "cicc", "/cuda/cicc -arch compute_120f a.ii", 6_760_448)
    fake_proc(tmp_path, 11, "python", "python -m aot", 50_000)
    fake_proc(tmp_path, 12, "cc1plus", "cc1plus -E a.cpp", 30_000)
    fake_proc(tmp_path, 13, "ptxas", "ptxas", None)  # a zombie has no memory
    (tmp_path / "14").mkdir()  # has ended
    (tmp_path / "self").mkdir()
    (tmp_path / "version").write_text("Linux")
    found = sorted(running_compilers(tmp_path), key=lambda process: process.name)
    assert found == [
        Process("cc1plus", ("cc1plus", "-E", "a.cpp"), 29),
        Process("cicc", ("/cuda/cicc", "-arch", "compute_120f", "a.ii"), 6602),
    ]


def test_a_real_process_is_seen_while_it_runs(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_SECONDS_BETWEEN", 0.01)
    # The kernel knows a program by the name of its file.
    program = tmp_path / "cicc"
    program.symlink_to(os.path.realpath(sys.executable))
    code = "block = bytearray(120 << 20); print('ready', flush=True); input()"
    command = [program, "-I", "-c", code, "-arch", "compute_120f", GEMM_120_SOURCE]
    with (
        watching(watch),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(1000):
            if watch.peaks.get("gemm_sm120/gen_gemm", 0) >= 120:
                break
            time.sleep(0.01)
        process.communicate(b"\n")
    assert 120 <= watch.peaks["gemm_sm120/gen_gemm"] < 400
    assert watch.compiled == {"gemm_sm120/gen_gemm"}


def test_watching_ends_with_its_block(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SECONDS_BETWEEN", 0.001)
    with pytest.raises(KeyError), watching(watch):
        raise KeyError
    assert not [t for t in measure.threading.enumerate() if t.name == "compiler-memory"]
