"""Keys: equal for equal inputs anywhere, and different for whatever changes an object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from plans import plan_of

from aot.compile import keys
from aot.compile.keys import KeyMaker, make_key_maker
from aot.plan import BuildPlan

HOST = "g++ (Debian 12.2.0-14) 12.2.0"
PLAN = plan_of(tvm_ffi_sources=("src/ffi/error.cc",))
FILES = {"a.h": "a", "b.cuh": "b", "deeper/c.h": "c", "table.inc": "d", "a.cpp": "int a;"}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    return write(tmp_path / "csrc", FILES)


@pytest.fixture
def maker(operators: Path) -> KeyMaker:
    return make_key_maker(PLAN, HOST, [operators])


def unit_key(maker: KeyMaker, **changes: object) -> str:
    given = {
        "name": "m/a",
        "language": "cuda",
        "source": "@FLASHINFER@/a.cu",
        "sha256": "0" * 64,
        "flags": ("-O3", "-I@FLASHINFER@/csrc"),
        "ours": False,
    }
    return maker.key(**{**given, **changes})  # type: ignore[arg-type]


def test_equal_inputs_have_equal_keys_on_any_path(operators: Path, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "quite/another place", FILES)
    makers = [make_key_maker(PLAN, HOST, [folder]) for folder in (operators, elsewhere)]
    assert makers[0] == makers[1]
    assert unit_key(makers[0]) == unit_key(makers[1])
    assert unit_key(makers[0], ours=True) == unit_key(makers[1], ours=True)
    # A list read from JSON is the same as a tuple.
    assert unit_key(makers[0], flags=["-O3", "-I@FLASHINFER@/csrc"]) == unit_key(makers[0])


def test_a_key_is_a_name_of_a_file(maker: KeyMaker) -> None:
    assert len(unit_key(maker)) == 64
    assert int(unit_key(maker), 16)


@pytest.mark.parametrize(
    "change",
    [
        # Modules compile some sources with equal flags: CMake knows each object once.
        {"name": "n/a"},
        {"language": "c++"},
        {"source": "@FLASHINFER@/b.cu"},
        {"sha256": "1" * 64},
        {"flags": ("-O2", "-I@FLASHINFER@/csrc")},
        {"flags": ("-I@FLASHINFER@/csrc", "-O3")},
        {"flags": ("-O3 -I@FLASHINFER@/csrc",)},
        {"flags": ("-O3",)},
    ],
)
def test_what_is_compiled_changes_the_key(maker: KeyMaker, change: dict[str, object]) -> None:
    assert unit_key(maker, **change) != unit_key(maker)


def plan_with(**versions: str) -> BuildPlan:
    return dataclasses.replace(PLAN, versions=dataclasses.replace(PLAN.versions, **versions))


@pytest.mark.parametrize(
    "plan",
    [
        plan_with(cuda_compiler="13.0.89"),
        plan_with(cuda="13.1"),
        plan_with(flashinfer="0.7.4"),
        plan_with(flashinfer="9.9.9"),
        plan_with(tvm_ffi="0.1.16"),
        plan_with(torch_headers="2.14.0"),
        plan_with(torch_target="2.11"),
        dataclasses.replace(PLAN, machine="aarch64"),
        dataclasses.replace(PLAN, lowering="0123456789abcdef"),
        dataclasses.replace(PLAN, lowering="0123456789abcdee"),
    ],
)
def test_what_a_build_is_made_with_changes_every_key(operators: Path, plan: BuildPlan) -> None:
    others = [PLAN, plan]
    assert len({unit_key(make_key_maker(one, HOST, [operators])) for one in others}) == 2
    assert len({unit_key(make_key_maker(one, HOST, [operators]), ours=True) for one in others}) == 2


def test_the_host_compiler_changes_every_key(operators: Path, maker: KeyMaker) -> None:
    other = make_key_maker(PLAN, "g++ (Ubuntu) 13.2.0", [operators])
    assert unit_key(other) != unit_key(maker)
    # Not by accident the same text.
    moved = make_key_maker(plan_with(cuda_compiler=f"13.0.88{HOST}"), "", [operators])
    assert unit_key(moved) != unit_key(maker)


def test_another_lock_of_the_same_version_changes_every_key(
    operators: Path, maker: KeyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers of TVM-FFI and of what FlashInfer needs are those of its lock."""
    lock = tmp_path / "flashinfer-0.7.2.txt"
    lock.write_text("flashinfer-python==0.7.2\n")
    other = keys.locks.Lock(version=None, path=lock)  # type: ignore[arg-type]
    monkeypatch.setattr(keys.locks, "find", lambda *_: other)
    assert unit_key(make_key_maker(PLAN, HOST, [operators])) != unit_key(maker)


def test_what_is_built_beside_it_does_not_change_a_key(operators: Path, maker: KeyMaker) -> None:
    other = dataclasses.replace(
        PLAN, preset="other", tvm_ffi_sources=(), added_host_flags=("-fno-gnu-unique",)
    )
    assert make_key_maker(other, HOST, [operators]) == maker


# Our own headers


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.h").write_text("changed"),
        lambda folder: (folder / "deeper/c.h").write_text("changed"),
        lambda folder: (folder / "table.inc").write_text("changed"),
        lambda folder: (folder / "b.cuh").unlink(),
        lambda folder: (folder / "new.h").write_text(""),
        lambda folder: (folder / "a.h").rename(folder / "z.h"),
        # The end of one file and the beginning of the next.
        lambda folder: ((folder / "a.h").write_text(""), (folder / "b.cuh").write_text("ab")),
    ],
)
def test_our_headers_change_the_keys_of_our_own_sources_alone(
    operators: Path, maker: KeyMaker, change: Callable[[Path], object]
) -> None:
    change(operators)
    changed = make_key_maker(PLAN, HOST, [operators])
    assert unit_key(changed, ours=True) != unit_key(maker, ours=True)
    # FlashInfer's hours of compiling are not done again for a comment in one of our headers.
    assert unit_key(changed) == unit_key(maker)


def test_what_is_no_header_does_not_count(operators: Path, maker: KeyMaker) -> None:
    write(operators, {"a.cpp": "changed", "hidden.map": "{}", "b.h.orig": "old"})
    assert make_key_maker(PLAN, HOST, [operators]) == maker


def test_the_order_in_which_headers_are_found_does_not_matter(
    operators: Path, maker: KeyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(operators.rglob("*"))
    for order in (found[::-1], found[2:] + found[:2]):
        monkeypatch.setattr(Path, "rglob", lambda *_, order=order: iter(order))
        assert make_key_maker(PLAN, HOST, [operators]) == maker
