"""What a person finds who reports something: templates, contacts, promises."""

from __future__ import annotations

import yaml

from tests.shipping.workflows import FOLDER, ROOT

TEMPLATES = FOLDER / "ISSUE_TEMPLATE"


def test_a_bug_report_asks_for_doctor() -> None:
    form = yaml.safe_load((TEMPLATES / "bug.yml").read_text())
    field = next(item for item in form["body"] if item.get("id") == "doctor")
    assert "python -m fp4aot doctor --json" in field["attributes"]["description"]
    assert field["validations"]["required"] is True


def test_forms_have_what_github_wants() -> None:
    for path in TEMPLATES.glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name == "config.yml":
            assert form["blank_issues_enabled"] is False
            continue
        assert form["name"]
        assert form["description"]
        fields = [item["id"] for item in form["body"] if item["type"] != "markdown"]
        assert len(fields) == len(set(fields)) > 0


def test_security_says_where_to_report_and_for_which_versions() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "privately" in text
    assert "newest release" in text


def test_the_version_policy_answers_what_is_asked() -> None:
    text = (ROOT / "VERSIONING.md").read_text()
    for heading in ("FlashInfer", "PyTorch", "CUDA"):
        assert f"\n## {heading}" in text
