"""Imports what FlashInfer's autotuner found: `autotune(cache=FILE)` and the store of `autotune_v2`.

A cache maps a key, the text of ``(op, runner, shapes, extras)``, to a runner and its tactic. Those
of `mm_fp4` have the op ``fp4_gemm`` and the shapes of its ten arguments, with M replaced by its
bucket. Only the CUTLASS runner is in this wheel. Its keys do not say the output dtype (FlashInfer
uses one result for both), so each becomes an entry for both. Those of `cutlass_fused_moe` are for
`flashinfer_moe_cache`.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fp4aot._library import is_same_release
from fp4aot._tactics import flashinfer_moe_cache
from fp4aot._tactics.entries import DEFAULT_TACTIC, OUT_DTYPES, Entry
from fp4aot._tactics.errors import TacticsError, refuse
from fp4aot._tactics.file import load_json
from fp4aot._tactics.flashinfer_buckets import Buckets, starts
from fp4aot._tactics.flashinfer_moe_cache import MoeCounts, Result
from fp4aot._tactics.table import Section, Table
from fp4aot._tactics.wheel import Wheel

OPERATION = "fp4_gemm"
RUNNER = "CutlassFp4GemmRunner"

_KEY = re.compile(r"\('([^']*)', '([^']*)', (\(.*\))\)", re.DOTALL)
_ARGUMENTS = 10
_LARGEST = 2**30
_OWN_KEYS = ("_metadata", "_records", "_generation")


@dataclass(frozen=True)
class Imported:
    """What an import found.

    Parameters
    ----------
    table
        One section.
    taken
        Results of the CUTLASS runner, each of which became an entry for each output dtype.
    gaps
        Entries of `mm_fp4` with the default tactic, for buckets without a result.
    moe_taken
        Results for `cutlass_fused_moe`.
    skipped
        Reasons, and how many results were not taken for each.
    notes
        What is worth knowing.
    """

    table: Table
    taken: int
    gaps: int
    moe_taken: int
    skipped: Mapping[str, int]
    notes: tuple[str, ...]


class _Result(NamedTuple):
    """A result for `mm_fp4`: its key, the runner and the shapes there, runner and tactic."""

    key: str
    asked: str
    shapes: str
    runner: Any
    tactic: Any


@dataclass(frozen=True)
class _Cache:
    metadata: Mapping[str, Any]
    source: str
    """The file that has the metadata."""
    prefix: str
    """Where in it."""
    results: tuple[tuple[str, Any, Any], ...]
    """Key, runner and tactic."""


def read(
    path: str | Path,
    wheel: Wheel,
    find_capability: Callable[[str], tuple[int, int] | None],
    written: str,
    rounding: str = "default",
    moe_counts: MoeCounts = lambda *_: None,
) -> Imported:
    """Read a cache and turn it into a table.

    Parameters
    ----------
    path
        The JSON file of `autotune(cache=...)`, or the folder of one environment of `autotune_v2`
        (the one with ``manifest.json``).
    wheel
        Must hold the same FlashInfer version: tactics are positions in its list.
    find_capability
        Tells the compute capability of a GPU from its name.
    written
        The time of the import.
    rounding
        ``"default"``, or what `autotune(tuning_buckets=..., round_up=...)` had: ``"down"`` (its
        default) or ``"up"``.
    moe_counts
        Tells how many tactics the two products of `cutlass_fused_moe` have, by the capability and
        whether finalize is fused; None where no device can tell.

    Raises
    ------
    TacticsError
        When the cache cannot be used.
    """
    source = Path(path)
    cache = _read_folder(source) if source.is_dir() else _read_file(source)
    notes = _check_versions(cache, wheel)
    device = str(cache.metadata.get("gpu") or "unknown")
    capability = find_capability(device)
    if capability is None:
        refuse(
            cache.source,
            f"{cache.prefix}gpu",
            repr(device),
            "the name of a GPU of this machine",
            "give its compute capability: --capability 12.0",
        )
    count = wheel.tactic_count(*capability)
    if count == 0 and not wheel.has_moe(*capability):
        raise TacticsError(
            "fp4aot.tactics: {}: this wheel has no FP4 GEMM for compute capability {}.{} "
            "({}), and no mixture of experts; see python -m fp4aot doctor".format(
                source, *capability, device
            )
        )
    skipped: Counter[str] = Counter()
    parsed, mixtures = [], []
    for key, runner, tactic in cache.results:
        match = _KEY.fullmatch(key)
        operation = match[1] if match else ""
        if match and operation in flashinfer_moe_cache.OPERATIONS:
            mixtures.append(Result(key, match[1], match[2], match[3], runner, tactic))
        elif match and operation == OPERATION and count:
            parsed.append(_Result(key, match[2], match[3], runner, tactic))
        elif operation == OPERATION:
            skipped["of mm_fp4, which is not in this wheel"] += 1
        else:
            skipped["of another operator"] += 1
    shapes = _group(parsed, str(source), count, skipped)
    entries, gaps = _entries(shapes, rounding, str(source))
    taken = sum(tactic is not None for buckets in shapes.values() for tactic in buckets.values())
    moe_entries, moe_taken = flashinfer_moe_cache.read(
        mixtures, str(source), lambda fused: moe_counts(capability, fused), rounding, skipped
    )
    section = Section(
        device=device,
        capability=capability,
        plan_hash=wheel.plan_hash,
        version=wheel.version,
        flashinfer=wheel.flashinfer,
        driver=None,
        cuda_runtime=wheel.cuda_runtime,
        written=written,
        origin=f"FlashInfer {wheel.flashinfer} cache {source.name}",
        entries=tuple(entries) if taken else (),
        moe_entries=tuple(moe_entries),
    )
    table = Table((section,)) if taken or moe_taken else Table()
    return Imported(table, taken, gaps if taken else 0, moe_taken, dict(skipped), tuple(notes))


def _read_file(path: Path) -> _Cache:
    if path.suffix == ".py":
        raise TacticsError(
            f"fp4aot.tactics: {path}: FlashInfer's .py configurations are of fused MoE only and "
            "name no version; import the JSON file of autotune(cache=...)"
        )
    data = load_json(path)
    if not isinstance(data, dict):
        refuse(str(path), "(the file)", type(data).__name__, "an object", "is it such a cache?")
    if "format" in data:
        raise TacticsError(
            f"fp4aot.tactics: {path}: is a table of tactics already; load or merge it as it is"
        )
    results = []
    for key, value in data.items():
        if key in _OWN_KEYS:
            continue
        # The runner, the tactic, and since 0.7.2 how it was measured.
        if not (isinstance(value, list) and len(value) >= 2):
            refuse(str(path), key, repr(value)[:60], "[runner, tactic, ...]", _write_again())
        results.append((key, value[0], value[1]))
    metadata = _metadata(data.get("_metadata"), f"{path}: _metadata")
    return _Cache(metadata, str(path), "_metadata.", tuple(results))


def _read_folder(folder: Path) -> _Cache:
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        found = sorted(str(item.parent) for item in folder.glob("**/manifest.json"))
        raise TacticsError(
            f"fp4aot.tactics: {folder}: has no manifest.json; give the folder of one environment"
            + (f", one of {', '.join(found[:8])}" if found else ", <root>/v2/<environment>")
        )
    results = []
    for path in sorted((folder / "entries").glob("*.json")):
        entry = load_json(path)
        if not (isinstance(entry, dict) and {"key", "runner", "tactic"} <= entry.keys()):
            got = json.dumps(entry)[:60]
            refuse(str(path), "(the file)", got, "key, runner and tactic", "remove the file")
        results.append((str(entry["key"]), entry["runner"], entry["tactic"]))
    metadata = _metadata(load_json(manifest), str(manifest))
    return _Cache(metadata, str(manifest), "", tuple(results))


def _metadata(data: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise TacticsError(
            f"fp4aot.tactics: {source}: is missing, so nothing says which FlashInfer's tactics "
            "these are; " + _write_again()
        )
    return data


def _check_versions(cache: _Cache, wheel: Wheel) -> list[str]:
    version = cache.metadata.get("flashinfer_version")
    if version == "*":
        return ["the cache claims to fit every FlashInfer version; nothing says that this is true"]
    if not is_same_release(str(version), wheel.flashinfer):
        refuse(
            cache.source,
            f"{cache.prefix}flashinfer_version",
            repr(version),
            f"{wheel.flashinfer!r}, the FlashInfer in this wheel",
            "tactics are positions in that version's list: tune again (python -m fp4aot tune), or "
            "install a wheel with that FlashInfer",
        )
    cuda = cache.metadata.get("cuda_version")
    if cuda not in (None, "*", "unknown", wheel.cuda_runtime):
        return [
            f"measured with CUDA {cuda}, and this wheel was compiled with CUDA "
            f"{wheel.cuda_runtime}: the tactics are the same, their times may differ"
        ]
    return []


def _group(
    results: Sequence[_Result], source: str, count: int, skipped: Counter[str]
) -> dict[tuple[int, int], Buckets]:
    """Sort results by weight shape and bucket, and count those that are of no use here."""
    shapes: dict[tuple[int, int], Buckets] = {}
    for key, asked, shape_text, runner, tactic in results:
        sizes = _sizes(shape_text)
        if sizes is None:
            skipped[f"of {asked}, with shapes that are not those of mm_fp4"] += 1
            continue
        m, n, k = sizes
        buckets = shapes.setdefault((n, k), {})
        if asked != RUNNER:
            skipped[f"of {asked}, which is not in this wheel"] += 1
            buckets.setdefault(m, None)
            continue
        whole = isinstance(tactic, int) and not isinstance(tactic, bool)
        if runner != RUNNER or not whole or not DEFAULT_TACTIC <= tactic < count:
            expected = f"{RUNNER!r} and a tactic from {DEFAULT_TACTIC} to {count - 1}"
            refuse(source, key, f"{runner!r}, {tactic!r}"[:60], expected, _write_again())
        if buckets.get(m) not in (None, tactic):
            skipped["a second, different result for the same shape"] += 1
            continue
        buckets[m] = tactic
    return shapes


def _sizes(text: str) -> tuple[int, int, int] | None:
    """Read M's bucket, N and K from the text of the shapes, or None where they are none."""
    # The shapes come first; what follows them is of other runners, and may be anything.
    match = re.match(r"\((?:\([-\d, ]*\)(?:, )?)*\)", text)
    try:
        shapes: Any = ast.literal_eval(match[0]) if match else ()
    except (SyntaxError, ValueError):
        return None
    return sizes_of(shapes)


def sizes_of(shapes: Any) -> tuple[int, int, int] | None:
    """Tell M, N and K from the shapes of `mm_fp4`'s ten arguments, or None where they are none."""
    if len(shapes) != _ARGUMENTS or not all(isinstance(shape, tuple) for shape in shapes):
        return None
    a, b = shapes[0], shapes[1]
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        return None
    if min(*a, *b) < 1 or max(*a, *b) > _LARGEST:
        return None
    # Two values in a byte.
    n, k = b[1], a[1] * 2
    return None if n % 32 or k % 32 else (a[0], n, k)


def _entries(
    shapes: Mapping[tuple[int, int], Buckets], rounding: str, source: str
) -> tuple[list[Entry], int]:
    entries = []
    gaps = 0
    for (n, k), buckets in sorted(shapes.items()):
        if all(tactic is None for tactic in buckets.values()):
            continue
        for m, tactic in starts(buckets, rounding, source, OPERATION).items():
            gaps += (tactic is None) * len(OUT_DTYPES)
            chosen = DEFAULT_TACTIC if tactic is None else tactic
            entries += [Entry(n, k, dtype, m, chosen) for dtype in OUT_DTYPES]
    return entries, gaps


def _write_again() -> str:
    return "write it again with FlashInfer's autotune(cache=...)"
