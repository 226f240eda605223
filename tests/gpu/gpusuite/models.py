"""Small models of NVFP4 layers, drawn by seed."""

from __future__ import annotations

import itertools

import torch

import fp4aot


def layer(
    k: int, n: int, dtype: torch.dtype, device: str, seed: int = 0, bias: bool = True
) -> fp4aot.nn.NVFP4Linear:
    """One layer, quantized on the device."""
    generator = torch.Generator().manual_seed(seed)
    linear = torch.nn.Linear(k, n, bias=bias).requires_grad_(False)
    linear.weight.copy_(torch.randn(n, k, generator=generator) / k**0.5)
    if bias:
        linear.bias.copy_(torch.randn(n, generator=generator))
    return fp4aot.nn.NVFP4Linear.from_linear(linear.to(device, dtype), 6.0)


class Block(torch.nn.Module):
    """Two linear layers around a ReLU, and a residual connection of its own rounding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def model(width: int, layers: int, seed: int = 0) -> torch.nn.Sequential:
    """A stack of blocks in bfloat16, not quantized."""
    torch.manual_seed(seed)
    blocks = torch.nn.Sequential(*(Block(width) for _ in range(layers)))
    return blocks.requires_grad_(False).bfloat16()


class Stack(torch.nn.Module):
    """Three NVFP4 layers with ReLUs: compiled and eager round alike, so bits can be compared.

    (A compiler that fuses two roundings of bfloat16 into one would make a residual differ.)
    """

    def __init__(self, widths: tuple[int, ...] = (256, 384, 512, 96), device: str = "cuda") -> None:
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.layers = torch.nn.ModuleList(
            layer(k, n, torch.bfloat16, device, seed=k + n, bias=False) for k, n in pairs
        )
        self.width = widths[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.layers:
            x = torch.relu(each(x))
        return x

    def inputs(self, rows: int, seed: int = 0) -> torch.Tensor:
        """Draw an input on the GPU."""
        generator = torch.Generator("cuda").manual_seed(seed)
        return torch.randn(rows, self.width, generator=generator, device="cuda").bfloat16()
