"""Build time beside FlashInfer's: what is put together, and what is refused."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import build_time
from benchmarks.build_time import ninja_seconds

from aot.compile.admission import RESERVE_MEGABYTES, Limits
from aot.errors import BuildError
from aot.host_compiler import find_host_compiler

REPORT = {
    "plan_hash": "abc",
    "cache_hits": 0,
    "build_seconds": 200.0,
    "versions": {"cuda_compiler": "13.0.88", "flashinfer": "0.7.2"},
    "module_reports": [
        {"name": "one", "compile_seconds": 150.0, "units": [{"origin": "compiled"}]},
        {"name": "two", "compile_seconds": 10.0, "units": [{"origin": "compiled"}]},
    ],
}
PREPARED = SimpleNamespace(plan=SimpleNamespace(hash="abc"))


def test_both_builds_are_compared_by_module_and_by_wall_time():
    result = build_time.compare("quick", 2, REPORT, (160.0, {"one": 120.0, "two": 20.0}))
    assert [(row.module, row.ours, row.theirs) for row in result.rows] == [
        ("one", 150.0, 120.0),
        ("two", 10.0, 20.0),
    ]
    data = json.loads(json.dumps(result.to_json()))
    assert data["ratio"] == 1.25
    text = result.table()
    assert "2 compilers at once" in text
    assert "13.0.88" in text
    last = text.splitlines()[-1].split()
    assert last[-3:] == ["200", "160", "1.25"]


def test_a_module_that_the_report_does_not_know_is_an_error():
    with pytest.raises(BuildError, match="no compile time of three"):
        build_time.compare("quick", 2, REPORT, (1.0, {"three": 1.0}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan_hash": "def"}, "is of plan def, not of abc"),
        ({"cache_hits": 1}, "was not cold"),
        ({"module_reports": [{"units": [{"origin": "kept"}]}]}, "was not cold"),
    ],
)
def test_a_report_of_another_build_is_refused(tmp_path, change, message):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(REPORT))
    assert build_time.read_report(path, PREPARED) == REPORT
    path.write_text(json.dumps(REPORT | change))
    with pytest.raises(BuildError, match=message):
        build_time.read_report(path, PREPARED)


def test_seconds_come_from_ninja_s_log(tmp_path):
    log = tmp_path / ".ninja_log"
    lines = ["# ninja log v7"]
    for start, end, path in (
        (0, 1500, "/w/one/a.cuda.o"),
        (0, 2000, "/w/one/b.o"),
        (2000, 9000, "/w/one/one.so"),
        (10, 1010, "/w/two/c.o"),
        (10, 5010, "/w/one/deeper/d.o"),
    ):
        lines.append(f"{start}\t{end}\t123\t{path}\tffff")
    log.write_text("\n".join(lines) + "\n")
    folders = {"one": Path("/w/one"), "two": Path("/w/two")}
    assert build_time.module_seconds(ninja_seconds(log), folders) == {"one": 3.5, "two": 1.0}
    with pytest.raises(BuildError, match="no object in /w/three"):
        build_time.module_seconds(ninja_seconds(log), {"three": Path("/w/three")})


def test_the_last_time_of_an_output_counts(tmp_path):
    log = tmp_path / ".ninja_log"
    log.write_text(
        "# ninja log v7\n18\t207\t179\tunits/m/a.o\t26882c\n208\t255\t179\tunits/m/b.o\t53f4\n"
        "5\t138005\t180\tunits/m/a.o\t26882c\ngarbage\nx\ty\tz\tunits/m/c.o\t1\n"
    )
    assert ninja_seconds(log) == {"units/m/a.o": 138.0, "units/m/b.o": 0.047}


def test_no_log_is_no_time(tmp_path):
    assert ninja_seconds(tmp_path / "absent") == {}


def test_a_real_ninjas_log_is_read(tmp_path):
    ninja = shutil.which("ninja")
    if ninja is None:
        pytest.skip("NOT TESTED: ninja's own log, because this machine has no ninja")
    (tmp_path / "build.ninja").write_text(
        "rule slow\n  command = sleep 0.2 && touch $out\nbuild units/m/a.o: slow\n"
    )
    subprocess.run([ninja, "-C", tmp_path], check=True, capture_output=True)
    assert 0.2 <= ninja_seconds(tmp_path / ".ninja_log")["units/m/a.o"] < 60


@pytest.mark.parametrize(
    ("workers", "megabytes", "jobs"),
    [(2, 24_000, 2), (8, 24_000, 3), (8, 7_100, 1), (1, 24_000, 1)],
)
def test_both_run_as_many_compilers_as_fit_into_memory(workers, megabytes, jobs):
    sources = ("gen_gemm_sm120_cutlass_fp4/a.cu", "csrc/fp4_kv_quantization.cu")
    units = tuple(SimpleNamespace(source=source, flags=()) for source in sources)
    limits = Limits(workers, megabytes + RESERVE_MEGABYTES)
    # The largest takes 7200 MB.
    assert build_time.jobs_at_once(SimpleNamespace(units=units), limits) == jobs


def test_flashinfer_gets_its_ninja_its_libraries_and_our_number_of_jobs():
    base = {"PATH": "/usr/bin", "CUDA_HOME": "/cuda"}
    found = build_time.flashinfer_environ(base, Path("/env/bin"), Path("/link"), 2)
    assert found == {
        "PATH": "/env/bin:/usr/bin",
        "CUDA_HOME": "/cuda",
        "MAX_JOBS": "2",
        "FLASHINFER_EXTRA_LDFLAGS": "-L/link",
    }


def test_the_linker_finds_what_flashinfer_asks_for(tmp_path):
    cuda = tmp_path / "cuda"
    (cuda / "lib").mkdir(parents=True)
    prepared = SimpleNamespace(roots=SimpleNamespace(cuda=cuda), host_compiler=find_host_compiler())
    with pytest.raises(BuildError, match="no shared CUDA runtime"):
        build_time.link_libraries(prepared, tmp_path / "nothing")
    (cuda / "lib" / "libcudart.so.13").write_bytes(b"")
    folder = build_time.link_libraries(prepared, tmp_path / "link")
    assert (folder / "libcudart.so").resolve() == cuda / "lib" / "libcudart.so.13"
    ctypes.CDLL(str(folder / "libcuda.so"))
