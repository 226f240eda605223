"""Shards: every machine divides a build alike, and a damaged or foreign archive is refused."""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import io
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from compile_jobs import make_job
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of

from aot.compile.job import Job
from aot.compile.shards import (
    Shard,
    archive_name,
    check_complete,
    import_shards,
    measured,
    part_of,
    read_manifest,
    write_shard,
)
from aot.compile.store import ObjectStore
from aot.costs import Cost, Measured
from aot.errors import ShardError
from aot.estimates import estimate
from aot.plan import BuildPlan, ModulePlan, Unit

ROOT = Path(__file__).resolve().parents[2]
HOST = "g++ (Debian 12.2.0-14) 12.2.0"
SOURCES = (
    "@FLASHINFER@/csrc/kernels/quantization.cu",
    "@FLASHINFER@/csrc/common/logger.cpp",
    "@FLASHINFER@/csrc/fp4_kv_dequantization.cu",
    "@WORKSPACE@/gen/gen_gemm_sm120_cutlass_fp4/fp4_gemm_cutlass_half_128_64_128.cu",
    "@WORKSPACE@/gen/x/cutlass_kernel_file_gemm_grouped_sm120.cu",
)
GENCODES = tuple(f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in ("100a", "110a", "120f"))


def make_plan(modules: Sequence[Sequence[tuple[str, int]]], preset: str = "test") -> BuildPlan:
    """Make a plan of which only the sources and the number of targets of each unit matter."""
    return plan_of(
        *(
            ModulePlan(
                *(f"module{number}", "family", ("12.0f",), ("12.0f",)),
                tuple(
                    Unit(f"unit{index}", source, "cuda", GENCODES[:targets], "0" * 64)
                    for index, (source, targets) in enumerate(units)
                ),
                (),
            )
            for number, units in enumerate(modules)
        ),
        preset=preset,
        tvm_ffi_sources=("src/ffi/error.cc",),
    )


PLAN = make_plan([[(source, 1) for source in SOURCES], [(source, 2) for source in SOURCES]])


def names_of(plan: BuildPlan) -> set[str]:
    return {f"{module.name}/{unit.name}" for module in plan.modules for unit in module.units}


def seconds_of(plan: BuildPlan) -> dict[str, int]:
    return {
        f"{module.name}/{unit.name}": estimate(Path(unit.source), unit.flags)[1]
        for module in plan.modules
        for unit in module.units
    }


# Which part


@pytest.mark.parametrize(
    ("text", "shard"), [("1/1", Shard(1, 1)), ("2/8", Shard(2, 8)), ("08/16", Shard(8, 16))]
)
def test_a_part_is_read(text: str, shard: Shard) -> None:
    assert Shard.parse(text) == shard
    assert Shard.parse(str(shard)) == shard


@pytest.mark.parametrize(
    "text", ["", "2", "2/", "/8", "2/8/9", "-1/2", "1.5/2", "x", "a/b", "2 / 8", "2\\8", "²/8"]
)
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ShardError) as caught:
        Shard.parse(text)
    assert f"--shard is {text!r}; expected a part and a count, such as 2/8" in str(caught.value)


@pytest.mark.parametrize("text", ["0/2", "3/2", "0/0", "1/0"])
def test_a_part_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ShardError, match=f"--shard is '{text}'; the part must be from 1 to"):
        Shard.parse(text)


PLANS = st.builds(
    make_plan,
    st.lists(
        st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 3)), max_size=8),
        min_size=1,
        max_size=4,
    ),
)


@settings(max_examples=200)
@given(PLANS, st.integers(1, 40))
def test_parts_are_disjoint_complete_and_balanced(plan: BuildPlan, count: int) -> None:
    parts = [part_of(plan, Shard(index, count)) for index in range(1, count + 1)]
    every = [name for part in parts for name in part]
    assert len(every) == len(set(every))
    assert set(every) == names_of(plan)
    seconds = seconds_of(plan)
    loads = [sum(seconds[name] for name in part) for part in parts]
    ideal = sum(seconds.values()) / count
    # Also with more parts than units: some are empty then.
    assert max(loads) <= ideal + max(seconds.values(), default=0)
    # What was put last into the fullest was put there when it was the emptiest.
    for load, part in zip(loads, parts, strict=True):
        if part:
            assert load - min(loads) <= min(seconds[name] for name in part)


DIVIDE = """
import json, sys
from aot.compile.shards import Shard, part_of
from aot.plan import BuildPlan
plan = BuildPlan.from_json(json.load(sys.stdin))
print(json.dumps([sorted(part_of(plan, Shard(index, 3))) for index in (1, 2, 3)]))
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_process_divides_alike(seed: str) -> None:
    """Sets and hashes of texts have another order in every process."""
    done = subprocess.run(
        [sys.executable, "-c", DIVIDE],
        input=json.dumps(PLAN.to_json()),
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        sorted(part_of(PLAN, Shard(index, 3))) for index in (1, 2, 3)
    ]


def test_one_part_is_all_of_it() -> None:
    assert part_of(PLAN, Shard(1, 1)) == names_of(PLAN)


def test_what_a_machine_has_measured_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its memory, its cores or its folders: a part is a function of the plan."""
    parts = [part_of(PLAN, Shard(index, 3)) for index in (1, 2, 3)]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("looked at this machine")

    with monkeypatch.context() as patch:
        for name in ("open", "read_text", "read_bytes", "stat"):
            patch.setattr(Path, name, refuse)
        patch.setattr(os, "sched_getaffinity", refuse)
        assert [part_of(PLAN, Shard(index, 3)) for index in (1, 2, 3)] == parts


# Archives


def content_of(name: str) -> bytes:
    # Not compressible, as machine code is not: a flipped byte is in the content itself.
    return random.Random(name).randbytes(3000)


def job_of(name: str) -> Job:
    return make_job(name)


class Build:
    """All shards of a build, each compiled in a store of its own."""

    def __init__(self, folder: Path, plan: BuildPlan = PLAN, count: int = 3) -> None:
        self.folder = folder
        self.plan = plan
        self.count = count
        self.jobs = [job_of(name) for name in sorted(names_of(plan))]
        self.own = make_job("operators/a", group="own")
        self.link_store = ObjectStore(folder / "link")

    def store(self, index: int) -> ObjectStore:
        return ObjectStore(self.folder / f"objects-{index}")

    def part(self, index: int) -> list[Job]:
        wanted = part_of(self.plan, Shard(index, self.count))
        return [job for job in self.jobs if job.name in wanted]

    def write(self, index: int, *, host: str = HOST, out: str = "out") -> Path:
        for job in self.part(index):
            made = self.folder / "made.o"
            made.write_bytes(content_of(job.name))
            self.store(index).put(job, made, "compiled")
        return write_shard(
            *(self.plan, Shard(index, self.count), host, self.part(index)),
            *(self.store(index), self.folder / out),
        )

    def write_all(self) -> list[Path]:
        return [self.write(index) for index in range(1, self.count + 1)]

    def take(self, paths: Sequence[Path], *, host: str = HOST) -> None:
        manifests = [read_manifest(path) for path in paths]
        assert check_complete(manifests) == self.plan
        import_shards(manifests, [*self.jobs, self.own], host, self.link_store)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_what_was_compiled_apart_is_there_together(build: Build) -> None:
    build.take(build.write_all())
    for job in build.jobs:
        stored = build.link_store.find(job)
        assert stored is not None
        assert (stored.name, stored.origin) == (job.name, "imported")
        assert build.link_store.path(job).read_bytes() == content_of(job.name)
    # Our own sources are compiled where the wheel is linked.
    assert build.link_store.find(build.own) is None
    assert not [path for path in build.link_store.folder.iterdir() if path.is_file()]


def test_the_order_of_the_archives_does_not_matter(build: Build) -> None:
    build.take(build.write_all()[::-1])
    assert all(build.link_store.find(job) for job in build.jobs)


def test_an_archive_says_what_it_is(build: Build) -> None:
    path = build.write(2)
    assert path == build.folder / "out" / archive_name(PLAN, Shard(2, 3))
    assert path.name == f"fp4aot-shard-{PLAN.hash[:16]}-2-of-3.tar.xz"
    manifest = read_manifest(path)
    assert (manifest.path, manifest.shard, manifest.plan) == (path, Shard(2, 3), PLAN)
    assert manifest.host_compiler == HOST
    assert [(one.name, one.key, one.sha256) for one in manifest.objects] == [
        (job.name, job.key, hashlib.sha256(content_of(job.name)).hexdigest())
        for job in build.part(2)
    ]
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert names == ["shard.json", *(f"{job.key}.o" for job in build.part(2))]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in (build.folder / "out").iterdir()] == [path.name]


def test_archives_of_the_same_objects_are_the_same_bytes(build: Build) -> None:
    first = build.write(1).read_bytes()
    for path in build.store(1).folder.rglob("*"):
        os.utime(path, (1, 1))
    second = write_shard(
        *(PLAN, Shard(1, 3), HOST, build.part(1)[::-1], build.store(1), build.folder / "other")
    )
    assert second.read_bytes() == first
    # An archive that is there already is replaced.
    assert build.write(1).read_bytes() == first


def test_what_compiling_took_travels_along(tmp_path: Path) -> None:
    build = Build(tmp_path, count=1)
    build.write(1)
    first, *others = build.part(1)
    assert others
    took = Measured(first.name, Cost(138.0, 6600))
    known = {first.key: took, "another": Measured("x/y", Cost(1.0, 1))}
    path = write_shard(
        *(PLAN, Shard(1, 1), HOST, build.part(1), build.store(1), tmp_path / "other"), known
    )
    # What nobody has measured has no cost, and what is not in the archive does not travel.
    assert measured([read_manifest(path)]) == {first.key: took}


def test_a_part_without_units_is_an_archive_too(tmp_path: Path) -> None:
    build = Build(tmp_path, make_plan([[(SOURCES[0], 1)]]), count=3)
    paths = build.write_all()
    assert [len(read_manifest(path).objects) for path in paths] == [1, 0, 0]
    build.take(paths)
    assert build.link_store.find(build.jobs[0]) is not None


def test_objects_that_the_build_does_not_need_are_left_out(build: Build) -> None:
    paths = build.write_all()
    extra = job_of("module9/unit0")
    made = build.folder / "made.o"
    made.write_bytes(b"extra")
    build.store(1).put(extra, made, "compiled")
    write_shard(
        *(PLAN, Shard(1, 3), HOST, [*build.part(1), extra], build.store(1), build.folder / "out")
    )
    build.take(paths)
    assert build.link_store.find(extra) is None
    assert len([*build.link_store.folder.rglob("*.o")]) == len(build.jobs)


def test_a_full_disk_leaves_no_archive(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.write(1).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(OSError, match="No space left"):
        build.write(1)
    (left,) = (build.folder / "out").iterdir()
    assert left.read_bytes() == before


def test_a_full_disk_is_not_called_a_damaged_archive(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = build.write_all()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ObjectStore, "put", full)
    with pytest.raises(OSError, match="No space left"):
        build.take(paths)


# What is refused


def refused(build: Build, paths: Sequence[Path], *, host: str = HOST) -> str:
    with pytest.raises(ShardError) as caught:
        build.take(paths, host=host)
    assert caught.value.exit_code == 10
    return str(caught.value)


def test_a_missing_shard_is_named(build: Build) -> None:
    first, second, third = build.write_all()
    assert refused(build, [third, first]) == f"1 of 3 shards are missing: {second.name}"
    assert refused(build, [second]) == f"2 of 3 shards are missing: {first.name}, {third.name}"
    assert "no shard was given" in refused(build, [])


def test_a_shard_that_is_there_twice_is_named(build: Build) -> None:
    paths = build.write_all()
    text = refused(build, [*paths, paths[1]])
    assert text.startswith("part 2/3 is there twice: ")
    assert text.count(str(paths[1])) == 2
    # Also where another is missing for it.
    assert "part 2/3 is there twice" in refused(build, [paths[0], paths[1], paths[1]])


def test_a_shard_of_another_plan_is_named(build: Build, tmp_path: Path) -> None:
    paths = build.write_all()
    other = Build(tmp_path / "other", dataclasses.replace(PLAN, preset="other"))
    other.folder.mkdir()
    foreign = other.write(2)
    text = refused(build, [paths[0], foreign, paths[2]])
    assert f"{foreign} is of plan {other.plan.hash[:16]}" in text
    assert PLAN.hash[:16] in text


def test_a_shard_of_another_division_is_named(build: Build, tmp_path: Path) -> None:
    paths = build.write_all()
    other = Build(tmp_path / "other", count=4)
    other.folder.mkdir()
    foreign = other.write(2)
    text = refused(build, [paths[0], foreign, paths[2]])
    assert f"{foreign} is part 2/4" in text
    assert "part 1/3" in text


def test_a_shard_of_another_host_compiler_is_named(build: Build) -> None:
    paths = build.write_all()
    foreign = build.write(2, host="g++ (Ubuntu) 13.2.0")
    text = refused(build, paths)
    assert f"{foreign} was compiled with g++ (Ubuntu) 13.2.0, and this machine has {HOST}" in text
    assert f"this machine has {HOST[:-1]}9" in refused(build, paths, host=f"{HOST[:-1]}9")


def test_units_that_are_in_no_shard_are_named(build: Build) -> None:
    paths = build.write_all()
    # The same unit from another source: it has another key.
    changed = dataclasses.replace(build.jobs[0], key="f" * 64)
    build.jobs[0] = changed
    text = refused(build, paths)
    assert f"1 units are in no shard ({changed.name})" in text
    assert build.link_store.find(changed) is None


def cut(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


def flip(data: bytes, share: float) -> bytes:
    place = min(len(data) - 1, int(len(data) * share))
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        *(functools.partial(cut, share=share) for share in (0.0, 0.01, 0.3, 0.7, 0.97)),
        *(functools.partial(flip, share=share) for share in (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9)),
        lambda _: b"no archive at all",
        lambda data: bytes(len(data)),
        lambda data: lzma.compress(b"no tar"),
    ],
)
def test_a_damaged_archive_is_named(build: Build, damage: Callable[[bytes], bytes]) -> None:
    paths = build.write_all()
    paths[1].write_bytes(damage(paths[1].read_bytes()))
    assert str(paths[1]) in refused(build, paths)


@settings(max_examples=150)
@given(st.floats(0, 1, exclude_max=True))
def test_no_flipped_byte_changes_an_object(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    build = Build(folder, make_plan([[(source, 1) for source in SOURCES[:2]]]), count=1)
    (path,) = build.write_all()
    path.write_bytes(flip(path.read_bytes(), share))
    # The archive is refused, or whatever is imported is what was compiled.
    with suppress(ShardError):
        build.take([path])
    for job in build.jobs:
        if build.link_store.find(job) is not None:
            assert build.link_store.path(job).read_bytes() == content_of(job.name)
    shutil.rmtree(folder)


def test_a_file_that_is_not_there_is_named(build: Build, tmp_path: Path) -> None:
    assert str(tmp_path / "none.tar.xz") in refused(build, [tmp_path / "none.tar.xz"])
    assert str(tmp_path) in refused(build, [tmp_path])


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write an archive again with another manifest."""
    with tarfile.open(path) as archive:
        entries = [(one.name, archive.extractfile(one).read()) for one in archive]  # type: ignore[union-attr]
    entries[0] = ("shard.json", json.dumps(change(json.loads(entries[0][1]))).encode())
    with tarfile.open(path, "w:xz") as archive:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        lambda _: "text",
        lambda data: {name: data[name] for name in data if name != "plan"},
        lambda data: {name: data[name] for name in data if name != "objects"},
        lambda data: data | {"shard": {"index": 2}},
        lambda data: data | {"objects": [{"name": "m/a"}]},
        lambda data: data | {"plan": []},
        # A plan that was edited does not match its hash.
        lambda data: data | {"plan": data["plan"] | {"preset": "other"}},
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    build: Build, change: Callable[[dict[str, Any]], Any]
) -> None:
    paths = build.write_all()
    rewrite(paths[1], change)
    assert str(paths[1]) in refused(build, paths)


def test_an_archive_of_another_format_is_refused(build: Build) -> None:
    paths = build.write_all()
    rewrite(paths[1], lambda data: data | {"format": 99})
    text = refused(build, paths)
    assert f"{paths[1]} has format 99" in text
    assert "the same checkout" in text


def test_an_object_that_is_not_what_the_manifest_says_is_named(build: Build) -> None:
    paths = build.write_all()
    job = build.part(2)[0]

    def change(data: dict[str, Any]) -> dict[str, Any]:
        first, *others = data["objects"]
        return data | {"objects": [first | {"sha256": "0" * 64}, *others]}

    rewrite(paths[1], change)
    text = refused(build, paths)
    assert f"{paths[1]}: the object of {job.name}" in text
    assert "it is damaged: copy it again" in text
    assert build.link_store.find(job) is None
    assert not [path for path in build.link_store.folder.iterdir() if path.is_file()]


def test_an_archive_that_is_no_shard_is_refused(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "other.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("README"))
    assert f"{path} is no shard" in refused(build, [path])
