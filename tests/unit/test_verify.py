"""``doctor --verify``: are the installed files those of the wheel?"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plans import module_of, plan_of

from aot.files import write_json
from aot.manifest import Compilers, hash_operator_sources, make_manifest, make_provenance
from aot.plan import Unit
from aot.presets import PRESETS
from fp4aot import __main__ as commands
from fp4aot import _verify
from fp4aot._verify import CAUSES, Problem, hash_of_sources, verify

ROW = PRESETS["quick"].modules[0]
UNIT = Unit("csrc_a", "@FLASHINFER@/csrc/a.cu", "cuda", ("-O3",), "a" * 64)
PLAN = plan_of(module_of(ROW, UNIT), preset="quick", tvm_ffi_sources=("a.cc",))


@dataclasses.dataclass(frozen=True)
class Installation:
    """An installed wheel, as small as can be."""

    site: Path

    @property
    def package(self) -> Path:
        return self.site / "fp4aot"

    @property
    def record(self) -> Path:
        return self.site / "fp4aot-1.0.dist-info" / "RECORD"

    def line(self, name: str, mode: str = "sha256") -> str:
        content = (self.site / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.new(mode, content).digest())
        # RECORD is CSV: a name with a comma is quoted.
        quoted = f'"{name}"' if "," in name else name
        return f"{quoted},{mode}={digest.rstrip(b'=').decode()},{len(content)}"

    def write_record(self, *more: str, without: str = "") -> None:
        files = [path for path in self.site.rglob("*") if path.is_file() and path != self.record]
        names = sorted(path.relative_to(self.site).as_posix() for path in files)
        lines = [self.line(name) for name in names if name != without]
        text = "\n".join([*lines, *more, "fp4aot-1.0.dist-info/RECORD,,"])
        self.record.write_text(text + "\n")


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    result = Installation(tmp_path / "site")
    csrc = tmp_path / "csrc"
    for folder in (result.package / "operators", result.record.parent, csrc):
        folder.mkdir(parents=True)
    (csrc / "gemm.cpp").write_text("int gemm;")
    (csrc / "gemm.h").write_text("")
    library = result.package / "libfp4aot.so"
    library.write_bytes(b"\x7fELF" + bytes(range(256)))
    write_json(result.package / "_manifest.json", make_manifest(PLAN, library, "1.0"))
    provenance = make_provenance(
        PLAN, Compilers("13.0.88", "g++ 12.2.0", "12.2.0"), hash_operator_sources(csrc)
    )
    write_json(result.package / "_provenance.json", provenance)
    (result.package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (result.package / "operators" / "a, b.py").write_text("x = 1\n")
    (result.record.parent / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fp4aot\nVersion: 1.0\n"
    )
    result.write_record()
    return result


def problems(installed: Installation) -> list[tuple[str, str]]:
    return [(problem.cause, problem.file) for problem in verify(installed.package).problems]


def results(installed: Installation) -> dict[str, str]:
    return {check.name: check.result for check in verify(installed.package).checks}


ALL_OK = {"files": "ok", "nothing extra": "ok", "library": "ok", "provenance": "ok"}


def test_what_pip_has_installed_is_the_wheel(installed: Installation) -> None:
    report = verify(installed.package)
    assert report.problems == ()
    assert results(installed) == ALL_OK
    assert report.version == "1.0"
    files, _, library, provenance = report.checks
    assert files.compared.startswith("6 files with RECORD")
    assert "libfp4aot.so, 260 bytes, sha256 " in library.compared
    assert provenance.compared == f"plan {PLAN.hash}, 1 units, 2 operator sources"


# Files and RECORD


@pytest.mark.parametrize("name", ["fp4aot/__init__.py", "fp4aot/operators/a, b.py"])
def test_a_changed_file(installed: Installation, name: str) -> None:
    path = installed.site / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")  # the same size
    assert problems(installed) == [(_verify.CHANGED, name)]
    assert results(installed) == ALL_OK | {"files": "DIFFERS"}
    (problem,) = verify(installed.package).problems
    assert "bytes" not in problem.expected
    path.write_text("shorter")
    (problem,) = verify(installed.package).problems
    assert problem.found.endswith("(7 bytes)")


def test_changed_metadata(installed: Installation) -> None:
    metadata = installed.record.parent / "METADATA"
    metadata.write_text(metadata.read_text() + "\nchanged\n")
    assert problems(installed) == [(_verify.CHANGED, "fp4aot-1.0.dist-info/METADATA")]


def test_a_missing_file(installed: Installation) -> None:
    (installed.package / "operators" / "a, b.py").unlink()
    assert problems(installed) == [(_verify.MISSING, "fp4aot/operators/a, b.py")]


def test_an_extra_file(installed: Installation) -> None:
    (installed.package / "operators" / "left.py").write_text("")
    (installed.package / "old").mkdir()
    (installed.package / "old" / "libold.so").write_text("")
    assert problems(installed) == [
        (_verify.EXTRA, "fp4aot/old/libold.so"),
        (_verify.EXTRA, "fp4aot/operators/left.py"),
    ]


def test_a_folder_from_elsewhere(installed: Installation, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (installed.package / "linked").symlink_to(tmp_path / "elsewhere")
    assert problems(installed) == [(_verify.EXTRA, "fp4aot/linked")]


def test_bytecode_is_no_difference_beside_its_source_alone(installed: Installation) -> None:
    cache = installed.package / "__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-311.pyc").write_bytes(b"")
    # As pip lists it, and as it is after another interpreter has removed it.
    installed.write_record("fp4aot/__pycache__/gone.cpython-311.pyc,,")
    assert problems(installed) == []
    (cache / "file.so").write_bytes(b"")
    (installed.package / "nn.pyc").write_bytes(b"")
    assert problems(installed) == [
        (_verify.EXTRA, "fp4aot/__pycache__/file.so"),
        (_verify.EXTRA, "fp4aot/nn.pyc"),
    ]


def test_a_file_without_a_hash_is_not_taken_on_trust(installed: Installation) -> None:
    installed.write_record("fp4aot/__init__.py,,", without="fp4aot/__init__.py")
    assert problems(installed) == [(_verify.NO_HASH, "fp4aot/__init__.py")]
    weak = installed.line("fp4aot/__init__.py", "md5")
    installed.write_record(weak, without="fp4aot/__init__.py")
    assert problems(installed) == [(_verify.NO_HASH, "fp4aot/__init__.py")]


@pytest.mark.parametrize("mode", ["sha384", "sha512"])
def test_longer_hashes_are_compared_too(installed: Installation, mode: str) -> None:
    name = "fp4aot/__init__.py"
    installed.write_record(installed.line(name, mode), without=name)
    assert problems(installed) == []
    (installed.site / name).write_text("other")
    assert problems(installed) == [(_verify.CHANGED, name)]


def test_what_installers_add_needs_no_hash(installed: Installation) -> None:
    (installed.record.parent / "INSTALLER").write_text("pip")
    installed.record.write_text(installed.record.read_text() + "fp4aot-1.0.dist-info/INSTALLER,,\n")
    assert problems(installed) == []


@pytest.mark.parametrize("other", ["fp4aot-0.9.dist-info", "fp4aot-1.0+lowered.dist-info"])
def test_two_installations_in_one_folder(installed: Installation, other: str) -> None:
    left = installed.site / other
    left.mkdir()
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: fp4aot\nVersion: 0.9\n")
    assert problems(installed) == [(_verify.NO_RECORD, "fp4aot")]
    assert "2 folders" in verify(installed.package).problems[0].found


def test_a_source_checkout_is_no_installation(tmp_path: Path) -> None:
    (tmp_path / "fp4aot").mkdir()
    causes = {problem.cause for problem in verify(tmp_path / "fp4aot").problems}
    assert causes == {_verify.NO_RECORD, _verify.MANIFEST}


def test_a_lost_record(installed: Installation) -> None:
    installed.record.unlink()
    assert problems(installed) == [(_verify.NO_RECORD, "fp4aot")]


def test_an_installation_elsewhere_on_the_path_is_not_asked(
    installed: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed.site))
    (tmp_path / "other" / "fp4aot").mkdir(parents=True)
    causes = [problem.cause for problem in verify(tmp_path / "other" / "fp4aot").problems]
    assert _verify.NO_RECORD in causes


# The library and the manifest


def test_a_damaged_library_differs_from_both(installed: Installation) -> None:
    library = installed.package / "libfp4aot.so"
    content = bytearray(library.read_bytes())
    content[100] ^= 1
    library.write_bytes(content)
    name = "fp4aot/libfp4aot.so"
    assert problems(installed) == [(_verify.CHANGED, name), (_verify.LIBRARY, name)]


def test_a_library_that_record_knows_and_the_manifest_does_not(installed: Installation) -> None:
    (installed.package / "libfp4aot.so").write_bytes(b"\x7fELF of another build")
    installed.write_record()
    assert problems(installed) == [(_verify.LIBRARY, "fp4aot/libfp4aot.so")] * 2
    sizes, hashes = verify(installed.package).problems
    assert (sizes.expected, sizes.found) == ("260 bytes", "21 bytes")
    assert hashes.expected.startswith("sha256 ")


def test_a_library_that_is_gone(installed: Installation) -> None:
    (installed.package / "libfp4aot.so").unlink()
    name = "fp4aot/libfp4aot.so"
    assert problems(installed) == [(_verify.MISSING, name), (_verify.LIBRARY, name)]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"library": {"name": 3}}', b"\xff"])
def test_an_unreadable_manifest(installed: Installation, content: bytes) -> None:
    (installed.package / "_manifest.json").write_bytes(content)
    installed.write_record()
    assert (_verify.MANIFEST, "fp4aot/_manifest.json") in problems(installed)
    assert results(installed)["library"] == "DIFFERS"


# The provenance


def edit(installed: Installation, change) -> None:
    path = installed.package / "_provenance.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    installed.write_record()


def test_a_flag_cannot_be_changed_under_the_same_plan_hash(installed: Installation) -> None:
    edit(installed, lambda data: data["plan"]["modules"][0]["units"][0]["flags"].append("-O0"))
    (problem,) = verify(installed.package).problems
    assert (problem.cause, problem.file) == (_verify.PROVENANCE, "fp4aot/_provenance.json")
    assert problem.expected == f"plan {PLAN.hash}"
    assert problem.found.endswith("of what it lists")


def test_the_provenance_of_another_build(installed: Installation) -> None:
    other = dataclasses.replace(PLAN, preset="full").to_json()
    edit(installed, lambda data: data.update(plan=other))
    assert problems(installed) == [(_verify.PROVENANCE, "fp4aot/_provenance.json")] * 2


def test_an_operator_source_cannot_be_changed_under_the_same_hash(installed: Installation) -> None:
    edit(installed, lambda data: data["operator_sources"]["files"].update({"gemm.cpp": "0" * 64}))
    (problem,) = verify(installed.package).problems
    assert problem.cause == _verify.PROVENANCE
    assert problem.expected.startswith("operator sources ")


@pytest.mark.parametrize("key", ["plan", "operator_sources"])
def test_a_provenance_that_lacks_something(installed: Installation, key: str) -> None:
    edit(installed, lambda data: data.pop(key))
    assert problems(installed) == [(_verify.PROVENANCE, "fp4aot/_provenance.json")]


def test_an_older_wheel_is_said_not_to_have_one(installed: Installation) -> None:
    (installed.package / "_provenance.json").unlink()
    installed.write_record()
    assert verify(installed.package).ok
    assert results(installed) == ALL_OK | {"provenance": "not checked"}


def test_both_sides_hash_operator_sources_alike(tmp_path: Path) -> None:
    for name, text in (("b.cpp", "b"), ("a.h", "a"), ("hidden.map", ""), ("notes.txt", "no")):
        (tmp_path / name).write_text(text)
    sources = hash_operator_sources(tmp_path)
    assert [*sources["files"]] == ["a.h", "b.cpp", "hidden.map"]
    assert hash_of_sources(sources["files"]) == sources["sha256"]


# The command


def test_the_command_prints_and_exits(
    installed: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _verify.print_report(as_json=False, package=installed.package) == 0
    text = capsys.readouterr().out
    assert "fp4aot 1.0 in " in text
    assert text.endswith("The installed files are those of the wheel.\n")
    assert "PROBLEM" not in text

    (installed.package / "__init__.py").unlink()
    (installed.package / "new.py").write_text("")
    assert _verify.print_report(as_json=False, package=installed.package) == 1
    text = capsys.readouterr().out
    assert "PROBLEM  missing: fp4aot/__init__.py: expected a file, found none" in text
    assert "DO       reinstall it: pip install" in text
    assert text.endswith("This installation differs from its wheel: missing, extra.\n")

    assert _verify.print_report(as_json=True, package=installed.package) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False
    assert [row["result"] for row in data["checks"]] == ["DIFFERS", "DIFFERS", "ok", "ok"]
    assert {row["cause"] for row in data["problems"]} == {_verify.MISSING, _verify.EXTRA}


def test_doctor_verify_is_this_command(capsys: pytest.CaptureFixture[str]) -> None:
    # This checkout is not installed.
    assert commands.main(["doctor", "--verify", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["package"] == str(_verify.PACKAGE)
    assert _verify.NO_RECORD in {row["cause"] for row in data["problems"]}


def test_it_runs_as_a_file_where_the_package_cannot_be_imported(installed: Installation) -> None:
    source = Path(_verify.__file__)
    (installed.package / "_verify.py").write_bytes(source.read_bytes())
    installed.write_record()
    command = [sys.executable, "-I", "-S", str(installed.package / "_verify.py"), "--json"]
    environment = {name: os.environ[name] for name in ("PATH",)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True

    (installed.package / "libfp4aot.so").write_bytes(b"")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    causes = [row["cause"] for row in json.loads(done.stdout)["problems"]]
    assert causes == [_verify.CHANGED, _verify.LIBRARY, _verify.LIBRARY]


def test_causes_are_a_closed_set() -> None:
    assert len(set(CAUSES)) == len(CAUSES) == 8
    assert str(Problem("extra", "a", "b", "c")) == "extra: a: expected b, found c"
