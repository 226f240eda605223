"""Bring up SGLang's own package from its wheel, as far as a machine without its needs allows.

What is SGLang's own runs as it is: ``utils.common``, ``utils.custom_op``, ``environ``, ``plugins``,
``platforms``, ``runtime_context``, ``compilation`` with all of its passes, the context managers of
piecewise and breakable graphs, ``layers.quantization.fp4_utils`` and ``modelopt_quant``, and what
those import (78 modules of 0.5.11, 286 of 0.5.21). What is not:

*Bare packages* (a path and no code), because their ``__init__`` imports the whole server:
    ``sglang``, ``sglang.srt``, ``sglang.srt.layers.quantization``.

*Placeholders* (`placeholders`), packages that are mentioned and never used on this path:
    the third-party ones of `THIRD_PARTY`, which are not installed here; and of SGLang's own those
    of `OF_SGLANG`, which describe models for Hugging Face's transformers or serve requests.

*Replaced*, each for a reason:
    ``weak_ref_tensor`` returns its argument: the real one is in ``sgl_kernel``, compiled for
    another torch. Captured outputs stay alive for longer, at the same addresses.
    ``torch.cuda.is_available`` is False while the package is imported, also where there is a GPU:
    otherwise it imports ``sgl_kernel`` and the kernels of other vendors.
    ``is_sm120_supported`` is True and the platform's ``is_sm120`` and ``is_blackwell``, because
    12.x is where SGLang calls FlashInfer as it does; no GPU here is one.
    ``direct_register_custom_op`` also registers what it is given for CPU tensors, where SGLang
    registers for CUDA alone.
    The FP4 GEMM's backend is set to ``flashinfer_cutlass``, as ``--fp4-gemm-backend`` does: the
    automatic choice of 0.5.11 on 12.x is cuDNN, which is not here.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch.utils._triton

from integrations.placeholders import Placeholders

BARE = ("sglang", "sglang.srt", "sglang.srt.layers.quantization")
THIRD_PARTY = (
    *("IPython", "PIL", "huggingface_hub", "openai", "orjson", "partial_json_parser", "psutil"),
    *("pybase64", "pydantic", "pydantic_core", "regex", "safetensors", "starlette", "torchvision"),
    *("transformers", "zmq"),
)
OF_SGLANG = (
    *("sglang.srt.configs", "sglang.srt.connector", "sglang.srt.function_call"),
    *("sglang.srt.lora", "sglang.srt.parser", "sglang.srt.utils.hf_transformers"),
    "sglang.srt.utils.hf_transformers_utils",
)
# What all of this is for.
REAL = (
    "sglang/srt/compilation/backend.py",
    "sglang/srt/compilation/compile.py",
    "sglang/srt/compilation/cuda_piecewise_backend.py",
    "sglang/srt/layers/quantization/fp4_utils.py",
    "sglang/srt/layers/quantization/modelopt_quant.py",
    "sglang/srt/plugins/__init__.py",
    "sglang/srt/utils/common.py",
)
_WEAK_REF = (
    "sglang.srt.compilation.weak_ref_tensor",
    "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor",
)


@dataclass(frozen=True)
class SGLang:
    """SGLang's own functions, by what they are for. Names differ between versions.

    Parameters
    ----------
    version
        Of the wheel.
    placeholders
        What stood in.
    """

    version: str
    placeholders: Placeholders

    def module(self, name: str) -> types.ModuleType:
        """Import one of its modules, without the leading ``sglang.srt``."""
        with _no_gpu():
            return importlib.import_module(f"sglang.srt.{name}")

    @property
    def load_plugins(self) -> Callable[[], None]:
        return self.module("plugins").load_plugins

    @property
    def install_torch_compiled(self) -> Callable[..., Any]:
        return self.module("compilation.compile").install_torch_compiled

    def compilation_config(self, sizes: list[int], split_operators: tuple[str, ...]) -> Any:
        config = self.module("compilation.compilation_config").CompilationConfig(sizes)
        for name in split_operators:
            config.add_split_op(name)
        return config

    @property
    def counter(self) -> Any:
        return self.module("compilation.compilation_counter").compilation_counter

    def piecewise(self) -> AbstractContextManager[None]:
        """Enter what the graph runner is in while it compiles, captures and replays."""
        if self._is_old:
            return self._contexts.enable_piecewise_cuda_graph()
        return self._tc_piecewise.enable_tc_piecewise_cuda_graph()

    def compiling(self) -> AbstractContextManager[None]:
        """Enter what it is in while it compiles each size, before it captures."""
        if self._is_old:
            return self._contexts.enable_piecewise_cuda_graph_compile()
        return self.module("compilation.compile_phase").enable_torch_compile_warmup()

    def capturing(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """Enter what it is in while it captures."""
        owner = self._contexts if self._is_old else self.module("compilation.compile_phase")
        return owner.set_pcg_capture_stream(stream)

    def linear_method(self) -> Any:
        """Return SGLang's method of an NVFP4 linear layer, whose `apply` is called."""
        module = self.module("layers.quantization.modelopt_quant")
        method = object.__new__(module.ModelOptFp4LinearMethod)
        method.quant_mode = "w4a4"
        method.quant_config = types.SimpleNamespace(is_awq=False, group_size=16)
        return method

    def not_listed(self) -> list[str]:
        """List what is not as this module says: a stranger among placeholders, or not the real one.

        Both are found in what was imported, not in what was meant.
        """
        allowed = (*THIRD_PARTY, "triton", *OF_SGLANG)
        strangers = [
            name
            for name in sorted(self.placeholders.used)
            if not any(name == one or name.startswith(f"{one}.") for one in allowed)
        ]
        files = set(self.files())
        return strangers + [f"not imported: {name}" for name in REAL if name not in files]

    def files(self) -> list[str]:
        """List the files that were imported, relative to the wheel's folder."""
        root = Path(sys.modules["sglang"].__path__[0]).parent.resolve()
        paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        found = {Path(path).resolve() for path in paths if path}
        return sorted(str(p.relative_to(root)) for p in found if p.is_relative_to(root))

    @property
    def _is_old(self) -> bool:
        root = Path(sys.modules["sglang.srt"].__path__[0])
        return (root / "compilation" / "piecewise_context_manager.py").is_file()

    @property
    def _contexts(self) -> types.ModuleType:
        return self.module("compilation.piecewise_context_manager")

    @property
    def _tc_piecewise(self) -> types.ModuleType:
        return self.module("model_executor.runner_backend_utils.tc_piecewise_cuda_graph")


def bring_up(folder: Path, version: str) -> SGLang:
    """Import SGLang from an unpacked wheel. Once a process.

    Parameters
    ----------
    folder
        What `wheels.provide` returned.
    version
        The wheel's.
    """
    if "sglang" in sys.modules:
        raise RuntimeError("SGLang is imported already")
    for name in BARE:
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
    sys.modules["sglang"].__version__ = version
    absent = list(THIRD_PARTY)
    # Asked before a placeholder answers in its place: torch remembers.
    if not torch.utils._triton.has_triton_package():
        absent.append("triton")
    placeholders = Placeholders((*absent, *OF_SGLANG))
    placeholders.install()
    for name in _WEAK_REF:
        module = types.ModuleType(name)
        module.weak_ref_tensors = lambda tensors: tensors
        sys.modules[name] = module
    sglang = SGLang(version, placeholders)
    _serve_cpu_tensors(sglang.module("utils.common"))
    _present_as_blackwell(sglang)
    fp4_utils = sglang.module("layers.quantization.fp4_utils")
    fp4_utils.FP4_GEMM_RUNNER_BACKEND = fp4_utils.Fp4GemmRunnerBackend("flashinfer_cutlass")
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return sglang


def _serve_cpu_tensors(common: Any) -> None:
    register = common.direct_register_custom_op

    def register_for_both(op_name: str, op_func: Any, *args: Any, **keywords: Any) -> None:
        register(op_name, op_func, *args, **keywords)
        common.sglang_lib.impl(op_name, op_func, "CPU")

    common.direct_register_custom_op = register_for_both


def _present_as_blackwell(sglang: SGLang) -> None:
    for name in ("utils.common", "utils"):
        module = sglang.module(name)
        if hasattr(module, "is_sm120_supported"):
            module.is_sm120_supported = lambda *_: True
    srt = Path(sys.modules["sglang.srt"].__path__[0])
    if (srt / "runtime_context.py").is_file():
        context = sglang.module("runtime_context")
        if hasattr(context, "override_platform"):
            context.override_platform(is_sm120=True, is_blackwell=True).__enter__()


@contextmanager
def _no_gpu() -> Iterator[None]:
    real = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = real
