"""One HTML file that shows a build: who compiled what and when, what it took, and what failed.

It is made of a `aot.compile.record.BuildRecord` alone, and needs nothing but a browser.
"""

from aot.build_report.page import report_html, write_report

__all__ = ["report_html", "write_report"]
