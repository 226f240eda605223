"""The page: one file that needs no other, without script."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

from aot import files
from aot.build_report import summary, words
from aot.build_report.chart import chart
from aot.build_report.colours import colours
from aot.build_report.figures import groups, slowest, totals
from aot.build_report.tables import groups_table, slowest_table, units_table
from aot.compile.record import BuildRecord

_SLOWEST: Final = 15


def write_report(record: BuildRecord, path: Path) -> None:
    """Write the report of a build to a file.

    Parameters
    ----------
    record
        What happened.
    path
        Of the file; its folder is made where there is none.
    """
    files.write_text(path, report_html(record))


def report_html(record: BuildRecord) -> str:
    """Return the report of a build as one HTML page, in ASCII.

    Parameters
    ----------
    record
        What happened.
    """
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    counted = totals(record)
    title = words.safe(f"Build of {record.preset}")
    names = colours(groups(record))
    text = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(style)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{summary.verdict(record, counted)}</p>
<p class="soft">{summary.subject(record)}</p>
</header>
<main>
{summary.failures(record)}{summary.tiles(record, counted)}{chart(record, names)}\
{_tables(record)}{summary.facts(record)}</main>
</body>
</html>
"""
    # Whatever encoding a reader or a web server takes it for, it says the same.
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _policy(style: str) -> str:
    """Allow this style and nothing else: no script, no picture, no address is ever fetched."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _tables(record: BuildRecord) -> str:
    if not record.jobs:
        return ""
    found = groups(record)
    names = colours(found)
    slow = slowest(record, _SLOWEST)
    parts = []
    if slow:
        ran = sum(job.seconds is not None for job in record.jobs)
        which = f"The {len(slow)} slowest of {ran} that ran" if ran > len(slow) else "All that ran"
        parts.append(
            f'<section><h2>Slowest units</h2>\n<p class="soft">{which}; expected is '
            "what they were started with, measured earlier or estimated.</p>\n"
            f"{slowest_table(slow, names)}</section>\n"
        )
    units = words.counted(len(record.jobs), "unit")
    parts.append(
        f"<section><h2>Groups</h2>\n{groups_table(found, names)}</section>\n"
        "<section><h2>All units</h2>\n"
        f"<details><summary>{units}, in the order of the plan</summary>\n"
        f"{units_table(record.jobs)}</details></section>\n"
    )
    return "".join(parts)
