"""Which of its kernels `mm_fp4` uses: tables of tactics.

FlashInfer's FP4 GEMM is a list of kernels ("tactics") for each architecture. The operator chooses
from a table, by the device's compute capability, the output dtype, N, K and a bucket of M. The
table is set once, when `fp4aot` is imported or by `load`, and never during a call; a call with an
explicit `tactic` does not look. Where the table has no entry for a weight's shape, FlashInfer's
own default is used. The choice is the same under eager, compile and capture; what has been
captured keeps the kernel it was captured with.

``python -m fp4aot tune`` measures and writes a table. ``python -m fp4aot tactics`` shows, checks
and merges tables, and imports the caches of FlashInfer's autotuner. At import, the file that the
environment variable ``FP4AOT_TACTICS`` names is loaded; without the variable, ``tactics.json`` in
the package, where a distributor has put one. A file that cannot be used is an ImportError.

The file
--------
JSON::

    {
      "format": "fp4aot mm_fp4 tactics",
      "schema": 1,
      "sections": [
        {
          "device": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
          "compute_capability": "12.0",
          "wheel": {"plan_hash": "8c1f…", "version": "0.1.0", "flashinfer": "0.7.2"},
          "driver": "580.95.05",
          "cuda_runtime": "13.0",
          "written": "2026-01-31T12:00:00Z",
          "origin": "tune",
          "entries": [
            {"n": 4096, "k": 4096, "out_dtype": "bfloat16", "m": 33, "tactic": 5,
             "measured_m": 64, "microseconds": 11.2, "default_microseconds": 14.9}
          ]
        }
      ]
    }

A section is one run of `tune` on one device, or one import; sections of several devices make a
table for a fleet, and those of absent devices do no harm. `m` is the smallest M of a bucket, which
ends where the next one starts; below the smallest the smallest is used. `tactic` is a position in
the list of that wheel's GEMM, or -1 for FlashInfer's default. `driver`, `measured_m` and the two
times may be absent (an imported entry has no times); fields that are not listed here are ignored.

A table is refused, with the file, the field, what came, what was expected and what to do, when it
was made with another wheel (`plan_hash`: tactic numbers mean nothing in another build), has another
`schema`, a tactic that the wheel does not have, or a field that is missing or of another kind. A
driver that differs is a warning.

Merging: for each capability, dtype, N, K and M, what was measured wins over what was imported, and
that over a gap in an imported cache (tactic -1 without times); of equals the newer `written` wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from fp4aot import _manifest
from fp4aot._tactics import active as _active
from fp4aot._tactics import file as _file
from fp4aot._tactics import table as _table
from fp4aot._tactics import wheel as _wheel
from fp4aot._tactics.active import Summary
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.table import Choice, Entry, Section, Table

__all__ = [
    "Choice",
    "Entry",
    "Section",
    "Summary",
    "Table",
    "TacticsError",
    "active",
    "clear",
    "load",
    "merge",
]


def load(source: str | os.PathLike[str] | Table, *, add: bool = False) -> Summary:
    """Check a table and put it in force, for all threads and from the next call on.

    Parameters
    ----------
    source
        A file, or a table such as `merge` returns.
    add
        Merge with what is in force instead of replacing it.

    Returns
    -------
    Summary
        What is in force now, and warnings, which are issued as well.

    Raises
    ------
    TacticsError
        When the table does not fit this wheel or is damaged; what was in force stays in force.
    """
    return _active.load(source, _wheel.this_wheel(), _set_table(), add=add)


def clear() -> None:
    """Put no table in force: every call uses FlashInfer's default tactic."""
    _active.clear(_set_table())


def active() -> list[Choice]:
    """List what is in force, sorted by capability, dtype, N, K and M."""
    return _active.table().choices()


def merge(paths: Iterable[str | os.PathLike[str]]) -> Table:
    """Read tables that fit this wheel and put them together; nothing is put in force.

    Parameters
    ----------
    paths
        Files. Of entries for the same thing, what was measured wins over what was imported, and
        of equals the newer one; between equally old ones, the later file.

    Raises
    ------
    TacticsError
        When one of them does not fit or is damaged.
    """
    wheel = _wheel.this_wheel()
    return _table.merge([_file.read(path, wheel)[0] for path in paths])


def _set_table() -> _active.SetTable:
    setter: _active.SetTable = torch.ops.fp4aot._set_mm_fp4_tactics.default
    return setter


def _load_at_import(manifest: _manifest.Manifest, package: Path = _manifest.PACKAGE) -> None:
    """Load the table that was asked for when `fp4aot` is imported."""
    _active.load_at_import(lambda: _wheel.this_wheel(manifest), _set_table, package)
