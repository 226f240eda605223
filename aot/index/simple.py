"""The pages and files that installers read: PEP 503, 658, 691, 700 and 714."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from aot.index.collect import CudaIndex
from aot.index.wheel import PROJECT, IndexedWheel


def simple_files(index: CudaIndex) -> Mapping[str, str | bytes]:
    """Write all files of one simple index but the wheels themselves.

    Returns
    -------
    Mapping[str, str | bytes]
        Content by path below the folder of the index.
    """
    folder = f"simple/{PROJECT}"
    files: dict[str, str | bytes] = {
        "simple/index.html": _page(f'<a href="{PROJECT}/">{PROJECT}</a><br>\n', "Simple index"),
        "simple/index.json": _json({"meta": _META, "projects": [{"name": PROJECT}]}),
        f"{folder}/index.html": _page(
            "".join(map(_link, index.wheels)), f"Links for {PROJECT}, CUDA {index.cuda}"
        ),
        f"{folder}/index.json": _json(project_json(index)),
    }
    for wheel in index.wheels:
        files[f"{folder}/{wheel.name}.metadata"] = wheel.metadata
    return files


_META = {"api-version": "1.1"}


def project_json(index: CudaIndex) -> dict[str, Any]:
    """Describe the wheels of one index as PEP 691 and PEP 700 define it."""
    return {
        "meta": _META,
        "name": PROJECT,
        "versions": sorted({str(wheel.version) for wheel in index.wheels}),
        "files": [_file(wheel) for wheel in index.wheels],
    }


def _file(wheel: IndexedWheel) -> dict[str, Any]:
    metadata = {"sha256": wheel.metadata_sha256}
    return {
        "filename": wheel.name,
        "url": quote(wheel.name),
        "hashes": {"sha256": wheel.sha256},
        "size": wheel.size,
        **({"requires-python": wheel.requires_python} if wheel.requires_python else {}),
        "core-metadata": metadata,
        # What PEP 658 called it: installers from before PEP 714 look for this one.
        "dist-info-metadata": metadata,
    }


def _link(wheel: IndexedWheel) -> str:
    metadata = f"sha256={wheel.metadata_sha256}"
    attributes = {
        "href": f"{quote(wheel.name)}#sha256={wheel.sha256}",
        **({"data-requires-python": wheel.requires_python} if wheel.requires_python else {}),
        "data-core-metadata": metadata,
        "data-dist-info-metadata": metadata,
    }
    written = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {written}>{escape(wheel.name)}</a><br>\n"


def _page(links: str, title: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="pypi:repository-version" content="1.0">\n'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n{links}</body>\n</html>\n"
    )


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, sort_keys=True) + "\n"
