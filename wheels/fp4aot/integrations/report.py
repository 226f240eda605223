"""What an integration did, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass

from fp4aot._recipes import NVFP44Over6Config


@dataclass(frozen=True, order=True)
class Kept:
    """A name that stays FlashInfer's, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Report:
    """The state of the FlashInfer integration in this process.

    Parameters
    ----------
    flashinfer
        Version of the FlashInfer that was found, None without one.
    wheel
        Version of the FlashInfer whose kernels the wheel holds.
    active
        Whether calls are routed, now or, with `pending`, once FlashInfer is imported.
    pending
        Whether FlashInfer is still to be imported.
    replaced
        FlashInfer's functions whose calls go to the wheel; while pending or not active, those whose
        calls would.
    kept
        Those that stay FlashInfer's.
    recipe
        What a call computes that passes no NVFP4 recipe, from FlashInfer's environment variables;
        None is the standard recipe.
    problems
        What somebody should know, one sentence each.
    """

    flashinfer: str | None
    wheel: str
    active: bool = False
    pending: bool = False
    replaced: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    recipe: NVFP44Over6Config | None = None
    problems: tuple[str, ...] = ()

    def summary(self) -> str:
        """Say it in one line."""
        subject = f"FlashInfer {self.flashinfer}" if self.flashinfer else "no FlashInfer"
        parts = [f"{subject}: {self._state()}"]
        by_reason: dict[str, list[str]] = {}
        for kept in self.kept:
            by_reason.setdefault(kept.reason, []).append(kept.name)
        if by_reason:
            groups = (f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
            parts.append(f"FlashInfer keeps {', '.join(groups)}")
        if self.recipe is not None:
            parts.append(f"recipe from the environment: {self.recipe}")
        return "; ".join([*parts, *self.problems])

    def _state(self) -> str:
        count = f"{len(self.replaced)} functions"
        if not self.active:
            return f"not active, {count} would be replaced"
        return f"{count} are replaced once it is imported" if self.pending else f"{count} replaced"
