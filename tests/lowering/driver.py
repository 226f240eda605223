"""As much of the CUDA driver's interface as the checks need, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path


class DriverError(RuntimeError):
    """A call of the driver failed."""


class KernelFault(DriverError):
    """A kernel was stopped by the GPU; nothing more can run in this process."""


class Driver:
    """The first GPU, with a context that is current.

    Parameters
    ----------
    capability
        What it must have.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as cause:
            raise DriverError(f"no CUDA driver on this machine: {cause}") from cause
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name, number = ctypes.create_string_buffer(100), ctypes.c_int()
        self.call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()
        found = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{MAJOR,MINOR}
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            found.append(number.value)
        if tuple(found) != capability:
            raise DriverError(f"{self.name} has capability {found}, and {capability} is needed")

    def call(self, function: str, *arguments: object) -> None:
        code = getattr(self.library, function)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{function}: {(text.value or b'?').decode()} ({code})")

    def load(self, path: Path) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.call("cuModuleLoad", ctypes.byref(module), str(path).encode())
        return module

    def allocate(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def write(self, pointer: ctypes.c_uint64, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))

    def read(self, pointer: ctypes.c_uint64, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, pointer, ctypes.c_size_t(size))
        return data.raw

    def launch(
        self,
        module: ctypes.c_void_p,
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[ctypes._SimpleCData | ctypes.Array | ctypes.Structure],
    ) -> None:
        """Run a kernel to its end."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)
        try:
            self.call("cuCtxSynchronize")
        except DriverError as reason:
            raise KernelFault(f"{kernel}: {reason}") from None
