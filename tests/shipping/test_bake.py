"""docker-bake.hcl is what the matrix and the bases say, and what the Dockerfiles take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import hcl2
import pytest

from aot.bake import (
    BAKE_FILE,
    REQUIREMENTS,
    bake_file,
    requirements_of,
    serve_images,
    without_image,
)
from aot.bases import BaseImageError, Bases, read_bases
from aot.matrix import Matrix, read_matrix
from tests.shipping.workflows import ROOT


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return read_matrix()


@pytest.fixture(scope="module")
def bases() -> Bases:
    return read_bases()


def plain(value: Any) -> Any:
    """HCL's text without the quotes that the parser leaves."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.strip('"') if isinstance(value, str) else value


def blocks(kind: str) -> dict[str, Any]:
    data = hcl2.loads(BAKE_FILE.read_text())
    return {name.strip('"'): plain(body) for one in data[kind] for name, body in one.items()}


def test_it_is_up_to_date(matrix: Matrix, bases: Bases) -> None:
    assert BAKE_FILE.read_text() == bake_file(matrix, bases), "run `python -m aot.bake`"


def test_every_wheel_gets_what_its_row_says(matrix: Matrix, bases: Bases) -> None:
    targets = blocks("target")
    for row in matrix.wheels():
        arguments = targets[f"wheel-{row.name}"]["args"]
        assert arguments["CUDA"] == row.cuda
        assert arguments["PLATFORM"] == row.platform
        assert arguments["ARCHITECTURES"].split(",") == [str(one) for one in row.architectures]
        assert arguments["PRESET"] == row.preset
        assert arguments["FLASHINFER"] == row.flashinfer
        assert arguments["BASE"].endswith(f"@{bases.build[row.platform].digest}")
        # A toolkit without packages comes from an image, the others from the locks alone.
        assert ("CUDA_BASE" in arguments) == (row.toolkit == "CUDA_HOME")


def test_a_native_wheel_is_built_in_the_image_of_its_tag(matrix: Matrix, bases: Bases) -> None:
    platform = next(one for one in matrix.platforms if one.name == "x86_64")
    assert bases.build["x86_64"].image.endswith(f"/{platform.manylinux}")


@pytest.mark.parametrize("name", ["build", "serve"])
def test_dockerfile_and_bake_file_name_the_same_arguments(name: str) -> None:
    text = (ROOT / "docker" / f"Dockerfile.{name}").read_text()
    declared = set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    targets = blocks("target").values()
    given = {
        argument
        for target in targets
        if target.get("dockerfile", "").endswith(name) or (name == "build" and "inherits" in target)
        for argument in target.get("args", {})
    }
    assert given <= declared
    # What a person sets alone: packages without an index.
    assert declared - given <= {"PIP_NO_INDEX"}


def test_what_dockerfile_build_runs_exists() -> None:
    text = (ROOT / "docker" / "Dockerfile.build").read_text().replace("\\\n", " ")
    found = re.findall(r"python -m aot (\w+)(.*)", text)
    assert {command for command, _ in found} == {"build", "link"}
    for command, rest in found:
        done = subprocess.run(
            [sys.executable, "-m", "aot", command, "--help"],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=True,
        )
        options = set(re.findall(r"--[a-z-]+", rest))
        assert options
        assert {option for option in options if f"{option} " not in done.stdout} == set()


def test_variables_are_declared() -> None:
    used = set(re.findall(r"\$\{(\w+)\}", BAKE_FILE.read_text()))
    used |= set(re.findall(r"= ([A-Z_]+)$", BAKE_FILE.read_text(), re.MULTILINE))
    assert used == set(blocks("variable"))


def test_groups_name_targets() -> None:
    targets = set(blocks("target"))
    for name, group in blocks("group").items():
        assert group["targets"], name
        assert set(group["targets"]) <= targets, name


def test_every_image_has_its_packages_locked(matrix: Matrix) -> None:
    for image in serve_images(matrix):
        path = REQUIREMENTS / requirements_of(image.cuda, image.flavour)
        assert path.is_file()
        assert path.with_suffix(".in").is_file()


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_packages_are_pinned_by_hash_and_name_no_index(path: Path) -> None:
    text = path.read_text()
    for requirement in re.split(r"(?m)^(?=[A-Za-z])", text.strip()):
        if requirement:
            assert "==" in requirement.splitlines()[0]
            assert "--hash=sha256:" in requirement
    assert "://" not in text


def test_no_compiler_is_among_the_packages_to_serve_with() -> None:
    excluded = {
        line
        for line in (REQUIREMENTS / "sglang-excluded.in").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert "nvidia-cuda-nvcc" in excluded
    for path in REQUIREMENTS.glob("*-cuda*.txt"):
        names = set(re.findall(r"^([\w.-]+)==", path.read_text(), re.MULTILINE))
        assert not names & (excluded | {"cmake", "ninja", "sccache"}), path


def test_what_has_no_image_is_said(matrix: Matrix, bases: Bases, tmp_path: Path) -> None:
    assert without_image(matrix, tmp_path) == tuple(one.version for one in matrix.cuda)
    text = bake_file(matrix, bases, tmp_path)
    assert "# No image for serving with CUDA 12.9, 13.0" in text


def test_a_base_without_a_digest_is_refused(matrix: Matrix, bases: Bases) -> None:
    unpinned = replace(bases, serve=replace(bases.serve, digest=""))
    with pytest.raises(BaseImageError, match=r"serve: python:3.12-slim-bookworm has no digest"):
        bake_file(matrix, unpinned)


def test_a_platform_without_a_base_is_named(matrix: Matrix, bases: Bases) -> None:
    with pytest.raises(BaseImageError, match="aarch64"):
        bake_file(matrix, replace(bases, build={"x86_64": bases.build["x86_64"]}))
