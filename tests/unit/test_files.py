"""Files are whole or absent, and untouched when nothing has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aot.files import write_json, write_text

OLD = 1_000_000_000


def test_folders_are_made_and_everybody_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.txt"
    write_text(path, "content\n")
    assert path.read_text() == "content\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_an_equal_file_keeps_its_time(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "one")
    os.utime(path, (OLD, OLD))
    before = path.stat()
    write_text(path, "one")
    assert (path.stat().st_mtime, path.stat().st_ino) == (OLD, before.st_ino)
    write_text(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_mtime != OLD


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "one")
    with path.open() as reader:
        write_text(path, "two")
        # The old file is still whole for who has it open.
        assert reader.read() == "one"
    assert path.read_text() == "two"


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "one")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "two")
    assert path.read_text() == "one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_text_that_cannot_be_encoded_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file.txt", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_json_is_stable_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"b": (1, 2), "a": None})
    text = path.read_text()
    assert text.index('"a"') < text.index('"b"')
    assert text.endswith("}\n")
    assert len(text.splitlines()) > 3
    assert json.loads(text) == {"a": None, "b": [1, 2]}
    os.utime(path, (OLD, OLD))
    write_json(path, {"a": None, "b": [1, 2]})
    assert path.stat().st_mtime == OLD
