"""Reading machine code: module by module, what each takes, and what it must hold (cases 6, 7)."""

from __future__ import annotations

import dataclasses
import platform
import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from aot import audit, process, toolchain
from aot.architectures import Architecture
from aot.audit import DeviceUnit, LibraryExpectation, fatbin, instructions, machine_code
from aot.audit.images import Image, read_images
from aot.audit.instructions import Instruction
from aot.audit.modules import audit_modules
from aot.catalog import MODULES, Module
from aot.errors import AotError, AuditError, BuildError, ToolchainError
from aot.lowering.lower import lower_text
from aot.toolchain import Toolkit

PRODUCT = Instruction("the product", re.compile(r"OMMA(\..+)?"), "bad luck")
WAIT = Instruction("the wait", re.compile(r"ACQBULK"), "a lost define")
CONVERSION = Instruction("the conversion", re.compile("F2FP.*"), "no suffix", every_kernel=False)


def kernel(name: str, *instructions_: str) -> str:
    """A kernel as the disassembler prints it."""
    lines = [
        f"//--------------------- .text.{name} --------------------------",
        f'\t.section\t.text.{name},"ax",@progbits',
        f"        .type           {name},@function",
        f'        .other          {name},@"STO_CUDA_ENTRY STV_DEFAULT"',
        f"{name}:",
        *(
            f"        /*{16 * i:04x}*/                   {one} ;"
            for i, one in enumerate(instructions_)
        ),
        "        /*ff00*/                   EXIT ;",
    ]
    return "\n".join(lines) + "\n"


class Tools:
    """Stand-ins for the toolkit's programs: an image is the text that its disassembly prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images: list[str] = []

    @property
    def toolkit(self) -> Toolkit:
        version = Version("13.0")
        bin_ = self.folder / "bin"
        return Toolkit(
            *(self.folder, version, version, bin_ / "nvcc"),
            *(bin_ / "cuobjdump", bin_ / "nvdisasm", "test", ()),
        )

    def write(self) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        extract = ["#!/bin/sh"]
        for number, text in enumerate(self.images, start=1):
            stored = self.folder / f"stored.{number}"
            stored.write_text(text)
            extract += [
                f"cp {stored} lib.{number}.sm_120.cubin",
                f"echo 'Extracting ELF file    {number}: lib.{number}.sm_120.cubin'",
            ]
        self.program("cuobjdump", "\n".join(extract))
        self.program("nvdisasm", '#!/bin/sh\nfor last; do :; done\ncat "$last"')

    def program(self, name: str, text: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        path = self.folder / "bin" / name
        path.write_text(text + "\n")
        path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    found = Tools(tmp_path)
    found.write()
    return found


def scan(tools: Tools, text: str, *wanted: Instruction) -> machine_code.Scan:
    path = tools.folder / "image.cubin"
    path.write_text(text)
    return machine_code.scan(path, wanted, tools.toolkit)


# One image


def test_every_kernel_is_read(tools: Tools) -> None:
    text = kernel("one", "OMMA.SF.4X R1, R2", "ACQBULK") + kernel("two", "@!P0 ACQBULK", "OMMA R1")
    found = scan(tools, text, PRODUCT, WAIT)
    assert found.kernels == 2
    assert found.found == {PRODUCT: {"OMMA.SF.4X", "OMMA"}, WAIT: {"ACQBULK"}}
    assert found.missing() == ()


@pytest.mark.parametrize("first", [True, False])
def test_one_kernel_without_is_enough_to_fail(tools: Tools, first: bool) -> None:
    texts = [kernel("with", "ACQBULK", "OMMA R1"), kernel("without", "OMMA R1")]
    found = scan(tools, "".join(texts[::-1] if first else texts), PRODUCT, WAIT)
    assert found.missing() == (WAIT,)
    assert found.lacking == {PRODUCT: 0, WAIT: 1}


def test_one_kernel_with_is_enough_where_not_every_one_must(tools: Tools) -> None:
    text = kernel("one", "MOV R1, R2") + kernel("two", "F2FP.E2M1 R1") + kernel("three", "MOV R1")
    assert scan(tools, text, CONVERSION).missing() == ()
    assert scan(tools, text, CONVERSION, WAIT).missing() == (WAIT,)
    assert scan(tools, kernel("one", "MOV R1, R2"), CONVERSION).missing() == (CONVERSION,)


@pytest.mark.parametrize(
    "line",
    [
        "//## ACQBULK",
        "ACQBULK:",
        "        /*0000*/                   MOV R1, ACQBULK ;",
        "        /*0000*/                   ACQBULKX R1 ;",
        "        /*0000*/                   XACQBULK R1 ;",
        '        .other          ACQBULK,@"STV_DEFAULT"',
    ],
)
def test_a_name_elsewhere_is_no_instruction(tools: Tools, line: str) -> None:
    assert scan(tools, kernel("one") + line + "\n", WAIT).missing() == (WAIT,)


@pytest.mark.parametrize("predicate", ["@P0 ", "@!P1 ", "@UP2 ", "@!UPT "])
def test_an_instruction_under_a_predicate_counts(tools: Tools, predicate: str) -> None:
    assert scan(tools, kernel("one", f"{predicate}ACQBULK"), WAIT).missing() == ()


def test_code_outside_of_a_kernel_does_not_count(tools: Tools) -> None:
    found = scan(tools, "        /*0000*/                   ACQBULK ;\n", WAIT)
    assert found.kernels == 0
    assert found.missing() == (WAIT,)


def test_reading_stops_when_all_is_found(tools: Tools) -> None:
    # What comes after is more than a pipe holds, and ends badly.
    text = kernel("one", "F2FP.E2M1 R1") + kernel("two", "MOV R1")
    tools.program(
        "nvdisasm", f"#!/bin/sh\ncat <<'END'\n{text}END\nyes more | head -c 1000000; exit 3"
    )
    assert scan(tools, "", CONVERSION).kernels == 1


def test_a_disassembler_that_fails_is_an_error_with_its_output(tools: Tools) -> None:
    tools.program("nvdisasm", "#!/bin/sh\necho 'fatal: broken' >&2\nexit 3")
    with pytest.raises(AuditError, match=r"cannot disassemble image\.cubin(.|\n)*fatal: broken"):
        scan(tools, "", WAIT)


def test_a_toolkit_without_a_disassembler_is_named(tools: Tools) -> None:
    toolkit = dataclasses.replace(tools.toolkit, nvdisasm=None)
    with pytest.raises(ToolchainError, match="no bin/nvdisasm"):
        machine_code.scan(tools.folder, (WAIT,), toolkit)


def test_files_that_are_not_named_are_not_read(tools: Tools) -> None:
    tools.program("cuobjdump", "#!/bin/sh\ntouch surprise.cubin")
    folder = tools.folder / "scratch"
    folder.mkdir()
    with pytest.raises(AuditError, match=r"names 0 files .* and wrote 1"):
        machine_code.extract(tools.folder / "lib.so", folder, tools.toolkit)


# Lines of a program


def test_a_program_that_complains_at_length_does_not_stop() -> None:
    script = (
        "i=0; while [ $i -lt 3000 ]; do echo 'a long complaint, many times' >&2; i=$((i+1)); done"
    )
    command = ["/bin/sh", "-c", f"{script}; echo done"]
    assert list(process.lines(command, purpose="x", error=BuildError)) == ["done\n"]


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(BuildError, match=r"cannot look: /no/such does not start"):
        list(process.lines(["/no/such"], purpose="look", error=BuildError))


# How device code is packed


def container(*capabilities: int, kind: int = 2, magic: int = 0xBA55ED50) -> bytes:
    entries = b""
    for capability in capabilities:
        payload = bytes([255]) * capability  # so the size differs
        header = struct.pack("<HHIQ12xI", kind, 257, 64, len(payload), capability)
        entries += header.ljust(64, b"\0") + payload
    return struct.pack("<IHHQ", magic, 1, 16, len(entries)) + entries


def elf(folder: Path, cc: str, data: bytes | None) -> Path:
    """A library with this device code."""
    (folder / "data").write_bytes(data or b"")
    section = f'.section .nv_fatbin,"a"\n.align 8\n.incbin "{folder / "data"}"\n' if data else ""
    segment = '.section .nvFatBinSegment,"aw"\n.align 8\n.long 0x466243b1, 1\n.quad 0, 0\n'
    stack = '.section .note.GNU-stack,"",@progbits\n'
    (folder / "lib.s").write_text(section + (segment if data else "") + stack)
    path = folder / "lib.so"
    subprocess.run([cc, "-shared", "-nostdlib", "-o", path, folder / "lib.s"], check=True)
    return path


def test_containers_are_read_in_order(tmp_path: Path, cc: str) -> None:
    data = container(120) + bytes(16) + container(100, 103) + container(90, kind=1)
    assert fatbin.read_containers(elf(tmp_path, cc, data)) == (
        (fatbin.Packed((12, 0), 64 + 120),),
        (fatbin.Packed((10, 0), 64 + 100), fatbin.Packed((10, 3), 64 + 103)),
        (),
    )


def test_a_library_without_device_code_has_no_container(tmp_path: Path, cc: str) -> None:
    assert fatbin.read_containers(elf(tmp_path, cc, None)) == ()


@pytest.mark.parametrize(
    "data",
    [
        container(120, magic=0x12345678),
        container(120)[:-1],
        container(120)[:40],
        container(120)[:10],
        container(120) + b"x",
        # An entry that says it has no bytes, not even a header: reading it would never end.
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64),
    ],
    ids=["magic", "image", "entry", "header", "tail", "empty"],
)
def test_a_layout_that_is_not_known_is_an_error(tmp_path: Path, cc: str, data: bytes) -> None:
    with pytest.raises(AuditError, match=r"packed in an unknown way.*update aot\.audit\.fatbin"):
        fatbin.read_containers(elf(tmp_path, cc, data))


# Modules

F120, A100, A110, A90 = map(Architecture.parse, ("12.0f", "10.0a", "11.0a", "9.0a"))
GOOD_120 = kernel("gemm", "ACQBULK", "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R1, R2")
GOOD_100 = kernel("gemm", "ACQBULK", "UTCOMMA.2CTA.4X gdesc[UR4]")
LOWERED_SCALES = "F2FP.F16.E4M3.UNPACK_B R16, R72"
LOWERED_PRODUCT = "HMMA.16816.F32 R4, R8, R16, R4"
GOOD_LOWERED = kernel("gemm", "ACQBULK", LOWERED_SCALES, LOWERED_PRODUCT)
SM120 = "fp4_gemm_cutlass_sm120"


def audited(
    tools: Tools, cc: str, units: Sequence[DeviceUnit], *images: tuple[Architecture, str]
) -> tuple[tuple[audit.ModuleImages, ...], tuple[str, ...]]:
    """Audit a library that has these images, in containers as the units want them."""
    tools.images = [text for _, text in images]
    tools.write()
    data, left = b"", list(images)
    for unit in units:
        held = [left.pop(0)[0] for _ in unit.architectures if left]
        data += container(*(one.major * 10 + one.minor for one in held))
    listed = [Image("cubin", architecture) for architecture, _ in images]
    return audit_modules(elf(tools.folder, cc, data), listed, units, tools.toolkit)


def unit(module: str, name: str, *architectures: Architecture) -> DeviceUnit:
    return DeviceUnit(module, name, architectures)


def test_images_are_counted_by_module_and_target(tools: Tools, cc: str) -> None:
    units = [
        unit("fp4_gemm_cutlass", "a", A100, A110),
        unit("fp4_gemm_cutlass", "b", A100, A110),
        unit("fp4_kv_dequant", "c", F120),
    ]
    images = [(A100, GOOD_100), (A110, GOOD_100), (A100, GOOD_100), (A110, GOOD_100), (F120, "")]
    held, problems = audited(tools, cc, units, *images)
    assert problems == ()
    assert [(one.module, one.architecture, one.images, one.packed_size) for one in held] == [
        ("fp4_gemm_cutlass", "10.0a", 2, 2 * (64 + 100)),
        ("fp4_gemm_cutlass", "11.0a", 2, 2 * (64 + 110)),
        ("fp4_kv_dequant", "12.0f", 1, 64 + 120),
    ]
    assert [one.size for one in held] == [2 * len(GOOD_100), 2 * len(GOOD_100), 0]
    assert held[0].instructions == ("ACQBULK", "UTCOMMA.2CTA.4X")
    assert held[2].instructions == ()


def test_a_gemm_without_its_wait_fails_by_name(tools: Tools, cc: str) -> None:
    bad = kernel("gemm", "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R1")
    units = [unit(SM120, name, F120) for name in ("good", "bad", "worse")]
    _, problems = audited(tools, cc, units, (F120, GOOD_120), (F120, bad), (F120, bad))
    (problem,) = problems
    assert problem.startswith(f"{SM120} for 12.0f: 2 of 3 images (bad, ...) lack the wait")
    assert "ACQBULK" in problem
    assert "CUTLASS_ENABLE_GDC_FOR_SM100" in problem


@pytest.mark.parametrize(
    ("module", "architecture", "code"),
    [
        # The other generation's instruction, an MXFP4 product, and one of FP8.
        (SM120, F120, "UTCOMMA.4X"),
        (SM120, F120, "QMMA.SF.16832.F32.E4M3.E4M3.E8"),
        ("fp4_gemm_cutlass", A100, "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"),
        ("fp4_gemm_cutlass", A100, "UTCQMMA"),
        ("fp4_gemm_cutlass", A100, "UTCOMMA"),
        ("fp4_gemm_cutlass", A100, "UTCOMMA.2CTA"),
        ("fp4_gemm_cutlass_sm103", Architecture.parse("10.3a"), "UTCQMMA.2CTA"),
    ],
)
def test_a_gemm_without_the_fp4_product_of_its_target_fails(
    tools: Tools, cc: str, module: str, architecture: Architecture, code: str
) -> None:
    text = kernel("gemm", "ACQBULK", code)
    _, problems = audited(tools, cc, [unit(module, "a", architecture)], (architecture, text))
    (problem,) = problems
    assert "lack the block-scaled FP4 product" in problem


def test_a_gemm_whose_kernels_are_gone_fails(tools: Tools, cc: str) -> None:
    _, problems = audited(tools, cc, [unit(SM120, "gen_a", F120)], (F120, ""))
    (problem,) = problems
    assert "1 of 1 images (gen_a) hold no kernel" in problem


def test_the_unit_that_only_chooses_needs_no_kernel(tools: Tools, cc: str) -> None:
    units = [unit(SM120, f"csrc_{SM120}", F120), unit(SM120, "gen_a", F120)]
    assert audited(tools, cc, units, (F120, ""), (F120, GOOD_120))[1] == ()
    # One that has a kernel is read like any other.
    bad = kernel("gemm", "MOV R1, R2")
    assert len(audited(tools, cc, units, (F120, bad), (F120, GOOD_120))[1]) == 2


def test_quantization_must_convert_to_e2m1(tools: Tools, cc: str) -> None:
    units = [unit("fp4_quantization_120f", "a", F120)]
    good = kernel("interleave", "MOV R1") + kernel(
        "quantize", "ACQBULK", "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C R8, R6, R29, RZ"
    )
    assert audited(tools, cc, units, (F120, good))[1] == ()
    unpacks = kernel("quantize", "ACQBULK", "F2FP.F16.E2M1.UNPACK_B R1, R2")
    (problem,) = audited(tools, cc, units, (F120, unpacks))[1]
    assert "lack the conversion to e2m1" in problem


# Modules that are lowered to Hopper


def test_a_lowered_gemm_has_its_product_in_float16(tools: Tools, cc: str) -> None:
    held, problems = audited(tools, cc, [unit(SM120, "a", A90)], (A90, GOOD_LOWERED))
    assert problems == ()
    (one,) = held
    assert one.instructions == ("ACQBULK", "F2FP.F16.E4M3.UNPACK_B", "HMMA.16816.F32")


def test_a_lowered_gemm_without_its_wait_fails_by_name(tools: Tools, cc: str) -> None:
    bad = GOOD_LOWERED + kernel("other", LOWERED_SCALES, LOWERED_PRODUCT)
    _, problems = audited(tools, cc, [unit(SM120, "a", A90)], (A90, bad))
    (problem,) = problems
    assert problem.startswith(f"{SM120} for 9.0a: 1 of 1 images (a) lack the wait")
    assert "CUTLASS_ENABLE_GDC_FOR_SM100" in problem


@pytest.mark.parametrize(
    "product",
    [
        # Sums in float16, another type, another shape, Hopper's own, and those of Blackwell.
        *("HMMA.16816.F16 R4", "HMMA.16816.F32.BF16 R4", "HMMA.1688.F32 R4", "MOV R4, R8"),
        *("HGMMA.64x128x16.F32 R24", "QMMA.16832.F32.E4M3.E4M3 R4"),
        *("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R1", "UTCOMMA.4X gdesc[UR4]"),
    ],
)
def test_a_lowered_gemm_without_its_product_fails(tools: Tools, cc: str, product: str) -> None:
    text = GOOD_LOWERED + kernel("other", "ACQBULK", LOWERED_SCALES, product)
    _, problems = audited(tools, cc, [unit(SM120, "a", A90)], (A90, text))
    (problem,) = problems
    assert "1 of 1 images (a) lack the FP4 product, lowered to float16" in problem


GROUPED = "gen_gemm_sm120_group_gemm_nvfp4_groupwise_bf16_sm120"


def test_a_grouped_gemm_has_a_kernel_that_only_prepares(tools: Tools, cc: str) -> None:
    product = kernel("13GemmUniversalI", "ACQBULK", LOWERED_SCALES, LOWERED_PRODUCT)
    arguments = kernel("compute_arguments", "ACQBULK", "MOV R1, R2")
    one = unit("gemm_sm120", GROUPED, A90)
    _, problems = audited(tools, cc, [one], (A90, product + arguments))
    assert problems == ()
    # It alone is not enough, and every product is looked at.
    _, problems = audited(tools, cc, [one], (A90, arguments))
    assert len(problems) == 3
    compiled_out = kernel("13GemmUniversalI", "ACQBULK", "EXIT")
    _, problems = audited(tools, cc, [one], (A90, product + arguments + compiled_out))
    assert len(problems) == 2


MIXED_120 = "gen_gemm_sm120_group_gemm_mxfp4_groupwise_e5m2_f16_sm120"
MIXED_100 = "gen_gemm_sm100_group_gemm_mxfp4_groupwise_e4m3_bf16_mma2_swaptrue_sm100"


@pytest.mark.parametrize(
    ("module", "name", "target", "good", "lacking"),
    [
        ("gemm_sm120", MIXED_120, F120, "QMMA.SF.16832.F32.E5M2.E2M1.E8", "by FP4 product (mma"),
        ("gemm_sm120", MIXED_120, F120, "QMMA.SF.16832.F32.E2M1.E4M3.E8", "by FP4 product (mma"),
        ("gemm_sm100", MIXED_100, A100, "UTCQMMA.2CTA", "by FP4 product (tcgen05.mma"),
        ("gemm_sm100", MIXED_100, A100, "UTCQMMA", "by FP4 product (tcgen05.mma"),
    ],
)
def test_products_of_fp8_by_fp4_have_demands_of_their_own(
    tools: Tools, cc: str, module: str, name: str, target: Architecture, good: str, lacking: str
) -> None:
    rest = () if target == F120 else ("UTCCP.T.S.2CTA.4 X",)

    def problems(*instructions_: str) -> tuple[str, ...]:
        text = kernel("13GemmUniversalI", *instructions_) + kernel("compute_arguments", "ACQBULK")
        return audited(tools, cc, [unit(module, name, target)], (target, text))[1]

    assert problems("ACQBULK", f"{good} R1", *rest) == ()
    (problem,) = problems("PREEXIT", f"{good} R1", *rest)
    assert "lack the wait" in problem
    # The products of NVFP4, and of FP8 by FP8: neither is this one.
    others = ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X R1", "UTCOMMA.4X R1")
    (problem,) = problems("ACQBULK", *others, "QMMA.SF.16832.F32.E4M3.E4M3.E8 R1", *rest)
    assert lacking in problem
    if rest:
        (problem,) = problems("ACQBULK", f"{good} R1")
        assert "lack the copy of block scales" in problem


@pytest.mark.parametrize("scales", ["F2FP.F16.F32.PACK_AB R1", "F2FP.F16.E5M2.UNPACK_B R1"])
def test_a_lowered_gemm_without_its_block_scales_fails(tools: Tools, cc: str, scales: str) -> None:
    text = GOOD_LOWERED + kernel("other", "ACQBULK", scales, LOWERED_PRODUCT)
    _, problems = audited(tools, cc, [unit(SM120, "a", A90)], (A90, text))
    (problem,) = problems
    assert "lack the conversion of block scales" in problem


def test_lowered_code_is_not_taken_for_blackwells_nor_the_other_way_round(
    tools: Tools, cc: str
) -> None:
    units = [unit(SM120, "a", F120)]
    (problem,) = audited(tools, cc, units, (F120, GOOD_LOWERED))[1]
    assert "lack the block-scaled FP4 product" in problem
    problems = audited(tools, cc, [unit(SM120, "a", A90)], (A90, GOOD_120))[1]
    assert len(problems) == 2
    assert all("lowered to float16" in problem for problem in problems)


def test_lowered_quantization_waits_and_has_no_conversion_to_e2m1(tools: Tools, cc: str) -> None:
    units = [unit("fp4_quantization_100", "a", A90)]
    good = kernel("interleave", "MOV R1") + kernel("quantize", "ACQBULK", "FSET.BF.GE.AND R1")
    held, problems = audited(tools, cc, units, (A90, good))
    assert problems == ()
    assert held[0].instructions == ("ACQBULK",)
    (problem,) = audited(tools, cc, units, (A90, kernel("quantize", "FSET.BF.GE.AND R1")))[1]
    assert problem.startswith("fp4_quantization_100 for 9.0a: 1 of 1 images (a) lack the wait")
    # What was compiled out is found in any case.
    (problem,) = audited(tools, cc, units, (A90, ""))[1]
    assert "hold no kernel" in problem


@pytest.mark.parametrize("module", ["fp4_kv_quant", "fp4_kv_dequant"])
def test_nothing_is_asked_of_the_kv_cache_on_hopper(tools: Tools, cc: str, module: str) -> None:
    tools.images = [kernel("convert", "MOV R1")]
    tools.write()
    tools.program("nvdisasm", "#!/bin/sh\necho 'read for nothing' >&2; exit 1")
    path = elf(tools.folder, cc, container(90))
    held, problems = audit_modules(
        path, [Image("cubin", A90)], [unit(module, "a", A90)], tools.toolkit
    )
    assert problems == ()
    assert [one.module for one in held] == [module]


def test_images_in_another_order_are_not_trusted(tools: Tools, cc: str) -> None:
    units = [unit("fp4_gemm_cutlass", "a", A100), unit(SM120, "b", F120)]
    held, problems = audited(tools, cc, units, (F120, GOOD_120), (A100, GOOD_100))
    assert held == ()
    assert problems == (
        "holds images for 12.0f where the plan has those of fp4_gemm_cutlass/a for 10.0a",
    )


def test_a_module_with_the_images_of_another_is_found(tools: Tools, cc: str) -> None:
    # The totals are as planned, and each module has the other's target (case 7).
    units = [unit("fp4_kv_quant", "a", A100, F120), unit("fp4_kv_dequant", "b", A110)]
    _, problems = audited(tools, cc, units, (A100, ""), (A110, ""), (F120, ""))
    assert "holds images for 10.0a 11.0a where the plan has those of fp4_kv_quant/a" in problems[0]


@pytest.mark.parametrize("units", [("a",), ("a", "b", "c")])
def test_more_or_fewer_translation_units_are_found(
    tools: Tools, cc: str, units: tuple[str, ...]
) -> None:
    tools.images = [GOOD_120] * 2
    tools.write()
    path = elf(tools.folder, cc, container(120) * 2)
    planned = [unit(SM120, name, F120) for name in units]
    _, problems = audit_modules(path, [Image("cubin", F120)] * 2, planned, tools.toolkit)
    assert problems == (
        f"holds the device code of 2 translation units; its plan makes {len(units)}",
    )


def test_a_listing_that_differs_from_the_file_is_not_trusted(tools: Tools, cc: str) -> None:
    path = elf(tools.folder, cc, container(120))
    _, problems = audit_modules(
        path, [Image("cubin", A100)], [unit(SM120, "a", A100)], tools.toolkit
    )
    assert "update aot.audit.fatbin" in problems[0]


def test_progress_counts_what_is_disassembled(tools: Tools, cc: str) -> None:
    told: list[tuple[int, int, str]] = []
    units = [unit(SM120, "a", F120), unit("fp4_kv_dequant", "b", F120), unit(SM120, "c", F120)]
    tools.images = [GOOD_120, "", GOOD_120]
    tools.write()
    path = elf(tools.folder, cc, container(120) * 3)
    audit_modules(
        path,
        [Image("cubin", F120)] * 3,
        units,
        tools.toolkit,
        lambda *state: told.append(state),
    )
    assert told == [(1, 2, SM120), (2, 2, SM120)]


def test_a_disassembler_that_fails_ends_the_audit(tools: Tools, cc: str) -> None:
    tools.images = [GOOD_120] * 4
    tools.write()
    tools.program("nvdisasm", "#!/bin/sh\necho broken >&2; exit 1")
    path = elf(tools.folder, cc, container(120) * 4)
    units = [unit(SM120, str(number), F120) for number in range(4)]
    with pytest.raises(AuditError, match="broken"):
        audit_modules(path, [Image("cubin", F120)] * 4, units, tools.toolkit)


# The table


GEMMS = [module for module in MODULES if module.family == "gemm"]


@pytest.mark.parametrize("row", GEMMS, ids=lambda row: row.name)
def test_every_gemm_and_every_target_has_its_demands(row: Module) -> None:
    (wanted,) = [ones for pattern, ones in instructions.REQUIRED if pattern == "fp4_gemm_*/*"]
    for name in row.architectures:
        here = [one for one in wanted if Architecture.parse(name).major in one.majors]
        assert len(here) == 2
        assert all(one.every_kernel for one in here)


def test_a_lowered_gemm_and_lowered_quantization_have_demands_of_their_own() -> None:
    wanted = {
        pattern: [one for one in ones if A90.major in one.majors]
        for pattern, ones in instructions.REQUIRED
    }
    gemm, quantization = wanted["fp4_gemm_*/*"], wanted["fp4_quantization_*/*"]
    assert [one.every_kernel for one in gemm] == [True, True, True]
    assert [one.every_kernel for one in quantization] == [False]
    # The wait is the same instruction; the others are for lowered code alone.
    assert gemm[0].majors == quantization[0].majors == (9, 10, 11, 12)
    assert [one.majors for one in gemm[1:]] == [(9,), (9,)]


# A real toolkit: the names are what its assembler and disassembler make of PTX


HEADER = """.version 9.0
.target {target}
.address_size 64
.visible .entry GemmUniversal(.param .u64 out) {{
.reg .b64 %o, %a, %b; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b16 %h; .reg .pred %p;
ld.param.u64 %o, [out];
{loads}
mov.b16 %h, 0; mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
{wait}
{product}
ret;
}}
"""
MMA = """mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4\
.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3
  {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3},
  {%r6}, {%h, %h}, {%r7}, {%h, %h};
st.global.v4.f32 [%o], {%f0, %f1, %f2, %f3};"""
TCGEN05 = """ld.global.v2.u64 {%a, %b}, [%o]; setp.ne.b32 %p, %r3, 0;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X
  [%r0], %a, %b, %r3, [%r1], [%r2], %p;"""
TARGETS = {"10.0a": TCGEN05, "10.3a": TCGEN05, "11.0a": TCGEN05, "12.0f": MMA, "12.1a": MMA}


MIXED_MMA = """mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4\
.block_scale.scale_vec::1X.f32.e4m3.e2m1.f32.ue8m0
  {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3},
  {%r6}, {%h, %h}, {%r7}, {%h, %h};
st.global.v4.f32 [%o], {%f0, %f1, %f2, %f3};"""
MIXED_TCGEN05 = """ld.global.v2.u64 {%a, %b}, [%o]; setp.ne.b32 %p, %r3, 0;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %a;
tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X
  [%r0], %a, %b, %r3, [%r1], [%r2], %p;"""


@pytest.fixture(scope="module")
def real_toolkit() -> Toolkit:
    folder = Path(__file__).parents[2] / "build" / "toolchain"
    try:
        found = toolchain.candidates("13.0", folder)
    except AotError:
        found = ()
    for candidate in found:
        kit = candidate.toolkit
        if kit and kit.cuobjdump and kit.nvdisasm and (kit.root / "bin/fatbinary").is_file():
            return kit
    pytest.skip("NOT TESTED: real machine code, because no CUDA 13.0 toolkit is there")


def assemble(
    folder: Path,
    kit: Toolkit,
    target: str,
    *,
    wait: bool,
    product: bool | str = True,
    lowered: bool = False,
) -> Path:
    """Assemble a kernel for a target, or what it is lowered to for Hopper."""
    sm = Architecture.parse(target).sm
    loads = "\n".join(f"ld.global.u32 %r{n}, [%o+{4 * n}];" for n in range(8))
    code = product if isinstance(product, str) else TARGETS[target]
    if not product:
        code = "st.global.u32 [%o], %r1;"
    source = HEADER.format(
        target=f"sm_{sm}",
        loads=loads,
        wait="griddepcontrol.wait;" if wait else "",
        product=code,
    )
    if lowered:
        source, sm = lower_text(source), A90.sm
    (folder / "a.ptx").write_text(source)
    cubin = folder / f"{len(list(folder.iterdir()))}.cubin"
    command = [kit.root / "bin/ptxas", f"-arch=sm_{sm}", folder / "a.ptx", "-o", cubin]
    subprocess.run(command, check=True)
    return cubin


def real_library(
    folder: Path, kit: Toolkit, cc: str, units: Sequence[Sequence[tuple[str, Path]]]
) -> Path:
    data = b""
    for unit_ in units:
        images = [
            f"--image3=kind=elf,sm={Architecture.parse(target).sm},file={cubin}"
            for target, cubin in unit_
        ]
        packed = folder / "one.fatbin"
        command = [kit.root / "bin/fatbinary", f"--create={packed}", "-64", "-compress-all"]
        subprocess.run([*command, *images], check=True)
        data += packed.read_bytes().ljust(-(-packed.stat().st_size // 8) * 8, b"\0")
    return elf(folder, cc, data)


def gemm_module(target: str) -> str:
    return next(module.name for module in GEMMS if target in module.architectures)


def real_problems(
    folder: Path, kit: Toolkit, cc: str, target: str, cubin: Path, module: str = ""
) -> Iterator[str]:
    path = real_library(folder, kit, cc, [[(target, cubin)]])
    units = [unit(module or gemm_module(target), "a", Architecture.parse(target))]
    yield from audit_modules(path, read_images(path, kit), units, kit)[1]


@pytest.mark.parametrize("target", TARGETS)
def test_real_machine_code_has_the_names_in_the_table(
    tmp_path: Path, real_toolkit: Toolkit, cc: str, target: str
) -> None:
    good = assemble(tmp_path, real_toolkit, target, wait=True)
    assert list(real_problems(tmp_path, real_toolkit, cc, target, good)) == []
    no_wait = assemble(tmp_path, real_toolkit, target, wait=False)
    (problem,) = real_problems(tmp_path, real_toolkit, cc, target, no_wait)
    assert "lack the wait for the kernel before it" in problem
    no_product = assemble(tmp_path, real_toolkit, target, wait=True, product=False)
    (problem,) = real_problems(tmp_path, real_toolkit, cc, target, no_product)
    assert "lack the block-scaled FP4 product" in problem


def test_real_machine_code_that_is_lowered_has_the_names_in_the_table(
    tmp_path: Path, real_toolkit: Toolkit, cc: str
) -> None:
    def problems(*, wait: bool, product: bool = True) -> list[str]:
        cubin = assemble(tmp_path, real_toolkit, "12.0f", wait=wait, product=product, lowered=True)
        return list(real_problems(tmp_path, real_toolkit, cc, "9.0a", cubin, SM120))

    assert problems(wait=True) == []
    (problem,) = problems(wait=False)
    assert "lack the wait for the kernel before it" in problem
    scales, product = problems(wait=True, product=False)
    assert "lack the conversion of block scales" in scales
    assert "lack the FP4 product, lowered to float16" in product


@pytest.mark.parametrize(
    ("module", "name", "target", "code"),
    [
        ("gemm_sm120", MIXED_120, "12.0f", MIXED_MMA),
        ("gemm_sm100", MIXED_100, "10.0a", MIXED_TCGEN05),
        ("gemm_sm100", MIXED_100, "10.3a", MIXED_TCGEN05),
    ],
)
def test_real_products_of_fp8_by_fp4_have_the_names_in_the_table(
    tmp_path: Path, real_toolkit: Toolkit, cc: str, module: str, name: str, target: str, code: str
) -> None:
    units = [unit(module, name, Architecture.parse(target))]

    def problems(code: str) -> tuple[str, ...]:
        cubin = assemble(tmp_path, real_toolkit, target, wait=True, product=code)
        path = real_library(tmp_path, real_toolkit, cc, [[(target, cubin)]])
        return audit_modules(path, read_images(path, real_toolkit), units, real_toolkit)[1]

    assert problems(code) == ()
    assert "by FP4 product" in problems(TARGETS[target])[0]  # that of NVFP4


def test_a_real_library_is_attributed_and_measured(
    tmp_path: Path, real_toolkit: Toolkit, cc: str
) -> None:
    cubins = {
        target: assemble(tmp_path, real_toolkit, target, wait=True)
        for target in ("10.0a", "11.0a", "12.0f")
    }
    first = [(target, cubins[target]) for target in ("10.0a", "11.0a")]
    path = real_library(tmp_path, real_toolkit, cc, [first, [("12.0f", cubins["12.0f"])]])
    expected = LibraryExpectation(
        images={A100: 1, A110: 1, F120: 1},
        units=(unit("fp4_gemm_cutlass", "a", A100, A110), unit(SM120, "b", F120)),
        machine=platform.machine(),
    )
    report = audit.audit_library(path, expected, real_toolkit)
    assert report.findings == ()
    assert {(one.module, one.architecture): one.size for one in report.modules} == {
        ("fp4_gemm_cutlass", "10.0a"): cubins["10.0a"].stat().st_size,
        ("fp4_gemm_cutlass", "11.0a"): cubins["11.0a"].stat().st_size,
        (SM120, "12.0f"): cubins["12.0f"].stat().st_size,
    }
    for one in report.modules:
        assert 0 < one.packed_size < one.size
        assert "ACQBULK" in one.instructions
