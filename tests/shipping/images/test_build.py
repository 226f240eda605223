"""Dockerfile.build: what comes out of it is a wheel, at once or in shards, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.index import IndexedWheel, read_wheel
from tests.shipping.images.buildah import Buildah


def test_a_wheel_and_nothing_else(dist: Path) -> None:
    assert [path.suffix for path in dist.iterdir()] == [".whl"]


def test_it_is_what_was_asked_for(wheel: IndexedWheel, build_arguments: dict[str, str]) -> None:
    assert wheel.contents.preset == "quick"
    assert wheel.contents.cuda == build_arguments["CUDA"]
    assert wheel.contents.flashinfer == build_arguments["FLASHINFER"]


def test_without_a_base_it_does_not_build(store: Buildah) -> None:
    with pytest.raises(AssertionError, match=r"BASE|base name|empty"):
        store.build("Dockerfile.build", "toolchain", {})


def test_shards_make_the_same_library(
    store: Buildah, build_arguments: dict[str, str], wheel: IndexedWheel
) -> None:
    shards, linked = store.folder / "shards", store.folder / "linked"
    for part in ("1/2", "2/2"):
        store.build("Dockerfile.build", "wheel", build_arguments | {"SHARD": part}, output=shards)
    assert len(list(shards.glob("*.tar.xz"))) == 2
    store.build(
        "Dockerfile.build", "linked", build_arguments, contexts={"shards": shards}, output=linked
    )
    (path,) = linked.glob("*.whl")
    assert read_wheel(path).contents.library_sha256 == wheel.contents.library_sha256
    assert (linked / "report.json").is_file()
