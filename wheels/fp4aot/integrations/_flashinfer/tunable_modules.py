"""What stands for the compiled modules among whose kernels FlashInfer's autotuner chooses.

FlashInfer's Python asks for the description of a module, builds and loads it, and calls what it
exports. Here the description loads functions that call the wheel's operators. Everything above is
FlashInfer's own in each of its releases: the runners, what the autotuner's caches know them by, and
the order in which the two products of a mixture of experts are tuned.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import torch

from fp4aot import _recipes, fused_moe
from fp4aot.integrations._flashinfer import moe, tuning
from fp4aot.integrations._flashinfer.call import Context, Function

_FROM_ENVIRONMENT = -1
_FUSED_FINALIZE = 4
"""Which of the flags that `init` of FlashInfer's module takes after the dtypes, from 0.6.18 on."""
_CYCLES_PER_MICROSECOND = 2000
"""Of the fastest GPUs; slower ones wait a little longer."""
_BEFORE_FLAG = 13
"""Arguments of `run_moe` before those that only some releases of FlashInfer have."""


class _Description:
    """FlashInfer's description of a module, but for what it loads.

    Parameters
    ----------
    make
        Makes FlashInfer's own.
    module
        What is loaded in place of the compiled module.
    """

    def __init__(self, make: Callable[[], Any], module: object) -> None:
        self._make = functools.cache(make)
        self._module = module

    def build_and_load(self) -> object:
        return self._module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def matmul(original: Function, context: Context) -> Function:
    """Make the replacement of a `gen_gemm_sm…_module_cutlass_fp4`."""

    def fp4_gemm(
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        alpha: torch.Tensor,
        out: torch.Tensor,
        workspace: torch.Tensor,
        tactic: int,
    ) -> None:
        # FlashInfer has transposed the weight and its scales for its own module.
        operator = torch.ops.fp4aot.mm_fp4.out
        operator(a, b.T, a_descale, b_descale.T, alpha, tactic, out=out)

    def fp4_gemm_tactic_num() -> int:
        major, minor = torch.cuda.get_device_capability()
        return int(torch.ops.fp4aot._mm_fp4_tactic_count(major, minor))

    module = SimpleNamespace(fp4_gemm=fp4_gemm, fp4_gemm_tactic_num=fp4_gemm_tactic_num)
    return lambda *arguments: _Description(lambda: original(*arguments), module)


def utilities(original: Function, context: Context) -> Function:
    """Make the replacement of `gen_trtllm_utils_module`, which needs no kernel of FlashInfer's.

    The autotuner lets the device wait before it times a kernel, so that the host is ahead of it.
    """
    sleep: Function = torch.cuda._sleep

    def delay_kernel(microseconds: int) -> None:
        sleep(microseconds * _CYCLES_PER_MICROSECOND)

    module = SimpleNamespace(delay_kernel=delay_kernel)
    return lambda *arguments: _Description(lambda: original(*arguments), module)


def mixture(original: Function, context: Context) -> Function:
    """Make the replacement of a `gen_cutlass_fused_moe_sm…_module`.

    The module also has the kernels of other weights than NVFP4: for those, FlashInfer's own module
    is built and loaded when a call asks for one.
    """
    activations = moe.activation_numbers(sys.modules["flashinfer.fused_moe.core"].cutlass_fused_moe)

    def generate(*arguments: Any) -> _Description:
        def make() -> Any:
            return original(*arguments)

        return _Description(make, _MixtureModule(lambda: make().build_and_load(), activations))

    return generate


class _MixtureModule:
    """The module of FlashInfer's mixtures of experts, of which NVFP4's runners are the wheel's.

    Parameters
    ----------
    load
        Builds and loads FlashInfer's own.
    activations
        The operator's number of an activation by FlashInfer's.
    """

    def __init__(self, load: Callable[[], Any], activations: Mapping[int, int]) -> None:
        self._load = functools.cache(load)
        self._activations = activations
        self._include_folders: list[str] = []

    def set_deepgemm_jit_include_dirs(self, folders: list[str]) -> None:
        self._include_folders = folders

    def init(
        self,
        x_dtype: torch.dtype,
        weight_dtype: torch.dtype,
        output_dtype: torch.dtype,
        *flags: bool,
    ) -> Any:
        def make() -> Any:
            module = self._load()
            module.set_deepgemm_jit_include_dirs(self._include_folders)
            return module.init(x_dtype, weight_dtype, output_dtype, *flags)

        others = (*flags[:_FUSED_FINALIZE], *flags[_FUSED_FINALIZE + 1 :])
        if not moe.are_nvfp4(x_dtype, weight_dtype, output_dtype) or any(others):
            return make()
        fused = flags[_FUSED_FINALIZE] if len(flags) > _FUSED_FINALIZE else True
        return _MixtureRunner(x_dtype, output_dtype, fused, self._activations, make)

    def __getattr__(self, name: str) -> Function:
        # Not what is there now: FlashInfer asks for functions that it may never call.
        def function(*arguments: Any) -> Any:
            return getattr(self._load(), name)(*arguments)

        return function


class _MixtureRunner:
    """A runner of FlashInfer's module, for NVFP4, with the wheel's kernels.

    Parameters
    ----------
    x_dtype, output_dtype, fused_finalize
        What the runner was made for.
    activations
        The operator's number of an activation by FlashInfer's.
    make
        Makes FlashInfer's own runner, for the calls that the operator does not take.
    """

    def __init__(
        self,
        x_dtype: torch.dtype,
        output_dtype: torch.dtype,
        fused_finalize: bool,
        activations: Mapping[int, int],
        make: Callable[[], Any],
    ) -> None:
        self._x_dtype = x_dtype
        self._output_dtype = output_dtype
        self._fused = fused_finalize
        self._activations = activations
        self._make = functools.cache(make)

    def __getattr__(self, name: str) -> Function:
        def function(*arguments: Any) -> Any:
            return getattr(self._make(), name)(*arguments)

        return function

    def get_gemm1_tactic_count(self) -> int:
        return self._count(1)

    def get_gemm2_tactic_count(self) -> int:
        return self._count(2)

    def get_tactic_num(self) -> int:
        return self._count(1) + self._count(2)

    def get_tactic_occupancy(self, tactic: int) -> int:
        gemm, own = self._own(tactic)
        device = torch.cuda.current_device()
        occupancy = torch.ops.fp4aot._cutlass_fused_moe_tactic_occupancy
        return int(occupancy(gemm, own, self._fused, device))

    def run_gemm_profile(
        self,
        x: torch.Tensor,
        fc1_expert_weights: torch.Tensor,
        fc1_expert_biases: torch.Tensor | None,
        fc2_expert_weights: torch.Tensor,
        fc2_expert_biases: torch.Tensor | None,
        top_k: int,
        tp_size: int,
        tp_rank: int,
        ep_size: int,
        ep_rank: int,
        *rest: Any,
    ) -> None:
        cluster_size, _, alltoall, min_latency, gemm, tactic, prepare, pdl, activation = rest
        if min_latency or cluster_size != 1 or int(activation) not in self._activations:
            self._make().run_gemm_profile(
                *(x, fc1_expert_weights, fc1_expert_biases, fc2_expert_weights, fc2_expert_biases),
                *(top_k, tp_size, tp_rank, ep_size, ep_rank, *rest),
            )
            return
        weights, biases = (
            (fc1_expert_weights, fc1_expert_biases)
            if gemm == 1
            else (fc2_expert_weights, fc2_expert_biases)
        )
        experts, hidden_size, words = fc2_expert_weights.shape
        torch.ops.fp4aot._cutlass_fused_moe_profile(
            weights,
            gemm,
            tactic if tactic < 0 else self._own(tactic)[1],
            prepare,
            x.shape[0],
            hidden_size,
            # An int64 has 16 values.
            words * 16,
            experts * ep_size,
            top_k,
            tp_size,
            tp_rank,
            ep_size,
            ep_rank,
            self._activations[int(activation)],
            alltoall,
            biases is not None,
            self._output_dtype == torch.bfloat16,
            self._is_quantized,
            self._fused,
            pdl,
        )

    def run_moe(self, *arguments: Any) -> None:
        first, rest = arguments[:_BEFORE_FLAG], arguments[_BEFORE_FLAG:]
        # Parameters of activations that the operator does not have stand before the first flag.
        others = list(takewhile(lambda value: not isinstance(value, bool), rest))
        swizzled, *parallel, alltoall, _, tactics, pdl, activation = rest[len(others) :][:12]
        workspace, recipe, *_ = (*rest[len(others) + 12 :], None, None)
        tp_size, tp_rank, ep_size, ep_rank, cluster_size, _ = parallel
        fc2_expert_weights = first[6]
        if (
            any(value is not None for value in others)
            or cluster_size != 1
            or int(activation) not in self._activations
            or recipe not in (None, _FROM_ENVIRONMENT, _recipes.STANDARD)
            or not moe.fits(fc2_expert_weights)
        ):
            self._make().run_moe(*arguments)
            return
        output, x, experts, weights, fc1_expert_weights, fc1_biases, _, fc2_biases = first[:8]
        # In the order of `MoERunner.get_cache_key_extras`; what is other than NVFP4 is off.
        key = (x.shape[1:], fc1_expert_weights.shape, fc2_expert_weights.shape)
        dtypes = (x.dtype, fc1_expert_weights.dtype, output.dtype)
        tuning.state.mixtures[key] = (*dtypes, experts.shape[1], *(False,) * 12, self._fused)
        fused_moe.cutlass_fused_moe(
            x,
            experts,
            weights,
            fc1_expert_weights,
            fc2_expert_weights,
            output.dtype,
            first[8],
            fc1_expert_biases=fc1_biases,
            fc2_expert_biases=fc2_biases,
            input_sf=first[9],
            swiglu_alpha=first[10],
            swiglu_beta=first[11],
            swiglu_limit=first[12],
            tp_size=tp_size,
            tp_rank=tp_rank,
            ep_size=ep_size,
            ep_rank=ep_rank,
            output=output,
            enable_alltoall=alltoall,
            enable_pdl=pdl,
            activation_type=self._activations[int(activation)],
            swizzled_input_sf=swizzled,
            use_fused_finalize=self._fused,
            profile_ids=tactics,
            workspace_buffer=workspace,
        )

    @property
    def _is_quantized(self) -> bool:
        return self._x_dtype not in moe.OUTPUTS

    def _count(self, gemm: int) -> int:
        count = torch.ops.fp4aot._cutlass_fused_moe_tactic_count
        return int(count(gemm, self._fused, torch.cuda.current_device()))

    def _own(self, tactic: int) -> tuple[int, int]:
        """Return the product of a tactic, and the tactic's position among those of the product."""
        first = self._count(1)
        return (1, tactic) if tactic < first else (2, tactic - first)
