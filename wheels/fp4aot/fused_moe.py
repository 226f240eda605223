"""Mixture of experts in NVFP4, with FlashInfer's names and argument order.

`cutlass_fused_moe` is one operator call, as in `fp4aot.quantization`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from fp4aot._activations import ActivationType
from fp4aot.operators.mixture_of_experts_arguments import PACKED_DTYPES

__all__ = ["ActivationType", "cutlass_fused_moe", "cutlass_fused_moe_workspace_size"]

# Looked up once: `torch.ops.fp4aot.cutlass_fused_moe.default` takes half a microsecond.
_CUTLASS_FUSED_MOE = torch.ops.fp4aot.cutlass_fused_moe.default
_CUTLASS_FUSED_MOE_OUT = torch.ops.fp4aot.cutlass_fused_moe.out

_FLOATS = (torch.bfloat16, torch.float16)
_MISSING_ACTIVATIONS = (ActivationType.Situ, ActivationType.ClampedRelu2)
# Of the arguments that have no other value here. The rest are flags, which are False.
_DEFAULTS: Mapping[str, int | None] = MappingProxyType(
    {
        "cluster_size": 1,
        "cluster_rank": 0,
        "clamped_relu2_limit": None,
        "situ_beta": None,
        "situ_linear_beta": None,
    }
)


def cutlass_fused_moe(
    input: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor | None,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: Sequence[torch.Tensor],
    fc1_expert_biases: torch.Tensor | None = None,
    fc2_expert_biases: torch.Tensor | None = None,
    input_sf: torch.Tensor | None = None,
    swiglu_alpha: torch.Tensor | None = None,
    swiglu_beta: torch.Tensor | None = None,
    swiglu_limit: torch.Tensor | None = None,
    tp_size: int = 1,
    tp_rank: int = 0,
    ep_size: int = 1,
    ep_rank: int = 0,
    cluster_size: int = 1,
    cluster_rank: int = 0,
    output: torch.Tensor | None = None,
    enable_alltoall: bool = False,
    use_deepseek_fp8_block_scale: bool = False,
    use_w4_group_scaling: bool = False,
    use_mxfp8_act_scaling: bool = False,
    min_latency_mode: bool = False,
    use_packed_weights: bool = False,
    use_wfp4afp8_humming: bool = False,
    tune_max_num_tokens: int = 8192,
    enable_pdl: bool | None = None,
    activation_type: int = ActivationType.Swiglu,
    swizzled_input_sf: bool = True,
    use_fused_finalize: bool = True,
    profile_ids: Sequence[int | None] | None = None,
    workspace_buffer: torch.Tensor | None = None,
    *,
    clamped_relu2_limit: torch.Tensor | None = None,
    situ_beta: torch.Tensor | None = None,
    situ_linear_beta: torch.Tensor | None = None,
    backend: str = "cutlass",
) -> torch.Tensor:
    """Apply the selected experts to each token, and add up what they return.

    An expert is two products with an activation between them. T tokens, H hidden values, I
    intermediate values and E experts of this rank, k experts for each token; H and I are positive
    multiples of 32.

    Parameters
    ----------
    input
        `[T, H]` of the output dtype, which is quantized inside, once for each selected expert; or
        packed e2m1 with its scales in `input_sf`: `[T, H / 2]` uint8 or float4_e2m1fn_x2, or
        `[T, H / 16]` int64. T may be 0. A non-contiguous tensor is copied first.
    token_selected_experts
        int32 `[T, k]`, numbers among the experts of all ranks. A number outside of this rank's
        `[ep_rank * E, (ep_rank + 1) * E)`, be it another rank's or none, such as the -1 that
        servers mark padding with, contributes nothing: the kernels compare each with the range on
        the device, so that nothing is read out of bounds and nothing waits for the device. A token
        none of whose experts are here becomes zeros (but see `enable_alltoall`). A
        token's experts must differ from each other: for more than 256 tokens FlashInfer's kernels
        do not expect a repeated one, and the token's row is undefined. On the CPU,
        and for fewer tokens, it counts as often as it stands.
    token_final_scales
        float32 `[T, k]`, the weight of each selected expert; None for 1.
    fc1_expert_weights
        Packed e2m1, `[E, 2 I, H / 2]` for a gated activation: the first I rows of an expert are up
        (linear) rows, the last I are gate rows, and the result is activation(gate) * up. For a
        plain activation `[E, I, H / 2]`. uint8 or float4_e2m1fn_x2, or the same bytes as int64.
        Contiguous: it is never copied.
    fc2_expert_weights
        Packed e2m1, `[E, H, I / 2]`, likewise.
    output_dtype
        bfloat16 or float16.
    quant_scales
        Six tensors, for each product in turn:

        - the global scale by which its left side is multiplied before quantization, 448 * 6 / amax:
          float32 `[]` or `[1]`, or `[E]`, one for each expert. That of the first product is not
          read where the input is quantized already.
        - the E4M3 block scales of its weights, swizzled (128x4) for each expert by itself, as uint8
          or float8_e4m3fn: `[E, round_up(2 I or I, 128), round_up(H / 16, 4)]` for the first
          product, `[E, round_up(H, 128), round_up(I / 16, 4)]` for the second; or viewed as int32,
          with a quarter of the columns. Contiguous.
        - alpha, float32 `[E]`: 1 / (global scale of the left side * global scale of the weights).
    fc1_expert_biases, fc2_expert_biases
        `[E, 2 I]` or `[E, I]`, and `[E, H]`, of the output dtype; both or neither. That of the
        second product is added on tp_rank 0 only.
    input_sf
        E4M3 block scales of a packed input, uint8 or float8_e4m3fn, contiguous, of any shape:
        `round_up(T, 128) * round_up(H / 16, 4)` in the 128x4 layout, or `T * H / 16` in the linear
        one with `swizzled_input_sf=False`, for which H is a multiple of 64.
    swiglu_alpha, swiglu_beta, swiglu_limit
        float32 `[E]`, for `Swiglu`, which any of them makes `SwigluBias`, and for `SwigluBias`;
        swiglu_limit also for `SwigluStep`.
    tp_size, tp_rank, ep_size, ep_rank
        Ranks of tensor and of expert parallelism. With the former, weights hold a part of the
        intermediate values; with the latter, a part of the experts. The ranks' results have to be
        added up.
    cluster_size, cluster_rank
        Only 1 and 0.
    output
        Contiguous `[T, H]` of the output dtype; allocated if None.
    enable_alltoall
        Whether tokens came here by all-to-all. On a GPU, rows of tokens none of whose experts are
        here are then left as they were, which in an allocated output is anything.
    use_deepseek_fp8_block_scale, use_w4_group_scaling, use_mxfp8_act_scaling
        Only False: other weights than NVFP4.
    min_latency_mode, use_packed_weights, use_wfp4afp8_humming
        Only False.
    tune_max_num_tokens
        Has no effect: nothing is tuned while a call runs.
    enable_pdl
        Whether kernels may start before their predecessors end. None leaves it to the operator.
        Ignored on the CPU.
    activation_type
        An `ActivationType`, FlashInfer's own, or its number. With gate and up as above:

        - `Swiglu`, `Geglu`, `GegluTanh`: SiLU, GELU or its tanh approximation of gate, times up.
        - `SwigluBias`: with gate at most `limit` and up within `-limit` and `limit`,
          gate * sigmoid(alpha * gate) * (up + beta); without parameters, alpha is 1, beta 0, and
          there is no limit.
        - `SwigluStep`: SiLU of gate, at most `limit`, times up within `-limit` and `limit`; 7
          without a parameter.
        - `Gelu`, `Relu`, `Silu`, `Relu2` (the square of ReLU) and `Identity` are plain.
    swizzled_input_sf
        Layout of `input_sf`.
    use_fused_finalize
        Whether a GPU adds up the experts' results inside the second product: faster, but in the
        output dtype and in any order, so that two runs may differ. Ignored on the CPU.
    profile_ids
        `[first, second]`: numbers of the tactics of the two products, where the second is counted
        on from those of the first, as in FlashInfer. None or -1 has one chosen. Ignored on the CPU.
    workspace_buffer
        uint8 or int8 `[bytes]`, contiguous, of at least `cutlass_fused_moe_workspace_size` bytes.
        Calls on different streams need different ones. Without it, each call allocates one.
    clamped_relu2_limit, situ_beta, situ_linear_beta
        Only None: their activations are not in this package.
    backend
        Only "cutlass".

    Returns
    -------
    torch.Tensor
        `[T, H]`, contiguous; `output` where it was given.

    Raises
    ------
    RuntimeError
        A tensor is not as described; the message names it, what it is, and what to do.
    ValueError, NotImplementedError
        An argument asks for what this package does not contain.

    Notes
    -----
    Both products are accumulated in float32, multiplied by alpha in float32 and rounded to the
    output dtype. Biases and the activation are float32; the activation is rounded to the output
    dtype and quantized. Results are weighted and added up in float32, and rounded once, unless
    `use_fused_finalize` lets a GPU do otherwise. On the CPU the sum inside a product is exact.

    Examples
    --------
    >>> weights, block_scales = ...  # of every expert, by fp4_quantize; stacked
    >>> scales = [fc1_input_scale, fc1_block_scales, fc1_alpha,
    ...           fc2_input_scale, fc2_block_scales, fc2_alpha]
    >>> top, experts = router(x).softmax(-1).topk(8)  # x: [T, H] bfloat16
    >>> cutlass_fused_moe(x, experts.int(), top.float(), fc1_weights, fc2_weights, x.dtype, scales)
    """
    if (
        use_deepseek_fp8_block_scale
        or use_w4_group_scaling
        or use_mxfp8_act_scaling
        or min_latency_mode
        or use_packed_weights
        or use_wfp4afp8_humming
        or clamped_relu2_limit is not None
        or situ_beta is not None
        or situ_linear_beta is not None
        or cluster_size != 1
        or cluster_rank != 0
        or activation_type in _MISSING_ACTIVATIONS
        or backend != "cutlass"
    ):
        _refuse(
            "cutlass_fused_moe",
            activation_type,
            backend,
            use_deepseek_fp8_block_scale=use_deepseek_fp8_block_scale,
            use_w4_group_scaling=use_w4_group_scaling,
            use_mxfp8_act_scaling=use_mxfp8_act_scaling,
            min_latency_mode=min_latency_mode,
            use_packed_weights=use_packed_weights,
            use_wfp4afp8_humming=use_wfp4afp8_humming,
            clamped_relu2_limit=clamped_relu2_limit,
            situ_beta=situ_beta,
            situ_linear_beta=situ_linear_beta,
            cluster_size=cluster_size,
            cluster_rank=cluster_rank,
        )
    if len(quant_scales) != 6:
        raise ValueError(
            f"fp4aot.cutlass_fused_moe: quant_scales holds {len(quant_scales)} tensors; NVFP4 has "
            "six: global scale of the input, block scales of the weights and alpha, of each product"
        )
    fc1_tactic, fc2_tactic = (
        (-1, -1) if profile_ids is None else _tactics(profile_ids, use_fused_finalize, input)
    )
    arguments = (
        input,
        token_selected_experts,
        token_final_scales,
        fc1_expert_weights,
        fc2_expert_weights,
        *quant_scales,
    )
    options = (
        fc1_expert_biases,
        fc2_expert_biases,
        input_sf,
        swiglu_alpha,
        swiglu_beta,
        swiglu_limit,
        tp_size,
        tp_rank,
        ep_size,
        ep_rank,
        enable_alltoall,
        enable_pdl,
        int(activation_type),
        swizzled_input_sf,
        use_fused_finalize,
        fc1_tactic,
        fc2_tactic,
    )
    if output is None and workspace_buffer is None:
        mixture: torch.Tensor = _CUTLASS_FUSED_MOE(*arguments, output_dtype, *options)
        return mixture
    if output is None:
        # Slices, because the operator is what refuses a tensor without these dimensions.
        shape = (*input.shape[:1], *fc2_expert_weights.shape[1:2])
        output = torch.empty(shape, dtype=output_dtype, device=input.device)
    elif output.dtype != output_dtype:
        raise ValueError(
            f"fp4aot.cutlass_fused_moe: output is of {output.dtype}, and output_dtype is "
            f"{output_dtype}; pass the dtype of output"
        )
    _CUTLASS_FUSED_MOE_OUT(*arguments, *options, workspace_buffer=workspace_buffer, out=output)
    return output


def cutlass_fused_moe_workspace_size(
    max_num_tokens: int,
    hidden_size: int,
    intermediate_size: int,
    num_experts_total: int,
    top_k: int,
    *,
    x_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    output_dtype: torch.dtype = torch.bfloat16,
    activation_type: int = ActivationType.Swiglu,
    tp_size: int = 1,
    tp_rank: int = 0,
    ep_size: int = 1,
    ep_rank: int = 0,
    min_latency_mode: bool = False,
    use_deepseek_fp8_block_scale: bool = False,
    use_w4_group_scaling: bool = False,
    use_mxfp8_act_scaling: bool = False,
    use_fused_finalize: bool = True,
    use_packed_weights: bool = False,
    use_wfp4afp8_humming: bool = False,
    device: torch.device | str | None = None,
    backend: str = "cutlass",
) -> int:
    """Return how many bytes of `workspace_buffer` the calls of `cutlass_fused_moe` need.

    Parameters
    ----------
    max_num_tokens
        The most tokens of a call; fewer need no more.
    hidden_size, intermediate_size
        H, and I of this rank, as numbers of values.
    num_experts_total
        Experts of all ranks: E * ep_size.
    top_k
        Experts selected for each token.
    x_dtype, weight_dtype, output_dtype
        Dtypes of the input, of the weights and of the output.
    activation_type, tp_size, tp_rank, ep_size, ep_rank, use_fused_finalize
        As in the calls.
    min_latency_mode, use_deepseek_fp8_block_scale, use_w4_group_scaling, use_mxfp8_act_scaling
        Only False.
    use_packed_weights, use_wfp4afp8_humming
        Only False.
    device
        Where the calls run; the current CUDA device if None.
    backend
        Only "cutlass".

    Returns
    -------
    int
        0 for the CPU, or where there is no GPU: the CPU needs no workspace.

    Raises
    ------
    ValueError, NotImplementedError
        An argument is out of range, or asks for what this package does not contain.
    RuntimeError
        This wheel has no kernels for the device.
    """
    name = "cutlass_fused_moe_workspace_size"
    _refuse(
        name,
        activation_type,
        backend,
        min_latency_mode=min_latency_mode,
        use_deepseek_fp8_block_scale=use_deepseek_fp8_block_scale,
        use_w4_group_scaling=use_w4_group_scaling,
        use_mxfp8_act_scaling=use_mxfp8_act_scaling,
        use_packed_weights=use_packed_weights,
        use_wfp4afp8_humming=use_wfp4afp8_humming,
    )
    _check_dtypes(name, x_dtype, weight_dtype, output_dtype)
    _check_sizes(
        name,
        max_num_tokens=max_num_tokens,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_experts_total=num_experts_total,
        top_k=top_k,
        tp_size=tp_size,
        ep_size=ep_size,
    )
    for rank_name, rank, size in (("tp_rank", tp_rank, tp_size), ("ep_rank", ep_rank, ep_size)):
        if not 0 <= rank < size:
            raise ValueError(f"fp4aot.{name}: {rank_name}={rank}; pass 0 to {size - 1}")
    if num_experts_total % ep_size != 0:
        raise ValueError(
            f"fp4aot.{name}: num_experts_total={num_experts_total} does not divide into "
            f"ep_size={ep_size} ranks; pass the experts of all ranks"
        )
    index = _cuda_index(device)
    if index is None:
        return 0
    needed: int = torch.ops.fp4aot._cutlass_fused_moe_workspace_size(
        max_num_tokens,
        hidden_size,
        intermediate_size,
        num_experts_total,
        top_k,
        tp_size,
        tp_rank,
        ep_size,
        ep_rank,
        int(activation_type),
        output_dtype == torch.bfloat16,
        x_dtype in PACKED_DTYPES,
        use_fused_finalize,
        index,
    )
    return needed


def _refuse(function: str, activation_type: int, backend: str, **arguments: object) -> None:
    """Refuse, by name, an argument that asks for what is not here."""
    if backend != "cutlass":
        raise ValueError(
            f"fp4aot.{function}: backend={backend!r} is not in this package; pass "
            "backend='cutlass', or call FlashInfer's function"
        )
    for name, value in arguments.items():
        default = _DEFAULTS.get(name, False)
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor or value != default:
            raise NotImplementedError(
                f"fp4aot.{function}: {name}={'a tensor' if is_tensor else value} is not in this "
                f"package, which has NVFP4 alone; pass {name}={default}, or call FlashInfer's "
                "function"
            )
    if activation_type in _MISSING_ACTIVATIONS:
        raise NotImplementedError(
            f"fp4aot.{function}: activation_type={ActivationType(activation_type).name} is not in "
            "this package; choose another, or call FlashInfer's function"
        )


def _tactics(
    profile_ids: Sequence[int | None], use_fused_finalize: bool, input: torch.Tensor
) -> tuple[int, int]:
    """Return the number of each product's tactic: FlashInfer counts those of both on."""
    if len(profile_ids) != 2:
        raise ValueError(
            f"fp4aot.cutlass_fused_moe: profile_ids holds {len(profile_ids)} numbers; pass one "
            "for each of the two products"
        )
    first, second = (-1 if number is None else number for number in profile_ids)
    if second == -1 or not input.is_cuda:
        return first, second
    count: int = torch.ops.fp4aot._cutlass_fused_moe_tactic_count(
        1, use_fused_finalize, input.device.index
    )
    if second < count:
        raise ValueError(
            f"fp4aot.cutlass_fused_moe: profile_ids={list(profile_ids)}; the second product's "
            f"tactics are counted on from the first one's, from {count}: pass one of them, or -1"
        )
    return first, second - count


def _check_dtypes(
    function: str, x_dtype: torch.dtype, weight_dtype: torch.dtype, output_dtype: torch.dtype
) -> None:
    if output_dtype not in _FLOATS:
        raise ValueError(
            f"fp4aot.{function}: output_dtype={output_dtype}; pass bfloat16 or float16"
        )
    if weight_dtype not in PACKED_DTYPES:
        raise ValueError(
            f"fp4aot.{function}: weight_dtype={weight_dtype} is not in this package; pass that of "
            "packed NVFP4 weights: uint8, float4_e2m1fn_x2 or int64"
        )
    if x_dtype != output_dtype and x_dtype not in PACKED_DTYPES:
        raise ValueError(
            f"fp4aot.{function}: x_dtype={x_dtype}; pass output_dtype, or the dtype of a packed "
            "input: uint8, float4_e2m1fn_x2 or int64"
        )


def _check_sizes(function: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"fp4aot.{function}: {name}={size}; pass 1 or more")


def _cuda_index(device: torch.device | str | None) -> int | None:
    """Return the number of a CUDA device, or None for the CPU and where there is no GPU."""
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda" or not torch.cuda.is_available():
        return None
    return torch.cuda.current_device() if chosen.index is None else chosen.index
