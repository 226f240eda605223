"""What compiling a translation unit costs: measured on two cores, two compilers at once, CUDA 13.0.

Data, but for the one function that looks it up. The estimates cap how many compilers run at once,
and tell when a build will be over. What a build measures replaces them in the next (`aot.costs`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Estimate:
    """The cost of some translation units.

    Parameters
    ----------
    pattern
        Of the folder and name of their sources.
    megabytes
        Peak memory of the largest compiler process.
    seconds
        Wall time for one target.
    more_seconds
        For each further target: what does not depend on the target is done once.
    """

    pattern: str
    megabytes: int
    seconds: int
    more_seconds: int = 0


# The first that fits counts. FlashInfer renders a source for each tile shape and output type; only
# their folder tells which group of kernels they belong to.
ESTIMATES: Final = (
    Estimate("gen_gemm_sm100_cutlass_fp4/*", 5900, 75, 50),
    Estimate("gen_gemm_sm103_cutlass_fp4/*", 5900, 75, 50),
    Estimate("gen_gemm_sm120_cutlass_fp4/*", 7200, 75, 50),
    # Of 12.0f one takes as much as 11 GB, of 10.x and 11.0a none more than 8.4.
    Estimate("*/cutlass_kernel_file_gemm_grouped_*", 11000, 110, 50),
    Estimate("modules/nvfp4_moe_runners.cu", 2000, 120, 70),
    # Of 10.x a unit has one order of the operands and one size of a group of multiprocessors; of
    # 12.0f all tiles and both orders.
    Estimate("gen_gemm_sm100/group_gemm_mxfp4_*f16*", 10500, 130, 110),
    Estimate("gen_gemm_sm120/group_gemm_mxfp4_*f16*", 8200, 105, 80),
    Estimate("gen_gemm_sm120/group_gemm_nvfp4_*f16*", 11200, 140, 110),
    Estimate("gen_gemm_sm1?0/group_gemm_*.cu", 2600, 60, 50),
    Estimate("csrc/fp4_gemm_cutlass*.cu", 1400, 25, 5),
    Estimate("kernels/quantization.cu", 1300, 80),
    Estimate("csrc/fp4_kv_*.cu", 400, 8, 2),
    # Our own sources, by the names of their jobs.
    Estimate("tvm_ffi/*", 400, 3),
    Estimate("operators/*", 600, 5),
    Estimate("*", 700, 10),
)
"""Where memory is short, the largest unit of a group decides: one figure serves a whole group."""


def estimate(source: Path, flags: Sequence[str] = ()) -> tuple[int, int]:
    """Look up what a translation unit costs.

    Parameters
    ----------
    source
        Its source.
    flags
        Its compiler flags, which name its targets.

    Returns
    -------
    tuple[int, int]
        Megabytes and seconds.
    """
    place = f"{source.parent.name}/{source.name}"
    found = next(one for one in ESTIMATES if fnmatch.fnmatchcase(place, one.pattern))
    targets = sum(flag.startswith("-gencode") for flag in flags)
    return found.megabytes, found.seconds + found.more_seconds * max(0, targets - 1)
