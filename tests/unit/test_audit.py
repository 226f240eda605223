"""The audit, on tiny libraries that are built here: a good one, and one for each way to be bad."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version
from rich.console import Console

from aot import audit, toolchain
from aot.architectures import Architecture
from aot.audit import LibraryExpectation, WheelExpectation
from aot.errors import AotError, AuditError, ToolchainError
from aot.platforms import PLATFORMS
from aot.toolchain import Toolkit

F120 = Architecture(12, 0, "f")
A100 = Architecture(10, 0, "a")
A90 = Architecture(9, 0, "a")

ENTRY = """
Fatbin {kind} code:
================
arch = sm_{sm}
code version = [1,8]
host = linux
compile_size = 64bit
"""


def listing(*entries: tuple[str, str]) -> str:
    return "".join(ENTRY.format(kind=kind, sm=sm) for kind, sm in entries)


class Workshop:
    """Builds libraries and the wheel around them, and lists device code that is not there."""

    def __init__(self, folder: Path, cc: str) -> None:
        self.folder = folder
        self.cc = cc
        self.libtorch = self.library("int aoti_torch_x(void) { return 1; }", name="libtorch.so")

    def library(self, source: str, *options: str, name: str = "lib.so") -> Path:
        path = self.folder / name
        (self.folder / "source.c").write_text(source)
        command = [self.cc, "-shared", "-fPIC", "-o", path, self.folder / "source.c", *options]
        subprocess.run(command, check=True, capture_output=True)
        return path

    def good_library(self, *options: str, source: str = "", name: str = "lib.so") -> Path:
        code = f"""
            #include <stdlib.h>
            extern int aoti_torch_x(void);
            {source}
            static void *kept;
            __attribute__((constructor)) static void start(void)
            {{ kept = malloc(aoti_torch_x()); }}
        """
        return self.library(
            code,
            "-fvisibility=hidden",
            "-Wl,--no-as-needed",
            f"-L{self.folder}",
            "-ltorch",
            *options,
            name=name,
        )

    def toolkit(self, text: str, *, code: int = 0, stderr: str = "") -> Toolkit:
        """A toolkit whose cuobjdump prints `text` for every file."""
        (self.folder / "listing").write_text(text)
        (self.folder / "complaint").write_text(stderr)
        script = self.folder / "cuobjdump"
        folder = self.folder
        script.write_text(
            f"#!/bin/sh\ncat '{folder}/listing'\ncat '{folder}/complaint' >&2\nexit {code}\n"
        )
        script.chmod(0o755)
        return Toolkit(
            root=self.folder,
            version=Version("13.0"),
            compiler_version=Version("13.0.88"),
            nvcc=self.folder / "nvcc",
            cuobjdump=script,
            nvdisasm=None,
            source="test",
            targets=(),
        )


@pytest.fixture
def workshop(tmp_path: Path, cc: str) -> Workshop:
    return Workshop(tmp_path, cc)


HERE = platform.machine()
ELSEWHERE = next(machine for machine in PLATFORMS if machine != HERE)
EXPECTED = LibraryExpectation(images={F120: 2}, machine=HERE)
LISTING = listing(("elf", "120f"), ("elf", "120f"))


def problems(
    workshop: Workshop, library: Path, expected: LibraryExpectation = EXPECTED, text: str = LISTING
) -> list[str]:
    report = audit.audit_library(library, expected, workshop.toolkit(text))
    assert report.passed == (not report.findings)
    return [finding.what for finding in report.findings]


# Device code


def test_listing_keeps_suffixes_kinds_and_counts() -> None:
    images = audit.parse_images(
        listing(("elf", "120f"), ("ptx", "100a"), ("elf", "90a"), ("elf", "120f"), ("elf", "80"))
    )
    assert audit.count_images(images) == {Architecture(8, 0): 1, A90: 1, F120: 2}
    assert audit.count_images(images, "ptx") == {A100: 1}


def test_empty_listing_holds_nothing() -> None:
    assert audit.parse_images("") == ()


@pytest.mark.parametrize(
    "text",
    [
        listing(("sass", "120f")),
        listing(("elf", "120x")),
        listing(("elf", "120f")).replace("arch =", "target ="),
    ],
)
def test_listing_in_an_unknown_format_is_an_error(text: str) -> None:
    with pytest.raises(AuditError):
        audit.parse_images(text)


def test_file_without_device_code_holds_no_image(workshop: Workshop) -> None:
    toolkit = workshop.toolkit("", code=255, stderr="File 'x' does not contain device code")
    assert audit.read_images(workshop.libtorch, toolkit) == ()


def test_failed_listing_is_an_error_with_its_output(workshop: Workshop) -> None:
    with pytest.raises(AuditError, match="fatal: broken"):
        audit.read_images(workshop.libtorch, workshop.toolkit("", code=255, stderr="fatal: broken"))


def test_file_that_is_not_elf_is_an_error(workshop: Workshop) -> None:
    path = workshop.folder / "text.so"
    path.write_text("not a library")
    with pytest.raises(AuditError, match="not an ELF file"):
        audit.read_images(path, workshop.toolkit(""))


def test_toolkit_without_cuobjdump_is_named(workshop: Workshop) -> None:
    toolkit = dataclasses.replace(workshop.toolkit(""), cuobjdump=None)
    with pytest.raises(ToolchainError, match="no bin/cuobjdump"):
        audit.read_images(workshop.libtorch, toolkit)


# Libraries


def test_good_library_passes(workshop: Workshop) -> None:
    library = workshop.good_library()
    report = audit.audit_library(library, EXPECTED, workshop.toolkit(LISTING))
    assert report.findings == ()
    assert report.passed
    assert report.images == {"12.0f": 2}
    assert report.needed[0] == "libtorch.so"
    assert report.exports == ()
    assert "aoti_torch_x" in report.undefined
    assert report.c_library[:2] == "2."
    assert report.c_library_symbols
    assert report.sha256 == hashlib.sha256(library.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("images", "expected", "complaint"),
    [
        ([("elf", "120f")], {F120: 2}, "holds 1 images for 12.0f; its plan makes 2"),
        ([("elf", "120f")], {F120: None, A100: None}, "holds no image for 10.0a"),
        ([("elf", "120f"), ("elf", "90a")], {F120: None}, "holds 1 images for 9.0a"),
        ([], {F120: None}, "holds no image for 12.0f"),
        ([("elf", "120f"), ("ptx", "120f")], {F120: 1}, "holds PTX for: 12.0f; expected: none"),
        ([("elf", "120f"), ("nvvm", "120f")], {F120: 1}, "link-time"),
    ],
)
def test_device_code_that_differs_from_the_plan(
    workshop: Workshop,
    images: list[tuple[str, str]],
    expected: dict[Architecture, int | None],
    complaint: str,
) -> None:
    found = problems(
        workshop,
        workshop.libtorch,
        LibraryExpectation(images=expected, exports=("aoti_torch_x",), machine=HERE),
        listing(*images),
    )
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize("bare", ["120", "120a"])
def test_dropped_or_other_suffix_is_two_findings(workshop: Workshop, bare: str) -> None:
    found = problems(workshop, workshop.good_library(), text=listing(("elf", bare), ("elf", bare)))
    assert len(found) == 2
    assert any("no image for 12.0f" in problem for problem in found)


@pytest.mark.parametrize(
    ("options", "source", "complaint"),
    [
        (["-Wl,-rpath,/somewhere/lib"], "", "run path /somewhere/lib"),
        (["-Wl,-rpath,/somewhere/lib,--disable-new-dtags"], "", "run path /somewhere/lib"),
        (
            [],
            '__attribute__((visibility("default"))) int shown(void) { return 1; }',
            "exports shown",
        ),
        (
            [],
            "extern int cuInit(unsigned); __attribute__((constructor)) static void other(void) "
            "{ cuInit(0); }",
            "asks for cuInit",
        ),
        (
            [],
            "extern int foreign(void) __attribute__((weak)); __attribute__((constructor)) "
            "static void other(void) { if (foreign) foreign(); }",
            "asks for foreign",
        ),
        (["-Wl,-z,execstack"], "", "executable stack"),
    ],
)
def test_each_way_to_be_bad_is_one_finding(
    workshop: Workshop, options: list[str], source: str, complaint: str
) -> None:
    found = problems(workshop, workshop.good_library(*options, source=source))
    assert len(found) == 1
    assert complaint in found[0]


def test_foreign_library_is_named(workshop: Workshop) -> None:
    workshop.library("int other(void) { return 1; }", name="libother.so")
    found = problems(workshop, workshop.good_library("-lother"))
    assert len(found) == 1
    assert "needs libother.so; allowed are libtorch.so" in found[0]


def test_unique_symbol_is_found(workshop: Workshop) -> None:
    source = """
        __asm__(".globl once\\n.type once, @gnu_unique_object\\n.section .bss\\nonce: .zero 4\\n"
                ".size once, 4\\n.text");
    """
    expected = dataclasses.replace(EXPECTED, exports=("once",))
    found = problems(workshop, workshop.good_library(source=source), expected)
    assert len(found) == 1
    assert "unique symbols: once" in found[0]


def test_library_for_another_machine_is_refused_by_name(workshop: Workshop) -> None:
    library = workshop.good_library()
    expected = dataclasses.replace(EXPECTED, machine=ELSEWHERE)
    found = problems(workshop, library, expected)
    assert len(found) == 1
    assert found[0].startswith(f"is a library for {HERE}; its plan is for {ELSEWHERE}.")
    # The same the other way round: two bytes of its head say what it is for.
    head = bytearray(library.read_bytes())
    head[18:20] = ELF_NUMBERS[ELSEWHERE].to_bytes(2, "little")
    library.write_bytes(head)
    assert problems(workshop, library, expected) == []
    assert problems(workshop, library)[0].startswith(f"is a library for {ELSEWHERE};")


def test_library_for_an_unknown_machine_is_named_as_its_format_does(workshop: Workshop) -> None:
    library = workshop.good_library()
    head = bytearray(library.read_bytes())
    head[18:20] = (243).to_bytes(2, "little")
    library.write_bytes(head)
    assert problems(workshop, library)[0].startswith("is a library for EM_RISCV;")


def test_report_says_what_a_library_is_for(workshop: Workshop) -> None:
    report = audit.audit_library(workshop.good_library(), EXPECTED, workshop.toolkit(LISTING))
    assert report.machine == HERE
    assert audit.as_json(report)["machine"] == HERE


def test_allow_lists_are_patterns(workshop: Workshop) -> None:
    library = workshop.good_library(
        source="""
            __attribute__((visibility("default"))) int fp4aot_one(void) { return 1; }
            extern int other_two(void);
            __attribute__((constructor)) static void other(void) { other_two(); }
        """
    )
    expected = dataclasses.replace(
        EXPECTED, exports=("fp4aot_*",), undefined=("aoti_torch_*", "other_*")
    )
    assert problems(workshop, library, expected) == []


def test_folder_of_the_build_machine_is_found(workshop: Workshop) -> None:
    library = workshop.good_library(
        source='static const char *volatile file = "/secret/build/kernels/quantize.cu";'
    )
    expected = dataclasses.replace(EXPECTED, forbidden_prefixes=("/secret/build", "/elsewhere"))
    found = problems(workshop, library, expected)
    assert len(found) == 1
    assert "'/secret/build/kernels/quantize.cu'" in found[0]


def test_object_file_is_no_library(workshop: Workshop) -> None:
    path = workshop.folder / "one.o"
    (workshop.folder / "one.c").write_text("int one(void) { return 1; }")
    subprocess.run([workshop.cc, "-c", "-o", path, workshop.folder / "one.c"], check=True)
    with pytest.raises(AuditError, match="no shared library"):
        problems(workshop, path)


def test_truncated_library_is_an_audit_error(workshop: Workshop) -> None:
    library = workshop.good_library()
    library.write_bytes(library.read_bytes()[:100])
    with pytest.raises(AuditError, match="not a readable ELF file"):
        problems(workshop, library)


def test_absent_library_is_an_audit_error(workshop: Workshop) -> None:
    with pytest.raises(AuditError, match="there is no library"):
        problems(workshop, workshop.folder / "absent.so")


# Wheels

INNER = "example/lib.so"
ELF_NUMBERS = {"x86_64": 62, "aarch64": 183}
TAG = f"linux_{platform.machine()}"


def make_wheel(
    workshop: Workshop,
    *,
    tag: str = TAG,
    licences: tuple[str, ...] = ("LICENSE", "Other-NOTICE.txt"),
    library: Path | None = None,
    extra: tuple[str, ...] = (),
) -> Path:
    wheel = workshop.folder / f"example-1.0-py3-none-{tag}.whl"
    info = "example-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library or workshop.good_library(), INNER)
        for name in extra:
            archive.write(workshop.libtorch, name)
        for name in licences:
            archive.writestr(f"{info}/licenses/{name}", "text")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.4\nName: example\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
        )
        # auditwheel looks at what is recorded, and at nothing else.
        record = "".join(f"{name},,\n" for name in [*archive.namelist(), f"{info}/RECORD"])
        archive.writestr(f"{info}/RECORD", record)
    return wheel


def wheel_report(
    workshop: Workshop, wheel: Path, notices: tuple[str, ...] = ("other",)
) -> audit.WheelReport:
    expected = WheelExpectation(libraries={INNER: EXPECTED}, notices=notices)
    return audit.audit_wheel(wheel, expected, workshop.toolkit(LISTING))


def test_good_wheel_passes_and_says_what_it_can_be_tagged(workshop: Workshop) -> None:
    report = wheel_report(workshop, make_wheel(workshop))
    assert report.passed
    assert report.platform.startswith("manylinux_2_")
    assert [finding.severity for finding in report.findings] == ["warning"]
    assert f"can be tagged {report.platform}" in report.findings[0].what
    assert report.licences == (
        "example-1.0.dist-info/licenses/LICENSE",
        "example-1.0.dist-info/licenses/Other-NOTICE.txt",
    )


def test_wheel_without_a_file_that_it_must_hold_is_refused(workshop: Workshop) -> None:
    wheel = make_wheel(workshop)
    for files, passed in (((INNER,), True), (("example-*.dist-info/sboms/*.json",), False)):
        expected = WheelExpectation(libraries={INNER: EXPECTED}, notices=("other",), files=files)
        report = audit.audit_wheel(wheel, expected, workshop.toolkit(LISTING))
        assert report.passed is passed
    assert "holds no file example-*.dist-info/sboms/*.json" in report.findings[-1].what


def test_right_tag_leaves_nothing_to_say(workshop: Workshop) -> None:
    tag = audit.platform_tag(make_wheel(workshop))
    assert wheel_report(workshop, make_wheel(workshop, tag=tag)).findings == ()


# Version 2.34 of the C library moved this one in; older systems do not have it there.
NEWER = """
    #include <pthread.h>
    static void *nothing(void *p) { return p; }
    __attribute__((constructor)) static void other(void)
    { pthread_t t; pthread_create(&t, 0, nothing, 0); }
"""


def test_wheel_that_claims_too_old_a_system_fails(workshop: Workshop) -> None:
    library = workshop.good_library(source=NEWER)
    wheel = make_wheel(workshop, tag=f"manylinux_2_5_{platform.machine()}", library=library)
    if "2_5_" in audit.platform_tag(wheel):
        pytest.skip("NOT TESTED: too old a tag, because this C library is as old")
    report = wheel_report(workshop, wheel)
    assert not report.passed
    assert "its libraries need" in report.findings[0].what


@pytest.mark.parametrize("tag", ["manylinux_2_39_riscv64", "linux_riscv64", "any"])
def test_wheel_for_another_machine_fails(workshop: Workshop, tag: str) -> None:
    report = wheel_report(workshop, make_wheel(workshop, tag=tag))
    assert not report.passed
    assert f"is tagged {tag} and holds {HERE} code" in report.findings[0].what


@pytest.fixture
def other_workshop(tmp_path: Path) -> Workshop:
    """Makes libraries for another machine than this one."""
    name = f"{ELSEWHERE}-linux-gnu-gcc"
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: libraries for {ELSEWHERE}, because {name} is not installed")
    (tmp_path / "other").mkdir()
    return Workshop(tmp_path / "other", found)


def test_wheel_of_another_machine_gets_its_tag(other_workshop: Workshop) -> None:
    wheel = make_wheel(other_workshop, tag=f"linux_{ELSEWHERE}")
    platform_name = audit.platform_tag(wheel)
    assert platform_name.startswith("manylinux_2_")
    assert platform_name.endswith(f"_{ELSEWHERE}")
    expected = dataclasses.replace(EXPECTED, machine=ELSEWHERE)
    tagged = make_wheel(other_workshop, tag=platform_name)
    report = audit.audit_wheel(
        tagged, WheelExpectation(libraries={INNER: expected}), other_workshop.toolkit(LISTING)
    )
    assert report.findings == ()


def test_newer_symbols_of_another_machine_need_a_newer_system(other_workshop: Workshop) -> None:
    library = other_workshop.good_library(source=NEWER)
    wheel = make_wheel(other_workshop, tag=f"manylinux_2_17_{ELSEWHERE}", library=library)
    report = wheel_report(other_workshop, wheel)
    what = [finding.what for finding in report.findings if finding.where == wheel.name]
    assert f"is tagged manylinux_2_17_{ELSEWHERE}, and its libraries need" in what[0]
    assert report.libraries[0].c_library == "2.34"


def test_wheel_of_this_machine_fails_in_another_machines_plan(workshop: Workshop) -> None:
    wheel = make_wheel(workshop, tag=audit.platform_tag(make_wheel(workshop)))
    expected = WheelExpectation(
        libraries={INNER: dataclasses.replace(EXPECTED, machine=ELSEWHERE)}, notices=("other",)
    )
    report = audit.audit_wheel(wheel, expected, workshop.toolkit(LISTING))
    with pytest.raises(AuditError) as caught:
        audit.require_passed(report)
    assert f"{INNER} is a library for {HERE}; its plan is for {ELSEWHERE}" in str(caught.value)


@pytest.mark.parametrize(
    ("licences", "complaint"),
    [
        (("other-LICENSE",), "holds no licenses/LICENSE"),
        (("LICENSE", "another-NOTICE.txt"), "links in code of other"),
    ],
)
def test_missing_licences_fail(
    workshop: Workshop, licences: tuple[str, ...], complaint: str
) -> None:
    report = wheel_report(workshop, make_wheel(workshop, licences=licences))
    errors = [finding.what for finding in report.findings if finding.severity == "error"]
    assert len(errors) == 1
    assert complaint in errors[0]


def test_unplanned_and_missing_libraries_fail(workshop: Workshop) -> None:
    wheel = make_wheel(workshop, extra=("example/libextra.so.1",))
    expected = WheelExpectation(libraries={INNER: EXPECTED, "example/absent.so": EXPECTED})
    report = audit.audit_wheel(wheel, expected, workshop.toolkit(LISTING))
    errors = {(f.where, f.what) for f in report.findings if f.severity == "error"}
    assert errors == {
        ("example/absent.so", "is not in the wheel"),
        ("example/libextra.so.1", "is in the wheel unplanned"),
    }


def test_bad_library_fails_its_wheel(workshop: Workshop) -> None:
    wheel = make_wheel(workshop, library=workshop.good_library("-Wl,-rpath,/somewhere"))
    with pytest.raises(AuditError, match=f"{INNER} has the run path"):
        audit.require_passed(wheel_report(workshop, wheel))


@pytest.mark.parametrize("content", [b"not a wheel", b""])
def test_file_that_is_no_wheel_is_an_audit_error(workshop: Workshop, content: bytes) -> None:
    wheel = workshop.folder / f"example-1.0-py3-none-{TAG}.whl"
    wheel.write_bytes(content)
    with pytest.raises(AuditError, match="cannot tell the platform"):
        audit.platform_tag(wheel)


def test_a_library_that_has_been_read_is_not_read_again(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(workshop)
    first = wheel_report(workshop, wheel)
    read: list[Path] = []
    real = audit.wheel.audit_library

    def count(path: Path, *rest: object) -> object:
        read.append(path)
        return real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(audit.wheel, "audit_library", count)
    expected = WheelExpectation(libraries={INNER: EXPECTED}, notices=("other",))
    again = audit.audit_wheel(wheel, expected, workshop.toolkit(LISTING), earlier=first)
    assert read == []
    assert again.libraries == first.libraries
    # One byte differs: nothing that was found before counts.
    changed = workshop.good_library()
    changed.write_bytes(changed.read_bytes() + b"x")
    audit.audit_wheel(
        make_wheel(workshop, library=changed), expected, workshop.toolkit(LISTING), earlier=first
    )
    assert len(read) == 1


# Reports


def test_report_shows_what_the_machine_code_holds(workshop: Workshop) -> None:
    report = audit.audit_library(workshop.good_library(), EXPECTED, workshop.toolkit(LISTING))
    images = audit.ModuleImages("fp4_gemm", "12.0f", 2, 10, 5, ("ACQBULK", "OMMA.4X"))
    console = Console(file=io.StringIO(), width=200)
    audit.print_report(dataclasses.replace(report, modules=(images,)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "fp4_gemm" in text
    assert "ACQBULK OMMA.4X" in text


def test_images_are_not_attributed_where_some_are_missing(workshop: Workshop) -> None:
    units = (audit.DeviceUnit("m", "a", (F120,)), audit.DeviceUnit("m", "b", (F120,)))
    expected = dataclasses.replace(EXPECTED, images={F120: 3}, units=units)
    found = problems(workshop, workshop.good_library(), expected)
    assert found == ["holds 2 images for 12.0f; its plan makes 3"]


def test_a_listing_without_device_code_behind_it_is_not_trusted(workshop: Workshop) -> None:
    units = (audit.DeviceUnit("m", "a", (F120,)), audit.DeviceUnit("m", "b", (F120,)))
    expected = dataclasses.replace(EXPECTED, units=units)
    (found,) = problems(workshop, workshop.good_library(), expected)
    assert found.startswith("packs 0 images where cuobjdump lists 2")


def test_report_is_json_and_text(workshop: Workshop) -> None:
    report = wheel_report(workshop, make_wheel(workshop, licences=()))
    data = json.loads(json.dumps(audit.as_json(report)))
    assert data["passed"] is False
    assert data["libraries"][0]["images"] == {"12.0f": 2}
    assert data["wheel_findings"][0]["severity"] in {"error", "warning"}
    console = Console(file=io.StringIO(), width=200)
    audit.print_report(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "12.0f x 2" in text
    assert "Audit failed" in text


# A real toolkit


def _real_toolkit() -> Toolkit | None:
    folder = Path(__file__).parents[2] / "build" / "toolchain"
    try:
        found = toolchain.candidates("13.0", folder)
    except AotError:
        return None
    return next((c.toolkit for c in found if c.toolkit and c.toolkit.cuobjdump), None)


def test_real_device_code_is_read_with_its_suffix(tmp_path: Path) -> None:
    toolkit = _real_toolkit()
    if toolkit is None:
        pytest.skip("NOT TESTED: reading real device code, because no CUDA 13.0 toolkit is there")
    objects = []
    for name in ("one", "two"):
        source = tmp_path / f"{name}.cu"
        source.write_text(f"__global__ void {name}(int *p) {{ *p = 1; }}\n")
        objects.append(tmp_path / f"{name}.o")
        flags = [architecture.gencode for architecture in (F120, A90)]
        subprocess.run(
            [toolkit.nvcc, "-c", "-Xcompiler", "-fPIC", *flags, "-o", objects[-1], source],
            check=True,
        )
    merged = tmp_path / "merged.o"
    subprocess.run(["ld", "-r", "-o", merged, *objects], check=True)
    assert audit.count_images(audit.read_images(objects[0], toolkit)) == {A90: 1, F120: 1}
    assert audit.count_images(audit.read_images(merged, toolkit)) == {A90: 2, F120: 2}
