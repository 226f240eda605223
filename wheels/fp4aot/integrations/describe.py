"""The integrations as ``python -m fp4aot doctor`` shows them."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from fp4aot.integrations import flashinfer
from fp4aot.integrations.report import Report

PLUGIN_GROUPS = (
    ("SGLang", "sglang", "sglang.srt.plugins"),
    ("vLLM", "vllm", "vllm.general_plugins"),
)


@dataclass(frozen=True)
class Server:
    """A server that loads plugins.

    Parameters
    ----------
    name
        Its name.
    version
        What is installed, None without it.
    entry_point
        Ours in its group, as "group: name = value"; empty when it is not registered.
    """

    name: str
    version: str | None
    entry_point: str


@dataclass(frozen=True)
class Integrations:
    """What is integrated with what.

    Parameters
    ----------
    flashinfer
        `fp4aot.integrations.flashinfer.status()`.
    servers
        Those that could load the plugin.
    """

    flashinfer: Report
    servers: tuple[Server, ...]

    def lines(self) -> list[str]:
        """Write it for a person."""
        report = self.flashinfer
        found = report.flashinfer or "not installed"
        lines = [f"  FlashInfer  {found}, {_state(report)}"]
        if report.flashinfer and report.replaced:
            will = "replaced" if report.active else "would be replaced"
            lines.append(f"              {will}: {', '.join(report.replaced)}")
        lines += [f"              kept: {kept.name} ({kept.reason})" for kept in report.kept]
        lines += [f"              {problem}" for problem in report.problems]
        for server in self.servers:
            plugin = server.entry_point or "no plugin registered; reinstall fp4aot"
            lines.append(f"  {server.name:<10}  {server.version or 'not installed'}, {plugin}")
        return lines


def describe() -> Integrations:
    """Look at what is installed and what is active in this process."""
    return Integrations(
        flashinfer.status(),
        tuple(
            Server(name, _version(distribution), _entry_point(group))
            for name, distribution, group in PLUGIN_GROUPS
        ),
    )


def _state(report: Report) -> str:
    if report.pending:
        return "active in this process once it is imported"
    return "active in this process" if report.active else "not active in this process"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _entry_point(group: str) -> str:
    for entry_point in importlib.metadata.entry_points(group=group):
        if entry_point.value.startswith("fp4aot."):
            return f"plugin {entry_point.name} in {group}"
    return ""
