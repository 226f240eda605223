"""A part of a build: which units it compiles, and the archive that carries its objects.

Every machine computes the same parts from the same plan, so nothing has to be agreed upon. Only
FlashInfer's units are divided: the runtime and the operators take a minute, and are compiled where
the wheel is linked.
"""

from __future__ import annotations

import heapq
import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aot.compile.job import Job
from aot.compile.store import ObjectStore
from aot.costs import Cost, Measured
from aot.errors import PlanError, ShardError, is_disk_full
from aot.estimates import estimate
from aot.files import sha256_of
from aot.plan import BuildPlan

_FORMAT: Final = 1
_MANIFEST: Final = "shard.json"
_DAMAGE: Final = (
    *(OSError, EOFError, tarfile.TarError, lzma.LZMAError),
    *(ValueError, KeyError, TypeError, PlanError),
)
"""What reading a damaged archive raises: of the file, the archive, the compression, the content."""


@dataclass(frozen=True)
class Shard:
    """Which part of a build.

    Parameters
    ----------
    index, count
        Part ``index`` of ``count``, from 1.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``"2/8"``.

        Raises
        ------
        ShardError
            When it is no such thing.
        """
        first, slash, second = text.partition("/")
        if not (slash and first.isdecimal() and second.isdecimal()):
            raise ShardError(f"--shard is {text!r}; expected a part and a count, such as 2/8")
        shard = cls(int(first), int(second))
        if not 1 <= shard.index <= shard.count:
            raise ShardError(f"--shard is {text!r}; the part must be from 1 to {shard.count}")
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class ShardObject:
    """An object in an archive.

    Parameters
    ----------
    name, key
        Of its job.
    sha256
        Of the object.
    cost
        What compiling it took; None where nobody has measured it.
    """

    name: str
    key: str
    sha256: str
    cost: Cost | None = None


@dataclass(frozen=True)
class ShardManifest:
    """What an archive says of itself.

    Parameters
    ----------
    path
        The archive.
    shard
        Which part it is.
    plan
        What it was compiled for.
    host_compiler
        How the C++ compiler that made it names itself.
    objects
        What is in it.
    """

    path: Path
    shard: Shard
    plan: BuildPlan
    host_compiler: str
    objects: tuple[ShardObject, ...]


def part_of(plan: BuildPlan, shard: Shard) -> frozenset[str]:
    """Name the jobs of one part: of about equal time, whatever machine computes it.

    Parameters
    ----------
    plan
        What is built.
    shard
        Which part.
    """
    # The estimates of the source tree, never what this machine has measured: all must agree.
    costs = sorted(
        (-estimate(Path(unit.source), unit.flags)[1], f"{module.name}/{unit.name}")
        for module in plan.modules
        for unit in module.units
    )
    loads = [(0, number) for number in range(shard.count)]
    parts: dict[int, set[str]] = {number: set() for number in range(shard.count)}
    for seconds, name in costs:
        load, number = heapq.heappop(loads)
        parts[number].add(name)
        heapq.heappush(loads, (load - seconds, number))
    return frozenset(parts[shard.index - 1])


def archive_name(plan: BuildPlan, shard: Shard) -> str:
    """Name the archive of one part."""
    return f"fp4aot-shard-{plan.hash[:16]}-{shard.index}-of-{shard.count}.tar.xz"


def write_shard(
    plan: BuildPlan,
    shard: Shard,
    host_compiler: str,
    jobs: Sequence[Job],
    store: ObjectStore,
    folder: Path,
    known: Mapping[str, Measured] = MappingProxyType({}),
) -> Path:
    """Pack the objects of one part.

    Parameters
    ----------
    plan, shard, host_compiler
        As in `ShardManifest`.
    jobs
        The jobs of this part; all are in the store.
    store
        Has the objects.
    folder
        Gets the archive.
    known
        What compiling has taken on this machine.
    """
    ordered = sorted(jobs, key=lambda job: job.name)
    objects = [
        ShardObject(
            *(job.name, job.key, sha256_of(store.path(job))),
            known[job.key].cost if job.key in known else None,
        )
        for job in ordered
    ]
    data = {
        "format": _FORMAT,
        "shard": asdict(shard),
        "plan": plan.to_json(),
        "host_compiler": host_compiler,
        "objects": [asdict(one) for one in objects],
    }
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / archive_name(plan, shard)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{final.name}-", delete=False) as scratch:
        written = Path(scratch.name)
    try:
        with tarfile.open(written, mode="w:xz", preset=2) as archive:
            text = json.dumps(data, indent=1).encode()
            _add(archive, _MANIFEST, len(text), io.BytesIO(text))
            for job in ordered:
                path = store.path(job)
                with path.open("rb") as stream:
                    _add(archive, f"{job.key}.o", path.stat().st_size, stream)
        written.chmod(0o644)
        written.replace(final)
    finally:
        written.unlink(missing_ok=True)
    return final


def _add(archive: tarfile.TarFile, name: str, size: int, stream: Any) -> None:
    # No time and no owner: the same objects make the same archive.
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, stream)


def read_manifest(path: Path) -> ShardManifest:
    """Read what an archive says of itself.

    Raises
    ------
    ShardError
        When it is no shard, or cut off.
    """
    with _opened(path) as archive:
        return _manifest(path, archive)


def _manifest(path: Path, archive: tarfile.TarFile) -> ShardManifest:
    first = archive.next()
    stream = archive.extractfile(first) if first and first.name == _MANIFEST else None
    if stream is None:
        raise ShardError(f"{path} is no shard: it does not begin with {_MANIFEST}")
    data: Mapping[str, Any] = json.loads(stream.read())
    if data["format"] != _FORMAT:
        raise ShardError(
            f"{path} has format {data['format']} and this version reads {_FORMAT}; compile the "
            "shards and link them with the same checkout"
        )
    return ShardManifest(
        path,
        Shard(**data["shard"]),
        BuildPlan.from_json(data["plan"]),
        data["host_compiler"],
        tuple(_object(one) for one in data["objects"]),
    )


def _object(data: Mapping[str, Any]) -> ShardObject:
    cost = data["cost"]
    return ShardObject(**{**data, "cost": None if cost is None else Cost(**cost)})


def measured(manifests: Iterable[ShardManifest]) -> dict[str, Measured]:
    """Collect what compiling the objects of some shards has taken, by key."""
    return {
        one.key: Measured(one.name, one.cost)
        for manifest in manifests
        for one in manifest.objects
        if one.cost is not None
    }


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:xz") as archive:
            yield archive
    except _DAMAGE as cause:
        if isinstance(cause, OSError) and is_disk_full(cause):
            raise  # not the archive's fault
        raise ShardError(
            f"{path} is not a whole shard ({cause or type(cause).__name__}); copy it again, or "
            "compile it again with `python -m aot build --shard`"
        ) from cause


def check_complete(manifests: Sequence[ShardManifest]) -> BuildPlan:
    """Check that some shards are all those of one build, and return its plan.

    Raises
    ------
    ShardError
        Naming what is missing, there twice, or of another build.
    """
    if not manifests:
        raise ShardError("no shard was given; pass all archives of `python -m aot build --shard`")
    first = manifests[0]
    for one in manifests[1:]:
        if one.plan.hash != first.plan.hash:
            raise ShardError(
                f"{one.path} is of plan {one.plan.hash[:16]} and {first.path} of plan "
                f"{first.plan.hash[:16]}; link shards of one plan"
            )
        if one.shard.count != first.shard.count:
            raise ShardError(
                f"{one.path} is part {one.shard} and {first.path} part {first.shard}; link shards "
                "of one division"
            )
    there: dict[int, ShardManifest] = {}
    for one in manifests:
        if one.shard.index in there:
            raise ShardError(
                f"part {one.shard} is there twice: {there[one.shard.index].path} and {one.path}; "
                "pass each shard once"
            )
        there[one.shard.index] = one
    count = first.shard.count
    if missing := sorted(set(range(1, count + 1)) - there.keys()):
        names = ", ".join(archive_name(first.plan, Shard(index, count)) for index in missing)
        raise ShardError(f"{len(missing)} of {count} shards are missing: {names}")
    return first.plan


def import_shards(
    manifests: Sequence[ShardManifest], jobs: Sequence[Job], host_compiler: str, store: ObjectStore
) -> None:
    """Put the objects of all shards into the store.

    Parameters
    ----------
    manifests
        All shards of one build.
    jobs
        The jobs of the build on this machine.
    host_compiler
        How this machine's C++ compiler names itself.
    store
        Gets the objects that the build needs.

    Raises
    ------
    ShardError
        When an object is damaged, or a unit is in no shard under the name that it has here.
    """
    wanted = {job.key: job for job in jobs if job.group == "unit"}
    for manifest in manifests:
        if manifest.host_compiler != host_compiler:
            raise ShardError(
                f"{manifest.path} was compiled with {manifest.host_compiler}, and this machine has "
                f"{host_compiler}; link with the compiler that made the shards, or set CXX"
            )
        with _opened(manifest.path) as archive:
            hashes = {f"{one.key}.o": one for one in _manifest(manifest.path, archive).objects}
            for entry in archive:
                one = hashes.get(entry.name)
                job = wanted.get(one.key) if one else None
                stream = archive.extractfile(entry)
                if one is None or job is None or stream is None:
                    continue
                _import(manifest, one, stream.read(), job, store)
                del wanted[one.key]
    if wanted:
        names = ", ".join(sorted(job.name for job in wanted.values())[:5])
        raise ShardError(
            f"{len(wanted)} units are in no shard ({names}); the shards were compiled from another "
            "checkout, or with other packages: compile them again from this one"
        )


def _import(
    manifest: ShardManifest, one: ShardObject, data: bytes, job: Job, store: ObjectStore
) -> None:
    store.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=store.folder, delete=False) as scratch:
        scratch.write(data)
    made = Path(scratch.name)
    try:
        found = sha256_of(made)
        if found != one.sha256:
            raise ShardError(
                f"{manifest.path}: the object of {one.name} has SHA-256 {found[:16]}… and the "
                f"shard says {one.sha256[:16]}…; it is damaged: copy it again"
            )
        store.put(job, made, "imported")
    finally:
        made.unlink(missing_ok=True)
