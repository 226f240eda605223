"""Pack what a GPU's machine needs of the servers' sources.

``python tests/integrations/pack.py SOURCES RESULTS OUT``

SOURCES is the folder that `wheels.py` filled, RESULTS what `run.py` wrote: it names the files that
were imported. With them go the folders of which a GPU run may import more. OUT gets one archive,
which `gpu.py` unpacks.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integrations import wheels  # noqa: E402

ARCHIVE = "sources.tar.xz"
# With a GPU more is imported than the files that a run without one names.
MORE = ("compilation", "model_executor", "plugins", "platforms", "layers/quantization")


def pack(sources: Path, results: Path, out: Path) -> Path:
    """Write the archive and return it."""
    out.mkdir(parents=True, exist_ok=True)
    archive = out / ARCHIVE
    imported: dict[str, set[str]] = {}
    for found in json.loads(results.read_text())["sglang"]:
        imported.setdefault(found["version"], set()).update(found.get("files", ()))
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for wheel in wheels.SGLANG:
            folder = sources / str(wheel)
            chosen = set(imported[wheel.version])
            for name in MORE:
                chosen |= {
                    str(p.relative_to(folder)) for p in folder.glob(f"sglang/srt/{name}/**/*.py")
                }
            # Empty folders that SGLang looks for.
            chosen |= {str(p.relative_to(folder)) for p in folder.glob("sglang/**/include")}
            chosen |= {str(p.relative_to(folder)) for p in folder.glob("sglang/**/csrc")}
            for name in sorted(chosen):
                tar.add(folder / name, f"{wheel}/{name}", recursive=False)
        for wheel in wheels.MSGSPEC.values():
            tar.add(sources / str(wheel), str(wheel))
    return archive


if __name__ == "__main__":
    made = pack(*map(Path, sys.argv[1:4]))
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
