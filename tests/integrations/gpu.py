"""SGLang's own code on a GPU, stock FlashInfer beside fp4aot: a table, and JSON.

    python tests/integrations/gpu.py --bundle .lowered/flashinfer --sources .lowered/integrations \
        [--json FILE] [--jobs N]

fp4aot's wheel is installed. SOURCES holds what `pack.py` wrote, and the bundle is what
``tests/flashinfer_beside/build.py`` wrote: FlashInfer with its modules prebuilt, of the wheel's own
objects, so stock is 'warm' here. Exit status 1 when something is not as `run.problems` wants it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from flashinfer_beside import use  # noqa: E402

from integrations import render, run  # noqa: E402
from integrations.pack import ARCHIVE  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = use.unpack(arguments.bundle, folder / "bundle")
        with tarfile.open(arguments.sources / ARCHIVE) as tar:
            tar.extractall(folder / "sources", filter="data")
        machine = run.Machine(folder / "sources", device="cuda", bundle=bundle)
        # One at a time: these are timed. The first reads the files from disk for the others.
        starts = []
        for side in ("stock", "stock", "fp4aot"):
            found = machine.run("start.py", side, *machine.options())
            starts.append(found | {"problems": run.start_problems(found)})
            print(f"start  {side:<8}{found.get('seconds', found.get('error'))}", flush=True)
        moe = run.run_moe(machine)
        for found in moe:
            print(f"moe    {found['side']:<8}{found.get('cases', found.get('error'))}", flush=True)
        timed = (run.Case("0.5.21", "stock"), run.Case("0.5.21", "plugin"))
        results = [found | {"timed": True} for found in run.run_all(machine, timed, 1)]
        rest = [case for case in run.cases() if case not in timed]
        results += run.run_all(machine, rest, arguments.jobs)
    report = {"sglang": results, "start": starts[1:], "moe": moe}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    print(render.tables(report))
    return int(any(found["problems"] for found in (*results, *starts, *moe)))


if __name__ == "__main__":
    sys.exit(main())
