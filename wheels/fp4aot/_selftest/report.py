"""The self-test's result, for people and for machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from fp4aot._selftest.checks import FAILED, REFUSED, Outcome
from fp4aot._selftest.weights import ModelReport


@dataclass(frozen=True)
class Report:
    """Everything that the self-test did.

    Parameters
    ----------
    devices
        Where it ran.
    outcomes
        One for each case and device.
    model
        The real model, when one was named.
    seconds
        Wall time.
    label
        What to know of the wheel; empty for one that is for use.
    """

    devices: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    model: ModelReport | None
    seconds: float
    label: str = ""

    @property
    def ok(self) -> bool:
        """Whether every operator ran on every device and gave the right result."""
        return self.count(FAILED) == 0 and self.count(REFUSED) == 0 and self._model_ok

    @property
    def _model_ok(self) -> bool:
        return self.model is None or self.model.ok

    def count(self, result: str) -> int:
        """How many cases ended that way."""
        return sum(outcome.result == result for outcome in self.outcomes)

    @property
    def summary(self) -> str:
        """One line."""
        counts = Counter(outcome.result for outcome in self.outcomes)
        parts = [f"{count} {result}" for result, count in sorted(counts.items())]
        text = f"{', '.join(parts)} on {', '.join(self.devices)} in {self.seconds:.0f} s"
        if self.model is not None:
            text += (
                f"; {len(self.model.layers)} layers of {self.model.source}: mean relative error "
                f"{self.model.mean_error:.4f}, output of a compiled layer "
                f"{self.model.output_error:.4f}"
            )
        return text

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        model = asdict(self.model) | {"mean_error": self.model.mean_error} if self.model else None
        return {
            "ok": self.ok,
            "label": self.label,
            "summary": self.summary,
            "devices": list(self.devices),
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "model": model,
            "seconds": self.seconds,
        }


def render(report: Report) -> str:
    """Write the report as a table."""
    rows = [("operator", "variant", "device", "result", "what was compared")]
    rows += [(o.operator, o.variant, o.device, o.result, o.detail) for o in report.outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]
    lines.insert(1, "-" * (sum(widths) + 8))
    if report.model is not None:
        lines += ["", f"{report.model.source}: NVFP4 relative error by layer"]
        lines += [
            f"  {layer.relative_error:.4f}  {layer.shape[0]:>5} x {layer.shape[1]:<5} {layer.name}"
            for layer in report.model.layers
        ]
        lines.append(
            f"  {report.model.output_error:.4f}  output of {report.model.output_layer}, quantized "
            "and compiled with fullgraph=True, on Gaussian activations"
        )
    verdict = "The self-test passed" if report.ok else "The self-test did NOT pass"
    if report.count(REFUSED):
        verdict += " (this wheel does not cover every device: python -m fp4aot doctor)"
    ending = [f"{verdict}: {report.summary}."]
    if report.label:
        ending.append(report.label)
    return "\n".join([*lines, "", *ending])
