"""``python -m aot.release_check`` and the checks that have no command elsewhere."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from aot import command_line, files, process
from aot.command_line import ERR, OUT, AsJson
from aot.errors import ReleaseError
from aot.index import write_site
from aot.release_check.changelog import section_of
from aot.release_check.checks import CHECKS, Check
from aot.release_check.elsewhere import ELSEWHERE
from aot.release_check.run import Summary, run_checks

ROOT: Final = Path(__file__).resolve().parent.parent.parent

app = typer.Typer(
    help="Whether a release can be made.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def check(
    context: typer.Context,
    tag: Annotated[
        str, typer.Option(help="The release's tag; by default that of the version.")
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="Run this check alone; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run everything that a release needs, print a checklist, and exit with 1 if one failed."""
    if context.invoked_subcommand is not None:
        return
    chosen = choose(only or ())
    outcomes = run_checks(
        chosen, ROOT, tag or f"v{project_version()}", lambda name: ERR.print(f"{name} ...")
    )
    left_out = tuple(one for one in CHECKS if one not in chosen)
    summary = Summary(outcomes, left_out, ELSEWHERE)
    if as_json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        _print_checklist(summary)
    if not summary.passed:
        raise typer.Exit(1)


def choose(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks of these names, in the list's order; all of them for none.

    Raises
    ------
    ReleaseError
        When there is no such check.
    """
    known = [one.name for one in CHECKS]
    if unknown := [name for name in names if name not in known]:
        raise ReleaseError(
            f"--only is {', '.join(unknown)}, which is no check; expected {', '.join(known)}"
        )
    return tuple(one for one in CHECKS if not names or one.name in names)


def _print_checklist(summary: Summary) -> None:
    table = Table("", "check", "what it shows", "min", title="Release check", title_justify="left")
    for outcome in summary.outcomes:
        minutes, seconds = divmod(round(outcome.seconds), 60)
        mark = "[green]✓[/green]" if outcome.passed else "[red]✗[/red]"
        table.add_row(mark, outcome.check.name, outcome.check.shows, f"{minutes}:{seconds:02d}")
    for one in summary.left_out:
        table.add_row("-", one.name, "left out by --only", "")
    OUT.print(table)
    for outcome in summary.outcomes:
        if not outcome.passed:
            OUT.print(f"[red]✗ {outcome.check.name}[/red]", highlight=False)
            OUT.print(f"  {shlex.join(outcome.command)}", markup=False, highlight=False)
            OUT.print(outcome.output, markup=False, highlight=False, soft_wrap=True)
    rest = Table("not run here", "needs", "how", title="Not shown by this machine")
    rest.title_justify = "left"
    for item in summary.elsewhere:
        rest.add_row(item.name, item.needs, item.how)
    OUT.print(rest)
    failed = [outcome.check.name for outcome in summary.outcomes if not outcome.passed]
    OUT.print(
        f"Failed: {', '.join(failed)}" if failed else "All that was run here passed.",
        highlight=False,
    )


def project_version() -> str:
    """Read the version of pyproject.toml."""
    project = files.read_toml(ROOT / "pyproject.toml")
    return str(project["tool"]["dynamic-metadata"][0]["version"])


@app.command()
def tree() -> None:
    """Check that nothing is uncommitted."""
    status = process.run(
        ["git", "-C", ROOT, "status", "--porcelain"], purpose="ask git", error=ReleaseError
    ).stdout.rstrip()
    if status:
        raise ReleaseError(f"these files are not committed; commit or remove them:\n{status}")


@app.command()
def version(tag: Annotated[str, typer.Argument(help="Such as v0.1.0.")]) -> None:
    """Check that a tag names the version of pyproject.toml, and that the changelog has its day."""
    here = project_version()
    if tag != f"v{here}":
        raise ReleaseError(
            f"the tag is {tag!r}, and pyproject.toml has version {here}; expected v{here}"
        )
    section = section_of(_changelog(), here)
    if section.date is None:
        raise ReleaseError(
            f"CHANGELOG.md calls version {here} unreleased; write the day of the release there"
        )
    OUT.print(f"{tag}, {section.date}", highlight=False)


@app.command()
def notes(name: Annotated[str, typer.Argument(metavar="VERSION")]) -> None:
    """Print a version's section of the changelog: the notes of its release."""
    print(section_of(_changelog(), name).body)


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@app.command()
def index(
    report: Annotated[
        Path, typer.Option(help="What the build wrote about the wheel.", dir_okay=False)
    ] = ROOT / "build" / "report.json",
) -> None:
    """Make an index of the wheel that was built last, in a temporary folder."""
    try:
        wheel = Path(json.loads(report.read_text(encoding="utf-8"))["wheel"])
    except (OSError, ValueError, KeyError) as cause:
        raise ReleaseError(
            f"{report} does not name a wheel ({cause}); run `nox -s wheel` first"
        ) from cause
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "wheels").mkdir()
        shutil.copy2(wheel, folder / "wheels")
        for line in write_site(folder / "wheels", folder / "site").lines():
            OUT.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run one command."""
    command_line.run(app)
