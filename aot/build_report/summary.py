"""What a build's report says in a few words and numbers, and what it was a build of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from aot.build_report import words
from aot.build_report.figures import Totals, outcome
from aot.compile.record import BuildRecord, JobRecord

_VERSION_NAMES: Final = {
    "flashinfer": "FlashInfer",
    "tvm_ffi": "TVM-FFI",
    "cuda": "CUDA",
    "cuda_compiler": "CUDA compiler",
    "torch_target": "oldest torch",
    "torch_headers": "torch headers",
}
_SHOWN_FIRST: Final = ("flashinfer", "cuda")


def verdict(record: BuildRecord, counted: Totals) -> str:
    """Say whether all objects are there."""
    if not record.jobs:
        return "The plan has no units: there was nothing to do."
    failed = counted.counts.get("failed", 0)
    missing = counted.counts.get("not started", 0) + counted.counts.get("not finished", 0)
    units = words.counted(len(record.jobs), "unit")
    if failed:
        rest = f", and {missing} more without an object" if missing else ""
        return f'<strong class="bad">Failed:</strong> {failed} of {units}{rest}.'
    if missing:
        return f'<strong class="bad">Not complete:</strong> {missing} of {units} without an object.'
    if not any(counted.counts.get(name) for name in ("compiled", "cache")):
        return (
            f"<strong>Complete.</strong> Nothing had to be compiled: {units}, and all were there."
        )
    return f"<strong>Complete:</strong> {units} in {words.duration(record.seconds)}."


def subject(record: BuildRecord) -> str:
    """Say shortly what was built; `facts` says it in full."""
    versions = (
        f"{_VERSION_NAMES[name]} {record.versions[name]}"
        for name in _SHOWN_FIRST
        if name in record.versions
    )
    parts = (f"for {record.machine}", *versions, f"plan {record.plan_hash[:16]}")
    return words.safe(" \N{MIDDLE DOT} ".join(parts))


def facts(record: BuildRecord) -> str:
    """Write what was built, and when."""
    rows = "".join(
        f"<dt>{words.safe(name)}</dt><dd>{words.safe(value)}</dd>\n"
        for name, value in _facts(record)
    )
    return f'<section><h2>What was built</h2>\n<dl class="facts">\n{rows}</dl></section>\n'


def _facts(record: BuildRecord) -> Iterator[tuple[str, str]]:
    yield "preset", record.preset
    yield "plan hash", record.plan_hash
    yield "built for", record.machine
    yield "started", words.moment(record.started)
    yield "duration", words.duration(record.seconds)
    for name, version in record.versions.items():
        yield _VERSION_NAMES.get(name, name), version


def failures(record: BuildRecord) -> str:
    """Write which jobs failed and why; nothing where none did."""
    failed = [job for job in record.jobs if outcome(job) == "failed"]
    if not failed:
        return ""
    items = "".join(
        f"<li><p><strong>{words.safe(job.name)}</strong>{_attempt(job)}</p>"
        f"<pre>{words.safe(job.failure or '')}</pre></li>\n"
        for job in failed
    )
    return (
        '<section class="failures"><h2>What failed</h2>\n'
        f'<ul role="list">\n{items}</ul></section>\n'
    )


def _attempt(job: JobRecord) -> str:
    known = []
    if job.seconds is not None:
        known.append(f"after {words.duration(job.seconds)}")
    if job.peak_megabytes is not None:
        known.append(f"with {words.size(job.peak_megabytes)} of memory")
    if job.attempts > 1:
        known.append(f"at attempt {job.attempts}")
    return f' <span class="soft">{", ".join(known)}</span>' if known else ""


@dataclass(frozen=True)
class Tile:
    """One number of the build, in markup, with what explains it."""

    name: str
    value: str
    detail: str
    kind: Literal["", "bad", "high"] = ""


def tiles(record: BuildRecord, counted: Totals) -> str:
    """Write the numbers of the whole build."""
    shown = "".join(
        f'<div class="{tile.kind}"><dt>{tile.name}</dt><dd class="value">{tile.value}</dd>'
        f'<dd class="soft">{tile.detail}</dd></div>\n'
        for tile in _tiles(record, counted)
    )
    return f'<dl class="tiles">\n{shown}</dl>\n'


def _tiles(record: BuildRecord, counted: Totals) -> Iterator[Tile]:
    started = words.safe(words.moment(record.started))
    yield Tile("Duration", words.duration(record.seconds), started)
    yield Tile("Units", str(len(record.jobs)), words.counts_in_words(counted.counts))
    failed = counted.counts.get("failed", 0)
    again = "none"
    if counted.started_again:
        again = words.counted(counted.started_again, "unit")
    yield Tile("Failed", str(failed), f"{again} started again", "bad" if failed else "")
    yield _cache(record, counted)
    busy = counted.busy_share
    yield Tile(
        "Workers",
        str(record.workers),
        "nothing ran" if busy is None else f"busy {words.percent(busy)} of the time",
    )
    yield _memory(record, counted)


def _cache(record: BuildRecord, counted: Totals) -> Tile:
    if record.cache_hits is None and record.cache_misses is None:
        return Tile("Object cache", words.MISSING, "none was used")
    hits, misses = record.cache_hits or 0, record.cache_misses or 0
    detail = f"{misses} {'miss' if misses == 1 else 'misses'}"
    if counted.hit_share is not None:
        detail += f", {words.percent(counted.hit_share)} found"
    return Tile("Object cache", words.counted(hits, "hit"), detail)


def _memory(record: BuildRecord, counted: Totals) -> Tile:
    limit = f"limit {words.size(record.limit_megabytes)}"
    share = counted.memory_share
    if share is None:
        return Tile("Peak memory", words.MISSING, f"nothing measured, {limit}")
    return Tile(
        "Peak memory",
        words.size(record.peak_megabytes),
        f"{words.percent(share)} of the {limit}",
        "high" if share > 1 else "",
    )
