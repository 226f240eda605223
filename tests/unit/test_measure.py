"""Which unit a compiler works on, by its command line, and how much memory it takes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compile_jobs import make_job

from aot.compile.job import Job
from aot.measure import Process, Watch, running_compilers

GEMM = (
    "/build/flashinfer/.cache/flashinfer/0.7.2/{}/generated/gen/fp4_gemm_cutlass_half_128_64_128.cu"
)
QUANTIZATION_SOURCE = "/e/site-packages/flashinfer/data/csrc/kernels/quantization.cu"
LOGGER_SOURCE = "/e/site-packages/flashinfer/data/csrc/common/logger.cpp"
GEMM_SOURCE = GEMM.format("100a_110a")
GEMM_120_SOURCE = GEMM.format("120f")
OPERATOR_SOURCE = "/checkout/wheels/fp4aot/csrc/gemm.cpp"


def job(name: str, source: str, *targets: str, compiler: str = "cicc") -> Job:
    return make_job(name, source=Path(source), targets=targets, compiler=compiler)


JOBS = (
    job("q100/kernels_quantization", QUANTIZATION_SOURCE, "100a"),
    job("q100/common_logger", LOGGER_SOURCE, "100a", compiler="cc1plus"),
    job("q120f/kernels_quantization", QUANTIZATION_SOURCE, "120f"),
    job("q120f/common_logger", LOGGER_SOURCE, "120f", compiler="cc1plus"),
    job("gemm/gen_gemm", GEMM_SOURCE, "100a", "110a"),
    job("gemm_sm120/gen_gemm", GEMM_120_SOURCE, "120f"),
    job("operators/gemm", OPERATOR_SOURCE, compiler="cc1plus"),
)


@pytest.fixture
def watch() -> Watch:
    return Watch(JOBS)


def cicc(source: str, target: str, megabytes: int) -> Process:
    # As the object cache runs it: in a folder of its own, on a file of its own.
    arguments = (
        *("cicc", "--c++17", "--orig_src_file_name", source, "--orig_src_path_name", source),
        *("-arch", f"compute_{target}", "-m64", "x_0.cpp1.ii", "-o", "/tmp/sccache_nvccA/a.ptx"),
    )
    return Process("cicc", arguments, megabytes)


def host(module_name: str, unit_name: str, megabytes: int, *more: str) -> Process:
    folder = f"/build/compiling/objects/0123456789abcdef/units/{module_name}/"
    arguments = (
        *("cc1plus", "-quiet", "/tmp/sccache_nvccA/x_0.cudafe1.cpp", "-dumpdir", folder),
        *("-dumpbase", f"{unit_name}.cpp", *more),
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


def test_our_own_sources_count_too(watch: Watch) -> None:
    watch.observe([host("operators", "gemm", 340, OPERATOR_SOURCE)])
    assert watch.peaks == {"operators/gemm": 340}
    assert watch.compiled == {"operators/gemm"}


def test_what_all_of_them_take_now_is_told(watch: Watch) -> None:
    """Also what cannot be told apart, and what only preprocesses: it takes memory all the same."""
    shared = ("cudafe++", "--orig_src_path_name", QUANTIZATION_SOURCE, "--m64", "x_0.cpp4.ii")
    assert (
        watch.observe(
            [
                dataclasses.replace(cicc(GEMM_SOURCE, "100a", 5000), megabytes=4000),
                dataclasses.replace(host("q100", "common_logger", 90, "-E"), megabytes=80),
                Process("cudafe++", shared, 900, 700),
                Process("cc1plus", ("cc1plus", "hello.cpp"), 9000, 9000),
            ]
        )
        == 4780
    )
    # A peak is what was, not what is.
    assert watch.peaks == {"gemm/gen_gemm": 5000}
    assert watch.observe([]) == 0


# The processes of this machine


def fake_proc(folder: Path, number: int, name: str, line: str, peak: int | None) -> None:
    place = folder / str(number)
    place.mkdir()
    (place / "comm").write_text(f"{name}\n")
    (place / "cmdline").write_text(line.replace(" ", "\0") + "\0")
    memory = f"VmPeak:\t 999999 kB\nVmHWM:\t   {peak} kB\nVmRSS:\t 2050 kB\n" if peak else ""
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
        Process("cc1plus", ("cc1plus", "-E", "a.cpp"), 29, 2),
        Process("cicc", ("/cuda/cicc", "-arch", "compute_120f", "a.ii"), 6602, 2),
    ]


def test_a_real_process_is_seen_while_it_runs(watch: Watch, tmp_path: Path) -> None:
    # The kernel knows a program by the name of its file.
    program = tmp_path / "cicc"
    program.symlink_to(os.path.realpath(sys.executable))
    code = "block = bytearray(120 << 20); print('ready', flush=True); input()"
    command = [program, "-I", "-c", code, "-arch", "compute_120f", GEMM_120_SOURCE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        now = watch.observe(running_compilers())
        process.communicate(b"\n")
    assert 120 <= now < 400
    assert now <= watch.peaks["gemm_sm120/gen_gemm"] < 400
    assert watch.compiled == {"gemm_sm120/gen_gemm"}
    # When it has ended it is not there any more, and its peak stays.
    assert watch.observe(running_compilers()) == 0
    assert watch.peaks["gemm_sm120/gen_gemm"] >= 120
