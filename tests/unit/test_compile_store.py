"""The store: an object counts only when it is there, whole, and recorded."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from compile_jobs import make_job

from aot.compile import store as store_module
from aot.compile.store import ObjectStore, StoredObject
from aot.files import sha256_of

JOB = make_job("m/a")
OTHER = make_job("m/b")
CONTENT = b"\x7fELF an object"


def is_damaged(store: ObjectStore) -> bool:
    """As the scheduler tells it: something is there, and it is no object."""
    return store.has_traces(JOB) and store.find(JOB) is None


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.o"
    path.write_bytes(CONTENT)
    return path


def files_of(store: ObjectStore) -> list[str]:
    return sorted(path.name for path in store.folder.rglob("*") if path.is_file())


def record_of(store: ObjectStore) -> Path:
    return store.path(JOB).with_suffix(".json")


@pytest.mark.parametrize("origin", ["compiled", "cache", "imported"])
def test_what_was_put_is_found(store: ObjectStore, made: Path, origin: str) -> None:
    put = store.put(JOB, made, origin)  # type: ignore[arg-type]
    assert put == StoredObject("m/a", hashlib.sha256(CONTENT).hexdigest(), origin)  # type: ignore[arg-type]
    assert not made.exists()
    assert store.path(JOB).read_bytes() == CONTENT
    assert store.find(JOB) == put
    assert not is_damaged(store)
    # Another checkout or another run of the program reads the same.
    assert ObjectStore(store.folder).find(JOB) == put
    assert store.find(OTHER) is None


def test_an_object_is_named_by_its_key_alone(store: ObjectStore) -> None:
    same = make_job("elsewhere/b", key=JOB.key, megabytes=5)
    assert store.path(same) == store.path(JOB)
    assert store.path(OTHER) != store.path(JOB)
    assert JOB.key in store.path(JOB).name


def test_what_is_not_there_is_not_found_and_not_damaged(store: ObjectStore) -> None:
    assert store.find(JOB) is None
    assert not is_damaged(store)
    assert not store.folder.exists()
    store.remove(JOB)


def test_a_later_object_replaces_an_earlier_one(store: ObjectStore, made: Path) -> None:
    store.put(JOB, made, "compiled")
    made.write_bytes(b"another")
    put = store.put(JOB, made, "cache")
    assert store.find(JOB) == put
    assert store.path(JOB).read_bytes() == b"another"
    assert len(files_of(store)) == 2


@pytest.mark.parametrize(
    "content", [b"", CONTENT[:-1], CONTENT + b"\0", CONTENT.replace(b"E", b"F"), b"\0" * 100]
)
def test_a_damaged_object_is_removed(store: ObjectStore, made: Path, content: bytes) -> None:
    store.put(JOB, made, "compiled")
    store.path(JOB).write_bytes(content)
    assert store.find(JOB) is None
    assert files_of(store) == []


GOOD = {"name": "m/a", "sha256": hashlib.sha256(CONTENT).hexdigest(), "origin": "compiled"}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        json.dumps(GOOD).encode()[:-5],
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        json.dumps(GOOD | {"sha256": "0" * 64}).encode(),
        json.dumps(GOOD | {"more": 1}).encode(),
        json.dumps({"name": "m/a"}).encode(),
    ],
)
def test_an_object_with_a_damaged_record_is_removed(
    store: ObjectStore, made: Path, record: bytes
) -> None:
    store.put(JOB, made, "compiled")
    record_of(store).write_bytes(record)
    assert is_damaged(store)
    assert files_of(store) == []
    assert store.find(JOB) is None


def test_a_record_without_its_object_is_not_found(store: ObjectStore, made: Path) -> None:
    store.put(JOB, made, "compiled")
    store.path(JOB).unlink()
    assert is_damaged(store)
    assert store.find(JOB) is None
    made.write_bytes(CONTENT)
    store.put(JOB, made, "compiled")
    assert store.find(JOB) is not None


def test_an_object_without_a_record_does_not_count(store: ObjectStore, made: Path) -> None:
    store.put(JOB, made, "compiled")
    record_of(store).unlink()
    assert is_damaged(store)
    assert store.find(JOB) is None


# Between file systems


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("NOT TESTED: another file system, because this machine has no /dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared, prefix="fp4aot-test-"))
    yield folder
    shutil.rmtree(folder)


def test_an_object_of_another_file_system_is_moved(store: ObjectStore, elsewhere: Path) -> None:
    made = elsewhere / "made.o"
    made.write_bytes(CONTENT)
    put = store.put(JOB, made, "compiled")
    assert store.find(JOB) == put
    assert list(elsewhere.iterdir()) == []
    assert len(files_of(store)) == 2


def full_disk(_: Path, to: Path) -> None:
    """Copy a half, as a full disk does."""
    to.write_bytes(CONTENT[:5])
    raise OSError(errno.ENOSPC, "No space left on device", str(to))


def test_a_full_disk_leaves_nothing_half(
    store: ObjectStore, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = elsewhere / "made.o"
    made.write_bytes(CONTENT)
    monkeypatch.setattr(store_module.shutil, "copyfile", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.put(JOB, made, "compiled")
    assert files_of(store) == []
    assert store.find(JOB) is None
    assert made.read_bytes() == CONTENT


@pytest.mark.parametrize("step", ["replace", "write_json"])
def test_an_interrupted_put_leaves_nothing_that_counts(
    store: ObjectStore, made: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also where an earlier object was there: its record would vouch for another content."""
    store.put(JOB, made, "compiled")
    made.write_bytes(b"another")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    owner = Path if step == "replace" else store_module.files
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.put(JOB, made, "compiled")
    assert store.find(JOB) is None
    made.write_bytes(b"another")
    assert store.put(JOB, made, "compiled") == store.find(JOB)
    assert len(files_of(store)) == 2


def test_files_are_hashed_block_by_block(tmp_path: Path) -> None:
    path = tmp_path / "large"
    content = bytes(range(256)) * (3 << 12) + b"end"  # 3 MB and a bit
    path.write_bytes(content)
    assert sha256_of(path) == hashlib.sha256(content).hexdigest()
