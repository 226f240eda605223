"""``python -m fp4aot tactics show|check|merge|import``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fp4aot._tactics import active, file, flashinfer_cache
from fp4aot._tactics.entries import DEFAULT_TACTIC, Choice, MoeChoice
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.flashinfer_buckets import ROUNDINGS
from fp4aot._tactics.machine import Machine, this_machine
from fp4aot._tactics.table import Table, merge, shared_capabilities
from fp4aot._tactics.text import columns
from fp4aot._tactics.tune import now
from fp4aot._tactics.wheel import Wheel, this_wheel


def add_parser(commands: Any) -> None:
    """Add the command to the program's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tactics", help="show, check, merge and import tables of tactics"
    )
    actions = parser.add_subparsers(dest="action", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(run=run)
        action.add_argument("--json", action="store_true", help="print JSON")
        return action

    action = add("show", show, "list a table's entries, or those in force")
    action.add_argument("file", nargs="?", help="a table (default: what is in force)")
    action = add("check", check, "say whether tables fit this wheel")
    action.add_argument("files", nargs="+", metavar="file")
    action = add("merge", merge_files, "put tables that fit this wheel together")
    action.add_argument("files", nargs="+", metavar="file")
    action.add_argument("--out", required=True, help="the file to write")
    action = add("import", import_cache, "turn a cache of FlashInfer's autotuner into a table")
    action.add_argument(
        "cache", help="the JSON file of autotune(cache=...), or a folder of autotune_v2's store"
    )
    action.add_argument(
        "--out", required=True, help="the file to write; one that exists is added to"
    )
    action.add_argument(
        "--capability", type=_capability, help="of the GPU it is from, where that is not here: 12.0"
    )
    action.add_argument(
        "--rounding",
        choices=ROUNDINGS,
        default=ROUNDINGS[0],
        help="for a cache made with tuning_buckets: down, or up for round_up=True",
    )


def show(options: argparse.Namespace, make_wheel: Callable[[], Wheel] = this_wheel) -> int:
    """List a table's entries, or those in force."""
    if options.file is None:
        table, name = active.table(), "in force"
    else:
        table, name = file.read(options.file, make_wheel())[0], str(options.file)
    if options.json:
        print(json.dumps(table.to_json(), indent=2))
        return 0
    choices, moe_choices = table.choices(), table.moe_choices()
    lines: list[str] = []
    if choices:
        head: tuple[str, ...] = ("capability", "dtype", "NxK", "M", "tactic")
        lines += [*columns(head, _rows(choices), right=(3, 4)), ""]
    if moe_choices:
        head = ("capability", "dtype", "input", "finalize", "experts, HxI", "tokens")
        head = (*head, "gemm1", "gemm2")
        lines += [*columns(head, _moe_rows(moe_choices), right=(5, 6, 7)), ""]
    count = len(choices) + len(moe_choices)
    found = f"{count} entries" if count else "no entries: FlashInfer's default is used"
    print("\n".join([*lines, f"{name}: {found}"]))
    return 0


def check(options: argparse.Namespace, make_wheel: Callable[[], Wheel] = this_wheel) -> int:
    """Say of each file whether it fits."""
    wheel = make_wheel()
    results = []
    for path in options.files:
        try:
            table, notes = file.read(path, wheel)
        except TacticsError as error:
            results.append({"file": path, "fits": False, "error": str(error)})
        else:
            results.append({"file": path, "fits": True, **_summary(table, notes)})
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        for result in results:
            print(_sentence(result) if result["fits"] else result["error"])
    return 0 if all(result["fits"] for result in results) else 1


def merge_files(options: argparse.Namespace, make_wheel: Callable[[], Wheel] = this_wheel) -> int:
    """Merge files into one."""
    wheel = make_wheel()
    found = [file.read(path, wheel) for path in options.files]
    table = merge(table for table, _ in found)
    file.write(table, options.out)
    notes = [note for _, notes in found for note in notes]
    result = {"file": str(options.out), **_summary(table, notes)}
    print(json.dumps(result, indent=2) if options.json else _sentence(result))
    return 0


def import_cache(
    options: argparse.Namespace, make_machine: Callable[[], Machine] = this_machine
) -> int:
    """Import a cache; not to find anything of use in it is a failure."""
    machine = make_machine()
    imported = flashinfer_cache.read(
        options.cache,
        machine.wheel,
        lambda name: options.capability or machine.find_capability(name),
        now(),
        options.rounding,
        machine.moe_counts,
    )
    some = imported.taken + imported.moe_taken > 0
    result: dict[str, Any] = {
        "file": str(options.out) if some else None,
        "taken": imported.taken,
        "moe_taken": imported.moe_taken,
        "gaps": imported.gaps,
        "skipped": dict(imported.skipped),
        "notes": list(imported.notes),
    }
    if some:
        out = Path(options.out)
        before, notes = file.read(out, machine.wheel) if out.exists() else (Table(), [])
        table = merge([before, imported.table])
        file.write(table, out)
        result |= _summary(table, [*imported.notes, *notes])
    print(json.dumps(result, indent=2) if options.json else _import_text(options.cache, result))
    return 0 if some else 1


def _import_text(cache: str, result: dict[str, Any]) -> str:
    lines = [f"{cache}: {result['taken']} results of CUTLASS for mm_fp4 taken"]
    if result["moe_taken"]:
        lines += [f"{cache}: {result['moe_taken']} results for cutlass_fused_moe taken"]
    if result["taken"]:
        lines[0] += (
            ", each for both output dtypes; FlashInfer has none for other M: "
            f"{result['gaps']} entries keep the default there"
        )
    lines += [f"skipped: {count} {why}" for why, count in sorted(result["skipped"].items())]
    if result["file"]:
        lines.append(_sentence(result))
    else:
        lines.append("Nothing to import, and nothing was written.")
    return "\n".join(lines)


def _summary(table: Table, notes: list[str]) -> dict[str, Any]:
    return {
        "entries": len(table),
        "devices": table.devices(),
        "notes": [*notes, *shared_capabilities(table)],
    }


def _sentence(result: dict[str, Any]) -> str:
    lines = [f"{result['file']}: {result['entries']} entries, for {', '.join(result['devices'])}"]
    return "\n".join([*lines, *(f"note: {note}" for note in result["notes"])])


def _rows(choices: list[Choice]) -> list[tuple[str, ...]]:
    return [
        (
            f"{choice.major}.{choice.minor}",
            choice.out_dtype,
            f"{choice.n}x{choice.k}",
            rows,
            _tactic(choice.tactic),
        )
        for choice, rows in zip(choices, _ranges([(c[:5], c.m) for c in choices]), strict=True)
    ]


def _moe_rows(choices: list[MoeChoice]) -> list[tuple[str, ...]]:
    return [
        (
            f"{choice.major}.{choice.minor}",
            choice.output_dtype,
            "packed" if choice.quantized_input else "float",
            "fused" if choice.use_fused_finalize else "separate",
            f"{choice.experts}x{choice.hidden_size}x{choice.intermediate_size} top {choice.top_k}",
            tokens,
            _tactic(choice.gemm1_tactic),
            _tactic(choice.gemm2_tactic),
        )
        for choice, tokens in zip(
            choices, _ranges([(c[:9], c.tokens) for c in choices]), strict=True
        )
    ]


def _ranges(starts: list[tuple[object, int]]) -> list[str]:
    """Name each bucket by its first and last number, from sorted keys and starts."""
    found = []
    for (key, start), following in zip(starts, [*starts[1:], None], strict=True):
        last = f"{following[1] - 1}" if following and following[0] == key else ""
        found.append(str(start) if last == str(start) else f"{start}-{last}")
    return found


def _tactic(tactic: int) -> str:
    return "default" if tactic == DEFAULT_TACTIC else str(tactic)


def _capability(text: str) -> tuple[int, int]:
    capability = file.parse_capability(text)
    if capability is None:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected two numbers such as 12.0")
    return capability
