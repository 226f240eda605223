"""Loading: versions, damaged installations, and what the dynamic linker's messages mean."""

from __future__ import annotations

import ctypes
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from fp4aot import _library, _manifest
from fp4aot._library import check_file, check_platform, check_torch, explain, release

MANIFEST = _manifest.Manifest(
    *("0.1.0", "quick", "0" * 64, (), "", ()), *("libfp4aot.so", 100, "0" * 64)
)


# Versions (case 22)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.10", (2, 10)),
        ("2.10.0", (2, 10, 0)),
        ("2.10.0+cu130", (2, 10, 0)),
        ("2.10.0.post1", (2, 10, 0)),
        ("2.10.0.dev20260101+cu130", (2, 10, 0)),
        ("2.10.0a0+gitdeadbee", (2, 10, 0)),
        ("2.10.0rc1", (2, 10, 0)),
        ("2.10+cpu.4.5", (2, 10)),
        ("0.6.1", (0, 6, 1)),
        ("0.6.10", (0, 6, 10)),
        ("3", (3,)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_release_segments(version: str, expected: tuple[int, ...]) -> None:
    assert release(version) == expected


def test_versions_are_not_compared_by_prefix() -> None:
    assert release("2.1") < release("2.9") < release("2.10") < release("2.11") < release("3.0")
    assert release("0.6.1") < release("0.6.9") < release("0.6.10")


@pytest.mark.parametrize(
    "version",
    [
        *("2.10", "2.10.0", "2.10.1+cu128", "2.10.0.post1", "2.10.0.dev20260101+cu130"),
        *("2.11.0+cpu", "2.14.1+cu130", "2.100", "3.0.0"),
    ],
)
def test_new_enough(version: str) -> None:
    check_torch(version)


@pytest.mark.parametrize(
    "version",
    [
        *("2.9", "2.9.1", "2.9.1+cu130", "2.9.9.post10", "2.1", "2.1.0", "2.1.10", "1.13.1"),
        # Neither the label nor the pre-release number is the version.
        *("2.9.0+cu2.10", "2.9.0.dev20260210", "0.2.10", "unknown"),
    ],
)
def test_too_old_is_named_with_what_to_install(version: str) -> None:
    with pytest.raises(ImportError) as caught:
        check_torch(version)
    assert f"needs PyTorch 2.10 or newer and found {version};" in str(caught.value)
    assert "pip install 'torch>=2.10'" in str(caught.value)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_are_refused(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_platform()
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(ImportError, match=f"Linux only, and this is {system}"):
        check_platform()


# The file


def test_a_whole_file_is_accepted(tmp_path: Path) -> None:
    library = tmp_path / "libfp4aot.so"
    library.write_bytes(b"x" * 100)
    check_file(library, MANIFEST)


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_cut_off_file_is_named_with_both_sizes(tmp_path: Path, size: int) -> None:
    library = tmp_path / "libfp4aot.so"
    library.write_bytes(b"x" * size)
    with pytest.raises(ImportError) as caught:
        check_file(library, MANIFEST)
    message = str(caught.value)
    assert f"damaged: {library} has {size} bytes and its manifest says 100" in message
    assert "pip install --force-reinstall --no-deps fp4aot" in message


def test_a_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"incomplete: .*libfp4aot\.so is missing; reinstall"):
        check_file(tmp_path / "libfp4aot.so", MANIFEST)
    (tmp_path / "libfp4aot.so").mkdir()
    with pytest.raises(ImportError, match="is missing"):
        check_file(tmp_path / "libfp4aot.so", MANIFEST)


# The dynamic linker's messages, from the dynamic linker (case 21)


class Workshop:
    """Builds libraries that do not load."""

    def __init__(self, folder: Path, cc: str) -> None:
        self.folder = folder
        self.cc = cc
        self.path = folder / "libfp4aot.so"

    def library(self, source: str, *options: str, name: str = "libfp4aot.so") -> Path:
        (self.folder / "source.c").write_text(source)
        command = [self.cc, "-shared", "-fPIC", "-o", self.folder / name, self.folder / "source.c"]
        subprocess.run([*command, *options], check=True, capture_output=True)
        return self.folder / name

    def patch(self, offset: int, content: bytes) -> None:
        data = bytearray(self.path.read_bytes())
        data[offset : offset + len(content)] = content
        self.path.write_bytes(data)

    def needing(self, name: str) -> None:
        """Build a library that asks for another one, which is not there."""
        other = self.library("int other(void) { return 1; }", name=name)
        self.library("", "-Wl,--no-as-needed", str(other))
        other.unlink()

    def load(self) -> str:
        """Load the library, and return what the user is told."""
        with pytest.raises(OSError, match=r".") as caught:
            ctypes.CDLL(str(self.path), ctypes.DEFAULT_MODE | 2)  # RTLD_NOW
        explained = explain(caught.value, self.path, "2.10.0+cu130")
        assert isinstance(explained, ImportError)
        text = str(explained)
        # Nothing that the dynamic linker says is lost.
        assert text.endswith(f"The dynamic linker says: {caught.value}")
        assert text.startswith(f"fp4aot cannot load {self.path}: ")
        return text.partition("The dynamic linker says:")[0]


@pytest.fixture
def workshop(tmp_path: Path, cc: str) -> Workshop:
    return Workshop(tmp_path, cc)


@pytest.mark.parametrize("symbol", ["aoti_torch_no_such_function", "torch_no_such_function"])
def test_a_torch_without_a_function_is_the_cause(workshop: Workshop, symbol: str) -> None:
    workshop.library(f"int {symbol}(void); int f(void) {{ return {symbol}(); }}")
    told = workshop.load()
    assert f"PyTorch 2.10.0+cu130 lacks the stable-ABI function {symbol}" in told
    assert "install a newer PyTorch" in told


def test_a_missing_libtorch_is_the_cause(workshop: Workshop) -> None:
    # Not libtorch.so itself: another test may have loaded torch.
    workshop.needing("libtorch_absent.so")
    assert "without its C++ library; reinstall torch" in workshop.load()


def test_a_library_for_another_word_size(workshop: Workshop) -> None:
    workshop.library("int f(void) { return 1; }")
    workshop.patch(4, b"\x01")  # EI_CLASS: 32 bits
    assert "built for another processor" in workshop.load()


def test_a_library_for_another_processor(workshop: Workshop) -> None:
    workshop.library("int f(void) { return 1; }")
    other = 62 if workshop.path.read_bytes()[18] != 62 else 183  # x86_64, aarch64
    workshop.patch(18, bytes([other, 0]))
    told = workshop.load()
    assert "built for another processor" in told
    assert "install the wheel for this platform" in told


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"<html>not found</html>" * 10])
def test_a_damaged_file(workshop: Workshop, content: bytes) -> None:
    workshop.path.write_bytes(content)
    told = workshop.load()
    assert "may be damaged; reinstall it" in told


def test_an_older_c_library_is_the_cause() -> None:
    error = OSError(
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found "
        "(required by /site/fp4aot/libfp4aot.so)"
    )
    told = str(explain(error, Path("/site/fp4aot/libfp4aot.so"), "2.10.0"))
    assert "this system's C library" in told
    assert "manylinux" in told


def test_a_symbol_of_somebody_else_is_not_blamed_on_torch(workshop: Workshop) -> None:
    workshop.library("int cuNoSuchThing(void); int f(void) { return cuNoSuchThing(); }")
    told = workshop.load()
    assert "PyTorch" not in told
    assert "reinstall" in told


def test_a_missing_dependency_is_named(workshop: Workshop) -> None:
    workshop.needing("libabsent.so.1")
    told = workshop.load()
    assert "another processor" not in told
    assert "libabsent.so.1" in told


def test_the_folders_name_is_no_cause(workshop: Workshop) -> None:
    workshop.path = workshop.folder / "opt/libtorch/fp4aot/libfp4aot.so"
    workshop.path.parent.mkdir(parents=True)
    workshop.path.write_bytes(b"\x7fELF")
    assert "may be damaged" in workshop.load()


# Loading, as far as it goes without a library


def test_a_source_checkout_is_told_to_build_the_wheel() -> None:
    if (_manifest.PACKAGE / "_manifest.json").exists():
        pytest.skip("NOT TESTED: a checkout without a manifest, because this one has one")
    with pytest.raises(ImportError, match=r"its manifest cannot be read.*source checkout"):
        _library.load()


@pytest.mark.parametrize("content", ["", '{"version": "0.1.0"', '{"version": "0.1.0"}'])
def test_a_cut_off_manifest_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "_manifest.json").write_text(content)
    read = _manifest.read
    monkeypatch.setattr(_manifest, "read", lambda: read(tmp_path))
    with pytest.raises(ImportError, match=r"damaged: its manifest cannot be read .*reinstall it"):
        _library.load()


def test_torch_is_checked_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu130")
    monkeypatch.setattr(_manifest, "read", lambda: pytest.fail("read the manifest"))
    with pytest.raises(ImportError, match=r"found 2\.9\.1\+cu130"):
        _library.load()


def test_without_torch_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"needs PyTorch; pip install 'torch>=2\.10'"):
        _library.load()


def test_the_floor_is_what_the_metadata_promises() -> None:
    # The installed torch, which the other tests run on, is new enough for the package.
    assert release(importlib.metadata.version("torch")) >= _library.MINIMUM_TORCH
