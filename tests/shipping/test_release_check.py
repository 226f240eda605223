"""The release check: every check is a command, a failure is named, and nothing counts as done."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aot.errors import ReleaseError
from aot.release_check import CHECKS, ELSEWHERE, Check, Summary, run_checks
from aot.release_check.changelog import section_of, sections
from aot.release_check.commands import choose, project_version
from tests.shipping.test_workflows import sessions
from tests.shipping.workflows import ROOT

PASSES = Check("passes", "it does", (sys.executable, "-c", "print('well')"))
FAILS = Check("fails", "it does not", (sys.executable, "-c", "print('why'); raise SystemExit(3)"))
ABSENT = Check("absent", "there is no such program", ("/nonexistent/program",))


def summary(*checks: Check) -> Summary:
    return Summary(run_checks(checks, ROOT, "v1"), (), ELSEWHERE)


@pytest.mark.parametrize(
    ("checks", "passed"),
    [
        ((PASSES,), True),
        ((PASSES, FAILS), False),
        ((FAILS, PASSES), False),
        ((ABSENT,), False),
        ((), False),
    ],
)
def test_it_passes_when_all_do_and_one_was_run(checks: tuple[Check, ...], passed: bool) -> None:
    assert summary(*checks).passed is passed


def test_checks_behind_a_failure_run_too_and_it_says_why() -> None:
    data = summary(FAILS, PASSES).to_json()
    first, second = data["checks"]
    assert (first["exit_code"], first["output"], second["passed"]) == (3, "why", True)


def test_what_is_not_run_here_is_listed_with_what_it_needs() -> None:
    listed = summary(PASSES).to_json()["not_run_here"]
    assert len(listed) == len(ELSEWHERE)
    text = json.dumps(listed)
    for word in ("GPU", "registry", "attestations", "aarch64"):
        assert word in text
    assert all(item["needs"] and item["how"] for item in listed)


def test_the_tag_gets_into_the_command() -> None:
    check = next(one for one in CHECKS if one.name == "version")
    assert check.command_for("v9")[-1] == "v9"


def test_names_are_their_own() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))


def test_every_session_exists() -> None:
    called = {check.command[-1] for check in CHECKS if "nox" in check.command}
    called |= {match for item in ELSEWHERE for match in re.findall(r"nox -s ([\w-]+)", item.how)}
    assert called <= sessions()


def test_a_check_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ReleaseError, match=r"--only is nothing.*tree, version"):
        choose(["nothing"])
    assert [check.name for check in choose(["bake", "tree"])] == ["tree", "bake"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aot.release_check", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_a_list_and_ends_with_its_result() -> None:
    done = command("--only", "bases", "--only", "bake")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All that was run here passed." in done.stdout
    assert "left out by --only" in done.stdout
    done = command("--only", "version", "--tag", "v0.0.0", "--json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert not data["passed"]
    assert f"expected v{project_version()}" in data["checks"][0]["output"]


CHANGELOG = """\
# Changelog

## 0.2.0 (unreleased)

### Added

- More.

## 0.1.0 (2026-11-30)

- All.

## 0.0.1 (2026-01-01)
"""


def test_a_changelog_is_read() -> None:
    found = sections(CHANGELOG)
    assert [section.version for section in found] == ["0.2.0", "0.1.0", "0.0.1"]
    assert found[0].date is None
    assert str(found[1].date) == "2026-11-30"
    assert section_of(CHANGELOG, "0.2.0").body == "### Added\n\n- More."


@pytest.mark.parametrize(
    ("text", "version", "says"),
    [
        (CHANGELOG, "0.3.0", "no section of version 0.3.0, only 0.2.0, 0.1.0, 0.0.1"),
        (CHANGELOG, "0.0.1", "says nothing about version 0.0.1"),
        ("## 1 (soon)\n\nx", "1", "has 'soon' behind"),
        ("## 1\n\nx", "1", "has None behind"),
        ("", "1", "only none"),
    ],
)
def test_what_is_wrong_with_it_is_named(text: str, version: str, says: str) -> None:
    with pytest.raises(ReleaseError, match=says):
        section_of(text, version)


def test_the_projects_own_changelog_has_notes_for_its_version() -> None:
    done = command("notes", project_version())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_an_index_needs_a_wheel(tmp_path: Path) -> None:
    done = command("index", "--report", str(tmp_path / "report.json"))
    assert done.returncode == 14
    assert "nox -s wheel" in done.stderr
