"""What CI builds is what wheels/matrix.toml says: matrices, expanded as the workflows do it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import hcl2
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.shipping.workflows import ROOT, jobs

WHEELS = ROOT / ".github" / "workflows" / "wheels.yml"
DOCKER = ROOT / ".github" / "workflows" / "docker.yml"
LIMIT = 256
"""Jobs that GitHub makes of one matrix."""


def expand(*command: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1, "an output of a step is one line"
    entries: list[dict[str, Any]] = json.loads(done.stdout)["include"]
    return entries


@pytest.fixture(scope="module")
def toml() -> dict[str, Any]:
    """The file itself, read without the code that the workflows use."""
    return tomllib.loads((ROOT / "wheels" / "matrix.toml").read_text())


@pytest.fixture(scope="module")
def wheels() -> list[dict[str, Any]]:
    return expand("aot", "matrix", "--json")


@pytest.fixture(scope="module")
def shards() -> list[dict[str, Any]]:
    return expand("aot", "matrix", "--json", "--shards")


@pytest.fixture(scope="module")
def targets() -> dict[str, Any]:
    data = hcl2.loads((ROOT / "docker" / "docker-bake.hcl").read_text())
    return {name.strip('"'): body for block in data["target"] for name, body in block.items()}


def test_a_wheel_for_each_cuda_and_platform(
    toml: dict[str, Any], wheels: list[dict[str, Any]]
) -> None:
    expected = {
        (cuda["version"], platform) for cuda in toml["cuda"] for platform in toml["platforms"]
    }
    assert Counter((row["cuda"], row["platform"]) for row in wheels) == Counter(expected)


def test_a_wheel_has_its_platforms_targets_but_those_excluded(
    toml: dict[str, Any], wheels: list[dict[str, Any]]
) -> None:
    excluded = {cuda["version"]: cuda.get("excluded_architectures", []) for cuda in toml["cuda"]}
    for row in wheels:
        every = toml["platforms"][row["platform"]]["architectures"]
        left = [name for name in every if name not in excluded[row["cuda"]]]
        assert set(row["architectures"].split(",")) <= set(left)
        assert row["flashinfer"] == toml["flashinfer"]


def test_every_shard_is_compiled_once(toml: dict[str, Any], shards: list[dict[str, Any]]) -> None:
    expected = {
        (cuda["version"], platform, shard)
        for cuda in toml["cuda"]
        for platform in toml["platforms"]
        for shard in range(1, cuda["shards"] + 1)
    }
    found = Counter((row["cuda"], row["platform"], row["shard"]) for row in shards)
    assert found == Counter(expected)
    assert len(shards) <= LIMIT


@pytest.mark.parametrize("job", ["shard", "link", "try"])
def test_what_a_job_asks_of_the_matrix_is_there(
    job: str, wheels: list[dict[str, Any]], shards: list[dict[str, Any]]
) -> None:
    rows = shards if job == "shard" else wheels
    asked = set(re.findall(r"matrix\.(\w+)", json.dumps(jobs(WHEELS)[job]))) - {"outputs"}
    assert asked
    for row in rows:
        assert asked - {"outputs"} <= set(row)


@pytest.mark.parametrize(("job", "listing"), [("push", "images"), ("join", "tags")])
def test_what_an_image_job_asks_is_there(job: str, listing: str) -> None:
    rows = expand("aot.bake", "--list", listing)
    asked = set(re.findall(r"matrix\.(\w+)", json.dumps(jobs(DOCKER)[job]))) - {"outputs"}
    assert asked
    for row in rows:
        assert asked <= set(row)
    assert len(rows) <= LIMIT


def test_artifacts_have_names_of_their_own(shards: list[dict[str, Any]]) -> None:
    """Wheels of different CUDA versions have the same file name."""
    names = [f"shard-{row['name']}-{row['shard']}" for row in shards]
    assert len(names) == len(set(names))
    # A pattern of one wheel's shards takes no other's.
    for row in shards:
        mine = [name for name in names if name.startswith(f"shard-{row['name']}-")]
        assert len(mine) == row["shards"]


def test_every_job_has_its_target(wheels: list[dict[str, Any]], targets: dict[str, Any]) -> None:
    for row in wheels:
        assert {f"{kind}-{row['name']}" for kind in ("wheel", "shard", "link")} <= set(targets)
    for image in expand("aot.bake", "--list", "images"):
        assert image["target"] in targets


def test_images_are_for_wheels_that_are_built(wheels: list[dict[str, Any]]) -> None:
    built = {(row["index"], row["platform"]) for row in wheels}
    images = expand("aot.bake", "--list", "images")
    assert images
    assert {(image["index"], image["platform"]) for image in images} <= built


def test_tags_join_the_images_of_all_platforms() -> None:
    images = expand("aot.bake", "--list", "images")
    joined = {
        (tag["target"], platform)
        for tag in expand("aot.bake", "--list", "tags")
        for platform in tag["platforms"].split()
    }
    assert joined == {(image["target"], image["platform"]) for image in images}
