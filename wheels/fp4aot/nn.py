"""`NVFP4Linear`: a linear layer with NVFP4 weights and inputs, and ways to put it into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fp4aot import _layouts
from fp4aot._reference.quantize import arrange_scales
from fp4aot.gemm import fp4_linear

__all__ = ["NVFP4Linear", "record_input_amax", "replace_linears"]

_BLOCK = 16
_MULTIPLE = 32
# The largest E4M3 block scale times the largest E2M1 value.
_RANGE = 448.0 * 6.0
_SMALLEST_NORMAL = 2.0**-126
# What a checkpoint may hold; the first is what a layer holds.
_CHECKPOINT_DTYPES = {
    "weight": (torch.uint8, torch.float4_e2m1fn_x2),
    "weight_scale": (torch.float8_e4m3fn, torch.uint8),
    "weight_scale_2": (torch.float32,),
    "input_scale": (torch.float32,),
}


class NVFP4Linear(torch.nn.Module):
    """A linear layer whose weight is NVFP4, and whose input is quantized to NVFP4 in every call.

    The tensors are those of a layer in an NVFP4 checkpoint of ModelOpt, under the same names, so
    `load_state_dict` takes such a layer's tensors as they are. Between load and use they are turned
    once into what the kernels read (`prepare`): that happens in every `load_state_dict`. Who writes
    to the tensors in another way calls `prepare` afterwards.

    Parameters
    ----------
    in_features, out_features
        K and N; multiples of 32.
    bias
        Whether the layer has one.
    device
        Where the tensors are.
    dtype
        Of the output and the bias: bfloat16 (the default) or float16. The input may be of either.

    Attributes
    ----------
    weight : torch.Tensor
        uint8 `[N, K / 2]`, packed e2m1.
    weight_scale : torch.Tensor
        float8_e4m3fn `[N, K / 16]`, the linear layout. A checkpoint may hold the bytes as uint8.
    weight_scale_2 : torch.Tensor
        float32 scalar, the weight's amax / (448 * 6): the weight is
        `e2m1 value * weight_scale * weight_scale_2`. A checkpoint may hold it as `[1]`.
    input_scale : torch.Tensor
        float32 scalar, amax / (448 * 6) of the inputs. Larger inputs saturate. A checkpoint may
        hold it as `[1]`.
    bias : torch.Tensor or None
        `[N]` of the output dtype.
    swizzled_weight_scale, alpha, input_global_scale : torch.Tensor
        Made by `prepare`; not in the state dict. The first takes an eighth of the weight's memory.

    Notes
    -----
    All tensors are buffers: the layer cannot be trained. `.to()` moves them between devices and
    never changes their dtypes, nor does `model.half()`.

    Layers that see the same input (q, k and v) need nothing special: with one `input_scale` for
    all, as ModelOpt exports them, each quantizes the input alike. They can be fused into one layer
    where `input_scale` and `weight_scale_2` agree: concatenate `weight`, `weight_scale` and `bias`
    along N.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    weight_scale_2: torch.Tensor
    input_scale: torch.Tensor
    bias: torch.Tensor | None
    swizzled_weight_scale: torch.Tensor
    alpha: torch.Tensor
    input_global_scale: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size <= 0 or size % _MULTIPLE != 0:
                raise ValueError(
                    f"fp4aot.nn.NVFP4Linear: {name}={size} is not a positive multiple of "
                    f"{_MULTIPLE}; pad the layer with zeros, or leave it as it is"
                )
        dtype = torch.bfloat16 if dtype is None else dtype
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"fp4aot.nn.NVFP4Linear: dtype={dtype}; pass torch.bfloat16 or torch.float16"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.register_buffer("weight", zeros(out_features, in_features // 2, dtype=torch.uint8))
        # torch does not fill float8 tensors on every device; their bytes it does.
        scale_bytes = zeros(out_features, in_features // _BLOCK, dtype=torch.uint8)
        self.register_buffer("weight_scale", scale_bytes.view(torch.float8_e4m3fn))
        self.register_buffer("weight_scale_2", zeros(dtype=torch.float32) + 1)
        self.register_buffer("input_scale", zeros(dtype=torch.float32) + 1)
        self.register_buffer("bias", zeros(out_features, dtype=dtype) if bias else None)
        for name, tensor in self._prepared().items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return `[..., N]` for an input `[..., K]`, bfloat16 or float16."""
        return fp4_linear(
            input,
            self.weight,
            self.swizzled_weight_scale,
            self.alpha,
            self.input_global_scale,
            self.bias,
            self.dtype,
        )

    @torch.no_grad()
    def prepare(self) -> None:
        """Make what the kernels read of what checkpoints hold.

        Writes into the tensors that are there, so that a captured CUDA graph stays valid when a
        layer is loaded again.
        """
        if self.input_scale.device != self.weight_scale_2.device:
            return  # A part of the layer is on the meta device still, and is loaded later.
        for name, tensor in self._prepared().items():
            buffer = getattr(self, name)
            if buffer.device == tensor.device:
                buffer.copy_(tensor)
            else:
                setattr(self, name, tensor)

    def _prepared(self) -> dict[str, torch.Tensor]:
        input_scale = _usable(self.input_scale).reshape(1)
        scale_bytes = self.weight_scale.view(torch.uint8)
        return {
            "swizzled_weight_scale": arrange_scales(scale_bytes, _layouts.SfLayout.layout_128x4),
            "alpha": input_scale * self.weight_scale_2,
            "input_global_scale": 1 / input_scale,
        }

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        input_amax: float | torch.Tensor | None = None,
        activations: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> NVFP4Linear:
        """Quantize a linear layer.

        Parameters
        ----------
        linear
            Its weight is rounded to bfloat16 first, unless it is float16.
        input_amax
            Largest magnitude of the inputs; larger ones will saturate.
        activations
            Sample inputs of any shape to take it from instead.
        dtype
            Of the output; by default the weight's where that is bfloat16 or float16, otherwise
            bfloat16.

        Raises
        ------
        ValueError
            The sizes are not multiples of 32, or not exactly one of `input_amax` and `activations`
            is given.
        """
        if (input_amax is None) == (activations is None):
            raise ValueError(
                "fp4aot.nn.NVFP4Linear.from_linear: pass either input_amax or activations: the "
                "layer's inputs are quantized with a fixed range"
            )
        weight = linear.weight.detach()
        if weight.dtype != torch.float16:
            weight = weight.to(torch.bfloat16)
        layer = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            weight.device,
            weight.dtype if dtype is None else dtype,
        )
        amax = torch.as_tensor(input_amax) if activations is None else _amax(activations)
        layer.input_scale.copy_(_scale_of(amax.detach().reshape(()).to(weight.device)))
        layer.weight_scale_2.copy_(_scale_of(_amax(weight)))
        values, block_scales = torch.ops.fp4aot.fp4_quantize.default(
            weight.contiguous(), 1 / layer.weight_scale_2, is_sf_swizzled_layout=False
        )
        layer.weight.copy_(values)
        layer.weight_scale.view(torch.uint8).copy_(block_scales)
        if layer.bias is not None:
            layer.bias.copy_(linear.bias.detach())
        layer.prepare()
        return layer.train(linear.training)

    def extra_repr(self) -> str:
        """Say what the printed model shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, dtype={self.dtype}"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        def keep_dtype(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Bring a checkpoint's tensors to this layer's dtypes and shapes, load and prepare them."""
        error_messages: list[str] = arguments[-1]
        for name, accepted in _CHECKPOINT_DTYPES.items():
            tensor = state_dict.get(prefix + name)
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.dtype not in accepted:
                expected = " or ".join(str(dtype) for dtype in accepted)
                error_messages.append(
                    f"{prefix}{name}: got dtype {tensor.dtype}, expected {expected}; is this layer "
                    "NVFP4 in the checkpoint?"
                )
            elif name in ("weight_scale_2", "input_scale") and tensor.numel() != 1:
                error_messages.append(
                    f"{prefix}{name}: got shape {list(tensor.shape)}, expected one element; load "
                    "the parts of a fused layer one by one"
                )
            elif tensor.dtype != accepted[0]:
                state_dict[prefix + name] = tensor.view(accepted[0])
        if isinstance(bias := state_dict.get(prefix + "bias"), torch.Tensor):
            state_dict[prefix + "bias"] = bias.to(self.dtype)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.prepare()


@contextmanager
def record_input_amax(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Record the largest magnitude of each linear layer's inputs while sample inputs run.

    Parameters
    ----------
    model
        Run it on sample inputs, uncompiled, inside the `with` block.

    Yields
    ------
    dict
        float32 scalars by the layers' names. Without layers that did not run, and those whose sizes
        NVFP4 cannot take (multiples of 32).

    Examples
    --------
    >>> with record_input_amax(model) as amax:
    ...     model(sample)
    >>> replace_linears(model, amax)
    """
    amax: dict[str, torch.Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and _fits(module):
            handles.append(
                module.register_forward_pre_hook(_recorder(name, amax), with_kwargs=True)
            )
    try:
        yield amax
    finally:
        for handle in handles:
            handle.remove()


def replace_linears(model: torch.nn.Module, input_amax: Mapping[str, float | torch.Tensor]) -> None:
    """Replace linear layers of a model by `NVFP4Linear`, in place.

    Parameters
    ----------
    model
        Contains the layers; it cannot be one itself.
    input_amax
        Largest input magnitude by layer name, as `record_input_amax` gives it. Only these layers
        are replaced: remove what should stay as it is (often `lm_head`).

    Raises
    ------
    ValueError
        A name is not that of a linear layer in the model, or its sizes are not multiples of 32.
    """
    linears = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if name and isinstance(module, torch.nn.Linear)
    }
    if unknown := [name for name in input_amax if name not in linears]:
        raise ValueError(
            f"fp4aot.nn.replace_linears: not a torch.nn.Linear inside the model: {unknown}; pass "
            "names as model.named_modules() gives them"
        )
    replacements: dict[torch.nn.Module, NVFP4Linear] = {
        linears[name]: NVFP4Linear.from_linear(linears[name], amax)
        for name, amax in input_amax.items()
    }
    # Everywhere it occurs: several parents may share a layer.
    for parent in list(model.modules()):
        for child_name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[child_name] = replacements[child]


def _recorder(
    name: str, amax: dict[str, torch.Tensor]
) -> Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def record(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        seen = _amax((arguments[0] if arguments else keywords["input"]).detach())
        amax[name] = torch.maximum(amax[name], seen) if name in amax else seen

    return record


def _fits(linear: torch.nn.Linear) -> bool:
    return linear.in_features % _MULTIPLE == 0 and linear.out_features % _MULTIPLE == 0


def _amax(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude as a float32 scalar, 0 for an empty tensor."""
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    return tensor.abs().amax().to(torch.float32)


def _scale_of(amax: torch.Tensor) -> torch.Tensor:
    """Return the scale with which values up to `amax` fill the range."""
    return _usable(amax / _RANGE)


def _usable(scale: torch.Tensor) -> torch.Tensor:
    """Replace a scale that has no reciprocal by 1.

    That of a layer whose weight is zero, or that was calibrated with nothing but zeros: 1 lets
    inputs up to 2688 pass.
    """
    return torch.where(scale < _SMALLEST_NORMAL, 1.0, scale)
