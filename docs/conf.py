"""How Sphinx builds the site: ``nox -s docs``, or ``sphinx-build -W docs build/site``.

Pages are Markdown. What is generated (operators from docstrings, tables from data) comes from the
extension in ``_site/``, by reading files: the package need not be installed or compiled.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# The extension, and the build side's tables.
sys.path[:0] = [str(HERE), str(ROOT)]

project = "fp4aot"
project_copyright = "the fp4aot authors, Apache-2.0"
(release,) = re.findall(
    r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
)
version = release

extensions = ["myst_parser", "_site"]
exclude_patterns = ["_site", "_static"]
# Sections of README keep their level below the title of the page that includes them.
suppress_warnings = ["myst.header"]

myst_enable_extensions = ["deflist", "colon_fence"]
# Links to a heading, as they work where the files are read as they are.
myst_heading_anchors = 3

python_maximum_signature_line_length = 60
toc_object_entries = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = f"fp4aot {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    # Nothing is loaded from elsewhere: the site works from the folder, without a network.
    "light_css_variables": {"color-brand-primary": "#33691e", "color-brand-content": "#2e6417"},
    "dark_css_variables": {"color-brand-primary": "#9ccc65", "color-brand-content": "#9ccc65"},
}
