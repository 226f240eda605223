"""The project's metadata agrees with itself."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "pyproject.toml").read_text()


def block(start: str) -> list[str]:
    """The strings of a list in pyproject.toml (tomllib is missing in Python 3.10)."""
    (found,) = re.findall(rf"^{re.escape(start)} = \[(.*?)^\]", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(r'"([^"]+)"', found)


def test_the_build_group_has_all_that_an_isolated_build_has() -> None:
    assert set(block("requires")) <= set(block("build"))


def test_pre_commit_runs_the_versions_of_the_lint_group() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    (lint,) = re.findall(r"^lint = \[(.*?)\]", TEXT, re.MULTILINE)
    for pinned in re.findall(r'"(ruff==[^"]+|clang-format==[^"]+)"', lint):
        assert pinned in hooks
