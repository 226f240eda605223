"""The checks that run here: names and commands, nothing else."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

_PYTHON: Final = sys.executable
TAG: Final = "{tag}"
"""Stands in a command for the release's tag, such as ``v0.1.0``."""


@dataclass(frozen=True)
class Check:
    """One thing that a release needs: its name, what it shows, and what is run in the checkout."""

    name: str
    shows: str
    command: tuple[str, ...]

    def command_for(self, tag: str) -> tuple[str, ...]:
        """Return the command for a release."""
        return tuple(tag if word == TAG else word for word in self.command)


def _aot(*words: str) -> tuple[str, ...]:
    return (_PYTHON, "-m", *words)


def _nox(session: str) -> tuple[str, ...]:
    return (_PYTHON, "-m", "nox", "--session", session)


# In this order: what fails in a second comes before what takes an hour.
CHECKS: Final = (
    Check("tree", "nothing is uncommitted", _aot("aot.release_check", "tree")),
    Check(
        "version",
        "tag, pyproject.toml and a dated section of CHANGELOG.md agree",
        _aot("aot.release_check", "version", TAG),
    ),
    Check("matrix", "wheels/matrix.toml can be built", _aot("aot", "matrix")),
    Check("bases", "every base image is pinned by digest", _aot("aot.bases")),
    Check("bake", "docker/docker-bake.hcl is what they say", _aot("aot.bake", "--check")),
    Check("lint", "style and types", _nox("lint")),
    Check("shipping", "workflows, Dockerfiles, matrix and index fit together", _nox("shipping")),
    Check("docs", "the documentation builds, and what it says is checked", _nox("docs")),
    Check("test", "unit tests, and the tests of an installed wheel", _nox("test")),
    Check("wheel", "a wheel passes the audit and runs where no compiler is", _nox("wheel")),
    Check("index", "pip can be pointed at that wheel", _aot("aot.release_check", "index")),
    Check("integrations", "SGLang's and vLLM's own code uses it", _nox("integrations")),
    Check("images", "both Dockerfiles build, and the image runs read-only", _nox("images")),
)
