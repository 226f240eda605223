"""Every message of the troubleshooting page is one that the sources say, and none is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from _site.exit_codes import error_classes
from _site.messages import read
from _site.texts import Text, cpp_texts, files_that_say, python_texts, raises, template

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = read()
OURS = [entry for entry in MESSAGES.entries if not entry.origin]
PACKAGE = ROOT / "wheels" / "fp4aot"


def covered(text: str, section: str) -> bool:
    """Whether an entry of a section quotes a text."""
    return any(
        files_that_say(entry.message, [Text("", text)])
        for entry in OURS
        if entry.section == section
    )


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.message)
def test_a_message_is_said(entry):
    assert files_that_say(entry.message), "nothing says this; correct docs/troubleshooting.toml"


def test_messages_of_others_are_quoted_where_they_are_explained():
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "export.md").read_text())
    for entry in MESSAGES.entries:
        if entry.origin:
            assert entry.message in text


def test_every_entry_has_a_section_and_every_section_entries():
    assert {entry.section for entry in MESSAGES.entries} == set(MESSAGES.sections)
    messages = [entry.message for entry in MESSAGES.entries]
    assert len(messages) == len(set(messages))


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.name)
def test_every_error_of_the_build_side_has_an_entry(error):
    assert any(entry.error == error.name for entry in OURS), (
        f"{error.name} (exit code {error.exit_code}) has no entry in docs/troubleshooting.toml"
    )


@pytest.fixture(scope="module")
def raised() -> list[Text]:
    """What the build side raises its errors with; `file` is the error's name."""
    paths = list(ROOT.glob("aot/**/*.py"))
    return [
        Text(error.name, text)
        for error in error_classes()
        for path in paths
        for text in raises(path, error.name)
    ]


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.message)
def test_an_error_is_raised_with_its_message(entry, raised):
    """Where something raises a class with the text in place, an entry with a class names it."""
    names = files_that_say(entry.message, raised)
    assert not names or not entry.error or entry.error in names


def problems_of_doctor() -> list[str]:
    tree = ast.parse((PACKAGE / "_doctor.py").read_text())
    return [
        template(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Problem"
    ]


def test_every_problem_of_doctor_has_an_entry():
    problems = problems_of_doctor()
    assert len(problems) >= 5
    for problem in problems:
        assert covered(problem, "doctor"), f"no entry for doctor's {problem!r}"


def test_every_cause_of_verify_has_an_entry():
    values = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse((PACKAGE / "_verify.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    source = (PACKAGE / "_verify.py").read_text()
    (names,) = re.findall(r"^CAUSES = \((.+?)\)$", source, re.MULTILINE)
    causes = {values[name.strip()] for name in names.split(",")}
    assert causes == {entry.message for entry in OURS if entry.section == "verify"}


def test_every_reason_why_an_import_fails_has_an_entry():
    tree = ast.parse((PACKAGE / "_library.py").read_text())
    texts = list(raises(PACKAGE / "_library.py", "ImportError"))
    texts += [
        template(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "cause"
    ]
    assert len(texts) >= 12
    for text in texts:
        assert covered(text, "import"), f"no entry for {text!r}"


@pytest.mark.parametrize("name", ["flashinfer/kernel_table.cpp", "torch/devices.cpp"])
def test_every_refusal_of_the_library_has_an_entry(name):
    texts = [
        text for text in cpp_texts((PACKAGE / "csrc" / name).read_text()) if len(text.split()) > 5
    ]
    assert texts
    for text in texts:
        # What the table says of a lowered wheel is in doctor's words.
        sections = ("call", "doctor") if "lowered" in text else ("call",)
        found = any(covered(text, section) for section in sections)
        assert found or "could not set the stream" in text, f"no entry for {text!r}"


def test_a_message_that_nothing_says_is_found():
    assert files_that_say("this is said by … nowhere at all") == ()
    assert files_that_say("changed", [Text("a.py", "has changed")]) == ()
    assert files_that_say("changed", [Text("a.py", "changed")]) == ("a.py",)


def test_texts_of_python():
    source = '"""Not this."""\nraise E(f"one {x} " f"two {y!r}" "three")\nv = "four"\n'
    assert sorted(python_texts(source)) == ["four", "one … two …three"]


def test_texts_of_cpp():
    source = 'fail(name, text("one ", x, " two"  // no\n "three"), y); g("a\\"b");'
    assert list(cpp_texts(source)) == ["one … twothree", 'a"b']
