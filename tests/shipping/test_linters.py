"""actionlint, zizmor and hadolint find nothing, and would."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.shipping.workflows import ROOT, WORKFLOWS

DOCKERFILES = sorted(
    path for path in (ROOT / "docker").glob("Dockerfile.*") if path.suffix != ".dockerignore"
)


def program(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    assert found, f"{name} is not installed; `pip install --group shipping` brings it"
    return found


def actionlint(*paths: Path) -> subprocess.CompletedProcess[str]:
    shellcheck = ("-shellcheck", program("shellcheck"))
    return check(program("actionlint"), *shellcheck, *map(str, paths))


def zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    options = ("--offline", "--persona=pedantic", "--no-progress", "--format=plain")
    config = ("--config", str(ROOT / ".github" / "zizmor.yml"))
    return check(program("zizmor"), *options, *config, *map(str, paths))


def hadolint(*paths: Path) -> subprocess.CompletedProcess[str]:
    return check(program("hadolint"), *map(str, paths))


def check(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_actionlint_finds_nothing() -> None:
    done = actionlint(*WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_zizmor_finds_nothing() -> None:
    done = zizmor(ROOT / ".github")
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_finds_nothing() -> None:
    done = hadolint(*DOCKERFILES)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


WORKFLOW = """\
name: Bad
on: [pull_request]
permissions: {{}}
concurrency: {{group: bad, cancel-in-progress: true}}
jobs:
  bad:
    name: Bad
    runs-on: ubuntu-24.04
    permissions: {{contents: read}}
    steps:
      - {step}
"""


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("run: echo ${{ matrix.cuda }}", "matrix"),
        ("run: echo ${{ github.event.pull_request.title }}", "title"),
        ("run: rm $UNQUOTED", "SC2086"),
    ],
)
def test_actionlint_would_find(tmp_path: Path, step: str, says: str) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(WORKFLOW.format(step=step))
    done = actionlint(path)
    assert done.returncode == 1
    assert says in done.stdout


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("uses: actions/checkout@v7", "unpinned-uses"),
        ("run: echo ${{ github.event.pull_request.title }}", "template-injection"),
    ],
)
def test_zizmor_would_find(tmp_path: Path, step: str, says: str) -> None:
    path = tmp_path / ".github" / "workflows" / "bad.yml"
    path.parent.mkdir(parents=True)
    path.write_text(WORKFLOW.format(step=step))
    done = zizmor(path)
    assert done.returncode != 0
    assert says in done.stdout


def test_hadolint_would_find(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM debian:latest\nRUN cd /tmp && sudo true\n")
    done = hadolint(path)
    assert done.returncode == 1
    assert "DL3007" in done.stdout
    assert "DL3004" in done.stdout
