"""The files of a site, and that they appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from test_index_wheel import Recipe, lower

import aot.index.site
from aot.errors import AuditError, BuildError
from aot.index import Site, read_wheel, write_site
from aot.index.site import MARKER, check_base_url


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    Recipe().make(folder / "a")
    Recipe(cuda="13.5", seed=2).make(folder / "b")
    Recipe(version="0.1.1+post", seed=3).make(folder / "a")
    return folder


@pytest.fixture
def site(wheels: Path, tmp_path: Path) -> Site:
    return write_site(wheels, tmp_path / "site")


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        self.meta: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        data = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.found.append(data)
        if tag == "meta" and "name" in data:
            self.meta[data["name"]] = data["content"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(("name", "count"), [("cu130", 2), ("cu135", 1)])
def test_every_link_leads_to_a_file_with_its_hash(site: Site, name: str, count: int) -> None:
    folder = site.folder / name / "simple" / "fp4aot"
    links = Links((folder / "index.html").read_text())
    assert links.meta["pypi:repository-version"] == "1.0"
    assert len(links.found) == count
    for link in links.found:
        address, fragment = urldefrag(link["href"])
        wheel = folder / unquote(address)
        assert fragment == f"sha256={sha256(wheel)}"
        metadata = wheel.with_name(wheel.name + ".metadata")
        assert metadata.read_bytes() == read_wheel(wheel).metadata
        for attribute in ("data-core-metadata", "data-dist-info-metadata"):
            assert link[attribute] == f"sha256={sha256(metadata)}"
        assert link["data-requires-python"] == ">=3.10"


def test_a_local_version_is_quoted_and_the_comparison_escaped(site: Site) -> None:
    text = (site.folder / "cu130/simple/fp4aot/index.html").read_text()
    assert 'href="fp4aot-0.1.1%2Bpost-' in text
    assert 'data-requires-python="&gt;=3.10"' in text


def test_json_says_what_html_says(site: Site) -> None:
    folder = site.folder / "cu130" / "simple" / "fp4aot"
    data = json.loads((folder / "index.json").read_text())
    assert data["meta"] == {"api-version": "1.1"}
    assert data["name"] == "fp4aot"
    assert data["versions"] == ["0.1.0", "0.1.1+post"]
    links = Links((folder / "index.html").read_text()).found
    assert [f"{one['url']}#sha256={one['hashes']['sha256']}" for one in data["files"]] == [
        link["href"] for link in links
    ]
    for one, link in zip(data["files"], links, strict=True):
        wheel = folder / one["filename"]
        assert one["size"] == wheel.stat().st_size
        assert one["requires-python"] == link["data-requires-python"]
        assert one["core-metadata"] == one["dist-info-metadata"]
        assert f"sha256={one['core-metadata']['sha256']}" == link["data-core-metadata"]


def test_the_list_of_projects(site: Site) -> None:
    folder = site.folder / "cu130" / "simple"
    assert [link["href"] for link in Links((folder / "index.html").read_text()).found] == [
        "fp4aot/"
    ]
    data = json.loads((folder / "index.json").read_text())
    assert data["projects"] == [{"name": "fp4aot"}]


def test_the_wheels_are_those_given(site: Site, wheels: Path) -> None:
    given = sorted(sha256(path) for path in wheels.rglob("*.whl"))
    assert sorted(sha256(path) for path in site.folder.rglob("*.whl")) == given
    assert len(given) == 3


def test_the_marker_describes_the_site(site: Site) -> None:
    data = json.loads((site.folder / MARKER).read_text())
    assert {"site": str(site.folder), **data} == json.loads(json.dumps(site.to_json()))
    (wheel,) = data["indexes"]["cu135"]["wheels"]
    assert (wheel["flashinfer"], wheel["preset"]) == ("0.7.2", "dense-12.0f")
    assert wheel["modules"]["fp4_kv_dequant"] == ["9.0a", "12.0f"]
    assert data["indexes"]["cu135"]["cuda"] == "13.5"


def test_twice_the_same_bytes(site: Site, wheels: Path, tmp_path: Path) -> None:
    other = write_site(wheels, tmp_path / "elsewhere" / "site")
    assert tree(other.folder) == tree(site.folder)


def test_readable_by_a_web_server(site: Site) -> None:
    for path in (site.folder, *site.folder.rglob("*")):
        wanted = 0o755 if path.is_dir() else 0o644
        assert path.stat().st_mode & 0o777 == wanted, path


# Writing


def test_an_earlier_site_is_replaced_as_a_whole(site: Site, wheels: Path) -> None:
    (site.folder / "left over").write_text("from before")
    next((wheels / "b").glob("*.whl")).unlink()
    write_site(wheels, site.folder)
    assert not (site.folder / "left over").exists()
    assert not (site.folder / "cu135").exists()
    assert (site.folder / "cu130").is_dir()
    assert [path.name for path in site.folder.parent.iterdir() if path.name[0] == "."] == []


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": "another program"}'])
def test_what_is_not_ours_is_left_alone(content: str | None, wheels: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "site"
    theirs.mkdir()
    (theirs / "index.html").write_text("a home page")
    if content is not None:
        (theirs / MARKER).write_text(content)
    before = tree(theirs)
    with pytest.raises(BuildError, match="not an index that this command wrote"):
        write_site(wheels, theirs)
    assert tree(theirs) == before


def test_a_file_in_its_place_is_left_alone(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "site").write_text("a file")
    with pytest.raises(BuildError, match="not an index that this command wrote"):
        write_site(wheels, tmp_path / "site")
    assert (tmp_path / "site").read_text() == "a file"


def test_an_empty_folder_is_filled(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    assert (write_site(wheels, tmp_path / "site").folder / MARKER).is_file()


@pytest.mark.parametrize("place", [".", "site", ".."])
def test_site_and_wheels_are_apart(place: str, wheels: Path) -> None:
    before = tree(wheels)
    with pytest.raises(BuildError, match="lie one in the other"):
        write_site(wheels, wheels / place)
    assert tree(wheels) == before


def test_a_refused_wheel_leaves_the_site_as_it_was(site: Site, wheels: Path) -> None:
    before = tree(site.folder)
    Recipe(version="9.0", change_manifest=lower).make(wheels)
    with pytest.raises(AuditError, match="is lowered"):
        write_site(wheels, site.folder)
    assert tree(site.folder) == before


def test_a_failure_half_way_leaves_the_site_as_it_was(
    site: Site, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(site.folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(aot.index.site.shutil, "copyfile", full)
    with pytest.raises(BuildError, match="No space left on device"):
        write_site(wheels, site.folder)
    assert tree(site.folder) == before
    assert sorted(path.name for path in site.folder.parent.iterdir()) == ["dist", "site"]


def test_a_swap_that_fails_brings_the_earlier_site_back(
    site: Site, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(site.folder)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_site(wheels, site.folder)
    assert tree(site.folder) == before


def test_a_wheel_that_changes_meanwhile_is_not_published(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = aot.index.site.collect

    def then_rebuild(folder: Path) -> object:
        indexes = collect(folder)
        Recipe(cuda="13.5", seed=9).make(folder / "b")
        return indexes

    monkeypatch.setattr(aot.index.site, "collect", then_rebuild)
    with pytest.raises(BuildError, match="has changed while it was published"):
        write_site(wheels, tmp_path / "site")
    assert not (tmp_path / "site").exists()


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ""),
        ("https://example.org/fp4aot/", "https://example.org/fp4aot"),
        ("https://example.org:8443", "https://example.org:8443"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://localhost:8000", "http://localhost:8000"),
    ],
)
def test_addresses_that_pip_accepts(text: str, address: str) -> None:
    assert check_base_url(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("http://example.org", "ftp://example.org", "example.org/fp4aot", "https://", "/site"),
        *("https://user:secret@example.org", "https://example.org?a=b", "https://example.org#a"),
        *("https://example.org/a b", "https://example.org/$(id)", "https://example.org/;id"),
        *("https://example.org:port", "https://[::1", "http://10.0.0.1/"),
    ],
)
def test_addresses_that_it_would_not(text: str) -> None:
    with pytest.raises(BuildError, match="--base-url"):
        check_base_url(text)
