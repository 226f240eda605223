"""Every SGLang version with and without fp4aot: one process each, checked, as JSON.

    python tests/integrations/run.py --sources build/integrations --json FILE [--python PYTHON]

PYTHON is an interpreter with PyTorch, FlashInfer and fp4aot; this one without the option. Exit
status 0 means that everything is as `problems` wants it: stock FlashInfer fails where and how it is
known to, and with fp4aot everything works. `gpu.py` does the same on a machine with a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integrations import wheels  # noqa: E402

HERE = Path(__file__).resolve().parent

# Those that call FlashInfer from what is traced; later ones do it in an operator.
RAW = ("0.5.11",)
# Those whose servers still compile; in later ones the code is left, and unused.
BREAKABLE = ("0.5.23",)
PIECES, SPLIT_PIECES = 6, 5
# Whose mixture of experts is run, and how.
MOE = "0.5.23"
MOE_CASES = ("bfloat16", "quantized before", "all-to-all")


@dataclass(frozen=True)
class Case:
    """One process.

    Parameters
    ----------
    version
        Of SGLang.
    side
        As `sglang_harness.SIDES`.
    graphs
        "compile" or "breakable".
    flashinfer
        Version of another FlashInfer than the machine's; empty for that one.
    """

    version: str
    side: str
    graphs: str = "compile"
    flashinfer: str = ""


def cases(sides: Iterable[str] = ("stock", "enable", "plugin")) -> Iterator[Case]:
    """Yield all of them."""
    for side in sides:
        for wheel in wheels.SGLANG:
            yield Case(wheel.version, side)
        for version in BREAKABLE:
            yield Case(version, side, "breakable")


def own_flashinfer_cases() -> Iterator[Case]:
    """Yield those with the FlashInfer that each SGLang asks for: on the CPU alone."""
    for side in ("stock", "plugin"):
        for version, wheel in wheels.FLASHINFER.items():
            yield Case(version, side, flashinfer=wheel.version)


@dataclass(frozen=True)
class Machine:
    """Where and with what the processes run.

    Parameters
    ----------
    sources
        The folder that `wheels.py` filled, or `pack.py` from it.
    python
        The interpreter.
    device
        "cpu" or "cuda".
    bundle
        An unpacked bundle of FlashInfer, or None for the installed one.
    """

    sources: Path
    python: str = sys.executable
    device: str = "cpu"
    bundle: Path | None = None

    def options(self) -> list[str]:
        bundle = ["--bundle", str(self.bundle)] if self.bundle else []
        return ["--device", self.device, *bundle]

    def run(
        self, script: str, *arguments: str, path: Path | None = None, timeout: int = 300
    ) -> dict[str, Any]:
        """Run one of the scripts beside this one, and return what it printed.

        `path` is a folder of packages that come before the installed ones.
        """
        folders = [str(path)] if path else []
        folders += filter(None, [os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}
        try:
            done = self._run([self.python, str(HERE / script), *arguments], environment, timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {timeout} s"}
        if done.returncode != 0:
            return {"error": f"exit status {done.returncode}: {done.stderr[-2000:]}"}
        return json.loads(done.stdout.splitlines()[-1])

    def _run(
        self, command: list[str], environment: dict[str, str], timeout: int
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            # Several processes at once: one compiler's thread each.
            env=os.environ
            | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2"}
            | environment,
        )

    def needs(self) -> list[str]:
        """Name what SGLang needs and the interpreter may not have, as the harnesses take it."""
        python = subprocess.run(
            [self.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        return ["--needs", str(self.sources / str(wheels.MSGSPEC[python]))]

    def run_case(self, case: Case) -> dict[str, Any]:
        """Run one case."""
        found = self.run(
            "sglang_harness.py",
            *(str(self.sources / f"sglang-{case.version}"), case.version, case.side),
            *("--graphs", case.graphs, *self.needs()),
            *self.options(),
            path=self.sources / str(wheels.FLASHINFER[case.version]) if case.flashinfer else None,
        )
        found = vars(case) | found
        if case.flashinfer and found["flashinfer"] != case.flashinfer:
            found["error"] += f"; FlashInfer {found['flashinfer']} was imported"
        return found | {"own_flashinfer": bool(case.flashinfer)}


def problems(found: dict[str, Any]) -> list[str]:
    """Say what is not as it should be in one result; nothing when all of it is."""
    if "device" not in found:
        return [found["error"]]
    stock, on_gpu = found["side"] == "stock", found["device"] == "cuda"
    compiles = found["graphs"] == "compile"
    raw = found["version"] in RAW
    owner = "flashinfer." if stock else "fp4aot."
    wanted: dict[str, Any] = {"traces": None if not compiles else not (stock and raw)}
    wrong = list(found["not_listed"])
    if not found["bound"].startswith(owner):
        wrong.append(f"SGLang calls {found['bound']}")
    if stock and raw:
        # The failure that this package is about.
        wanted |= {"pieces": 0, "captured": 0, "equal": None}
        if "_thread.allocate_lock" not in found["error"]:
            wrong.append(f"stock FlashInfer failed in another way: {found['error']}")
    elif stock and not on_gpu:
        # An operator hides FlashInfer from Dynamo, and the first call compiles.
        wanted |= {"captured": 0, "equal": None}
        if "Ninja build failed" not in found["error"]:
            wrong.append(f"stock FlashInfer did not look for a compiler: {found['error']}")
    else:
        wanted |= {"error": "", "equal": True, "graph_breaks": 0}
        if compiles or on_gpu:
            wanted |= {"pieces": PIECES, "split_pieces": SPLIT_PIECES}
            graphs = PIECES * len(found["sizes"]) if on_gpu else 0
            wanted |= {"captured": graphs, "wanted": graphs}
    wrong += [
        f"{name} is {found[name]!r}, not {value!r}"
        for name, value in wanted.items()
        if found[name] != value
    ]
    return wrong


def run_all(machine: Machine, chosen: Iterable[Case], jobs: int) -> list[dict[str, Any]]:
    """Run cases, some at once, and say what came of each."""
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(machine.run_case, chosen):
            wrong = problems(found)
            results.append(found | {"problems": wrong})
            state = "; ".join(wrong) or "as it should be"
            print(
                f"{found['version']:<13}{found['side']:<8}{found['graphs']:<10}{state}", flush=True
            )
    return results


def start_problems(found: dict[str, Any]) -> list[str]:
    """Say what is not as it should be in what `start.py` printed."""
    if "events" not in found:
        return [found["error"]]
    if found["side"] == "fp4aot":
        return [*map(str, found["errors"].items()), *map(str, found["events"].items())]
    # Without this, the check proves nothing. A prebuilt module is still loaded under a lock.
    first = found["events"].get("first fp4_quantize", {})
    wanted = ("file", "lock") if found["prebuilt"] else ("process", "file", "lock")
    return [f"stock FlashInfer made no {kind}" for kind in wanted if not first.get(kind)]


def run_moe(machine: Machine, sides: Iterable[str] = ("stock", "plugin")) -> list[dict[str, Any]]:
    """Run SGLang's mixture of experts, one side after the other: they are timed."""
    results = []
    for side in sides:
        found = machine.run(
            "moe_harness.py",
            *(str(machine.sources / f"sglang-{MOE}"), MOE, side),
            *(*machine.needs(), *machine.options()),
            timeout=600,
        )
        results.append({"side": side} | found | {"problems": moe_problems(found)})
    return results


def moe_problems(found: dict[str, Any]) -> list[str]:
    """Say what is not as it should be in what `moe_harness.py` printed."""
    if "cases" not in found:
        return [found["error"]]
    stock, on_gpu = found["side"] == "stock", found["device"] == "cuda"
    wrong = list(found["not_listed"])
    if not found["bound"].startswith("flashinfer." if stock else "fp4aot."):
        wrong.append(f"SGLang calls {found['bound']}")
    if tuple(found["cases"]) != MOE_CASES:
        wrong.append(f"called were {', '.join(found['cases'])}")
    cases = found["cases"].items()
    if not stock:
        wrong += [f"{name}: {what}" for name, what in cases if what != "right"]
        return wrong + [f"{name} did {did}" for name, did in found["events"].items()]
    if on_gpu:
        # Prebuilt, or it wants to compile what the bundle does not have.
        known = ("right", "MissingModuleError", "RuntimeError: Ninja build failed")
        return wrong + [f"{name}: {what}" for name, what in cases if not what.startswith(known)]
    wrong += [
        f"stock FlashInfer did not look for a compiler: {name}: {what}"
        for name, what in cases
        if "Ninja build failed" not in what
    ]
    # Without this, the check proves nothing.
    first = found["events"].get(MOE_CASES[0], {})
    return wrong + [
        f"stock FlashInfer made no {kind}"
        for kind in ("process", "file", "lock")
        if not first.get(kind)
    ]


def vllm_problems(found: dict[str, Any]) -> list[str]:
    """Say what is not as it should be in what `vllm_harness.py` printed."""
    if "after" not in found:
        return [found["error"]]
    wrong = [f"{name}: {what}" for name, what in found["after"].items() if what != "right"]
    # Or nothing would be shown.
    wrong += [f"{name} works without" for name, what in found["before"].items() if what == "right"]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    machine = Machine(arguments.sources.resolve(), arguments.python)
    results = run_all(machine, [*cases(), *own_flashinfer_cases()], arguments.jobs)
    starts = [machine.run("start.py", side) for side in ("stock", "fp4aot")]
    starts = [found | {"problems": start_problems(found)} for found in starts]
    moe = run_moe(machine)
    vllm = machine.run("vllm_harness.py", str(machine.sources / str(wheels.VLLM)), "plugin")
    vllm |= {"version": wheels.VLLM.version, "problems": vllm_problems(vllm)}
    report = {"sglang": results, "start": starts, "moe": moe, "vllm": vllm}
    arguments.json.write_text(json.dumps(report, indent=1))
    return int(any(found["problems"] for found in (*results, *starts, *moe, vllm)))


if __name__ == "__main__":
    sys.exit(main())
