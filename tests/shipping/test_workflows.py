"""The workflows: pinned, with few rights, in time, and made of commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from aot.bases import read_bases
from tests.shipping.workflows import ACTIONS, ROOT, WORKFLOWS, commands, jobs, read, steps

USES = re.compile(
    r"^\s*(?:- )?uses: (?P<name>[\w./-]+)(?:@(?P<ref>\S+))?(?:\s+# (?P<version>\S+))?$"
)
named = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def uses() -> list[re.Match[str]]:
    lines = [line for path in (*WORKFLOWS, *ACTIONS) for line in path.read_text().splitlines()]
    found = [USES.match(line) for line in lines if re.match(r"\s*(- )?uses:", line)]
    assert all(found), "a line with `uses:` is not read by this test"
    return [match for match in found if match]


def test_actions_are_pinned_by_commit_with_their_version_beside() -> None:
    for match in uses():
        if match["name"].startswith("./"):
            assert (ROOT / match["name"]).exists(), match["name"]
            continue
        assert re.fullmatch(r"[0-9a-f]{40}", match["ref"]), match[0]
        assert re.fullmatch(r"v\d+\.\d+\.\d+", match["version"] or ""), match[0]


def test_an_action_has_one_pin() -> None:
    pins: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for match in uses():
        pins[match["name"]].add((match["ref"], match["version"]))
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}


def test_every_action_is_githubs_own() -> None:
    assert {match["name"].split("/")[0] for match in uses()} == {".", "actions"}


@named
def test_containers_are_the_pinned_bases(path: Path) -> None:
    """A digest stands in docker/bases.toml, and where GitHub wants it written out."""
    pinned = {base.reference for base in read_bases().every()}
    for name, job in jobs(path).items():
        if "container" in job:
            assert job["container"]["image"] in pinned, name


@named
def test_rights_are_given_by_job(path: Path) -> None:
    assert read(path)["permissions"] == {}
    for name, job in jobs(path).items():
        assert job["permissions"], name
        assert "write-all" not in str(job["permissions"]), name


@named
def test_writing_needs_a_release_or_pages(path: Path) -> None:
    """What can write is not reached by a pull request."""
    for name, job in jobs(path).items():
        writes = [right for right, level in job["permissions"].items() if level == "write"]
        if writes and "uses" not in job:
            assert job["environment"] in ("release", {"name": "github-pages"}) or (
                job["environment"]["name"] == "github-pages"
            ), name


@named
def test_no_secret_is_used(path: Path) -> None:
    assert "secrets." not in path.read_text()
    assert "secrets:" not in path.read_text()


@named
def test_every_job_ends(path: Path) -> None:
    for name, job in jobs(path).items():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 360, name


@named
def test_runs_of_one_branch_do_not_pile_up(path: Path) -> None:
    assert read(path)["concurrency"]["group"]


@named
def test_a_checkout_leaves_no_credentials(path: Path) -> None:
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def sessions() -> set[str]:
    """All sessions: as JSON, nox lists those alone that run by default."""
    done = subprocess.run(
        [sys.executable, "-m", "nox", "--list-sessions"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"^[*-] ([\w-]+)", done.stdout, re.MULTILINE))


def test_every_nox_session_exists() -> None:
    there = sessions()
    called = {
        match[1] for _, line in commands() for match in re.finditer(r"\bnox -s ([\w-]+)", line)
    }
    checks = {"lint", "unit", "test", "shipping", "images", "cross", "docs", "walk_through"}
    assert called >= {*checks, "selftest", "release-check"}
    assert called <= there


AOT = re.compile(r"python -m (aot(?:\.\w+)?)((?: [a-z-]+)*)((?:(?! \|| >|\)).)*)")


def called_commands() -> set[tuple[str, str, str]]:
    return {
        (match[1], match[2].strip().split(" ")[0], match[3])
        for _, line in commands()
        for match in AOT.finditer(line)
    }


def test_commands_are_found() -> None:
    there = {(module, command) for module, command, _ in called_commands()}
    assert {("aot", "matrix"), ("aot", "index"), ("aot.release_check", "notes")} <= there


@pytest.mark.parametrize(("module", "command", "rest"), sorted(called_commands()))
def test_every_command_and_option_exists(module: str, command: str, rest: str) -> None:
    words = [word for word in (command,) if word and module != "aot.bake"]
    done = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
    )
    for option in re.findall(r"--[a-z-]+", rest):
        assert option in done.stdout


def test_sccache_uses_githubs_cache_except_in_a_release() -> None:
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert "SCCACHE_GHA_ENABLED=on" in text
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    assert release["wheels"]["with"] == {"object-cache": False}


def test_a_release_goes_from_check_to_notes() -> None:
    order = jobs(ROOT / ".github" / "workflows" / "release.yml")

    def before(name: str) -> set[str]:
        needs = order[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*map(before, direct))

    assert before("wheels") == {"check"}
    assert before("publish") == {"check", "wheels", "sign", "index", "images"}
    assert before("pages") >= before("publish") | {"publish"}
