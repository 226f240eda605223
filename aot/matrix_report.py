"""``python -m aot matrix``: the wheels of a release, for people, CI and the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from aot.command_line import OUT, AsJson
from aot.errors import MatrixError
from aot.index.choices import GPUS, Gpu
from aot.matrix import FIRST_BLACKWELL, MATRIX, WheelRow, read_matrix

OWN_PROCESSOR: Final = frozenset({"GB200", "GB300", "GH200", "Jetson Thor", "DGX Spark (GB10)"})
"""GPUS's products that come with an aarch64 processor; the others are cards for either."""


def matrix_command(
    cuda: Annotated[
        list[str] | None, typer.Option(help="Only wheels of this CUDA version; repeatable.")
    ] = None,
    platform: Annotated[
        list[str] | None, typer.Option(help="Only wheels for this processor; repeatable.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Another preset for every wheel.")] = "",
    shards: Annotated[
        bool, typer.Option("--shards", help="With --json: an entry for each shard of each wheel.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the documentation's table.")
    ] = False,
    file: Annotated[Path, typer.Option(help="The matrix.", dir_okay=False)] = MATRIX,
    as_json: AsJson = False,
) -> None:
    """List the wheels of a release; with --json as a matrix for GitHub Actions, in one line."""
    if markdown and (as_json or shards):
        raise typer.BadParameter("--markdown is a table for people; leave --json and --shards out")
    if shards and not as_json:
        raise typer.BadParameter("--shards is for --json; write both")
    rows = select(read_matrix(file).wheels(preset), cuda or (), platform or ())
    if as_json:
        # One line: a step's output in GitHub Actions is a line.
        print(json.dumps({"include": entries(rows, each_shard=shards)}))
    elif markdown:
        print(markdown_table(rows))
    else:
        OUT.print(table(rows))


def select(
    rows: Sequence[WheelRow], cuda: Iterable[str] = (), platforms: Iterable[str] = ()
) -> tuple[WheelRow, ...]:
    """Choose among wheels.

    Parameters
    ----------
    rows
        All of them.
    cuda, platforms
        Those that are wanted; none for all.

    Raises
    ------
    MatrixError
        When there is no wheel of one, with what there is.
    """
    wanted_cuda = _known("--cuda", cuda, [row.cuda for row in rows])
    wanted_platforms = _known("--platform", platforms, [row.platform for row in rows])
    return tuple(
        row for row in rows if row.cuda in wanted_cuda and row.platform in wanted_platforms
    )


def _known(option: str, wanted: Iterable[str], there: Sequence[str]) -> Sequence[str]:
    wanted = tuple(wanted)
    for value in wanted:
        if value not in there:
            raise MatrixError(
                f"{option} is {value!r}; the matrix has {', '.join(dict.fromkeys(there))}: choose "
                "one of them, or add it to the matrix"
            )
    return wanted or there


def entries(rows: Iterable[WheelRow], *, each_shard: bool = False) -> list[dict[str, Any]]:
    """Describe wheels to a machine.

    Parameters
    ----------
    rows
        The wheels.
    each_shard
        Whether each has as many entries as shards, numbered from 1, instead of one.
    """
    if not each_shard:
        return [row.to_json() for row in rows]
    return [{**row.to_json(), "shard": shard} for row in rows for shard in range(1, row.shards + 1)]


def table(rows: Iterable[WheelRow]) -> Table:
    """Lay wheels out for a terminal, one row each."""
    shown = Table()
    titles = ("wheel", "architectures", "preset", "driver", "glibc", "toolkit", "shards", "runner")
    for title in titles:
        shown.add_column(title, overflow="fold")
    for row in rows:
        shown.add_row(
            row.name,
            " ".join(map(str, row.architectures)),
            row.preset,
            row.driver,
            ".".join(row.manylinux.split("_")[1:3]),
            row.toolkit,
            str(row.shards),
            row.runner,
        )
        if row.default:
            shown.caption = f"the default is CUDA {row.cuda}"
    return shown


def markdown_table(rows: Iterable[WheelRow]) -> str:
    """Write the table of the documentation: which wheel for which machine."""
    lines = ["| wheel | CUDA | NVIDIA driver | platform | GPUs |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {row.cuda}{' (default)' if row.default else ''} | {row.driver} or newer "
        f"| Linux {row.platform} | {'; '.join(map(_described, gpus(row)))} |"
        for row in rows
    ]
    return "\n".join(lines)


def gpus(row: WheelRow) -> tuple[Gpu, ...]:
    """List the GPUs that a wheel is for, of which a machine of its platform can have one."""
    found = []
    for gpu in GPUS:
        if not any(target.runs_on(gpu.capability) for target in row.architectures):
            continue
        products = [
            name
            for name in gpu.name.split(", ")
            if row.platform == "aarch64" or name not in OWN_PROCESSOR
        ]
        if products:
            found.append(Gpu(", ".join(products), gpu.capability))
    return tuple(found)


def _described(gpu: Gpu) -> str:
    major, minor = gpu.capability
    limit = "" if gpu.capability >= FIRST_BLACKWELL else ", KV dequantization alone"
    return f"{gpu.name} ({major}.{minor}{limit})"
