"""Quantizes a real model's weights and runs one of its linear layers, compiled."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

import fp4aot
from fp4aot.nn import NVFP4Linear
from fp4aot.nn.ranges import BLOCK, MULTIPLE

# NVFP4 of bell-shaped weights has a relative error of 0.09 to 0.1; other weights differ somewhat.
_PLAUSIBLE = (0.05, 0.15)


@dataclass(frozen=True)
class LayerError:
    """Quantization error of one layer.

    Parameters
    ----------
    name
        The tensor's name in the checkpoint.
    shape
        Rows and columns.
    relative_error
        Norm of the difference over norm of the original.
    """

    name: str
    shape: tuple[int, ...]
    relative_error: float


@dataclass(frozen=True)
class ModelReport:
    """Errors of a whole model, and of one layer's output.

    Parameters
    ----------
    source
        The file.
    layers
        Every two-dimensional weight whose columns divide into blocks.
    output_error
        Relative error of one compiled linear layer's output against the original layer's.
    output_layer
        Which layer that was.
    """

    source: str
    layers: tuple[LayerError, ...]
    output_layer: str
    output_error: float

    @property
    def mean_error(self) -> float:
        """Average of the layers' errors."""
        return sum(layer.relative_error for layer in self.layers) / len(self.layers)

    @property
    def ok(self) -> bool:
        """Whether every error is one that NVFP4 can have."""
        low, high = _PLAUSIBLE
        errors = [layer.relative_error for layer in self.layers]
        # An output sums the errors of activations and weights: about sqrt(2) times one of them.
        return all(low < error < high for error in errors) and low < self.output_error < 2 * high


def global_scale(tensor: torch.Tensor) -> torch.Tensor:
    """Return the scale that uses the whole range of E4M3 (448) and E2M1 (6)."""
    return (448 * 6 / tensor.abs().amax().float()).reshape(1)


def find_weights(name: str) -> Path:
    """Find a checkpoint: a file, or the one inside an installed package.

    Raises
    ------
    FileNotFoundError
        When it is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    if name.isidentifier():
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for found in sorted(Path(folder).rglob("*.safetensors")):
                return found
    raise FileNotFoundError(
        f"--weights {name}: neither a .safetensors file nor an installed package that contains one"
    )


def examine(name: str) -> ModelReport:
    """Quantize every weight of a model on the CPU and run one layer of it compiled.

    Raises
    ------
    FileNotFoundError
        When there is no such checkpoint.
    ModuleNotFoundError
        When the package ``safetensors`` is not installed.
    """
    from safetensors import safe_open  # noqa: PLC0415 (not a dependency of this package)

    path = find_weights(name)
    layers = []
    largest: tuple[str, torch.Tensor] | None = None
    with safe_open(path, framework="pt") as checkpoint:
        for key in sorted(checkpoint.keys()):
            weight = checkpoint.get_tensor(key).float()
            if weight.dim() != 2 or weight.shape[1] % BLOCK or "embedding" in key:
                continue
            layers.append(LayerError(key, tuple(weight.shape), weight_error(weight)))
            if weight.shape[0] % MULTIPLE or weight.shape[1] % MULTIPLE:
                continue
            if largest is None or weight.numel() > largest[1].numel():
                largest = (key, weight)
    if largest is None:
        raise FileNotFoundError(
            f"{path} contains no weight matrix with rows and columns divisible by {MULTIPLE}"
        )
    return ModelReport(path.name, tuple(layers), largest[0], output_error(largest[1]))


def weight_error(weight: torch.Tensor) -> float:
    """Relative error of a weight after quantization and dequantization."""
    scale = global_scale(weight)
    values, block_scales = fp4aot.nvfp4_quantize(weight.to(torch.bfloat16), scale)
    restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(values, block_scales, 1 / scale)
    return float((restored - weight).norm() / weight.norm())


def output_error(weight: torch.Tensor, rows: int = 77) -> float:
    """Relative error of a compiled quantized layer's output, on Gaussian activations."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, weight.shape[1], generator=generator).to(torch.bfloat16)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer = torch.compile(
        NVFP4Linear.from_linear(linear, activations=x),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    exact = x.float() @ weight.t()
    return float((layer(x) - exact).norm() / exact.norm())
