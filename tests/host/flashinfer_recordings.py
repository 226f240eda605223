"""What FlashInfer's own Python passes to its compiled functions, without compiling and a GPU.

`record` runs this file with the interpreter of a FlashInfer environment, where it makes the calls
of `user_calls` and prints JSON: for the id of each call, the functions that FlashInfer calls, in
order, and the forms of their arguments. pytest's packages and fp4aot are not installed there.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from host.user_calls import Call, Form, Memory, Recording


def record(environment: Path) -> dict[str, list[Recording]]:
    """Return what FlashInfer passes for each of `user_calls.CALLS`, by the call's id.

    `environment` is a folder that `aot.environment` has made.
    """
    with tempfile.TemporaryDirectory() as workspace:
        # Nothing else: FlashInfer's own variables change what it does.
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        done = subprocess.run(
            [environment / "bin" / "python", "-I", "-B", __file__],
            env=kept
            | {
                "FLASHINFER_WORKSPACE_BASE": workspace,
                # Without a list it asks the driver for the targets of what it would compile.
                "FLASHINFER_CUDA_ARCH_LIST": "10.0a 10.3a 12.0f",
            },
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    # FlashInfer's logger may print: the answer is the last line.
    recordings: dict[str, list[Recording]] = json.loads(done.stdout.splitlines()[-1])
    return recordings


def form(argument: Any, memory: Memory) -> Form:
    """Return what a compiled function is told of an argument, apart from values in memory.

    Of a tensor, that includes whose memory it is, where it is the caller's or goes to the caller.
    """
    if argument is None:
        return {"none": True}
    # Types alone: True is an integer for Python, and not for a compiled function.
    for kind in (bool, int, float):
        if type(argument) is kind:
            return {kind.__name__: argument}
    if isinstance(argument, torch.Tensor):
        return {
            "tensor": {
                "dtype": str(argument.dtype).removeprefix("torch."),
                "shape": list(argument.shape),
                "strides": list(argument.stride()),
            }
        } | memory.owner(argument.data_ptr() if argument.numel() else None)
    raise TypeError(f"no form of {argument!r}, a {type(argument).__name__}")


class RecordingModule:
    """Stands for a compiled module: each of its functions notes how it is called."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._calls = calls

    def __getattr__(self, function: str) -> Any:
        def call(*arguments: Any) -> None:
            self._calls.append((function, arguments))

        return call


class Pretence:
    """FlashInfer on a machine that has neither a GPU nor its compiled modules.

    Tensors of the CPU stand for those of a device, whose compute capability is `capability`. The
    modules write to `calls`.
    """

    def __init__(self) -> None:
        self.capability = (0, 0)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        # The CPU build of torch has none; FlashInfer asks which targets its compiler knows.
        torch.version.cuda = "13.0"
        torch.Tensor.cuda = lambda tensor: tensor

        def load(specification: Any) -> RecordingModule:
            # It would come between FlashInfer's Python and the functions that are recorded.
            if specification.post_load_adapter is not None:
                raise NotImplementedError(f"{specification.name} has an adapter")
            return RecordingModule(self.calls)

        importlib.import_module("flashinfer.jit.core").JitSpec.build_and_load = load
        utils = importlib.import_module("flashinfer.utils")
        # FlashInfer's own refuse the CPU, and keep their answers for ever.
        _replace(utils.get_compute_capability, lambda device: self.capability)
        _replace(utils.device_support_pdl, lambda device: self.capability >= (9, 0))

    def call(self, call: Call, flashinfer: ModuleType) -> list[Recording]:
        """Make a call and return what reached compiled functions."""
        from host.user_calls import Make, Memory

        self.capability = call.capability
        self.calls.clear()
        arguments, keywords = call.build(Make("cpu", flashinfer))
        module, _, name = call.public.rpartition(".")
        result = getattr(importlib.import_module(module), name)(*arguments, **keywords)
        if not self.calls:
            raise RuntimeError(f"{call.id}: FlashInfer called no compiled function")
        memory = Memory(arguments, keywords, result)
        return [
            {"function": function, "arguments": [form(argument, memory) for argument in passed]}
            for function, passed in self.calls
        ]


def _replace(function: Any, replacement: Any) -> None:
    """Replace a function of FlashInfer's wherever one of its modules has imported it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer":
            for attribute in [key for key, value in vars(module).items() if value is function]:
                setattr(module, attribute, replacement)


def main() -> None:
    """Record every call, and print the recordings."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from host.user_calls import CALLS

    flashinfer = importlib.import_module("flashinfer")
    pretence = Pretence()
    print(json.dumps({call.id: pretence.call(call, flashinfer) for call in CALLS}))


if __name__ == "__main__":
    main()
