"""Calls that FlashInfer and fp4aot take alike, and what differs below them.

FlashInfer's Python and fp4aot's C++ call the same compiled functions. For each call here both must
call the same ones in the same order, with arguments of the same dtypes, shapes, strides and
numbers, except for the `Difference`s. `flashinfer_recordings` records FlashInfer's side. Both sides
import this module, so it imports neither package.

Not here:

- `cutlass_fused_moe`: fp4aot compiles a binding of its own in place of FlashInfer's.
- `nvfp4_quantize` with `per_token_activation` and a tensor for `a_global_sf`: FlashInfer reads it
  on the host, and fp4aot makes the rows' scales with torch and calls `fp4_quantize`.
- float8 input of `nvfp4_batched_quantize`, and 1024 rows and more: there fp4aot calls
  `fp4_quantize` for parts of the rows, and `bulk_copy_rows.h` says why.
- Inputs with gaps, which FlashInfer's C++ refuses, and global scales of another dtype or on another
  device, which fp4aot refuses.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

Form = dict[str, Any]  # of an argument, as `flashinfer_recordings.form` makes it
Recording = dict[str, Any]  # the name of a compiled "function" and the forms of its "arguments"


class Memory:
    """Whose memory a compiled function is given: the caller's tensors, and what the caller gets.

    Two tensors of one layout are told apart by it.
    """

    def __init__(self, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        self._owners: list[tuple[int, int, str]] = []
        for i, argument in enumerate(arguments):
            self._add(f"argument {i}", argument)
        for name, argument in keywords.items():
            self._add(name, argument)
        self._add("result", result)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                self._add(f"{name}[{i}]", item)
        elif isinstance(value, torch.Tensor):
            memory = value.untyped_storage()
            self._owners.append((memory.data_ptr(), memory.nbytes(), name))

    def owner(self, address: int | None) -> Form:
        """Say whose memory begins at an address; nothing where it is nobody's."""
        for start, size, name in self._owners:
            if address is not None and start <= address < start + size:
                offset = address - start
                return {"of": f"{name} + {offset} bytes" if offset else name}
        return {}


class Difference(NamedTuple):
    """One argument of a compiled function that fp4aot passes in another form than FlashInfer.

    Parameters
    ----------
    function
        The compiled function.
    argument
        The argument's position.
    ours
        What fp4aot passes, from the forms of all the arguments that FlashInfer passes.
    reason
        Why that is intended.
    """

    function: str
    argument: int
    ours: Callable[[list[Form]], Form]
    reason: str


class Make(NamedTuple):
    """Makes the arguments of a call for one of the two packages.

    Parameters
    ----------
    device
        Where its tensors are.
    package
        The package that is called, for the classes that both have.
    """

    device: str
    package: Any

    def __call__(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Make a tensor. Nothing but a kernel reads its values."""
        return torch.zeros(shape, dtype=dtype, device=self.device)


class Call(NamedTuple):
    """One call of a public function.

    Parameters
    ----------
    id
        Its name in recordings.
    public
        The function, with the path that it has in FlashInfer. In fp4aot it is `fp4aot.<name>`.
    capability
        The compute capability of the device.
    differences
        What differs below it. `expected` refuses one that changes nothing.
    build
        Makes its arguments and keyword arguments.
    """

    id: str
    public: str
    capability: tuple[int, int]
    differences: tuple[Difference, ...]
    build: Callable[[Make], tuple[tuple[Any, ...], dict[str, Any]]]

    @property
    def name(self) -> str:
        return self.public.rpartition(".")[2]


def expected(call: Call, recorded: list[Recording]) -> list[Recording]:
    """Return what fp4aot must pass to FlashInfer's functions, from what FlashInfer passes.

    Raises
    ------
    AssertionError
        A difference is not needed any more, or names a function that the call does not reach.
    """
    result = copy.deepcopy(recorded)
    for function, argument, ours, _ in call.differences:
        reached = [at for at, item in enumerate(recorded) if item["function"] == function]
        assert reached, f"{call.id}: remove the differences of {function}, which is not called"
        for at in reached:
            theirs = recorded[at]["arguments"]
            owner = {key: theirs[argument][key] for key in ("of",) if key in theirs[argument]}
            form = ours(theirs) | owner
            assert form != theirs[argument], (
                f"{call.id}: remove the difference of argument {argument} of {function}: "
                f"FlashInfer passes {form} too"
            )
            result[at]["arguments"][argument] = form
    return result


def contiguous(dtype: str, *shape: int) -> Form:
    """Return the form of a contiguous tensor."""
    strides = [math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape))]
    return {"tensor": {"dtype": dtype, "shape": list(shape), "strides": strides}}


def _reshaped(
    argument: int, shape: Callable[[list[int]], tuple[int, ...]]
) -> Callable[[list[Form]], Form]:
    def ours(theirs: list[Form]) -> Form:
        tensor = theirs[argument]["tensor"]
        return contiguous(tensor["dtype"], *shape(tensor["shape"]))

    return ours


def _row(shape: list[int]) -> tuple[int, ...]:
    return (math.prod(shape),)


def _column(shape: list[int]) -> tuple[int, ...]:
    return math.prod(shape), 1


def _matrix(shape: list[int]) -> tuple[int, ...]:
    return math.prod(shape[:-1]), shape[-1]


def _scales_of_rows(theirs: list[Form]) -> Form:
    *rows, k = theirs[0]["tensor"]["shape"]
    columns = k // theirs[4]["int"]
    if theirs[6]["bool"]:  # swizzled
        columns = -(-columns // 4) * 4
    return contiguous("uint8", math.prod(rows), columns)


_IN_PARTS = (
    "fp4aot quantizes large inputs in parts, each a matrix of some rows, and a small one is a "
    "single part"
)
_INPUT = Difference(
    "fp4_quantize",
    0,
    _reshaped(0, _matrix),
    f"{_IN_PARTS}; FlashInfer multiplies the leading sizes",
)
_GLOBAL_SCALE = Difference(
    "fp4_quantize",
    1,
    _reshaped(1, _column),
    f"{_IN_PARTS}; FlashInfer asks for the number of elements",
)
_VALUES = Difference(
    "fp4_quantize", 2, _reshaped(2, _matrix), f"{_IN_PARTS}; FlashInfer looks at the address"
)
_BLOCK_SCALES = Difference(
    "fp4_quantize",
    3,
    _scales_of_rows,
    f"{_IN_PARTS}; FlashInfer looks at the address, and allocates linear scales for rows "
    "rounded up to 16, which it cuts off afterwards",
)
_WITHOUT_PDL = Difference(
    "fp4_quantize",
    9,
    lambda theirs: {"bool": False},
    "flashinfer.mxfp4_quantize drops enable_pdl with its CUDA backend; fp4aot does what is asked",
)
_NVFP4 = (_GLOBAL_SCALE, _BLOCK_SCALES)
_MXFP4 = (_BLOCK_SCALES,)

_MM_FP4 = (
    *(
        Difference(
            "fp4_gemm",
            argument,
            _reshaped(argument, _row),
            "fp4aot accepts block scales of any shape; FlashInfer looks at the address and dtype",
        )
        for argument in (2, 3)
    ),
    Difference(
        "fp4_gemm",
        6,
        lambda theirs: contiguous("uint8", 0),
        "flashinfer.mm_fp4 keeps 40 MiB on each device for ever; with an empty workspace its C++ "
        "allocates what the kernel needs, from torch's allocator",
    ),
)

_BYTES_OF_MAPS = 128 * 192  # of one tensor map for each multiprocessor of the largest device


def _grouped(function: str, tensor_maps: int) -> tuple[Difference, ...]:
    """Return the differences of a grouped product whose kernels keep so many tensor maps."""
    kept = "FlashInfer keeps 40 MiB on each device for ever; fp4aot allocates what the kernel needs"
    return (
        Difference(
            function,
            0,
            lambda theirs: contiguous("uint8", 116 * theirs[3]["tensor"]["shape"][0] + 160),
            f"{kept}: for each group three sizes, five pointers, three strides and two layouts, "
            "and the alignment of ten arrays",
        ),
        Difference(
            function,
            1,
            lambda theirs: contiguous("uint8", tensor_maps * _BYTES_OF_MAPS),
            f"{kept}: CUTLASS's tensor maps for each multiprocessor",
        ),
        *(
            Difference(function, argument, _reshaped(argument, _row), what)
            for argument, what in (
                (2, "FlashInfer looks at the address of a, and is told its sizes"),
                (3, "FlashInfer looks at the address of b, and is told its sizes"),
                (4, "fp4aot accepts scales of any shape; FlashInfer looks at the address"),
                (5, "fp4aot accepts scales of any shape; FlashInfer looks at the address"),
            )
        ),
    )


_GROUPED_NVFP4 = _grouped("group_gemm_nvfp4_nt_groupwise", 6)
_GROUPED_MXFP4_SM100 = _grouped("group_gemm_mxfp4_nt_groupwise", 130)
_GROUPED_MXFP4_SM120 = _grouped("group_gemm_mxfp4_nt_groupwise", 6)

# Compiled functions that an operator of fp4aot calls, and that no call here reaches.
NOT_REACHED = MappingProxyType(
    {
        "block_scale_interleave_reverse_sm100": "FlashInfer's Python never calls it",
        "fp4_gemm_tactic_num": "a question about the device, which FlashInfer asks as it tunes",
        "nvfp4_moe": "fp4aot's own binding in place of FlashInfer's",
        "nvfp4_moe_workspace_size": "fp4aot's own binding in place of FlashInfer's",
        "nvfp4_moe_tactic_count": "fp4aot's own binding in place of FlashInfer's",
        "nvfp4_moe_tactic_occupancy": "fp4aot's own binding in place of FlashInfer's",
        "nvfp4_moe_profile": "fp4aot's own binding in place of FlashInfer's",
    }
)

_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
_BYTE, _INT32, _INT64 = torch.uint8, torch.int32, torch.int64
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _with(*arguments: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments, keywords


def _calls(public: str, *rows: tuple[Any, ...]) -> tuple[Call, ...]:
    name = public.rpartition(".")[2]
    return tuple(Call(f"{name}: {what}", public, *rest) for what, *rest in rows)


def _per_token(
    values: torch.Tensor, *arguments: Any, scale_inv: float = 1 / (448 * 6), **keywords: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make the arguments of a quantization with a scale for each row."""
    return _with(values, scale_inv, *arguments, per_token_activation=True, **keywords)


def _input(make: Make, dtype: torch.dtype = _BF16) -> tuple[torch.Tensor, ...]:
    """Make a matrix and its global scale. 5 block scales in a row: padding shows."""
    return make(dtype, 130, 80), make(_FP32, 1)


def _experts(make: Make, dtype: torch.dtype, k: int) -> tuple[torch.Tensor, ...]:
    return make(dtype, 3, 50, k), make(_INT32, 3), make(_FP32, 3)


def _recipe(make: Make) -> Any:
    return make.package.NVFP44Over6Config(e4m3_max=256, err_mode="MSE", err_use_fast_math=True)


def _factors(make: Make, scales: torch.dtype = _BYTE) -> tuple[torch.Tensor, ...]:
    """Make 16 and 96 rows of 320 values, with their block scales and alpha."""
    a, b = make(_BYTE, 16, 160), make(_BYTE, 96, 160)
    return a, b.T, make(scales, 128, 20), make(scales, 128, 20).T, make(_FP32, 1)


def _segments(make: Make, a: torch.Tensor, block: int) -> tuple[torch.Tensor, ...]:
    """Add to 20 rows of 256 values 64 rows for each of 2 groups, the scales and the segments."""
    scales = make(_BYTE, 256, 256 // block), make(_BYTE, 2, 128, 256 // block)
    return a, make(_BYTE, 2, 64, 128), *scales, make(_INT32, 3)


def _nvfp4_segments(make: Make) -> tuple[torch.Tensor, ...]:
    return _segments(make, make(_BYTE, 20, 128), 16)


def _mxfp4_segments(make: Make, dtype: torch.dtype = _E4M3) -> tuple[torch.Tensor, ...]:
    return _segments(make, make(dtype, 20, 256), 32)


def _cache(make: Make, *sizes: int, scales: torch.dtype = _BYTE) -> tuple[Any, ...]:
    """Make pages of K and V with heads of 64 values, and their scales."""
    pages = make(_BYTE, *sizes, 32), make(_BYTE, *sizes, 32)
    return pages, (make(scales, *sizes, 4), make(scales, *sizes, 4))


def _stacked_cache(make: Make, scales: torch.dtype = _BYTE) -> tuple[torch.Tensor, ...]:
    return make(_BYTE, 7, 2, 16, 2, 32), make(scales, 7, 2, 16, 2, 4)


def _requests(make: Make, tables: torch.dtype = _INT32) -> tuple[torch.Tensor, ...]:
    """Make the page table of 2 requests with up to 3 pages, and the scales of K and V."""
    return make(tables, 2, 3), make(_INT32, 2), make(_FP32, 1), make(_FP32, 1)


def _gathered(make: Make, length: int, dtype: torch.dtype = _BF16) -> tuple[torch.Tensor, ...]:
    """Make buffers for `length` positions with 2 heads."""
    return make(dtype, 2, length, 2, 64), make(dtype, 2, length, 2, 64)


def _appended(make: Make, dtype: torch.dtype = _BF16) -> tuple[torch.Tensor, ...]:
    """Make 6 rows with 2 heads, and where they go."""
    return make(dtype, 6, 2, 64), make(dtype, 6, 2, 64), make(_INT32, 6), make(_INT32, 6)


def _pages(make: Make) -> tuple[torch.Tensor, ...]:
    """Make the page table of 2 requests with 4 pages in all."""
    return make(_INT32, 4), make(_INT32, 3), make(_INT32, 2)


def _on_the_host(block: int) -> tuple[torch.Tensor, ...]:
    """Make packed values and their scales on the CPU, whatever the device of other calls."""
    return torch.zeros(6, 48, dtype=_BYTE), torch.zeros(6, 96 // block, dtype=_BYTE)


CALLS = (
    *_calls(
        "flashinfer.quantization.fp4_quantize",
        ("bfloat16", (10, 0), _NVFP4, lambda make: _with(*_input(make))),
        ("float16", (10, 3), _NVFP4, lambda make: _with(*_input(make, _FP16))),
        ("float8", (12, 0), _NVFP4, lambda make: _with(*_input(make, _E4M3))),
        ("8x4", (10, 0), _NVFP4, lambda make: _with(*_input(make), is_sf_8x4_layout=True)),
        ("linear", (10, 0), _NVFP4, lambda make: _with(*_input(make), is_sf_swizzled_layout=False)),
        (
            "a global scale for each row",
            (10, 0),
            _NVFP4,
            lambda make: _with(make(_BF16, 130, 80), make(_FP32, 130)),
        ),
        (
            "a reciprocal global scale",
            (10, 0),
            _NVFP4,
            lambda make: _with(*_input(make), is_global_scale_inversed=True),
        ),
        (
            "three dimensions",
            (10, 0),
            (*_NVFP4, _INPUT, _VALUES),
            lambda make: _with(make(_BF16, 3, 50, 80), make(_FP32, 1)),
        ),
        (
            "column major",
            (10, 0),
            _NVFP4,
            lambda make: _with(make(_BF16, 130, 80).T, make(_FP32, 1)),
        ),
        ("with PDL", (10, 0), _NVFP4, lambda make: _with(*_input(make), enable_pdl=True)),
        ("without PDL", (10, 0), _NVFP4, lambda make: _with(*_input(make), enable_pdl=False)),
        ("standard recipe", (10, 0), _NVFP4, lambda make: _with(*_input(make), nvfp4_4over6=None)),
        (
            "4 over 6",
            (10, 0),
            _NVFP4,
            lambda make: _with(*_input(make), nvfp4_4over6=_recipe(make)),
        ),
        ("MXFP4", (10, 0), _MXFP4, lambda make: _with(make(_BF16, 130, 96), None, 32, True)),
        (
            "MXFP4, 8x4",
            (10, 0),
            _MXFP4,
            lambda make: _with(make(_FP16, 130, 96), None, 32, True, is_sf_8x4_layout=True),
        ),
        (
            "MXFP4, linear",
            (10, 0),
            _MXFP4,
            lambda make: _with(make(_FP16, 130, 96), None, 32, True, is_sf_swizzled_layout=False),
        ),
        (
            "MXFP4 of float8 with a global scale",
            (10, 0),
            _NVFP4,
            lambda make: _with(make(_E4M3, 130, 96), make(_FP32, 1), 32, True),
        ),
    ),
    *_calls(
        "flashinfer.quantization.nvfp4_quantize",
        ("bfloat16", (10, 0), _NVFP4, lambda make: _with(*_input(make))),
        (
            "8x4",
            (12, 0),
            _NVFP4,
            lambda make: _with(*_input(make, _FP16), make.package.SfLayout.layout_8x4),
        ),
        (
            "linear, without PDL",
            (10, 3),
            _NVFP4,
            lambda make: _with(
                *_input(make), make.package.SfLayout.layout_linear, enable_pdl=False
            ),
        ),
        (
            "shuffled",
            (10, 0),
            _NVFP4,
            lambda make: _with(make(_BF16, 128, 64), make(_FP32, 1), do_shuffle=True),
        ),
        (
            "4 over 6",
            (10, 0),
            _NVFP4,
            lambda make: _with(*_input(make), nvfp4_4over6=_recipe(make)),
        ),
        ("per token", (10, 0), (), lambda make: _per_token(make(_BF16, 130, 80))),
        (
            "per token, 8x4",
            (12, 0),
            (),
            lambda make: _per_token(make(_FP16, 130, 80), make.package.SfLayout.layout_8x4),
        ),
        (
            "per token, linear",
            (10, 3),
            (),
            lambda make: _per_token(make(_BF16, 130, 80), make.package.SfLayout.layout_linear),
        ),
        (
            "per token, rows by an index",
            (10, 0),
            (),
            lambda make: _per_token(
                make(_BF16, 130, 80), expanded_idx_to_permuted_idx=make(_INT32, 130)
            ),
        ),
        (
            "per token, shuffled",
            (10, 0),
            (),
            lambda make: _per_token(make(_BF16, 128, 64), do_shuffle=True),
        ),
        (
            "per token, 4 over 6",
            (10, 0),
            (),
            lambda make: _per_token(
                make(_BF16, 130, 80), scale_inv=1 / (256 * 6), nvfp4_4over6=_recipe(make)
            ),
        ),
    ),
    *_calls(
        "flashinfer.quantization.mxfp4_quantize",
        ("bfloat16", (10, 0), _MXFP4, lambda make: _with(make(_BF16, 130, 96))),
        (
            "8x4",
            (12, 0),
            _MXFP4,
            lambda make: _with(make(_FP16, 130, 96), sfLayout=make.package.SfLayout.layout_8x4),
        ),
        (
            "linear",
            (10, 3),
            _MXFP4,
            lambda make: _with(make(_BF16, 130, 96), sfLayout=make.package.SfLayout.layout_linear),
        ),
        (
            "without PDL",
            (10, 0),
            (*_MXFP4, _WITHOUT_PDL),
            lambda make: _with(make(_BF16, 130, 96), enable_pdl=False),
        ),
    ),
    *_calls(
        "flashinfer.quantization.nvfp4_batched_quantize",
        ("bfloat16", (10, 0), (), lambda make: _with(make(_BF16, 3, 50, 80), make(_FP32, 1))),
        (
            "a global scale for each row, 4 over 6",
            (12, 0),
            (),
            lambda make: _with(make(_FP16, 3, 50, 80), make(_FP32, 50), nvfp4_4over6=_recipe(make)),
        ),
    ),
    *_calls(
        "flashinfer.quantization.scaled_fp4_grouped_quantize",
        ("bfloat16", (10, 0), (), lambda make: _with(*_experts(make, _BF16, 80))),
        (
            "float16, 4 over 6",
            (10, 3),
            (),
            lambda make: _with(*_experts(make, _FP16, 64), nvfp4_4over6=_recipe(make)),
        ),
    ),
    *_calls(
        "flashinfer.activation.silu_and_mul_scaled_nvfp4_experts_quantize",
        ("bfloat16", (10, 0), (), lambda make: _with(*_experts(make, _BF16, 160))),
        (
            "float16, 4 over 6",
            (12, 0),
            (),
            lambda make: _with(*_experts(make, _FP16, 128), nvfp4_4over6=_recipe(make)),
        ),
    ),
    *_calls(
        "flashinfer.quantization.block_scale_interleave",
        ("two dimensions", (10, 0), (), lambda make: _with(make(_BYTE, 130, 5))),
        ("three dimensions", (10, 3), (), lambda make: _with(make(_BYTE, 3, 130, 5))),
        ("bfloat16", (12, 0), (), lambda make: _with(make(_BF16, 130, 5))),
    ),
    *_calls(
        "flashinfer.quantization.mxfp4_dequantize_host",
        ("blocks of 32", (10, 0), (), lambda make: _with(*_on_the_host(32))),
        ("blocks of 16", (12, 0), (), lambda make: _with(*_on_the_host(16), 16)),
    ),
    *_calls(
        "flashinfer.quantization.nvfp4_kv_quantize",
        ("bfloat16", (10, 0), (), lambda make: _with(*_input(make))),
        ("float16", (12, 0), (), lambda make: _with(*_input(make, _FP16))),
    ),
    *_calls(
        "flashinfer.quantization.nvfp4_kv_dequantize",
        (
            "bfloat16",
            (10, 0),
            (),
            lambda make: _with(make(_BYTE, 6, 40), make(_BYTE, 6, 5), make(_FP32, 1)),
        ),
        (
            "float16, scales as float8",
            (12, 0),
            (),
            lambda make: _with(make(_BYTE, 6, 40), make(_E4M3, 6, 5), make(_FP32, 1), _FP16),
        ),
    ),
    *_calls(
        "flashinfer.quantization.nvfp4_kv_dequantize_paged",
        (
            "NHD",
            (10, 0),
            (),
            lambda make: _with(*_cache(make, 7, 16, 2), *_requests(make), *_gathered(make, 48)),
        ),
        (
            "HND, float16, scales as float8",
            (12, 0),
            (),
            lambda make: _with(
                *_cache(make, 7, 2, 16, scales=_E4M3),
                *_requests(make, _INT64),
                *_gathered(make, 48, _FP16),
                kv_layout="HND",
            ),
        ),
        (
            "K and V in one tensor",
            (10, 3),
            (),
            lambda make: _with(*_stacked_cache(make), *_requests(make), *_gathered(make, 48)),
        ),
        (
            "pages of one token",
            (10, 0),
            (),
            lambda make: _with(*_cache(make, 7, 2), *_requests(make), *_gathered(make, 3)),
        ),
    ),
    *_calls(
        "flashinfer.page.nvfp4_quantize_append_paged_kv_cache",
        (
            "NHD",
            (10, 0),
            (),
            lambda make: _with(
                *_appended(make), *_cache(make, 7, 16, 2, scales=_E4M3), *_pages(make), 0.5, 0.25
            ),
        ),
        (
            "HND, float16",
            (12, 0),
            (),
            lambda make: _with(
                *_appended(make, _FP16),
                *_cache(make, 7, 2, 16, scales=_E4M3),
                *_pages(make),
                0.5,
                0.25,
                kv_layout="HND",
            ),
        ),
        (
            "K and V in one tensor",
            (10, 3),
            (),
            lambda make: _with(
                *_appended(make), *_stacked_cache(make, _E4M3), *_pages(make), 0.5, 0.25
            ),
        ),
    ),
    # With "auto" FlashInfer would choose another backend on some devices.
    *_calls(
        "flashinfer.gemm.mm_fp4",
        ("bfloat16", (10, 0), _MM_FP4, lambda make: _with(*_factors(make), backend="cutlass")),
        ("10.3", (10, 3), _MM_FP4, lambda make: _with(*_factors(make), backend="cutlass")),
        ("12.0", (12, 0), _MM_FP4, lambda make: _with(*_factors(make), backend="cutlass")),
        (
            "float16",
            (10, 0),
            _MM_FP4,
            lambda make: _with(*_factors(make), _FP16, backend="cutlass"),
        ),
        (
            "into a buffer",
            (10, 0),
            _MM_FP4,
            lambda make: _with(*_factors(make), out=make(_BF16, 16, 96), backend="cutlass"),
        ),
        (
            "scales as float8",
            (10, 0),
            _MM_FP4,
            lambda make: _with(*_factors(make, _E4M3), backend="cutlass"),
        ),
    ),
    *_calls(
        "flashinfer.gemm.group_gemm_nvfp4_nt_groupwise",
        ("bfloat16", (12, 0), _GROUPED_NVFP4, lambda make: _with(*_nvfp4_segments(make))),
        (
            "alpha",
            (12, 0),
            _GROUPED_NVFP4,
            lambda make: _with(*_nvfp4_segments(make), make(_FP32, 2)),
        ),
        (
            "an empty alpha",
            (12, 0),
            _GROUPED_NVFP4,
            lambda make: _with(*_nvfp4_segments(make), make(_FP32, 0)),
        ),
        (
            "float16, other tiles",
            (12, 0),
            _GROUPED_NVFP4,
            lambda make: _with(
                *_nvfp4_segments(make), tile_n=32, tile_k=256, swap_ab=False, out_dtype=_FP16
            ),
        ),
        (
            "into a buffer",
            (12, 0),
            _GROUPED_NVFP4,
            lambda make: _with(*_nvfp4_segments(make), out=make(_FP16, 20, 64)),
        ),
    ),
    *_calls(
        "flashinfer.gemm.group_gemm_mxfp8_mxfp4_nt_groupwise",
        ("10.0", (10, 0), _GROUPED_MXFP4_SM100, lambda make: _with(*_mxfp4_segments(make))),
        ("10.3", (10, 3), _GROUPED_MXFP4_SM100, lambda make: _with(*_mxfp4_segments(make))),
        ("12.0", (12, 0), _GROUPED_MXFP4_SM120, lambda make: _with(*_mxfp4_segments(make))),
        (
            "float8_e5m2",
            (10, 0),
            _GROUPED_MXFP4_SM100,
            lambda make: _with(*_mxfp4_segments(make, _E5M2)),
        ),
        (
            "float16, other tiles",
            (10, 0),
            _GROUPED_MXFP4_SM100,
            lambda make: _with(
                *_mxfp4_segments(make),
                mma_sm=2,
                tile_n=192,
                tile_k=256,
                swap_ab=False,
                out_dtype=_FP16,
            ),
        ),
        (
            "other tiles on 12.0",
            (12, 0),
            _GROUPED_MXFP4_SM120,
            lambda make: _with(*_mxfp4_segments(make), tile_n=32, swap_ab=False),
        ),
        (
            "into a buffer",
            (10, 0),
            _GROUPED_MXFP4_SM100,
            lambda make: _with(*_mxfp4_segments(make), out=make(_FP16, 20, 64)),
        ),
    ),
)
