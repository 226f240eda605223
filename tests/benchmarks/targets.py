"""The speeds to reach, each as a ratio within one run, and what a run says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks import names
from benchmarks.results import Report


@dataclass(frozen=True)
class Target:
    """One speed to reach.

    Parameters
    ----------
    name
        What it says.
    ours
        Group and contender that is held against the limit.
    beside
        Group and contender that it is divided by; None where the limit is a time.
    limit
        The largest ratio, or time in the unit of `ours`, that reaches it.
    """

    name: str
    ours: tuple[str, str]
    beside: tuple[str, str] | None
    limit: float


@dataclass(frozen=True)
class Verdict:
    """What a run says of a target; `value` is None where it was not measured."""

    target: Target
    value: float | None
    unit: str

    @property
    def reached(self) -> bool | None:
        """Whether it is reached; None where it was not measured."""
        return None if self.value is None else self.value <= self.target.limit

    @property
    def word(self) -> str:
        """The same, for people."""
        return {True: "reached", False: "NOT REACHED", None: "NOT MEASURED"}[self.reached]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.target.name,
            "value": self.value,
            "unit": self.unit,
            "limit": self.target.limit,
            "reached": self.reached,
        }


def _quantize(contender: str) -> tuple[str, str]:
    return names.QUANTIZE_SMALL, contender.format("fp4_quantize")


def _beside_flashinfer(function: str, theirs: str, group: str) -> Target:
    return Target(
        f"{group} eager / FlashInfer's",
        (group, names.OURS.format(function)),
        (group, names.THEIRS.format(theirs)),
        0.3,
    )


TARGETS = (
    *(
        Target(f"fp4_quantize eager / {text}", _quantize(names.OURS), _quantize(other), limit)
        for text, other, limit in (
            ("flashinfer.fp4_quantize", names.THEIRS, 0.42),
            ("torch.ops.flashinfer.fp4_quantize", names.THEIRS_OP, 0.22),
            ("a one-kernel torch operator", names.ONE_KERNEL, 1.7),
        )
    ),
    *(_beside_flashinfer("mm_fp4", "mm_fp4", names.gemm_group(*size)) for size in names.GEMM_SIZES),
    *(
        _beside_flashinfer("fp4_linear", names.THEIRS_LAYER, names.linear_group(*size))
        for size in names.GEMM_SIZES
    ),
    *(
        Target(f"{text} / eager out", _quantize(contender), _quantize(names.OURS_OUT), 1.0)
        for text, contender in (
            ("compiled, 1 call a graph", names.OURS_COMPILED),
            ("compiled, 16 calls a graph", names.OURS_COMPILED_CHAIN),
        )
    ),
    *(
        Target(
            f"{text}, a model of 16 layers / eager out",
            (names.STACK, contender),
            (names.STACK, names.STACK_OUT),
            1.0,
        )
        for text, contender in (
            ("compiled", names.STACK_COMPILED),
            ("reduce-overhead", names.STACK_REDUCED),
        )
    ),
    # A replay adds the gaps between kernels, which a short kernel does not hide.
    Target(
        "graph replay [4096, 7168] / the kernels' own time",
        (names.REPLAY_LARGE, names.REPLAYED),
        (names.REPLAY_LARGE, names.OWN_TIME),
        1.05,
    ),
    Target("import after torch", (names.IMPORT, "import fp4aot"), None, 30.0),
    Target(
        "import fp4aot / import flashinfer",
        (names.IMPORT, "import fp4aot"),
        (names.IMPORT, "import flashinfer"),
        0.02,
    ),
)

MIXTURE_TARGETS = tuple(
    Target(
        f"{names.moe_group(tokens)} {text} / FlashInfer's",
        (names.moe_group(tokens), ours.format("cutlass_fused_moe")),
        (names.moe_group(tokens), theirs.format("cutlass_fused_moe")),
        0.4,
    )
    for tokens in names.MOE_TOKENS
    for text, ours, theirs in (
        ("eager", names.OURS, names.THEIRS),
        ("with buffers", names.OURS_BUFFERS, names.THEIRS_BUFFERS),
    )
)
"""Of wheels that hold the kernels of a mixture of experts."""


def targets_of(report: Report) -> tuple[Target, ...]:
    """Return the speeds to reach by the wheel of a run."""
    return TARGETS + (MIXTURE_TARGETS if report.wheel.get("mixtures") else ())


def judge(report: Report, targets: tuple[Target, ...] | None = None) -> tuple[Verdict, ...]:
    """Hold a run against targets, by default those of its wheel."""
    return tuple(_judge(report, one) for one in (targets or targets_of(report)))


def _judge(report: Report, target: Target) -> Verdict:
    ours = report.find(*target.ours)
    if target.beside is None:
        return Verdict(target, ours and ours.median, ours.unit if ours else "")
    beside = report.find(*target.beside)
    if ours is None or beside is None:
        return Verdict(target, None, "x")
    if ours.unit != beside.unit:
        raise ValueError(f"{target.name}: {ours.unit} cannot be divided by {beside.unit}")
    return Verdict(target, ours.median / beside.median, "x")
