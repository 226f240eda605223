"""What the machine code of a module must hold. Data, no logic.

The names are the disassembler's own, as they stand in the machine code that CUDA 13.0 makes of
FlashInfer 0.7.2's GEMM, in every kernel of every target:

==============  ==============================  ==============================================
target          wait for the kernel before it   block-scaled FP4 product
==============  ==============================  ==============================================
10.0a           ``ACQBULK`` (and ``PREEXIT``)   ``UTCOMMA.4X``, ``UTCOMMA.2CTA.4X``
10.3a           ``ACQBULK`` (and ``PREEXIT``)   ``UTCOMMA.BLOCK16``, ``UTCOMMA.2CTA.BLOCK16``
11.0a           ``ACQBULK`` (and ``PREEXIT``)   ``UTCOMMA.4X``, ``UTCOMMA.2CTA.4X``
12.0f           ``ACQBULK``                     ``OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X``
9.0a (lowered)  ``ACQBULK``                     ``F2FP.F16.E4M3.UNPACK_B``, ``HMMA.16816.F32``
==============  ==============================  ==============================================

``PREEXIT`` lets the next kernel start early. CUTLASS has none of it for 12.x, and without it
nothing is wrong, only later: it is not asked for.

A grouped product of MXFP8 by MXFP4 waits in the same way, and multiplies 8-bit elements, of which
one side is E2M1 spread over bytes: ``QMMA.SF.16832.F32.E4M3.E2M1.E8`` (12.0f). ``UTCQMMA`` (10.0a,
10.3a) names neither types nor scales; ``UTCCP.T.S``, which copies block scales to tensor memory,
tells it from a product without any.

The last row of the table is what `aot.lowering` makes of 12.0f: block scales are converted to
float16, and scaled elements are multiplied in float16 with sums in float32. Of the modules that
Hopper runs as they are, nothing is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class Instruction:
    """One kind of instruction that must be there.

    Parameters
    ----------
    what
        What it is, for people.
    mnemonic
        Its name with its modifiers.
    cause
        The likely reason when it is missing.
    majors
        The major versions of the targets that have it under this name.
    every_kernel
        Whether each kernel must hold it; else one of an image must.
    kernels
        Found in the symbols of the kernels that this is about; None for all kernels of an image.
    """

    what: str
    mnemonic: re.Pattern[str]
    cause: str
    majors: tuple[int, ...] = (10, 11, 12)
    every_kernel: bool = True
    kernels: re.Pattern[str] | None = None

    def is_about(self, kernel: str) -> bool:
        """Say whether a kernel, by its symbol, may be asked for it."""
        return self.kernels is None or self.kernels.search(kernel) is not None


_WAIT: Final = "the wait for the kernel before it (griddepcontrol.wait)"
_WAIT_MNEMONIC: Final = re.compile(r"ACQBULK")
_CONVERSION_CAUSE: Final = "a target without its suffix, whose conversions are emulated"
_LOWERED: Final = (9,)
_ALL: Final = (*_LOWERED, 10, 11, 12)


def _of_the_body(what: str, mnemonic: str, *majors: int) -> Instruction:
    """Ask what every kernel has whose body was compiled."""
    cause = "its kernel body was compiled out: the target has lost its suffix"
    if majors == _LOWERED:
        cause = "its kernel body was compiled out before it was lowered"
    return Instruction(what, re.compile(mnemonic), cause, majors)


_GEMM_WAIT: Final = Instruction(
    _WAIT,
    _WAIT_MNEMONIC,
    "the define CUTLASS_ENABLE_GDC_FOR_SM100 is lost, and the wait has turned into nothing",
    majors=_ALL,
)
# Of float16, with sums in float32: the same name with more to it is that of another type.
_LOWERED_PRODUCT: Final = _of_the_body(
    "the FP4 product, lowered to float16 (mma.m16n8k16)", r"HMMA\.16816\.F32", *_LOWERED
)
_GEMM: Final = (
    _GEMM_WAIT,
    # Blocks of 16: a bare UTCOMMA is MXFP4's product, over blocks of 32.
    _of_the_body(
        "the block-scaled FP4 product (tcgen05.mma, kind::mxf4nvf4)",
        r"UTCOMMA\.(.+\.)?(4X|BLOCK16)(\..+)?",
        *(10, 11),
    ),
    _of_the_body(
        "the block-scaled FP4 product (mma, kind::mxf4nvf4)", r"OMMA\.SF\..*E2M1\.E2M1\..+", 12
    ),
    _of_the_body(
        "the conversion of block scales, lowered to float16",
        r"F2FP\.F16\.E4M3\.UNPACK_B",
        *_LOWERED,
    ),
    _LOWERED_PRODUCT,
)
_MXFP8_MXFP4: Final = (
    _GEMM_WAIT,
    _of_the_body("the FP8 by FP4 product (tcgen05.mma, kind::mxf8f6f4)", r"UTCQMMA(\..+)?", 10, 11),
    _of_the_body(
        "the copy of block scales to tensor memory (tcgen05.cp)", r"UTCCP\.T\.S\..+", 10, 11
    ),
    _of_the_body(
        "the block-scaled FP8 by FP4 product (mma, kind::mxf8f6f4)",
        r"QMMA\.SF\..*(E[45]M[32]\.E2M1|E2M1\.E[45]M[32])\.E8",
        12,
    ),
    _of_the_body(
        "the conversion of FP8 elements, lowered to float16",
        r"F2FP\.F16\.E[45]M[32]\.UNPACK_B",
        *_LOWERED,
    ),
    _LOWERED_PRODUCT,
)


def _grouped(demands: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Ask them of the products alone: beside them is a kernel that prepares their arguments."""
    return tuple(replace(one, kernels=re.compile("GemmUniversal")) for one in demands)


_QUANTIZATION: Final = (
    Instruction(
        _WAIT,
        _WAIT_MNEMONIC,
        "a guard on __CUDA_ARCH__ that this target fails",
        majors=_ALL,
        every_kernel=False,
    ),
    Instruction(
        "the conversion to e2m1",
        re.compile(r"F2FP\..*E2M1\.F32\.PACK.*"),
        _CONVERSION_CAUSE,
        every_kernel=False,
    ),
)

REQUIRED: Final = (
    ("fp4_gemm_*/*", _GEMM),
    ("fp4_quantization_*/*", _QUANTIZATION),
    ("fp4_kv_quant/*", _QUANTIZATION[1:]),
    # The launchers of its products: the rest sorts, quantizes and adds up.
    ("fused_moe_*/*_gemm_grouped_*", _GEMM),
    ("gemm_sm*/*_group_gemm_nvfp4_groupwise_*f16_*", _grouped(_GEMM)),
    ("gemm_sm*/*_group_gemm_mxfp4_groupwise_*f16_*", _grouped(_MXFP8_MXFP4)),
)
"""Patterns of modules and their translation units, and what each image of such a unit holds. The
first that fits counts. Others: no demand."""

WITHOUT_KERNELS: Final = ("csrc_fp4_gemm_cutlass*",)
"""Patterns of translation units that only choose among the kernels of the others."""
