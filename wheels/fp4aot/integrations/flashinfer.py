"""Calls of FlashInfer's FP4 functions go to the compiled operators.

>>> import fp4aot.integrations.flashinfer
>>> report = fp4aot.integrations.flashinfer.enable()
>>> print(report.summary())

From then on `flashinfer.fp4_quantize` and the others that the wheel has are ours: in FlashInfer's
modules, in every module that bound them before, under any name, and in those imported later.
FlashInfer need not be imported yet, and is not imported by this. What the wheel lacks, and calls
that ask for another backend, stay FlashInfer's.

A forked process keeps what was enabled; a spawned one starts anew, and a server's plugin enables it
there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import fp4aot
from fp4aot._library import release
from fp4aot._manifest import Manifest
from fp4aot.integrations import devices, rebinding, versions
from fp4aot.integrations._flashinfer import call, coverage, inspection, table, tuning
from fp4aot.integrations._flashinfer.call import Context, Function
from fp4aot.integrations.errors import IntegrationError
from fp4aot.integrations.import_hook import AfterImport
from fp4aot.integrations.report import Kept, Report
from fp4aot.integrations.settings import DISABLE, Settings

__all__ = ["IntegrationError", "Kept", "Report", "disable", "enable", "status"]

_LOGGER = logging.getLogger("fp4aot.integrations.flashinfer")
_DISTRIBUTIONS = ("flashinfer-python", "flashinfer")
_UTILITIES = "flashinfer.quantization.nvfp4_quantization_utils"


def enable() -> Report:
    """Route FlashInfer's FP4 functions to the operators. Calling it again changes nothing.

    Returns
    -------
    Report
        What was done. Not active where ``FP4AOT_DISABLE=1`` is set.

    Raises
    ------
    IntegrationError
        There is no FlashInfer, or one that is too far from the wheel's, or an environment variable
        has a value that means nothing. Nothing has changed then.
    """
    return _integration.enable()


def disable() -> Report:
    """Bind FlashInfer's functions again wherever they were bound, also by modules imported since.

    Returns
    -------
    Report
        Not active; `problems` names what another patch has put in the place of ours since: that is
        left alone.
    """
    return _integration.disable()


def status() -> Report:
    """Say what is active, or what would be, and change nothing.

    Returns
    -------
    Report
        Where `enable` would raise, `problems` has the reason.
    """
    return _integration.status()


@dataclass(frozen=True)
class _Route:
    """One function that was replaced.

    Parameters
    ----------
    module, name
        Where FlashInfer defines it.
    original, replacement
        The two.
    owner
        The class whose method it is, or None.
    cached_by
        The function in the same module that keeps what this one returned.
    """

    module: str
    name: str
    original: Any
    replacement: Any
    owner: type | None = None
    cached_by: str = ""


@dataclass(frozen=True)
class _Plan:
    """What is to be done, as far as can be said without FlashInfer.

    Parameters
    ----------
    settings
        Of the environment.
    rows
        What the wheel can serve here.
    moves_to_gpu
        Whether there is a GPU.
    report
        The same for people.
    """

    settings: Settings
    rows: tuple[table.PublicFunction | table.ModuleGetter, ...]
    moves_to_gpu: bool
    report: Report


class _Integration:
    """The state of this process. The lock is for enabling and disabling, never for a call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plan: _Plan | None = None
        self._report: Report | None = None
        self._routes: list[_Route] = []
        self._after_import = AfterImport("flashinfer", self._flashinfer_was_imported)

    def enable(self) -> Report:
        with self._lock:
            if self._report is not None:
                return self._report
            plan = _make_plan(fp4aot._MANIFEST)
            if plan.settings.disabled:
                return plan.report
            # Also where FlashInfer is imported: it may be imported anew.
            self._after_import.install()
        # Without the lock: another thread that imports FlashInfer comes for it.
        is_imported = _wait_for_import()
        with self._lock:
            if self._report is None:
                self._plan = plan
                self._report = replace(plan.report, active=True, pending=True)
                if is_imported:
                    self._report = self._route_or_undo(plan)
            return self._report

    def disable(self) -> Report:
        with self._lock:
            foreign = self._foreign()
            self._undo()
            report = self.status()
            return replace(report, problems=_unique(report.problems, foreign))

    def _route_or_undo(self, plan: _Plan) -> Report:
        try:
            return self._route(plan)
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        self._after_import.remove()
        _bind([replace(r, original=r.replacement, replacement=r.original) for r in self._routes])
        if self._routes:
            tuning.forget()
        self._routes = []
        self._plan = self._report = None

    def status(self) -> Report:
        with self._lock:
            if self._report is not None:
                foreign = self._foreign()
                return replace(self._report, problems=_unique(self._report.problems, foreign))
            try:
                return _make_plan(fp4aot._MANIFEST).report
            except IntegrationError as error:
                wheel = _flashinfer_of(fp4aot._MANIFEST)
                return Report(_found_version(), wheel, problems=(str(error),))

    def _flashinfer_was_imported(self) -> None:
        """Route what has just been imported. An import must not fail for this."""
        with self._lock:
            if self._plan is None:
                return
            try:
                self._report = self._route(self._plan)
                _LOGGER.info("%s", self._report.summary())
            except Exception:
                _LOGGER.exception("FlashInfer's functions could not be replaced and stay")

    def _route(self, plan: _Plan) -> Report:
        """Replace what is FlashInfer's own, in all modules at once."""
        flashinfer = sys.modules["flashinfer"]
        found = str(getattr(flashinfer, "__version__", plan.report.flashinfer))
        if found != plan.report.flashinfer:
            _require_version(found, plan)
        context = Context(
            backends=plan.settings.backends,
            recipe=plan.settings.recipe,
            omitted=getattr(sys.modules.get(_UTILITIES), "_UNSET", _OMITTED),
            moves_to_gpu=plan.moves_to_gpu,
        )
        routes, kept = [], list(plan.report.kept)
        for row in plan.rows:
            try:
                routes.append(_make_route(row, context, found))
            except _StaysError as error:
                kept.append(Kept(row.name, str(error)))
        hooks = _hooks() if any(route.name in table.TUNED for route in routes) else []
        _bind([*routes, *hooks])
        self._routes += [*routes, *hooks]
        if hooks:
            # FlashInfer may have tuned before.
            tuning.refresh()
        return replace(
            plan.report,
            flashinfer=found,
            active=True,
            pending=False,
            replaced=tuple(route.name for route in routes),
            kept=tuple(kept),
            problems=_unique(plan.report.problems, self._foreign()),
        )

    def _foreign(self) -> tuple[str, ...]:
        """Name what another patch has put where our functions should be."""
        found = []
        for route in self._routes:
            if route.owner is not None:
                continue
            for module in (route.module, "flashinfer", "flashinfer.quantization"):
                bound = getattr(sys.modules.get(module), route.name, route.replacement)
                if bound is not route.replacement and not inspection.is_flashinfers(bound):
                    owner = inspection.owner(bound)
                    found.append(
                        f"{module}.{route.name} was replaced by {owner}, and is left alone"
                    )
        return tuple(found)


class _StaysError(Exception):
    """A function stays FlashInfer's; the message says why."""


_OMITTED = object()


def _make_plan(manifest: Manifest) -> _Plan:
    """Read the environment, find FlashInfer and the GPUs, and decide.

    Raises
    ------
    IntegrationError
        What `enable` raises.
    """
    wheel = _flashinfer_of(manifest)
    found = _found_version()
    settings = Settings.read()
    if settings.disabled:
        report = Report(found, wheel, problems=(f"{DISABLE} is set: nothing is replaced",))
        return _Plan(settings, (), False, report)
    if found is None:
        raise IntegrationError(
            f"FlashInfer is not installed; pip install flashinfer-python=={wheel}, or use the "
            "functions of fp4aot, which have the same names"
        )
    verdict = versions.judge(found, wheel, settings.version_check)
    if not verdict.accepted:
        raise IntegrationError(verdict.message)
    capabilities = devices.capabilities()
    kept: list[Kept] = []
    rows: list[table.PublicFunction | table.ModuleGetter] = []
    for row in _rows():
        reason = coverage.why_not(manifest, row.operators, row.lowest, capabilities)
        if row.one_recipe and settings.recipe is not None:
            reason = reason or "not in this wheel with the recipe of the environment"
        if reason:
            kept.append(Kept(row.name, reason))
        else:
            rows.append(row)
    report = Report(
        found,
        wheel,
        replaced=tuple(row.name for row in rows),
        kept=tuple(kept),
        recipe=settings.recipe,
        problems=(verdict.message,) if verdict.message else (),
    )
    return _Plan(settings, tuple(rows), capabilities != (), report)


def _rows() -> Iterator[table.PublicFunction | table.ModuleGetter]:
    yield from table.PUBLIC_FUNCTIONS
    yield from table.MODULE_GETTERS


def _make_route(
    row: table.PublicFunction | table.ModuleGetter, context: Context, version: str
) -> _Route:
    """Make the replacement of what FlashInfer's module holds now.

    Raises
    ------
    _StaysError
        It is not there, not FlashInfer's, or not what was expected.
    """
    original = getattr(sys.modules.get(row.module), row.name, None)
    if original is None:
        raise _StaysError(f"not in FlashInfer {version}")
    if not inspection.is_flashinfers(original):
        raise _StaysError(f"replaced by {inspection.owner(original)} before")
    if isinstance(row, table.ModuleGetter):
        if release(version) < row.oldest:
            raise _StaysError(f"other arguments in FlashInfer {version}")
        replacement = row.make(original, context)
        return _Route(row.module, row.name, original, replacement, cached_by=row.cached_by)
    route = row.make(original, context)
    difference = inspection.difference(original, route)
    if difference:
        raise _StaysError(f"other parameters in FlashInfer {version}: {difference}")
    replacement = call.replace(original, route)
    _dress(replacement, original)
    return _Route(row.module, row.name, original, replacement)


def _hooks() -> list[_Route]:
    """Replace what changes what FlashInfer's autotuner knows, as far as this FlashInfer has it."""
    hooks = []
    for hook in table.TUNING_HOOKS:
        module = sys.modules.get(hook.module)
        owner_name, _, name = hook.name.rpartition(".")
        owner = getattr(module, owner_name, None) if owner_name else None
        original = getattr(owner if owner_name else module, name, None)
        if original is not None:
            replacement = hook.make(original, tuning.refresh)
            hooks.append(_Route(hook.module, name, original, replacement, owner))
    return hooks


def _bind(routes: list[_Route]) -> None:
    """Put replacements in the places of originals, and drop what was made by the originals."""
    rebinding.rebind((r.original, r.replacement) for r in routes if r.owner is None)
    for route in routes:
        if route.owner is not None and getattr(route.owner, route.name) is route.original:
            setattr(route.owner, route.name, route.replacement)
        cache: Any = getattr(sys.modules.get(route.module), route.cached_by, None)
        if hasattr(cache, "cache_clear"):
            cache.cache_clear()


def _dress(replacement: Function, original: Function) -> None:
    """Give a replacement the original's name, documentation, signature and attributes.

    The attributes are shared and not copied: FlashInfer's decorators set some during a call, and
    its code reads them by the function's global name, which is the replacement's from now on. The
    signature is one of them, and as true of the original.
    """
    signature = inspect.signature(original)
    replacement.__name__ = original.__name__
    replacement.__qualname__ = original.__qualname__
    replacement.__doc__ = original.__doc__
    replacement.__dict__ = original.__dict__
    if inspect.signature(replacement) != signature:
        vars(replacement)["__signature__"] = signature


def _wait_for_import() -> bool:
    """Say whether FlashInfer is imported, once the thread that is importing it has done so.

    Raises
    ------
    IntegrationError
        It is this thread.
    """
    if "flashinfer" not in sys.modules:
        return False
    flashinfer = importlib.import_module("flashinfer")
    if getattr(flashinfer.__spec__, "_initializing", False):
        raise IntegrationError("FlashInfer is just being imported; enable this before or after")
    return True


def _unique(*texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in texts for text in group))


def _require_version(found: str, plan: _Plan) -> None:
    verdict = versions.judge(found, plan.report.wheel, plan.settings.version_check)
    if not verdict.accepted:
        raise IntegrationError(verdict.message)


def _found_version() -> str | None:
    """Return the version of the FlashInfer that is imported, or else would be."""
    imported = getattr(sys.modules.get("flashinfer"), "__version__", None)
    if imported is not None:
        return str(imported)
    for distribution in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _flashinfer_of(manifest: Manifest) -> str:
    return dict(manifest.versions)["flashinfer"]


_integration = _Integration()
