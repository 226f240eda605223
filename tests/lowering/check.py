"""Check the lowered instructions on a Hopper: ``python check.py [--json FILE]``, beside the cubins.

Prints a line for each check and control, and ends with 1 when one of them is not as it must be.
Needs a GPU of capability 9.0 and its driver, and nothing else.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from controls import CONTROLS, KERNELS, ONE_BLOCK, Control
from driver import Driver, DriverError, KernelFault

HERE = Path(__file__).resolve().parent
COUNTERS = struct.Struct("<QQIIIxxxx")
# CUtensorMapDataType
UINT8, UINT16, INT64, PACKED_4_BITS, UNPACKED_4_BITS = 0, 1, 5, 13, 14
SIZES = {"UINT8": 1, "UINT16": 2, "UINT32": 4, "INT32": 4, "UINT64": 8, "INT64": 8, "FLOAT16": 2}


@dataclass(frozen=True)
class Outcome:
    """What one check or control gave."""

    name: str
    passed: bool
    text: str
    compared: int = 0
    differing: int = 0
    seconds: float = 0.0


def count(driver: Driver, module: ctypes.c_void_p, kernel: str) -> tuple[int, int, str]:
    """Run a kernel; return what it compared, what differed, and an example."""
    counters = driver.allocate(COUNTERS.size)
    driver.write(counters, bytes(COUNTERS.size))
    blocks, threads = (1, 256) if kernel in ONE_BLOCK else (132 * 8, 256)
    driver.launch(module, kernel, blocks, threads, [counters])
    compared, differing, given, result, expected = COUNTERS.unpack(
        driver.read(counters, COUNTERS.size)
    )
    return compared, differing, f"for {given:#x}: {result:#x}, expected {expected:#x}"


def instruction_checks(driver: Driver) -> Iterator[Outcome]:
    for program, kernels in KERNELS.items():
        module = driver.load(HERE / f"{program}.cubin")
        for kernel in kernels:
            start = time.perf_counter()
            compared, differing, example = count(driver, module, kernel)
            text = f"{compared} compared, {differing} differ"
            if differing:
                text += f" ({example})"
            seconds = time.perf_counter() - start
            passed = compared > 0 and differing == 0
            yield Outcome(kernel, passed, text, compared, differing, seconds)


def negative_control(driver: Driver, control: Control) -> Iterator[Outcome]:
    """Run what must notice one wrong replacement."""
    module = driver.load(HERE / f"{control.name}.cubin")
    for kernel in control.notice:
        name = f"control {control.name}: {kernel}"
        try:
            if kernel in MAP_KINDS:
                compared, differing, _ = TensorMaps(driver).compare(module, *MAP_KINDS[kernel])
            elif kernel == UNPACKED:
                compared, differing, _ = UnpackedMap(driver).compare(module)
            else:
                compared, differing, _ = count(driver, module, kernel)
        except KernelFault as fault:
            yield Outcome(name, True, f"the GPU stopped it, as it must ({fault})")
            return
        text = f"{differing} of {compared} differ, as they must"
        if not differing:
            text = f"NOT NOTICED: none of {compared} differs"
        yield Outcome(name, differing > 0, text)


def negative_controls(_: Driver) -> Iterator[Outcome]:
    """Run each control in a process of its own: a wrong kernel may be stopped by the GPU."""
    for control in CONTROLS:
        command = [sys.executable, __file__, "--control", control.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield Outcome(f"control {control.name}", False, done.stderr.strip()[-300:])
            continue
        yield from (Outcome(**outcome) for outcome in json.loads(done.stdout))


# ---- tensor maps ---------------------------------------------------------------------------------
WIDTH, ROWS, BATCHES = 256, 96, 2  # bytes, and what strides count
BOX_WIDTH, BOX_ROWS = 64, 64
NO_SWIZZLE, SWIZZLE_128_BYTES = 0, 3
NO_INTERLEAVE_NO_SWIZZLE_128_BYTES_ZEROS = (0, NO_SWIZZLE, 2, 0)
NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED: what the wrapper answers
BOX_SIZE = BOX_WIDTH * BOX_ROWS
MAP_KINDS = {
    "tensor map of 4 bits": (PACKED_4_BITS, 2),
    "tensor map of uint8": (UINT8, 1),
    "tensor map of uint16": (UINT16, 0.5),
}
"""Element type, and elements in a byte."""
UNPACKED = "unpacked 4 bits"


class TensorMap(ctypes.Structure):
    """128 opaque bytes, which a kernel takes by value and the driver wants aligned."""

    _fields_ = (("words", ctypes.c_uint32 * 32),)


class TensorMaps:
    """Encodes maps over one buffer, by the wrapper or by the driver itself."""

    def __init__(self, driver: Driver, wrapper: str = "tensor_map") -> None:
        self.driver = driver
        self.wrapper = ctypes.CDLL(str(HERE / f"lib{wrapper}.so"))
        self.data = bytes((i * 7 + i // 251) % 256 for i in range(WIDTH * ROWS * BATCHES))
        self.buffer = driver.allocate(len(self.data))
        driver.write(self.buffer, self.data)
        self.keep: list[object] = []

    def encode(
        self, kind: int, per_byte: float, *, wrapped: bool = True, width: int = WIDTH
    ) -> tuple[int, TensorMap]:
        """Encode a map of the buffer; return the driver's code, and the map."""
        raw = ctypes.create_string_buffer(256)
        self.keep.append(raw)
        tensor_map = TensorMap.from_buffer(raw, -ctypes.addressof(raw) % 64)
        arguments = (
            ctypes.byref(tensor_map),
            kind,
            3,
            ctypes.c_void_p(self.buffer.value),
            (ctypes.c_uint64 * 3)(int(width * per_byte), ROWS, BATCHES),
            (ctypes.c_uint64 * 2)(WIDTH, WIDTH * ROWS),
            (ctypes.c_uint32 * 3)(int(BOX_WIDTH * per_byte), BOX_ROWS, 1),
            (ctypes.c_uint32 * 3)(1, 1, 1),
        )
        if wrapped:
            return self.wrapper.encode(*arguments, NO_SWIZZLE), tensor_map
        encode = self.driver.library.cuTensorMapEncodeTiled
        return encode(*arguments, *NO_INTERLEAVE_NO_SWIZZLE_128_BYTES_ZEROS), tensor_map

    def expected(self, x: int, y: int, z: int) -> bytes:
        """What a box holds; `x` counts bytes, and what lies outside reads as zero."""
        rows = []
        for row in range(y, y + BOX_ROWS):
            for byte in range(x, x + BOX_WIDTH):
                inside = 0 <= row < ROWS and 0 <= byte < WIDTH and 0 <= z < BATCHES
                rows.append(self.data[(z * ROWS + row) * WIDTH + byte] if inside else 0)
        return bytes(rows)

    def copied(
        self, module: ctypes.c_void_p, tensor_map: TensorMap, x: int, y: int, z: int
    ) -> bytes:
        target = self.driver.allocate(BOX_SIZE)
        self.driver.write(target, b"\xee" * BOX_SIZE)
        arguments = [tensor_map, target, *(ctypes.c_int(at) for at in (x, y, z))]
        self.driver.launch(module, "copy_box", 1, 128, arguments)
        return self.driver.read(target, BOX_SIZE)

    def compare(self, module: ctypes.c_void_p, kind: int, per_byte: float) -> tuple[int, int, str]:
        """Copy boxes inside, across the edges and outside; count them, and what differs."""
        code, tensor_map = self.encode(kind, per_byte)
        if code != 0:
            return 0, 0, f"not encoded: {code}"
        # Hopper wants boxes to begin at multiples of 16 bytes.
        places = [(x, y, z) for x in (0, 32, 192, -64, 256) for y in (0, 40, -8) for z in (0, 1, 2)]
        wrong = [
            place
            for place in places
            if self.copied(module, tensor_map, int(place[0] * per_byte), *place[1:])
            != self.expected(*place)
        ]
        text = f"{len(places)} boxes of {BOX_SIZE} bytes, {len(wrong)} differ {wrong[:3] or ''}"
        return len(places), len(wrong), text.rstrip()


class UnpackedMap:
    """Rows of 4-bit elements that are spread over bytes on their way to registers."""

    elements, rows, box = 384, 160, 128
    row_bytes = elements // 2

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.wrapper = ctypes.CDLL(str(HERE / "libtensor_map.so"))
        self.data = bytes((i * 7 + i // 251 + 1) % 256 for i in range(self.row_bytes * self.rows))
        self.buffer = driver.allocate(len(self.data))
        driver.write(self.buffer, self.data)
        self.raw = ctypes.create_string_buffer(256)

    def encode(
        self, kind: int = UNPACKED_4_BITS, box: int = box, swizzle: int = SWIZZLE_128_BYTES
    ) -> tuple[int, TensorMap]:
        """Encode a map of the buffer; return the wrapper's code, and the map."""
        tensor_map = TensorMap.from_buffer(self.raw, -ctypes.addressof(self.raw) % 64)
        code = self.wrapper.encode(
            *(ctypes.byref(tensor_map), kind, 2, ctypes.c_void_p(self.buffer.value)),
            (ctypes.c_uint64 * 2)(self.elements, self.rows),
            (ctypes.c_uint64 * 1)(self.row_bytes),
            (ctypes.c_uint32 * 2)(box, self.box),
            (ctypes.c_uint32 * 2)(1, 1),
            swizzle,
        )
        return code, tensor_map

    def expected(self, x: int, y: int) -> bytes:
        """One byte for each element of a box; what lies outside reads as zero."""
        found = bytearray()
        for row in range(y, y + self.box):
            for element in range(x, x + self.box):
                inside = 0 <= row < self.rows and 0 <= element < self.elements
                pair = self.data[row * self.row_bytes + element // 2] if inside else 0
                found.append(pair >> 4 if element % 2 else pair & 15)
        return bytes(found)

    def compare(self, module: ctypes.c_void_p) -> tuple[int, int, str]:
        """Unpack boxes inside and across the edges; count them, and what differs."""
        code, tensor_map = self.encode()
        if code != 0:
            return 0, 0, f"not encoded: {code}"
        size = self.box * self.box
        places = [(x, y) for x in (0, 128, 256, -128, 384) for y in (0, 32, 100, -8)]
        wrong = []
        for x, y in places:
            target = self.driver.allocate(size)
            self.driver.write(target, b"\xee" * size)
            arguments = [tensor_map, target, ctypes.c_int(x), ctypes.c_int(y)]
            self.driver.launch(module, "unpack_box", 1, 128, arguments)
            if self.driver.read(target, size) != self.expected(x, y):
                wrong.append((x, y))
        text = f"{len(places)} boxes of {size} elements, {len(wrong)} differ {wrong[:3] or ''}"
        return len(places), len(wrong), text.rstrip()


def tensor_map_checks(driver: Driver) -> Iterator[Outcome]:
    maps = TensorMaps(driver)
    module = driver.load(HERE / "tensor_cores.cubin")
    for name, kind in MAP_KINDS.items():
        compared, differing, text = maps.compare(module, *kind)
        yield Outcome(name, compared > 0 and not differing, text, compared, differing)
    unpacked = UnpackedMap(driver)
    compared, differing, text = unpacked.compare(module)
    yield Outcome(UNPACKED, compared > 0 and not differing, text, compared, differing)
    elsewhere = TensorMaps(driver, "tensor_map_elsewhere")
    refusals = {
        "64-bit integers": lambda: maps.encode(INT64, 0.125),
        "unpacked 4 bits without the swizzle": lambda: unpacked.encode(swizzle=NO_SWIZZLE),
        "unpacked 4 bits in shorter rows": lambda: unpacked.encode(box=64),
        "a width that is no multiple of 16": lambda: maps.encode(PACKED_4_BITS, 2, width=252),
        "a mark that is not where it should be": lambda: elsewhere.encode(PACKED_4_BITS, 2),
    }
    for name, attempt in refusals.items():
        code, _ = attempt()
        yield Outcome(f"tensor map refused: {name}", code == NOT_SUPPORTED, f"code {code}")
    code, _ = maps.encode(PACKED_4_BITS, 2, wrapped=False)
    yield Outcome("the driver itself refuses 4 bits", code != 0, f"code {code}")


def describe_tensor_maps(driver: Driver) -> None:
    """Print maps of each element type: where they differ is what the lowering has to know."""
    maps = TensorMaps(driver)
    for kind, (name, size) in enumerate(SIZES.items()):
        _, tensor_map = maps.encode(kind, 1 / size, wrapped=False)
        print(f"  {name:8} {' '.join(f'{word:08x}' for word in list(tensor_map.words)[:16])}")


def run_checks(driver: Driver) -> list[Outcome]:
    outcomes = []
    groups: tuple[Callable[[Driver], Iterator[Outcome]], ...] = (
        instruction_checks,
        tensor_map_checks,
        negative_controls,
    )
    for group in groups:
        for outcome in group(driver):
            print(f"{'ok    ' if outcome.passed else 'FAILED'} {outcome.name}: {outcome.text}")
            outcomes.append(outcome)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--describe-tensor-maps", action="store_true")
    parser.add_argument("--control", help="run one control, and print its outcomes as JSON")
    given = parser.parse_args()
    try:
        driver = Driver(capability=(9, 0))
        if given.control:
            (control,) = (one for one in CONTROLS if one.name == given.control)
            print(json.dumps([asdict(one) for one in negative_control(driver, control)]))
            return 0
        if given.describe_tensor_maps:
            describe_tensor_maps(driver)
        outcomes = run_checks(driver)
    except DriverError as reason:
        sys.stderr.write(f"NOT CHECKED: {reason}\n")
        return 2
    if given.json:
        report = {"device": driver.name, "outcomes": [asdict(outcome) for outcome in outcomes]}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    failed = sum(not outcome.passed for outcome in outcomes)
    print(f"{len(outcomes)} outcomes on {driver.name}, {failed} failed")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
