"""What can be built by name: selections of the catalogue's modules.

Data, no logic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from aot.catalog import (
    GEMM_ARCHITECTURES,
    GROUP_GEMM_ARCHITECTURES,
    MOE_ARCHITECTURES,
    Module,
    gemm,
    group_gemm,
    kv_dequantization,
    kv_quantization,
    moe,
    quantization,
)


@dataclass(frozen=True)
class Preset:
    """A named selection of modules.

    Parameters
    ----------
    name, description
        What people choose it by.
    modules
        What is in it.
    lowered
        Whether its machine code is for Hopper, made of Blackwell's PTX by `aot.lowering`: to test
        the kernels, never to ship them.
    """

    name: str
    description: str
    modules: tuple[Module, ...]
    lowered: bool = False

    @property
    def targets(self) -> frozenset[str]:
        """Every target that some module of it is compiled for."""
        return frozenset(name for module in self.modules for name in module.architectures)


def _dense(*architectures: str) -> tuple[Module, ...]:
    """Every module of the dense path for some targets."""
    return (
        *(quantization(name) for name in architectures),
        kv_quantization(*architectures),
        # Its kernels need no FP4 instruction: a Hopper reads an FP4 KV cache too.
        kv_dequantization("9.0a", *architectures),
        *_in_groups(gemm, GEMM_ARCHITECTURES, architectures),
    )


def _experts(*architectures: str) -> tuple[Module, ...]:
    """Every module of mixtures of experts for some targets."""
    return _in_groups(moe, MOE_ARCHITECTURES, architectures)


def _grouped(*architectures: str) -> tuple[Module, ...]:
    """Every module of grouped GEMMs for some targets."""
    return _in_groups(group_gemm, GROUP_GEMM_ARCHITECTURES, architectures)


def _in_groups(
    make: Callable[..., Module],
    groups: Mapping[str, tuple[str, ...]],
    architectures: tuple[str, ...],
) -> tuple[Module, ...]:
    chosen = {
        kernels: tuple(name for name in architectures if name in targets)
        for kernels, targets in groups.items()
    }
    return tuple(make(kernels, *targets) for kernels, targets in chosen.items() if targets)


_LOWERED: Final = (
    quantization("10.0a"),
    kv_quantization("10.0a"),
    kv_dequantization("9.0a"),
    gemm("sm120", "12.0f"),
)

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                "quick",
                "FP4 quantization for 12.0f; KV dequantization for 9.0a and 12.0f",
                (quantization("12.0f"), kv_dequantization("9.0a", "12.0f")),
            ),
            Preset(
                "dense-12.0f",
                "quantization, KV cache and GEMM for 12.0f (RTX PRO 6000, RTX 50, DGX Spark); "
                "KV dequantization also for 9.0a",
                _dense("12.0f"),
            ),
            Preset(
                "dense-12.1a",
                "quantization, KV cache and GEMM for 12.1a (DGX Spark alone); "
                "KV dequantization also for 9.0a",
                _dense("12.1a"),
            ),
            Preset(
                "dense",
                "quantization, KV cache and GEMM for every Blackwell: 10.0a, 10.3a, 11.0a and "
                "12.0f; KV dequantization also for 9.0a",
                _dense("10.0a", "10.3a", "11.0a", "12.0f"),
            ),
            Preset(
                "moe-12.0f",
                "quantization, KV cache, GEMM and mixture of experts for 12.0f (RTX PRO 6000, "
                "RTX 50, DGX Spark); KV dequantization also for 9.0a",
                (*_dense("12.0f"), *_experts("12.0f")),
            ),
            Preset(
                "moe-12.1a",
                "quantization, KV cache, GEMM and mixture of experts for 12.1a (DGX Spark alone); "
                "KV dequantization also for 9.0a",
                (*_dense("12.1a"), *_experts("12.1a")),
            ),
            Preset(
                "group-gemm-12.0f",
                "quantization, KV cache, GEMM and grouped GEMM for 12.0f (RTX PRO 6000, RTX 50, "
                "DGX Spark); KV dequantization also for 9.0a",
                (*_dense("12.0f"), *_grouped("12.0f")),
            ),
            Preset(
                "full",
                "quantization, KV cache, GEMM, mixture of experts and grouped GEMM for every "
                "Blackwell: 10.0a, 10.3a, 11.0a and 12.0f (no grouped GEMM for 11.0a); KV "
                "dequantization also for 9.0a",
                (
                    *_dense("10.0a", "10.3a", "11.0a", "12.0f"),
                    *_experts("10.0a", "10.3a", "11.0a", "12.0f"),
                    *_grouped("10.0a", "10.3a", "11.0a", "12.0f"),
                ),
            ),
            Preset(
                "lowered",
                "TEST ONLY, runs on Hopper (9.0) alone: quantization and KV quantization of 10.0a "
                "and GEMM of 12.0f, lowered to 9.0a",
                _LOWERED,
                lowered=True,
            ),
            Preset(
                "lowered-moe",
                "TEST ONLY, runs on Hopper (9.0) alone: quantization and KV quantization of 10.0a "
                "and GEMM and mixture of experts of 12.0f, lowered to 9.0a",
                (*_LOWERED, moe("120", "12.0f")),
                lowered=True,
            ),
            Preset(
                "lowered-group-gemm",
                "TEST ONLY, runs on Hopper (9.0) alone: quantization and KV quantization of 10.0a "
                "and GEMM and grouped GEMM of 12.0f, lowered to 9.0a",
                (*_LOWERED, group_gemm("sm120", "12.0f")),
                lowered=True,
            ),
        )
    }
)
