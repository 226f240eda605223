"""pip, and uv where the test group has it, install from a served index; and refuse a forged one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_index_wheel import Recipe

from aot.index import Site, write_site

ROOT = Path(__file__).resolve().parents[2]
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
(TEST_GROUP,) = re.findall(r"^test = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)


@dataclass
class Server:
    """A static file server on the loopback interface, and what it was asked for."""

    folder: Path
    as_json: bool = False
    asked: list[str] = field(default_factory=list)
    address: str = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(outer.folder))

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if outer.as_json and self.path.endswith("/"):
                    self.path += "index.json"
                super().do_GET()

            def guess_type(self, path: Any) -> str:
                return JSON_TYPE if str(path).endswith(".json") else super().guess_type(path)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            self.address = f"http://127.0.0.1:{server.server_port}"
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def asked_for(self, ending: str) -> int:
        return sum(path.endswith(ending) for path in self.asked)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    Recipe().make(tmp_path / "dist" / "13.0")
    Recipe(version="0.2.0", seed=3).make(tmp_path / "dist" / "13.0")
    Recipe(cuda="13.5", seed=2).make(tmp_path / "dist" / "13.5")
    return write_site(tmp_path / "dist", tmp_path / "site")


@pytest.fixture
def server(site: Site) -> Iterator[Server]:
    with Server(site.folder).running() as running:
        yield running


def environment() -> dict[str, str]:
    """Nothing of this machine's settings for installers, proxies or caches."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"(PIP|UV)_|.*_PROXY$", name, re.IGNORECASE)
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "NO_PROXY": "*"}


def execute(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )


def pip(command: str, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = (sys.executable, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check")
    return execute(*program, command, "--index-url", address, *arguments)


def uv(command: str, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    assert program, "the test group lists uv, and it is not installed: install the group"
    where = ("--python", sys.executable)
    return execute(
        program, "--no-cache", "pip", command, *where, "--index-url", address, *arguments
    )


Installer = Callable[..., "subprocess.CompletedProcess[str]"]


def check_install(install: Installer, server: Server, target: Path) -> None:
    """The library that arrives is the one of the wheel of this CUDA version."""
    for name, seed, requirement in (
        ("cu130", 3, "fp4aot"),
        ("cu130", 1, "fp4aot==0.1.0"),
        ("cu135", 2, "fp4aot"),
    ):
        place = target / f"{name}-{seed}"
        address = f"{server.address}/{name}/simple/"
        done = install("install", address, "--no-deps", "--target", str(place), requirement)
        assert done.returncode == 0, done.stderr
        library = Recipe(seed=seed).files()["fp4aot/libfp4aot.so"]
        assert (place / "fp4aot" / "libfp4aot.so").read_bytes() == library
    assert server.asked_for(".whl") == 3


def check_plain_command(install: Installer, server: Server) -> None:
    """torch is installed: the index needs to have nothing but fp4aot, and metadata is enough."""
    address = f"{server.address}/cu130/simple/"
    # Also where an older fp4aot is installed, as after the tests of a wheel.
    done = install("install", address, "--dry-run", "--upgrade", "fp4aot")
    assert done.returncode == 0, done.stderr
    assert re.search(r"fp4aot(-|==)0\.2\.0", done.stdout + done.stderr)
    assert server.asked_for("0.2.0-" + Recipe().tag + ".whl.metadata") == 1


def forge_wheel(server: Server) -> None:
    """Serve another sound wheel under the same name: nothing but its hash gives it away."""
    (victim,) = (server.folder / "cu135").rglob("*.whl")
    sound = victim.read_bytes()
    Recipe(cuda="13.5", seed=666).make(victim.parent)
    assert len(victim.read_bytes()) == len(sound)
    assert victim.read_bytes() != sound


def forge_metadata(server: Server) -> None:
    """Serve metadata that asks for another package too."""
    (victim,) = (server.folder / "cu135").rglob("*.whl.metadata")
    victim.write_bytes(b"Requires-Dist: malware\n".join(victim.read_bytes().split(b"\n", 1)))


def check_refused(
    install: Installer, forge: Callable[[Server], None], server: Server, target: Path, *more: str
) -> None:
    """The same command succeeds before and fails after, because of the hash."""
    arguments = (f"{server.address}/cu135/simple/", "--no-deps", "--target")
    assert install("install", *arguments, str(target / "before"), *more).returncode == 0
    forge(server)
    done = install("install", *arguments, str(target / "after"), *more)
    assert done.returncode != 0, done.stdout
    assert re.search(r"hash", done.stderr, re.IGNORECASE), done.stderr
    assert not (target / "after" / "fp4aot").exists()


def test_pip_installs(server: Server, tmp_path: Path) -> None:
    check_install(pip, server, tmp_path / "target")


def test_pip_follows_the_page_beside_an_installed_torch(server: Server) -> None:
    check_plain_command(pip, server)


def test_pip_downloads_the_wheel_as_it_was(server: Server, site: Site, tmp_path: Path) -> None:
    done = pip(
        "download", f"{server.address}/cu130/simple/", "--no-deps", "-d", str(tmp_path), "fp4aot"
    )
    assert done.returncode == 0, done.stderr
    newest = site.indexes[1].wheels[0]
    assert (tmp_path / newest.name).read_bytes() == newest.path.read_bytes()


def test_pip_reads_json_where_the_server_offers_it(site: Site, tmp_path: Path) -> None:
    for page in site.folder.rglob("simple/**/index.html"):
        page.unlink()
    with Server(site.folder, as_json=True).running() as server:
        check_install(pip, server, tmp_path / "target")


@pytest.mark.parametrize("forge", [forge_wheel, forge_metadata])
def test_pip_refuses_what_has_another_hash(
    forge: Callable[[Server], None], server: Server, tmp_path: Path
) -> None:
    check_refused(pip, forge, server, tmp_path, "fp4aot")


def test_pip_takes_no_wheel_for_an_older_python(tmp_path: Path) -> None:
    def future(files: dict[str, bytes]) -> None:
        name = "fp4aot-0.9.0.dist-info/METADATA"
        files[name] = files[name].replace(b">=3.10", b">=3.99")

    Recipe(version="0.9.0", change_files=future).make(tmp_path / "dist")
    folder = write_site(tmp_path / "dist", tmp_path / "site").folder
    with Server(folder).running() as server:
        done = pip("download", f"{server.address}/cu130/simple/", "--no-deps", "fp4aot")
    assert done.returncode != 0
    assert ">=3.99" in done.stderr
    assert server.asked_for(".whl") == 0


# Collected when the test group lists uv: then it must be there.
if re.search(r'"uv\b', TEST_GROUP):

    def test_uv_installs(server: Server, tmp_path: Path) -> None:
        check_install(uv, server, tmp_path / "target")

    def test_uv_follows_the_page_beside_an_installed_torch(server: Server) -> None:
        check_plain_command(uv, server)

    def test_uv_reads_json_where_the_server_offers_it(site: Site, tmp_path: Path) -> None:
        for page in site.folder.rglob("simple/**/index.html"):
            page.unlink()
        with Server(site.folder, as_json=True).running() as server:
            check_install(uv, server, tmp_path / "target")

    def test_uv_refuses_what_has_another_hash(server: Server, tmp_path: Path) -> None:
        check_refused(uv, forge_wheel, server, tmp_path, "fp4aot")

    def test_uv_refuses_metadata_that_has_another_hash(server: Server) -> None:
        """It reads them when it needs to know what else to install."""
        arguments = (f"{server.address}/cu135/simple/", "--dry-run")
        # Also where an fp4aot is installed, as after the tests of a wheel.
        arguments += ("--reinstall-package", "fp4aot", "fp4aot")
        assert uv("install", *arguments).returncode == 0
        forge_metadata(server)
        done = uv("install", *arguments)
        assert done.returncode != 0, done.stdout
        assert "Hash mismatch for package metadata" in done.stderr
