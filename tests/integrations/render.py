"""Write ``docs/integrations/results.md`` from what `run.py` and `gpu.py` found.

python tests/integrations/render.py --cpu FILE [--gpu FILE] [--jit-seconds SECONDS] > results.md
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SIDES = {
    "stock": "stock",
    "enable": "fp4aot, `enable()`",
    "plugin": "fp4aot, SGLang's plugin loader",
}
# What a long message comes down to.
_REASONS = (
    ("_thread.allocate_lock", "Dynamo cannot trace FlashInfer's module loader: `allocate_lock`"),
    ("Ninja build failed", "the first call starts ninja and nvcc, and fails without them"),
)


HEADINGS = (
    *("SGLang", "FlashInfer's functions", "graphs", "fullgraph traces", "pieces"),
    *("graphs captured", "result equals eager", ""),
)


def table(rows: Iterable[Iterable[object]], head: Iterable[str]) -> str:
    """Write a Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def tables(report: dict[str, Any]) -> str:
    """Write one machine's tables."""
    order = {side: number for number, side in enumerate(SIDES)}
    found = sorted(
        report["sglang"],
        key=lambda one: (
            [int(part) for part in re.findall(r"\d+", one["version"])],
            one["graphs"],
            order[one["side"]],
        ),
    )
    own = [one for one in found if one.get("own_flashinfer")]
    found = [one for one in found if not one.get("own_flashinfer")]
    parts = [
        table(map(_row, found), HEADINGS),
        start_table(report["start"]),
    ]
    if timed := [one for one in found if one.get("timed") and one.get("seconds")]:
        head = ("SGLang", "FlashInfer's functions", "first result of the model after s")
        rows = (
            (
                *(one["version"], SIDES[one["side"]]),
                *(f"{one['seconds'].get(key, 0):.1f}" for key in ("first result", "captured")),
            )
            for one in timed
        )
        parts.append(table(rows, (*head, "all graphs captured after s")))
    if "moe" in report:
        parts += ["### The experts of SGLang 0.5.23", moe_table(report["moe"])]
    if own:
        parts.insert(1, table(map(_row, own), HEADINGS))
        parts.insert(1, "With the FlashInfer that each SGLang asks for:")
    if "vllm" in report:
        parts += [f"### vLLM {report['vllm']['version']}", vllm_table(report["vllm"])]
    machine = next((one for one in found if "torch" in one), None)
    if machine:
        sizes = machine["sizes"]
        parts.insert(
            0,
            f"PyTorch {machine['torch']}, FlashInfer {machine['flashinfer']}; {len(sizes)} numbers "
            f"of tokens from {min(sizes)} to {max(sizes)}.",
        )
    return "\n\n".join(parts)


def _row(found: dict[str, Any]) -> list[object]:
    other = f", FlashInfer {found['flashinfer']}" if found.get("own_flashinfer") else ""
    start = [f"{found['version']}{other}", SIDES[found["side"]], found["graphs"]]
    if "device" not in found:
        return [*start, "", "", "", "", f"**did not run**: {found['error'][:100]}"]
    pieces = f"{found['pieces']} + {found['split_pieces']} between" if found["pieces"] else "—"
    captured = (
        f"{found['captured']} of {found['wanted']}" if found["device"] == "cuda" else "no GPU"
    )
    note = "" if not found["problems"] else "**" + "; ".join(found["problems"])[:200] + "**"
    reason = next((text for key, text in _REASONS if key in found["error"]), found["error"][:120])
    if found["graphs"] == "compile" and found["version"] == "0.5.23":
        note = note or "code that this version's server no longer uses"
    return [
        *start,
        {None: "nothing to trace", True: "yes", False: "**no**"}[found["traces"]],
        pieces,
        captured,
        {None: "no result", True: "yes", False: "**no**"}[found["equal"]],
        "; ".join(filter(None, (reason, note))),
    ]


def vllm_table(found: dict[str, Any]) -> str:
    """Write what vLLM's wrappers did before and after its plugin loader ran."""
    if "after" not in found:
        return f"**did not run**: {found['error'][:200]}"
    rows = ((f"`{name}`", found["before"][name], what) for name, what in found["after"].items())
    return table(rows, ("wrapper", "stock", "after `load_general_plugins()`"))


def moe_table(sides: Iterable[dict[str, Any]]) -> str:
    """Write what the calls of SGLang's mixture of experts did, and what came of them."""
    rows = []
    for found in sides:
        if "cases" not in found:
            reason = f"**did not run**: {found['error'][:100]}"
            rows.append([SIDES[found["side"]], "", "", "", "", reason, ""])
            continue
        seconds = found["seconds"]
        first = seconds.get("first result")
        after = "none" if first is None else f"{first - seconds['sglang']:.1f}"
        for name, what in found["cases"].items():
            did = found["events"].get(name, {})
            counts = (len(did.get(kind, ())) for kind in ("process", "file", "lock"))
            reason = next((text for key, text in _REASONS if key in what), what[:120])
            rows.append([SIDES[found["side"]], name, *counts, reason, after])
            after = ""
    head = ("FlashInfer's functions", "tokens", "processes started", "files written or changed")
    return table(rows, (*head, "file locks", "result", "first result, s after SGLang's import"))


def start_table(starts: list[dict[str, Any]]) -> str:
    """Write what the first calls did, and when the first result was there."""
    rows = []
    for found in starts:
        if "events" not in found:
            rows.append([found.get("side", ""), found["error"][:100], "", "", "", "", ""])
            continue
        events: dict[str, int] = {}
        for kinds in found["events"].values():
            for kind, what in kinds.items():
                events[kind] = events.get(kind, 0) + len(what)
        seconds = found["seconds"]
        first = seconds.get("first result")
        rows.append(
            [
                "stock, modules prebuilt"
                if found["prebuilt"] and found["side"] == "stock"
                else found["side"],
                len(found["called"]),
                *(events.get(kind, 0) for kind in ("process", "file", "lock")),
                f"{seconds['flashinfer']:.1f}",
                f"{first:.1f}" if first else "none: nothing to compile with",
            ]
        )
    return table(
        rows,
        (
            *("FlashInfer's functions", "calls", "processes started", "files written or changed"),
            *("file locks", "FlashInfer imported after s", "first FP4 result after s"),
        ),
    )


HEAD = """# SGLang and vLLM with fp4aot: results

Made by `tests/integrations/run.py` and `gpu.py` from SGLang's own wheels, and by `render.py` from
what they wrote. 'stock' is FlashInfer as it is. The model has GLM-5's structure, three layers, with
SGLang's own NVFP4 linear layers; attention and the experts are operators that the graph is split
at. What is SGLang's own and what stands in is in `sglang_package.py` and `sglang_harness.py`.
FlashInfer is the wheel's, 0.7.2, where no other is named.
"""

CPU = """## Without a GPU

FlashInfer is told that the device has compute capability 12.0, and there is no compiler. Nothing
can be captured, so only SGLang's compiling branch runs.
"""

GPU = """## On an H200

Kernels are lowered: Blackwell's, translated for Hopper (see the notes on the `lowered` preset).
Stock FlashInfer has the same kernels, prebuilt and loaded from a library: what its first call
would compile is compiled already.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cpu", type=Path, required=True)
    parser.add_argument("--gpu", type=Path)
    parser.add_argument("--jit-seconds", type=float, help="of compiling fp4_quantization_120f")
    parser.add_argument("--jit-machine", default="2 cores", help="where that was measured")
    arguments = parser.parse_args()
    parts = [HEAD, CPU, tables(json.loads(arguments.cpu.read_text())) + "\n"]
    if arguments.jit_seconds:
        parts.append(
            f"With a compiler (CUDA 13.0, {arguments.jit_machine}), stock FlashInfer's first call "
            f"takes about {arguments.jit_seconds:.0f} s more, once for each machine and version: "
            "it compiles `fp4_quantization_120f` (measured beside other work; linking not "
            "counted).\n"
        )
    if arguments.gpu:
        parts += [GPU, tables(json.loads(arguments.gpu.read_text())) + "\n"]
    sys.stdout.write("\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
