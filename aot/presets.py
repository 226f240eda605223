"""What can be built by name: selections of the catalogue's modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from aot.catalog import MODULES, Module


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


def for_architectures(
    modules: Iterable[Module], architectures: Collection[str]
) -> tuple[Module, ...]:
    """Leave only some targets, and the modules that still have one."""
    return tuple(
        replace(module, architectures=kept)
        for module in modules
        if (kept := tuple(name for name in module.architectures if name in architectures))
    )


def _modules(pattern: str, *architectures: str) -> tuple[Module, ...]:
    """Take the modules whose names fit a pattern, with those of the targets that they have."""
    found = (module for module in MODULES if fnmatchcase(module.name, pattern))
    return for_architectures(found, architectures)


def _without_fp4_instructions(*architectures: str) -> tuple[Module, ...]:
    """Take the modules that an older GPU can run too."""
    found = (module for module in MODULES if not module.needs_fp4_instructions)
    return for_architectures(found, architectures)


def _dense(*architectures: str) -> tuple[Module, ...]:
    found = (
        module
        for module in MODULES
        if fnmatchcase(module.name, "fp4_*") or not module.needs_fp4_instructions
    )
    return for_architectures(found, ("9.0a", *architectures))


def _experts(*architectures: str) -> tuple[Module, ...]:
    return _modules("fused_moe_*", *architectures)


def _grouped(*architectures: str) -> tuple[Module, ...]:
    return _modules("gemm_*", *architectures)


_LOWERED: Final = (
    *_modules("fp4_quantization_*", "10.0a"),
    *_modules("fp4_kv_quant", "10.0a"),
    *_without_fp4_instructions("9.0a"),
    *_modules("fp4_gemm_*", "12.0f"),
)

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                "quick",
                "FP4 quantization for 12.0f; KV dequantization and append for 9.0a and 12.0f",
                (
                    *_modules("fp4_quantization_*", "12.0f"),
                    *_without_fp4_instructions("9.0a", "12.0f"),
                ),
            ),
            Preset(
                "dense-12.0f",
                "quantization, KV cache and GEMM for 12.0f (RTX PRO 6000, RTX 50, DGX Spark); "
                "KV dequantization and append also for 9.0a",
                _dense("12.0f"),
            ),
            Preset(
                "dense-12.1a",
                "quantization, KV cache and GEMM for 12.1a (DGX Spark alone); "
                "KV dequantization and append also for 9.0a",
                _dense("12.1a"),
            ),
            Preset(
                "dense",
                "quantization, KV cache and GEMM for every Blackwell: 10.0a, 10.3a, 11.0a and "
                "12.0f; KV dequantization and append also for 9.0a",
                _dense("10.0a", "10.3a", "11.0a", "12.0f"),
            ),
            Preset(
                "moe-12.0f",
                "quantization, KV cache, GEMM and mixture of experts for 12.0f (RTX PRO 6000, "
                "RTX 50, DGX Spark); KV dequantization and append also for 9.0a",
                (*_dense("12.0f"), *_experts("12.0f")),
            ),
            Preset(
                "moe-12.1a",
                "quantization, KV cache, GEMM and mixture of experts for 12.1a (DGX Spark alone); "
                "KV dequantization and append also for 9.0a",
                (*_dense("12.1a"), *_experts("12.1a")),
            ),
            Preset(
                "group-gemm-12.0f",
                "quantization, KV cache, GEMM and grouped GEMM for 12.0f (RTX PRO 6000, RTX 50, "
                "DGX Spark); KV dequantization and append also for 9.0a",
                (*_dense("12.0f"), *_grouped("12.0f")),
            ),
            Preset(
                "full",
                "quantization, KV cache, GEMM, mixture of experts and grouped GEMM for every "
                "Blackwell: 10.0a, 10.3a, 11.0a and 12.0f (no grouped GEMM for 11.0a); KV "
                "dequantization and append also for 9.0a",
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
                (*_LOWERED, *_experts("12.0f")),
                lowered=True,
            ),
            Preset(
                "lowered-group-gemm",
                "TEST ONLY, runs on Hopper (9.0) alone: quantization and KV quantization of 10.0a "
                "and GEMM and grouped GEMM of 12.0f, lowered to 9.0a",
                (*_LOWERED, *_grouped("12.0f")),
                lowered=True,
            ),
        )
    }
)
