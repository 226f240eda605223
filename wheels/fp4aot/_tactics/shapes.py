"""The shapes to tune: from a list, or from a model's ``config.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4aot._tactics import model_config
from fp4aot._tactics.errors import TacticsError

MULTIPLE = 32
"""The kernels need N and K, and the sizes of experts, to be divisible by this."""

_LARGEST = 2**31 - 1
_LINE = re.compile(r"(\d+)\s*[\sx,]\s*(\d+)", re.IGNORECASE)
_EXPECTED = (
    'expected a JSON list of [N, K] or {"n": N, "k": K}, lines "N K" or "NxK", or a config.json of '
    "Hugging Face"
)
_MIXTURE = ("hidden_size", "intermediate_size", "experts", "top_k")
_MIXTURE_EXPECTED = (
    'expected {"hidden_size": H, "intermediate_size": I, "experts": E, "top_k": k}, and "ep_size" '
    "where a rank has E of ep_size * E experts; at least 1 each, and top_k at most ep_size * E"
)


@dataclass(frozen=True)
class Shape:
    """The shape of one weight: `out_features` and `in_features` of a linear layer.

    Parameters
    ----------
    n, k
        The sizes.
    name
        Which layers have it, for reports.
    """

    n: int
    k: int
    name: str = ""

    @property
    def fits(self) -> bool:
        """Whether the kernels can take it."""
        return not (self.n % MULTIPLE or self.k % MULTIPLE)

    def __str__(self) -> str:
        return f"{self.n}x{self.k}"


@dataclass(frozen=True)
class MoeShape:
    """The shape of a mixture of experts on one rank.

    Parameters
    ----------
    hidden_size, intermediate_size, experts
        Of the rank.
    top_k
        Experts of each token, among those of all ranks.
    ep_size
        How many ranks share the experts: of a token's, the others have theirs.
    name
        Which layers have it, for reports.
    """

    hidden_size: int
    intermediate_size: int
    experts: int
    top_k: int
    ep_size: int = 1
    name: str = ""

    @property
    def fits(self) -> bool:
        """Whether the kernels can take it."""
        return not (self.hidden_size % MULTIPLE or self.intermediate_size % MULTIPLE)

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What a table knows it by."""
        return self.hidden_size, self.intermediate_size, self.experts, self.top_k

    def __str__(self) -> str:
        return f"{self.experts}x{self.hidden_size}x{self.intermediate_size} top {self.top_k}"


@dataclass(frozen=True)
class Wanted:
    """What a file asks for.

    Parameters
    ----------
    dense
        For `mm_fp4`.
    moe
        For `cutlass_fused_moe`.
    """

    dense: list[Shape]
    moe: list[MoeShape]


def read(path: str | Path, tensor_parallel: int = 1, expert_parallel: int = 1) -> Wanted:
    """Read the shapes of a file, each once, also those that do not fit.

    Parameters
    ----------
    path
        A list of shapes, a model's ``config.json``, or a folder with one.
    tensor_parallel
        Over how many devices a model's layers are divided. A list is taken as it is.
    expert_parallel
        Over how many of them a model's experts are divided.

    Raises
    ------
    TacticsError
        When the file cannot be read or understood.
    """
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacticsError(
            f"fp4aot.tactics: {file}: cannot be read ({error}); check --shapes"
        ) from error
    found = list(_parse(text, str(file), tensor_parallel, expert_parallel))
    if not found:
        raise TacticsError(f"fp4aot.tactics: {file}: has no shapes; {_EXPECTED}")
    return Wanted(
        _once(shape for shape in found if isinstance(shape, Shape)),
        list({shape.key: shape for shape in found if isinstance(shape, MoeShape)}.values()),
    )


def _parse(
    text: str, source: str, tensor_parallel: int, expert_parallel: int
) -> Iterable[Shape | MoeShape]:
    if text.lstrip()[:1] not in ("{", "["):
        return _lines(text, source)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TacticsError(
            f"fp4aot.tactics: {source}: is not JSON ({error}); {_EXPECTED}"
        ) from error
    if isinstance(data, list):
        return [_item(item, f"{source}: item {index}") for index, item in enumerate(data)]
    dense = model_config.linear_shapes(data, source, tensor_parallel)
    moe = model_config.mixtures(data, source, tensor_parallel, expert_parallel)
    return [
        *(Shape(n, k, name) for name, (n, k) in dense),
        *(MoeShape(*mixture, expert_parallel, "routed experts") for mixture in moe),
    ]


def _lines(text: str, source: str) -> Iterable[Shape]:
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if match is None:
            raise TacticsError(
                f"fp4aot.tactics: {source}: line {number}: got {content[:60]!r}; {_EXPECTED}"
            )
        yield _shape(int(match[1]), int(match[2]), "", f"{source}: line {number}")


def _item(item: Any, where: str) -> Shape | MoeShape:
    if isinstance(item, Mapping) and "hidden_size" in item:
        return _mixture(item, where)
    name = ""
    pair: Any = item
    if isinstance(item, Mapping):
        pair = [item.get("n"), item.get("k")]
        name = str(item.get("name", ""))
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(size) is int for size in pair)):
        raise TacticsError(f"fp4aot.tactics: {where}: got {str(item)[:60]}; {_EXPECTED}")
    n, k = pair
    return _shape(n, k, name, where)


def _mixture(item: Mapping[str, Any], where: str) -> MoeShape:
    numbers = [item.get(name) for name in _MIXTURE] + [item.get("ep_size", 1)]
    sizes = [number for number in numbers if type(number) is int and 1 <= number <= _LARGEST]
    # The experts of a token differ.
    if len(sizes) != len(numbers) or sizes[3] > sizes[2] * sizes[4]:
        raise TacticsError(f"fp4aot.tactics: {where}: got {str(item)[:120]}; {_MIXTURE_EXPECTED}")
    hidden, inter, experts, top_k, ranks = sizes
    return MoeShape(hidden, inter, experts, top_k, ranks, str(item.get("name", "")))


def _shape(n: int, k: int, name: str, where: str) -> Shape:
    if not (1 <= n <= _LARGEST and 1 <= k <= _LARGEST):
        raise TacticsError(
            f"fp4aot.tactics: {where}: got {n} x {k}, expected sizes from 1 to {_LARGEST}; "
            "correct them"
        )
    return Shape(n, k, name)


def _once(shapes: Iterable[Shape]) -> list[Shape]:
    names: dict[tuple[int, int], list[str]] = {}
    for shape in shapes:
        found = names.setdefault((shape.n, shape.k), [])
        if shape.name and shape.name not in found:
            found.append(shape.name)
    return [Shape(n, k, ", ".join(found)) for (n, k), found in names.items()]
