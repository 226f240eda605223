"""What the audit must find, and the platform tag of a tiny wheel."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version
from plans import plan_of
from rich.console import Console

from aot import wheel_maker
from aot.architectures import Architecture
from aot.audit import Finding, LibraryReport, ModuleImages, WheelReport
from aot.compile import events
from aot.compile.admission import Limits
from aot.compile.events import Listener
from aot.compile.record import BuildRecord
from aot.costs import Cost, UnitCost
from aot.environment import FlashInferEnvironment
from aot.errors import AuditError, BuildError
from aot.host_compiler import NATIVE_BINUTILS, HostCompiler
from aot.pipeline import Folders, Prepared
from aot.plan import ModulePlan, Roots, Unit
from aot.platform_tools import PlatformTools
from aot.platforms import PLATFORMS
from aot.toolchain import Toolkit
from aot.wheel_maker import LIBRARY, NOTICES, FinishedWheel, build_wheel, expectation, tag


def unit(name: str, language: str) -> Unit:
    return Unit(name, f"@FLASHINFER@/{name}", language, (), "0" * 64)


PLAN = plan_of(
    ModulePlan(
        *("quantization", "q", ("12.0f",), ("12.0f",)),
        (unit("a", "cuda"), unit("b", "cuda"), unit("c", "c++")),
        (),
    ),
    ModulePlan("kv", "kv", *(("9.0a", "12.0f"),) * 2, (unit("a", "cuda"),), ()),
)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    version = Version("13.0")
    toolkit, site = tmp_path / "toolkit", tmp_path / "site"
    return Prepared(
        PLAN,
        Roots(site, site, site, toolkit, site, tmp_path),
        Toolkit(toolkit, version, version, toolkit / "bin/nvcc", None, None, "test", ()),
        toolkit / "bin/nvcc",
        FlashInferEnvironment(site / "python", Version("0.7.2"), *(site,) * 5),
        HostCompiler(Path("/usr/bin/g++"), Version("12"), "x86_64"),
        Folders(tmp_path),
        PlatformTools(NATIVE_BINUTILS, toolkit / "lib64" / "libcudart_static.a"),
    )


def make_wheel(folder: Path, platform: str = "linux_x86_64") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fp4aot-0.1.0-py3-none-{platform}.whl"
    info = "fp4aot-0.1.0.dist-info"
    contents = {
        LIBRARY: "library",
        f"{info}/METADATA": "Metadata-Version: 2.4\nName: fp4aot\nVersion: 0.1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{name},sha256={digest.decode().rstrip('=')},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


# The expectation (case 7)


def test_every_cuda_unit_has_an_image_for_each_target_of_its_module(prepared: Prepared) -> None:
    (library,) = expectation(prepared).libraries.values()
    assert library.images == {Architecture.parse("12.0f"): 3, Architecture.parse("9.0a"): 1}
    assert library.ptx == ()
    assert library.exports == ()


@pytest.mark.parametrize("machine", PLATFORMS)
def test_the_library_must_be_for_the_machine_of_the_plan(prepared: Prepared, machine: str) -> None:
    plan = dataclasses.replace(PLAN, machine=machine)
    (library,) = expectation(dataclasses.replace(prepared, plan=plan)).libraries.values()
    assert library.machine == machine


def test_images_are_expected_unit_by_unit_in_the_order_of_the_link(prepared: Prepared) -> None:
    (library,) = expectation(prepared).libraries.values()
    found = [(one.module, one.name, [*map(str, one.architectures)]) for one in library.units]
    assert found == [
        ("quantization", "a", ["12.0f"]),
        ("quantization", "b", ["12.0f"]),
        ("kv", "a", ["9.0a", "12.0f"]),
    ]
    cmake = (Path(wheel_maker.__file__).parents[1] / "CMakeLists.txt").read_text()
    assert "foreach(module IN LISTS FP4AOT_MODULES)" in cmake
    assert "${FP4AOT_OBJECTS_operators} ${module_objects}" in cmake
    # And within a module in the order of its units.
    assert "${module_object} ${FP4AOT_OBJECTS_${module}}" in cmake


def test_images_of_a_lowered_plan_are_those_that_it_is_lowered_to(prepared: Prepared) -> None:
    quantization, kv = PLAN.modules
    modules = (
        dataclasses.replace(quantization, images=("9.0a",)),
        dataclasses.replace(kv, architectures=("9.0a",), images=("9.0a",)),
    )
    plan = dataclasses.replace(PLAN, modules=modules, lowering="0123456789abcdef")
    wanted = expectation(dataclasses.replace(prepared, plan=plan))
    (library,) = wanted.libraries.values()
    assert library.images == {Architecture.parse("9.0a"): 3}
    assert all(one.architectures == (Architecture.parse("9.0a"),) for one in library.units)
    assert library.ptx == ()


def test_one_library_and_every_notice(prepared: Prepared) -> None:
    wanted = expectation(prepared)
    assert list(wanted.libraries) == [LIBRARY]
    assert wanted.notices == NOTICES
    assert len(set(NOTICES)) == len(NOTICES)


def test_no_folder_of_this_machine_may_be_named(prepared: Prepared) -> None:
    (library,) = expectation(prepared).libraries.values()
    checkout = str(Path(wheel_maker.__file__).parents[1])
    assert set(library.forbidden_prefixes) == {
        *(str(prepared.folders.root), str(prepared.toolkit.root)),
        *(str(prepared.environment.site_packages), checkout),
    }


# The tag


def test_tag_is_changed_in_the_name_and_in_the_metadata(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    tagged = tag(wheel, "manylinux_2_28_x86_64")
    assert tagged == tmp_path / "fp4aot-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
    assert [path.name for path in tmp_path.iterdir()] == [tagged.name]
    with zipfile.ZipFile(tagged) as archive:
        metadata = archive.read("fp4aot-0.1.0.dist-info/WHEEL").decode()
        assert archive.read(LIBRARY) == b"library"
        record = archive.read("fp4aot-0.1.0.dist-info/RECORD").decode()
    assert [line for line in metadata.splitlines() if line.startswith("Tag:")] == [
        "Tag: py3-none-manylinux_2_28_x86_64"
    ]
    assert f"{LIBRARY},sha256=" in record


def test_the_right_tag_stays(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "manylinux_2_28_x86_64")
    assert tag(wheel, "manylinux_2_28_x86_64") == wheel
    assert wheel.is_file()


def test_a_file_that_cannot_be_tagged_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "fp4aot-0.1.0-py3-none-linux_x86_64.whl"
    wheel.write_bytes(b"no archive")
    with pytest.raises(BuildError, match=f"cannot tag {wheel.name} as manylinux_2_28_x86_64"):
        tag(wheel, "manylinux_2_28_x86_64")


# The whole, with a stand-in for the build backend and for the audit


def report(wheel: Path, *, passed: bool = True) -> WheelReport:
    findings = () if passed else (Finding("error", "exports shown", LIBRARY),)
    return WheelReport(
        *(wheel.name, 1_500_000, "f" * 64, "manylinux_2_28_x86_64", ()),
        libraries=(
            LibraryReport(LIBRARY, 3_000_000, "e" * 64, {}, {}, (), (), (), "2.17", (), findings),
        ),
    )


LIMITS = Limits(2, 8000)


def made(
    *,
    cache: tuple[int, int] | None = (3, 1),
    samples: tuple[tuple[float, int], ...] = (),
    units: tuple[UnitCost, ...] = (),
) -> tuple[BuildRecord, tuple[UnitCost, ...]]:
    """What compiling leaves."""
    hits, misses = cache or (None, None)
    record = BuildRecord(
        *("test", PLAN.hash, {}, "x86_64", "2026-01-01T00:00:00+00:00"),
        *(60.0, LIMITS.workers, LIMITS.megabytes, (), samples),
        cache_hits=hits,
        cache_misses=misses,
    )
    return record, units


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Compiles nothing; lists the wheels that were audited, and whether one was before."""
    audited: list[tuple[str, bool]] = []

    def compile_objects(
        _: Prepared, limits: Limits, listen: Listener
    ) -> tuple[BuildRecord, tuple[UnitCost, ...]]:
        assert (limits, listen) == (LIMITS, events.nobody)
        return made()

    def audit_wheel(wheel: Path, *_: object, **options: object) -> WheelReport:
        audited.append((wheel.name, "earlier" in options))
        return report(wheel)

    monkeypatch.setattr(wheel_maker, "compile_objects", compile_objects)
    monkeypatch.setattr(wheel_maker, "link_wheel", lambda _, out, *__: make_wheel(out))
    monkeypatch.setattr(wheel_maker, "audit_wheel", audit_wheel)
    return audited


def test_a_wheel_is_audited_before_and_after_it_is_tagged(
    prepared: Prepared, tmp_path: Path, backend: list[tuple[str, bool]]
) -> None:
    finished = build_wheel(prepared, tmp_path / "dist", LIMITS, Console(), events.nobody)
    name = "fp4aot-0.1.0-py3-none-{}.whl"
    tagged = name.format("manylinux_2_28_x86_64")
    # Minutes of disassembly are not repeated for a tag.
    assert backend == [(name.format("linux_x86_64"), False), (tagged, True)]
    assert finished.wheel == tmp_path / "dist" / tagged
    assert [path.name for path in (tmp_path / "dist").iterdir()] == [tagged]
    assert not list(tmp_path.glob(".audit-*"))


def test_a_wheel_that_fails_is_not_kept(
    prepared: Prepared,
    tmp_path: Path,
    backend: list[tuple[str, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        wheel_maker, "audit_wheel", lambda wheel, *_, **__: report(wheel, passed=False)
    )
    with pytest.raises(AuditError, match="exports shown"):
        build_wheel(prepared, tmp_path / "dist", LIMITS, Console(), events.nobody)
    assert list(tmp_path.glob("**/*.whl")) == []


def test_the_summary_has_name_size_hash_and_time(tmp_path: Path) -> None:
    wheel = tmp_path / "fp4aot.whl"
    finished = FinishedWheel(wheel, PLAN, 65.4, *made(), report(wheel))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(finished.table())
    text = captured.get()
    for part in ("fp4aot.whl", "1.50 MB", "f" * 64, "9.0a 12.0f", "1:05 min", "3 hits, 1 misses"):
        assert part in text
    data = finished.to_json()
    assert data["plan_hash"] == PLAN.hash
    assert data["modules"] == {"quantization": ("12.0f",), "kv": ("9.0a", "12.0f")}
    assert (data["size"], data["cache_hits"], data["cache_misses"]) == (1_500_000, 3, 1)
    assert data["build_seconds"] == 65.4


@pytest.mark.parametrize(
    ("samples", "peak"), [(((0.1, 900), (1.2, 6100), (2.3, 4000)), 6100), ((), 0)]
)
def test_the_summary_has_the_most_memory_that_compilers_took(
    tmp_path: Path, samples: tuple[tuple[float, int], ...], peak: int
) -> None:
    wheel = tmp_path / "fp4aot.whl"
    finished = FinishedWheel(wheel, PLAN, 65.4, *made(samples=samples), report(wheel))
    data = finished.to_json()
    assert (data["peak_megabytes"], data["limit_megabytes"]) == (peak, 8000)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(finished.table())
    # Where nothing was compiled there is nothing to say of it.
    assert ("at most 6100 of 8000 MB" in captured.get()) == bool(samples)


def test_the_summary_says_what_is_lowered(tmp_path: Path) -> None:
    wheel = tmp_path / "fp4aot.whl"
    quantization, kv = PLAN.modules
    plan = dataclasses.replace(
        PLAN,
        modules=(dataclasses.replace(quantization, images=("9.0a",)), kv),
        lowering="0123456789abcdef",
    )
    finished = FinishedWheel(wheel, plan, 65.4, *made(), report(wheel))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(finished.table())
    assert "9.0a (lowered from 12.0f)" in captured.get()
    data = finished.to_json()
    assert data["lowering"] == "0123456789abcdef"
    # A machine finds there what is in the wheel, not what it was compiled for.
    assert data["modules"] == {"quantization": ("9.0a",), "kv": ("9.0a", "12.0f")}
    normal = FinishedWheel(wheel, PLAN, 65.4, *made(), report(wheel))
    assert normal.to_json()["lowering"] == ""


def test_the_summary_has_what_each_module_adds_and_costs(tmp_path: Path) -> None:
    wheel = tmp_path / "fp4aot.whl"
    images = (ModuleImages("kv", "9.0a", 1, 9_000, 1_000), ModuleImages("kv", "12.0f", 1, 8, 2))
    audited = report(wheel)
    (library,) = audited.libraries
    library = dataclasses.replace(library, modules=images)
    audited = dataclasses.replace(audited, libraries=(library,))
    units = (UnitCost("kv", "a", "cache", 2.0, Cost(61.0, 700)),)
    finished = FinishedWheel(wheel, PLAN, 5, *made(cache=None, units=units), audited)
    rows = {row["name"]: row for row in finished.to_json()["module_reports"]}
    assert list(rows) == ["quantization", "kv"]
    assert list(rows["kv"]["architectures"]) == ["9.0a", "12.0f"]
    assert (rows["kv"]["compile_seconds"], rows["kv"]["peak_megabytes"]) == (61.0, 700)
    json.dumps(finished.to_json())
    console = Console(width=160)
    with console.capture() as captured:
        console.print(finished.module_table())
    assert "1:01" in captured.get()


def test_without_a_cache_the_summary_does_not_speak_of_one(tmp_path: Path) -> None:
    wheel = tmp_path / "fp4aot.whl"
    finished = FinishedWheel(wheel, PLAN, 5, *made(cache=None), report(wheel))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(finished.table())
    assert "cache" not in captured.get()
