"""`NVFP4Linear`: a linear layer with NVFP4 weights and inputs."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import _layouts
from fp4aot.gemm import fp4_linear
from fp4aot.nn import checkpoint
from fp4aot.nn.prepared import Prepared
from fp4aot.nn.ranges import BLOCK, MULTIPLE, amax_of, scale_of, usable
from fp4aot.operators.arithmetic import scales


class NVFP4Linear(Prepared):
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
            if size <= 0 or size % MULTIPLE != 0:
                raise ValueError(
                    f"fp4aot.nn.NVFP4Linear: {name}={size} is not a positive multiple of "
                    f"{MULTIPLE}; pad the layer with zeros, or leave it as it is"
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
        scale_bytes = zeros(out_features, in_features // BLOCK, dtype=torch.uint8)
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

    def prepare(self) -> None:
        """Make what the kernels read of what checkpoints hold.

        Writes into the tensors that are there, so that a captured CUDA graph stays valid when a
        layer is loaded again.
        """
        if self.input_scale.device != self.weight_scale_2.device:
            return  # A part of the layer is on the meta device still, and is loaded later.
        super().prepare()

    def _prepared(self) -> dict[str, torch.Tensor]:
        input_scale = usable(self.input_scale).reshape(1)
        scale_bytes = self.weight_scale.view(torch.uint8)
        return {
            "swizzled_weight_scale": scales.arrange(scale_bytes, _layouts.SfLayout.layout_128x4),
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
        amax = torch.as_tensor(input_amax) if activations is None else amax_of(activations)
        layer.input_scale.copy_(scale_of(amax.detach().reshape(()).to(weight.device)))
        layer.weight_scale_2.copy_(scale_of(amax_of(weight)))
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

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Bring a checkpoint's tensors to this layer's dtypes and shapes, load and prepare them."""
        error_messages: list[str] = arguments[-1]
        for name, dtypes in checkpoint.DTYPES.items():
            tensor = state_dict.get(prefix + name)
            if not isinstance(tensor, torch.Tensor):
                continue
            if refusal := checkpoint.refusal(name, tensor):
                error_messages.append(f"{prefix}{name}: {refusal}")
            elif tensor.dtype != dtypes[0]:
                state_dict[prefix + name] = tensor.view(dtypes[0])
        if isinstance(bias := state_dict.get(prefix + "bias"), torch.Tensor):
            state_dict[prefix + "bias"] = bias.to(self.dtype)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.prepare()
