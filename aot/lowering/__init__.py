"""Run Blackwell's FP4 kernels on a Hopper: a test instrument, not a way to ship them.

The PTX that nvcc emits for ``sm_100a`` and ``sm_120f`` holds a few instructions that Hopper lacks.
Here each of them is replaced by a sequence that computes the same, and the rest is assembled for
``sm_90a`` as it is. What runs is FlashInfer's own kernel in the real library, so numerics, layouts,
registration, streams and capture are tested; Blackwell's speed and its silicon are not.

- `aot.lowering.toolkit` makes a folder that looks like a CUDA toolkit and lowers what it assembles.
- `aot.lowering.programs` is what its ``ptxas``, ``fatbinary`` and ``nvlink`` run.
- `aot.lowering.lower` rewrites PTX, `aot.lowering.table` says which instruction is rewritten by
  what, and a module for each family holds the sequences.
- ``tensor_map.cpp`` is linked into the library and encodes 4-bit tensor maps in a type that Hopper
  has.

Only the standard library is imported: the wrapped programs start once for each translation unit.
"""

from typing import Final

LOWERED_VERSION: Final = "lowered"
"""The local version of a wheel whose machine code is lowered, as in ``0.1.0+lowered``."""
