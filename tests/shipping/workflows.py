"""Read the workflows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
ACTIONS = sorted((FOLDER / "actions").glob("*/action.yml"))


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    # YAML 1.1 reads `on` as true.
    if True in data:
        data["on"] = data.pop(True)
    return data


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(path)["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    """All steps of a workflow or of an action."""
    data = read(path)
    if "runs" in data:
        yield from data["runs"]["steps"]
        return
    for job in data["jobs"].values():
        yield from job.get("steps", ())


def commands() -> Iterator[tuple[str, str]]:
    """Every line that a shell is given, with the file that it stands in."""
    for path in (*WORKFLOWS, *ACTIONS):
        for step in steps(path):
            script = re.sub(r"\\\n\s*", " ", step.get("run", ""))
            for line in script.splitlines():
                yield path.name, line.strip()
