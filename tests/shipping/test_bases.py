"""docker/bases.toml: every image is pinned, and what is wrong in it is named."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aot.bases import (
    BASES,
    BaseImageError,
    digest_online,
    read_bases,
    require_pinned,
    with_digest,
)
from tests.shipping.workflows import ROOT

GOOD = """\
[serve]
image = "python"
tag = "3.12"
digest = ""
source = "nobody"
"""


def test_all_are_pinned() -> None:
    require_pinned(read_bases())


@pytest.mark.parametrize("base", read_bases().every(), ids=lambda base: base.key)
def test_a_reference_names_image_tag_and_digest(base) -> None:
    assert base.reference == f"{base.image}:{base.tag}@{base.digest}"
    assert base.source


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[serve]", "[served]", "served is unknown"),
        ('tag = "3.12"', "", "serve.tag is missing"),
        ('tag = "3.12"', "tag = 3", "serve.tag is 3; expected a str"),
        ('digest = ""', 'digest = "sha256:12"', "serve.digest is 'sha256:12'"),
        ("[serve]", '[serve]\nimages = "x"', "serve.images is unknown"),
        ("[serve]", "serve = 1\n[cuda.x]", "serve is 1; expected a table"),
        ("[serve]", "[serve", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "bases.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BaseImageError, match=says.replace("[", r"\[")):
        read_bases(path)


def test_a_missing_digest_is_allowed_in_the_file_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "bases.toml"
    path.write_text(GOOD)
    bases = read_bases(path)
    assert not bases.serve.pinned
    with pytest.raises(BaseImageError, match=r"imagetools inspect python:3\.12"):
        require_pinned(bases)
    with pytest.raises(BaseImageError, match="serve"):
        _ = bases.serve.reference


def command(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aot.bases", *words],
        cwd=ROOT,
        env=os.environ | ({"PATH": path} if path else {}),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_fails_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bases.toml"
    path.write_text(GOOD)
    done = command("--file", str(path))
    assert done.returncode == 12
    assert "serve: python:3.12 has no digest" in done.stderr


DIGEST = f"sha256:{'5' * 64}"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that answers as `docker buildx imagetools inspect --format` does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\necho {DIGEST}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_tag_that_has_moved_is_named_and_can_be_taken_over(
    registry: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bases.toml"
    path.write_text(BASES.read_text())
    before = read_bases(path)
    done = command("--online", "--file", str(path))
    assert done.returncode == 12
    assert all(base.key in done.stderr for base in before.every())
    assert read_bases(path) == before
    assert command("--online", "--update", "--file", str(path)).returncode == 0
    after = read_bases(path)
    for old, new in zip(before.every(), after.every(), strict=True):
        assert new == replace(old, digest=DIGEST, source="its registry")
    assert command("--online", "--file", str(path)).returncode == 0


def test_a_registry_that_answers_nonsense_is_refused(registry: Path) -> None:
    (registry / "docker").write_text("#!/bin/sh\necho latest\n")
    with pytest.raises(BaseImageError, match="answers 'latest'"):
        digest_online(read_bases().serve)


def test_without_docker_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BaseImageError, match="docker does not start"):
        digest_online(read_bases().serve)


def test_an_image_that_is_not_in_the_text_is_not_replaced() -> None:
    base = replace(read_bases().serve, tag="other")
    with pytest.raises(BaseImageError, match="python:other"):
        with_digest(BASES.read_text(), base, DIGEST)
