"""What a release needs and this machine cannot show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Elsewhere:
    """A check that is not run here.

    Parameters
    ----------
    name
        What it is called.
    needs
        What it takes.
    how
        What to run there.
    """

    name: str
    needs: str
    how: str


ELSEWHERE: Final = (
    Elsewhere(
        "every wheel of the matrix",
        "hours of several machines",
        ".github/workflows/wheels.yml, or docker buildx bake wheels",
    ),
    Elsewhere(
        "operators on a Blackwell",
        "a GPU of each target: 10.0, 10.3, 11.0, 12.0",
        "nox -s gpu, in an environment that has the wheel",
    ),
    Elsewhere(
        "lowered kernels",
        "a Hopper GPU",
        "nox -s lowered -- lowered-moe, then what it says",
    ),
    Elsewhere(
        "wheels for aarch64",
        "an aarch64 machine",
        "nox -s selftest -- WHEEL",
    ),
    Elsewhere(
        "digests of the base images are those of their tags",
        "Docker, and the registries",
        "python -m aot.bases --online",
    ),
    Elsewhere(
        "the bake file as Docker reads it",
        "Docker's buildx",
        "docker buildx bake --file docker/docker-bake.hcl --print wheels images",
    ),
    Elsewhere(
        "images for serving with PyTorch's CUDA build, and with SGLang",
        "Docker and 30 GB of disk",
        "docker buildx bake --file docker/docker-bake.hcl images",
    ),
    Elsewhere(
        "attestations",
        "GitHub's signing, from its own runners",
        ".github/workflows/release.yml",
    ),
    Elsewhere(
        "pushed images",
        "write access to the registry",
        ".github/workflows/docker.yml",
    ),
    Elsewhere(
        "index and documentation online",
        "GitHub Pages",
        ".github/workflows/release.yml",
    ),
)
