"""Which of their kernels `mm_fp4` and `cutlass_fused_moe` use: tables of tactics.

FlashInfer's FP4 GEMM is a list of kernels ("tactics") for each architecture. The operator chooses
from a table, by the device's compute capability, the output dtype, N, K and a bucket of M. So does
`cutlass_fused_moe` for each of its two products, by the capability, the output dtype, whether its
input is quantized, `use_fused_finalize`, the sizes of a rank's experts, their number, top_k and a
bucket of tokens. The table is set when `fp4aot` is imported, by `load`, or by FlashInfer's
autotuner through `fp4aot.integrations.flashinfer`, and never during a call; a call with an explicit
`tactic` does not look, and of `profile_ids` only a -1 is looked up.
Where the table has no entry for a shape, FlashInfer's own default is used. The choice is the same
under eager, compile and capture; what has been captured keeps the kernel it was captured with.

``python -m fp4aot tune`` measures and writes a table. ``python -m fp4aot tactics`` shows, checks
and merges tables, and imports the caches of FlashInfer's autotuner. At import, the file that the
environment variable ``FP4AOT_TACTICS`` names is loaded; without the variable, ``tactics.json`` in
the package, where a distributor has put one. A file that cannot be used is an ImportError.

The file
--------
JSON::

    {
      "format": "fp4aot mm_fp4 tactics",
      "schema": 2,
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
          ],
          "moe_entries": [
            {"hidden_size": 6144, "intermediate_size": 2048, "experts": 32, "top_k": 8,
             "output_dtype": "bfloat16", "quantized_input": false, "use_fused_finalize": true,
             "tokens": 33, "gemm1_tactic": 5, "gemm2_tactic": 17,
             "gemm1_count": 16, "gemm2_count": 32,
             "measured_tokens": 64, "microseconds": 310.5, "default_microseconds": 402.1}
          ]
        }
      ]
    }

A section is one run of `tune` on one device, or one import; sections of several devices make a
table for a fleet, and those of absent devices do no harm. `m` is the smallest M of a bucket, which
ends where the next one starts; below the smallest the smallest is used. `tactic` is a position in
the list of that wheel's GEMM, or -1 for FlashInfer's default. `driver`, `measured_m` and the two
times may be absent (an imported entry has no times); fields that are not listed here are ignored.

`moe_entries` are those of `cutlass_fused_moe`, and may be absent, as they are in files of schema 1,
which are read as well. `tokens` is a bucket's smallest number of tokens; `gemm1_tactic` and
`gemm2_tactic` are positions in the lists of the two products, each from 0 on (FlashInfer counts
those of the second on from the first). How many there are, only the device can tell: `gemm1_count`
and `gemm2_count` say it. Times are those of the whole call.

A table is refused, with the file, the field, what came, what was expected and what to do, when it
was made with another wheel (`plan_hash`: tactic numbers mean nothing in another build), has another
`schema`, a tactic that the wheel does not have, or a field that is missing or of another kind. A
driver that differs is a warning.

Merging: for each capability, shape, dtype, flag and bucket, what was measured wins over what was
imported, and that over a gap in an imported cache (tactic -1 without times); of equals the newer
`written` wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fp4aot import _manifest
from fp4aot._tactics import active as _active
from fp4aot._tactics import file as _file
from fp4aot._tactics import table as _table
from fp4aot._tactics import wheel as _wheel
from fp4aot._tactics.active import Summary
from fp4aot._tactics.entries import Choice, Entry, MoeChoice, MoeEntry
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.table import Section, Table

__all__ = [
    "Choice",
    "Entry",
    "MoeChoice",
    "MoeEntry",
    "Section",
    "Summary",
    "Table",
    "TacticsError",
    "active",
    "active_moe",
    "clear",
    "load",
    "merge",
]

_set_tables = _active.set_operators_tables


def load(source: str | os.PathLike[str] | Table, *, add: bool = False) -> Summary:
    """Check a table and put it in force, for all threads and from the next call on.

    Parameters
    ----------
    source
        A file, or a table such as `merge` returns.
    add
        Merge with what was loaded before instead of replacing it. For shapes that the table does
        not have, the choices of FlashInfer's autotuner stay in force.

    Returns
    -------
    Summary
        What is in force now, and warnings, which are issued as well.

    Raises
    ------
    TacticsError
        When the table does not fit this wheel or is damaged; what was in force stays in force.
    """
    return _active.load(source, _wheel.this_wheel(), _set_tables, add=add)


def clear() -> None:
    """Put no table in force: every call uses FlashInfer's default tactic."""
    _active.clear(_set_tables)


def active() -> list[Choice]:
    """List what is in force for `mm_fp4`, sorted by capability, dtype, N, K and M."""
    return _active.table().choices()


def active_moe() -> list[MoeChoice]:
    """List what is in force for `cutlass_fused_moe`, sorted by the fields of `MoeChoice`."""
    return _active.table().moe_choices()


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


def _load_at_import(manifest: _manifest.Manifest, package: Path = _manifest.PACKAGE) -> None:
    """Load the table that was asked for when `fp4aot` is imported."""
    _active.load_at_import(lambda: _wheel.this_wheel(manifest), _set_tables, package)
