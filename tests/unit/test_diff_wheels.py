"""What changed between two wheels."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
from plans import module_of, plan_of
from rich.console import Console

from aot.diff import SECTIONS, Change, compare, print_difference, read_wheel
from aot.errors import AuditError
from aot.manifest import Compilers, hash_operator_sources, make_manifest, make_provenance
from aot.plan import BuildPlan, Unit
from aot.presets import PRESETS

UNITS = tuple(
    Unit(name, f"@FLASHINFER@/csrc/{name}.cu", "cuda", ("-O3", "-std=c++17"), digest * 64)
    for name, digest in (("csrc_a", "a"), ("csrc_b", "b"))
)
ROWS = PRESETS["quick"].modules
PLAN = plan_of(
    *(module_of(row, *UNITS) for row in ROWS),
    preset="quick",
    tvm_ffi_sources=("src/ffi/error.cc",),
    added_host_flags=("-fno-gnu-unique",),
)
COMPILERS = Compilers("13.0.88", "g++ (Debian 12.2.0-14) 12.2.0", "12.2.0")
OPERATORS = {"gemm.cpp": "int gemm;", "hidden.map": "{ local: *; };"}
BOM = {
    "components": [
        {
            "name": "cutlass",
            "version": "4.5.0",
            "licenses": [{"license": {"id": "BSD-3-Clause"}}],
        },
        {"name": "cccl", "version": "3.6.0", "licenses": [{"expression": "MIT AND Apache-2.0"}]},
        {"name": "TensorRT-LLM", "licenses": [{"license": {"name": "terms"}}]},
    ]
}


@dataclasses.dataclass
class Maker:
    """Writes a wheel like the pipeline's, as small as can be."""

    folder: Path
    plan: BuildPlan = PLAN
    compilers: Compilers = COMPILERS
    operators: dict[str, str] = dataclasses.field(default_factory=lambda: dict(OPERATORS))
    bom: dict | None = dataclasses.field(default_factory=lambda: json.loads(json.dumps(BOM)))
    with_provenance: bool = True
    version: str = "1.0"
    library: bytes = b"\x7fELF"
    files: dict[str, bytes] = dataclasses.field(
        default_factory=lambda: {"fp4aot/__init__.py": b"", "fp4aot/nn.py": b"x = 1\n"}
    )
    date: tuple[int, ...] = (2026, 1, 1, 0, 0, 0)

    def write(self, name: str) -> Path:
        csrc = self.folder / f"csrc-{name}"
        csrc.mkdir()
        for file, text in self.operators.items():
            (csrc / file).write_text(text)
        library = csrc / "libfp4aot.so"
        library.write_bytes(self.library)
        metadata = f"fp4aot-{self.version}.dist-info"
        contents = dict(self.files)
        contents["fp4aot/libfp4aot.so"] = self.library
        contents["fp4aot/_manifest.json"] = encode(make_manifest(self.plan, library, self.version))
        if self.with_provenance:
            sources = hash_operator_sources(csrc)
            contents["fp4aot/_provenance.json"] = encode(
                make_provenance(self.plan, self.compilers, sources)
            )
        if self.bom is not None:
            contents[f"{metadata}/sboms/fp4aot.cdx.json"] = encode(self.bom)
        contents[f"{metadata}/WHEEL"] = b"Wheel-Version: 1.0\n"
        path = self.folder / name
        with zipfile.ZipFile(path, "w") as archive:
            for file, content in (*contents.items(), record(contents, metadata)):
                archive.writestr(zipfile.ZipInfo(file, self.date), content)
        return path


def encode(data: object) -> bytes:
    return json.dumps(data).encode()


def record(contents: dict[str, bytes], metadata: str) -> tuple[str, bytes]:
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()},"
        for name, content in contents.items()
    ]
    name = f"{metadata}/RECORD"
    return name, "\n".join([*lines, f"{name},,"]).encode()


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def changes(maker: Maker, **other) -> list[Change]:
    """All changes but those of files, which every change comes with."""
    one = maker.write("a.whl")
    two = dataclasses.replace(maker, **other).write("b.whl")
    difference = compare(read_wheel(one), read_wheel(two))
    assert not difference.is_equal
    assert not difference.not_compared
    assert any(change.section == "files" for change in difference.changes)
    return [change for change in difference.changes if change.section != "files"]


def with_first_unit(**fields) -> BuildPlan:
    module, *rest = PLAN.modules
    unit, *units = module.units
    changed = dataclasses.replace(module, units=(dataclasses.replace(unit, **fields), *units))
    return dataclasses.replace(PLAN, modules=(changed, *rest))


# Equal wheels


def test_a_wheel_is_identical_to_its_copy(maker: Maker) -> None:
    one, two = maker.write("a.whl"), maker.write("b.whl")
    assert one.read_bytes() == two.read_bytes()
    difference = compare(read_wheel(one), read_wheel(two))
    assert (difference.identical, difference.is_equal) == (True, True)
    assert difference.changes == ()
    assert difference.verdict == "The wheels are the same, byte for byte."


def test_other_archives_around_the_same_files_are_said(maker: Maker) -> None:
    one = maker.write("a.whl")
    two = dataclasses.replace(maker, date=(2027, 1, 1, 0, 0, 0)).write("b.whl")
    difference = compare(read_wheel(one), read_wheel(two))
    assert (difference.identical, difference.is_equal) == (False, True)
    assert "only the archives" in difference.verdict


def test_the_order_of_files_is_no_difference_of_theirs(maker: Maker) -> None:
    one = maker.write("a.whl")
    turned = dict(reversed([*maker.files.items()]))
    two = dataclasses.replace(maker, files=turned).write("b.whl")
    difference = compare(read_wheel(one), read_wheel(two))
    assert (difference.identical, difference.changes) == (False, ())


# Each term (the values are those of one change alone)


def test_a_changed_flag(maker: Maker) -> None:
    plan = with_first_unit(flags=("-O2", "-std=c++17"))
    rows = changes(maker, plan=plan)
    plan_row, unit = rows
    assert (plan_row.what, plan_row.before, plan_row.after) == ("plan", PLAN.hash, plan.hash)
    name = "fp4_quantization_120f/csrc_a: flags"
    assert unit == Change("units", name, "changed", "-O3", "-O2")


def test_flags_in_another_order(maker: Maker) -> None:
    rows = changes(maker, plan=with_first_unit(flags=("-std=c++17", "-O3")))
    assert (rows[1].before, rows[1].after) == ("-O3 -std=c++17", "-std=c++17 -O3")


def test_a_flag_that_is_given_once_more(maker: Maker) -> None:
    rows = changes(maker, plan=with_first_unit(flags=("-O3", "-O3", "-std=c++17")))
    assert (rows[1].kind, rows[1].before, rows[1].after) == ("changed", "", "-O3")


def test_a_changed_source(maker: Maker) -> None:
    rows = changes(maker, plan=with_first_unit(sha256="c" * 64))
    assert rows[1:] == [
        Change(
            "units",
            "fp4_quantization_120f/csrc_a: source",
            "changed",
            f"@FLASHINFER@/csrc/csrc_a.cu sha256 {'a' * 64}",
            f"@FLASHINFER@/csrc/csrc_a.cu sha256 {'c' * 64}",
        )
    ]


def test_another_unit(maker: Maker) -> None:
    rows = changes(maker, plan=with_first_unit(name="csrc_new"))
    assert [(row.what, row.kind) for row in rows[1:]] == [
        ("fp4_quantization_120f/csrc_a", "removed"),
        ("fp4_quantization_120f/csrc_new", "added"),
    ]


def test_another_module(maker: Maker) -> None:
    plan = dataclasses.replace(PLAN, modules=(PLAN.modules[0], *PLAN.modules[2:]))
    rows = changes(maker, plan=plan)[1:]
    assert rows[0] == Change("modules", "fp4_kv_dequant", "removed", "kv_cache", "")
    # Its targets and functions have gone with it: nothing more to say. Its units are named.
    assert [(row.section, row.kind) for row in rows[1:]] == [("units", "removed")] * 2


def test_other_targets(maker: Maker) -> None:
    first, *others = PLAN.modules
    lowered = dataclasses.replace(first, images=("9.0a",))
    rows = changes(maker, plan=dataclasses.replace(PLAN, modules=(lowered, *others)))[1:]
    name = "fp4_quantization_120f"
    expected = Change("targets", name, "changed", "12.0f", "9.0a (lowered from 12.0f)")
    assert rows == [expected]


def test_another_function(maker: Maker) -> None:
    first, second, *others = PLAN.modules
    gone = next(function for function in second.functions if function.operator)
    fewer = tuple(function for function in second.functions if function != gone)
    modules = (first, dataclasses.replace(second, functions=fewer), *others)
    plan = dataclasses.replace(PLAN, modules=modules)
    (row,) = changes(maker, plan=plan)[1:]
    assert (row.section, row.kind) == ("functions", "removed")
    assert (row.what, row.before) == (f"fp4_kv_dequant: {gone.name}", gone.operator)


def test_versions_and_compilers(maker: Maker) -> None:
    versions = dataclasses.replace(PLAN.versions, cuda_compiler="13.0.96")
    plan = dataclasses.replace(PLAN, versions=versions)
    rows = changes(maker, plan=plan, compilers=dataclasses.replace(COMPILERS, nvcc="13.0.96"))
    assert rows[1:] == [
        Change("versions", "cuda_compiler", "changed", "13.0.88", "13.0.96"),
        Change("compilers", "nvcc", "changed", "13.0.88", "13.0.96"),
    ]


def test_operator_sources(maker: Maker) -> None:
    rows = changes(maker, operators={"gemm.cpp": "int other;", "new.h": ""})
    assert [(row.section, row.what, row.kind) for row in rows] == [
        ("operator sources", "gemm.cpp", "changed"),
        ("operator sources", "hidden.map", "removed"),
        ("operator sources", "new.h", "added"),
    ]
    assert rows[0].before == hashlib.sha256(b"int gemm;").hexdigest()


def test_the_private_runtime_and_our_flags(maker: Maker) -> None:
    plan = dataclasses.replace(PLAN, tvm_ffi_sources=(), added_host_flags=("-g",))
    rows = changes(maker, plan=plan)[1:]
    assert [(row.section, row.what) for row in rows] == [
        ("own flags", "TVM-FFI sources"),
        ("own flags", "host compiler flags"),
    ]


def test_the_library(maker: Maker) -> None:
    rows = changes(maker, library=b"\x7fELF, longer")
    assert [(row.section, row.what) for row in rows] == [
        ("library", "libfp4aot.so: sha256"),
        ("library", "libfp4aot.so: size"),
    ]
    assert (rows[1].before, rows[1].after) == ("4 bytes", "12 bytes")


def test_components(maker: Maker) -> None:
    bom = json.loads(json.dumps(BOM))
    bom["components"][0]["version"] = "4.6.0"
    bom["components"][2]["licenses"] = []
    del bom["components"][1]
    assert changes(maker, bom=bom) == [
        Change(
            "components", "TensorRT-LLM", "changed", "no version, terms", "no version, no licence"
        ),
        Change("components", "cccl", "removed", "3.6.0, MIT AND Apache-2.0", ""),
        Change("components", "cutlass", "changed", "4.5.0, BSD-3-Clause", "4.6.0, BSD-3-Clause"),
    ]


def test_files_and_nothing_else(maker: Maker) -> None:
    one = maker.write("a.whl")
    files = {"fp4aot/nn.py": b"x = 2\n", "fp4aot/new.py": b""}
    two = dataclasses.replace(maker, files=files).write("b.whl")
    difference = compare(read_wheel(one), read_wheel(two))
    assert [(row.section, row.what, row.kind) for row in difference.changes] == [
        ("files", ".dist-info/RECORD", "changed"),
        ("files", "fp4aot/__init__.py", "removed"),
        ("files", "fp4aot/new.py", "added"),
        ("files", "fp4aot/nn.py", "changed"),
    ]
    assert difference.verdict == "The wheels differ: files 4."


def test_another_version_does_not_rename_every_file(maker: Maker) -> None:
    one = maker.write("a.whl")
    two = dataclasses.replace(maker, version="2.0").write("b.whl")
    rows = compare(read_wheel(one), read_wheel(two)).changes
    assert rows[0] == Change("wheel", "version", "changed", "1.0", "2.0")
    # RECORD holds the manifest's hash.
    assert [row.what for row in rows[1:]] == [".dist-info/RECORD", "fp4aot/_manifest.json"]


# Older wheels


def test_what_an_older_wheel_cannot_say_is_named(maker: Maker) -> None:
    one = dataclasses.replace(maker, with_provenance=False, bom=None).write("a.whl")
    two = dataclasses.replace(maker, plan=with_first_unit(flags=("-O2",))).write("b.whl")
    difference = compare(read_wheel(one), read_wheel(two))
    first, second = difference.not_compared
    assert first.startswith("compilers, units, flags and operator sources: ")
    assert str(one) in first
    assert second.startswith("components: ")
    assert str(two) not in first + second
    compared = {change.section for change in difference.changes}
    assert compared == {"wheel", "files"}


def test_identical_older_wheels_need_no_excuse(maker: Maker) -> None:
    old = dataclasses.replace(maker, with_provenance=False, bom=None)
    one, two = old.write("a.whl"), old.write("b.whl")
    difference = compare(read_wheel(one), read_wheel(two))
    assert difference.identical
    assert difference.not_compared == ()


# What is printed


def test_json_holds_everything(maker: Maker) -> None:
    one = maker.write("a.whl")
    two = dataclasses.replace(maker, library=b"").write("b.whl")
    data = json.loads(json.dumps(compare(read_wheel(one), read_wheel(two)).to_json()))
    assert (data["before"], data["after"]) == (str(one), str(two))
    assert (data["identical"], data["equal"]) == (False, False)
    size = next(row for row in data["changes"] if row["what"] == "libfp4aot.so: size")
    assert size == {
        "section": "library",
        "what": "libfp4aot.so: size",
        "kind": "changed",
        "before": "4 bytes",
        "after": "0 bytes",
    }


def test_the_table_is_for_people(maker: Maker) -> None:
    one = maker.write("a.whl")
    two = dataclasses.replace(
        maker, plan=with_first_unit(sha256="c" * 64), operators={"[red]x.h": ""}
    ).write("b.whl")
    output = io.StringIO()
    console = Console(file=output, width=300)
    print_difference(compare(read_wheel(one), read_wheel(two)), console)
    text = output.getvalue()
    assert f"sha256 {'c' * 12}…" in text
    assert "c" * 13 not in text
    assert "[red]x.h" in text
    lines = text.splitlines()
    assert lines[0] == f"- {one}"
    assert lines[-1].startswith("The wheels differ: wheel 1, units 1, operator sources 3, files ")


def test_sections_are_reported_in_their_order(maker: Maker) -> None:
    one = maker.write("a.whl")
    two = dataclasses.replace(
        maker, library=b"", plan=with_first_unit(flags=()), operators={"a.h": ""}
    ).write("b.whl")
    rows = compare(read_wheel(one), read_wheel(two)).changes
    seen = list(dict.fromkeys(row.section for row in rows))
    assert seen == ["wheel", "units", "operator sources", "library", "files"]
    assert seen == [section for section in SECTIONS if section in seen]


# Bad input


def test_what_is_not_a_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"nothing\.whl is not a fp4aot wheel"):
        read_wheel(tmp_path / "nothing.whl")
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(AuditError, match=r"text\.whl is not a fp4aot wheel"):
        read_wheel(tmp_path / "text.whl")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other-1.dist-info/RECORD", "")
    with pytest.raises(AuditError, match=r"other\.whl is not .*_manifest\.json"):
        read_wheel(tmp_path / "other.whl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("fp4aot/_manifest.json", b"[]"),
        ("fp4aot/_manifest.json", b'{"version": "1"}'),
        ("fp4aot/_provenance.json", b'{"plan": {}}'),
        ("fp4aot/_provenance.json", b"{"),
        ("fp4aot-1.0.dist-info/sboms/fp4aot.cdx.json", b"[1]"),
    ],
)
def test_a_damaged_file_is_an_error_and_not_an_older_wheel(
    maker: Maker, name: str, content: bytes
) -> None:
    path = maker.write("a.whl")
    with zipfile.ZipFile(path) as archive:
        contents = {item: archive.read(item) for item in archive.namelist()}
    assert name in contents
    with zipfile.ZipFile(path, "w") as archive:
        for item, old in contents.items():
            archive.writestr(item, content if item == name else old)
    with pytest.raises(AuditError, match=r"a\.whl is not a fp4aot wheel"):
        read_wheel(path)


def test_a_damaged_archive_is_refused(maker: Maker) -> None:
    path = maker.write("a.whl")
    content = bytearray(path.read_bytes())
    position = content.index(b"x = 1\n")
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(AuditError, match="CRC"):
        read_wheel(path)
