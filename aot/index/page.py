"""The page for people: which command for which GPU, driver and torch. One file, no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from packaging.specifiers import SpecifierSet

from aot.index.choices import GPUS, Choice, Gpu, offer
from aot.index.collect import CudaIndex
from aot.index.wheel import PROJECT, IndexedWheel

PLACEHOLDER: Final = "ADDRESS"
"""In commands, when nobody has said where the site will be served."""


def page(indexes: tuple[CudaIndex, ...], base_url: str = "") -> str:
    """Write the page.

    Parameters
    ----------
    indexes
        What there is, newest CUDA version first.
    base_url
        Where the site is served, without a slash at the end; empty when that is not known.
    """
    address = base_url or PLACEHOLDER
    rows = "".join(_row(gpu, indexes, address) for gpu in GPUS)
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Install fp4aot</title>
<style>
{style}</style>
</head>
<body>
<h1>Install fp4aot</h1>
<p>FlashInfer's FP4 kernels for NVIDIA Blackwell, compiled ahead of time and registered as PyTorch
operators. Nothing is compiled on your machine.</p>

<h2>Before</h2>
<ol>
<li>Find your GPU, its compute capability and your driver:
<pre><code>nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv</code></pre></li>
<li>Install <a href="https://pytorch.org/get-started/locally/">PyTorch</a>{_torch(indexes)},
built for CUDA: these indexes hold fp4aot alone. The CUDA version of a wheel need not be PyTorch's;
each wheel carries its own CUDA runtime.</li>
</ol>
{_address_note(base_url)}
<h2>The command for your GPU</h2>
<p>Where there are several, take the first that your driver and processor allow. With uv, write
<code>uv pip install</code> for <code>pip install</code>; the rest is the same.</p>
<table class="gpus">
<thead><tr><th scope="col">GPU</th><th scope="col">Compute capability</th>
<th scope="col">Wheel and command</th></tr></thead>
<tbody>
{rows}</tbody>
</table>
<p>Then check: <code>python -m fp4aot doctor</code> says what runs on your machine, and what to do
where something does not.</p>

<h2>All wheels</h2>
{"".join(map(_index, indexes))}</body>
</html>
"""


def _torch(indexes: Iterable[CudaIndex]) -> str:
    """Write the versions of torch that the wheels accept."""
    accepted = {wheel.requires_torch for index in indexes for wheel in index.wheels}
    if len(accepted) > 1:
        return " in a version that the wheel accepts (below)"
    (only,) = accepted
    return f" {_specifier(only)}" if only else ""


def _specifier(text: str) -> str:
    """Write ``>=2.10`` for people, and any other specifier as it is."""
    parts = list(SpecifierSet(text))
    if len(parts) == 1 and parts[0].operator == ">=":
        return f"{escape(parts[0].version)} or newer"
    return escape(text)


def _address_note(base_url: str) -> str:
    if base_url:
        return ""
    return f"""<p>In the commands, <code>{PLACEHOLDER}</code> is the address of this page without
<code>/index.html</code>. For a copy of it on your machine, run
<code>python -m http.server --bind 127.0.0.1 8000</code> in its folder; the address is then
<code>http://127.0.0.1:8000</code>.</p>
"""


def _row(gpu: Gpu, indexes: Iterable[CudaIndex], address: str) -> str:
    major, minor = gpu.capability
    cell = "".join(_choice(group, address) for group in offer(gpu, indexes)) or (
        '<p class="soft">No wheel here runs on it.</p>'
    )
    return (
        f'<tr><th scope="row">{escape(gpu.name)}</th>'
        f'<td data-label="Compute capability">{major}.{minor}</td><td>{cell}</td></tr>\n'
    )


def _choice(alike: tuple[Choice, ...], address: str) -> str:
    """Show the first of some choices that are alike, and name the others."""
    first, *others = alike
    facts = (
        f"CUDA {first.index.cuda}",
        f"driver {first.driver}",
        f"Linux on {' or '.join(first.machines)}",
        f"preset {first.wheel.contents.preset}",
    )
    command = f"pip install --index-url {address}/{first.index.name}/simple/ {first.requirement}"
    names = ", ".join(f'<a href="#{one.index.name}">{one.index.name}</a>' for one in others)
    also = (
        f'<p class="soft">Built with another CUDA, for the same drivers: {names} in place of '
        f"{first.index.name}.</p>"
        if others
        else ""
    )
    return (
        f'<div class="choice"><p class="soft">{escape(" · ".join(facts))}</p>'
        f"<p>Runs: {escape(first.runs)}</p>"
        f"<pre><code>{escape(command)}</code></pre>{also}</div>"
    )


def _index(index: CudaIndex) -> str:
    return (
        f'<h3 id="{index.name}">CUDA {escape(index.cuda)}: '
        f'<a href="{index.name}/simple/{PROJECT}/index.html">{index.name}/simple/</a></h3>\n'
        + "".join(_wheel(wheel, index) for wheel in index.wheels)
    )


def _wheel(wheel: IndexedWheel, index: CudaIndex) -> str:
    link = f"{index.name}/simple/{PROJECT}/{quote(wheel.name)}"
    facts = {
        "version": f"{wheel.version} for {', '.join(wheel.machines)}",
        "preset": f"{wheel.contents.preset}, plan {wheel.contents.plan_hash[:16]}",
        "architectures": ", ".join(map(str, wheel.contents.targets)),
        "FlashInfer": wheel.contents.flashinfer,
        "needs": f"Python {wheel.requires_python or 'any'}, torch {wheel.requires_torch or 'any'}",
        "size": f"{wheel.size / 1e6:.2f} MB",
        "SHA-256": wheel.sha256,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<dl><dt>file</dt><dd><a href="{link}">{escape(wheel.name)}</a></dd>{rows}</dl>\n'
