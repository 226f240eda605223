"""The images, made once for all tests: a base of Debian's packages, a wheel, one to serve with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aot.index import IndexedWheel, read_wheel
from aot.matrix import read_matrix
from tests.shipping.images.buildah import Buildah
from tests.shipping.images.container import Finished, run_read_only
from tests.shipping.images.packages import make_wheelhouse, pip_volumes
from tests.shipping.images.tools import WORK, require_programs, run

BASE = "localhost/fp4aot-test-base"
SERVE = "localhost/fp4aot-test-serve"
# Debian 12: python3 is 3.11, for which PyTorch's CPU build is locked.
SUITE, PYTHON = "bookworm", "3.11"
# Of one processor, where the plan would take all memory.
MEMORY_MEGABYTES = "4000"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    require_programs()
    folder = tmp_path_factory.mktemp("images")
    store = Buildah(folder, pip_volumes(folder))
    yield store
    store.remove()


@pytest.fixture(scope="session")
def base(store: Buildah) -> str:
    """Debian with Python, and nothing that compiles."""
    root = WORK / SUITE
    packages = "python3,python3-venv,ca-certificates"
    if not (root / "complete").is_file():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        run(["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, root / "root"])
        (root / "complete").touch()
    store.import_folder(root / "root", BASE)
    return BASE


@pytest.fixture(scope="session")
def build_arguments(base: str) -> dict[str, str]:
    """What the bake file says for the default wheel, with another base and a preset of minutes."""
    row = next(row for row in read_matrix().wheels("quick") if row.default)
    return {
        "BASE": base,
        "PACKAGES": "g++",
        "CUDA": row.cuda,
        "FLASHINFER": row.flashinfer,
        "PRESET": row.preset,
        "PLATFORM": row.platform,
        "ARCHITECTURES": ",".join(map(str, row.architectures)),
        "MEMORY_LIMIT": MEMORY_MEGABYTES,
    }


@pytest.fixture(scope="session")
def dist(store: Buildah, build_arguments: dict[str, str]) -> Path:
    """What Dockerfile.build leaves, in the folder that the bake file names."""
    folder = store.folder / "dist" / "cu130-x86_64"
    store.build("Dockerfile.build", "wheel", build_arguments, output=folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> IndexedWheel:
    (path,) = dist.glob("*.whl")
    return read_wheel(path)


@dataclass(frozen=True)
class ServeImage:
    """The image, its files, and what it says of itself."""

    config: dict[str, Any]
    root: Path
    scratch: Path

    def run(self, *command: str) -> Finished:
        return run_read_only(self.root, self.config, command, self.scratch)


@pytest.fixture(scope="session")
def serve(store: Buildah, base: str, dist: Path) -> ServeImage:
    """Built without a network: every package comes from a folder, pinned by its hash."""
    wheelhouse = store.folder / "wheelhouse"
    wheelhouse.mkdir()
    make_wheelhouse(wheelhouse, PYTHON, "torch==2.13.0", "numpy>=2.2")
    store.build(
        "Dockerfile.serve",
        "serve",
        {
            "BASE": base,
            "CUDA": "13.0",
            "WHEELS": "cu130",
            "REQUIREMENTS": "/wheelhouse/requirements.txt",
            "PIP_NO_INDEX": "1",
            "VERSION": "0.0.0-test",
            "REVISION": "0123456789abcdef",
            "SOURCE": "https://example.org/fp4aot",
        },
        contexts={"wheels": dist.parent, "wheelhouse": wheelhouse},
        tag=SERVE,
        network=False,
    )
    return ServeImage(store.config(SERVE), store.mount(SERVE), store.folder / "containers")
