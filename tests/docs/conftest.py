"""The tests of the documentation: of the tree, and of the site that is built from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The site's extension, and the build side's tables.
sys.path[:0] = [str(ROOT / "docs"), str(ROOT)]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Return the built site: the folder that `FP4AOT_SITE` names, or one that is built here."""
    if "FP4AOT_SITE" in os.environ:
        return Path(os.environ["FP4AOT_SITE"]).resolve()
    folder = tmp_path_factory.mktemp("site")
    build = ("-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees"))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *build, str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"
