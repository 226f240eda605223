"""Images with buildah: the same Dockerfiles, arguments and contexts that Docker gets."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.shipping.images.tools import run

ROOT = Path(__file__).resolve().parent.parent.parent.parent


@dataclass(frozen=True)
class Buildah:
    """A store of images.

    Parameters
    ----------
    folder
        Where it lies.
    volumes
        Folders and files of this machine that every build sees: where pip finds its packages.
    """

    folder: Path
    volumes: Sequence[tuple[Path, str]] = ()

    def run(self, *words: str | Path) -> str:
        """Run one command."""
        store = ("--root", self.folder / "storage", "--runroot", self.folder / "run")
        # vfs copies whole file systems, and works where nothing else does.
        driver = ("--storage-driver", os.environ.get("STORAGE_DRIVER", "vfs"))
        return run(["buildah", *store, *driver, *words], cwd=ROOT).strip()

    def remove(self) -> None:
        """Remove the store: gigabytes, and of no use to anybody."""
        self.run("umount", "--all")
        self.run("rm", "--all")
        shutil.rmtree(self.folder, ignore_errors=True)

    def import_folder(self, folder: Path, name: str) -> None:
        """Make an image of a root file system."""
        container = self.run("from", "--quiet", "scratch").splitlines()[-1]
        self.run("add", "--quiet", container, folder, "/")
        self.run("commit", "--quiet", "--rm", container, name)

    def build(
        self,
        dockerfile: str,
        target: str,
        arguments: Mapping[str, str],
        *,
        contexts: Mapping[str, Path] | None = None,
        tag: str = "",
        output: Path | None = None,
        network: bool = True,
    ) -> str:
        """Build a target of a Dockerfile, to an image or to a folder, and return the log."""
        words: list[str | Path] = ["bud", "--file", f"docker/{dockerfile}", "--target", target]
        # Of the two formats only Docker's has health checks.
        words += ["--format", "docker", "--ignorefile", f"docker/{dockerfile}.dockerignore"]
        words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        words += [f"--build-context={name}={path}" for name, path in (contexts or {}).items()]
        words += [f"--volume={here}:{there}:ro" for here, there in self.volumes]
        words += [] if network else ["--network", "none"]
        words += ["--tag", tag] if tag else []
        words += ["--output", f"type=local,dest={output}"] if output else []
        return self.run(*words, ".")

    def config(self, tag: str) -> dict[str, Any]:
        """Return what an image says of itself."""
        data: dict[str, Any] = json.loads(self.run("inspect", "--type", "image", tag))
        config: dict[str, Any] = data["Docker"]["config"]
        return config

    def mount(self, tag: str) -> Path:
        """Return the folder that holds an image's files."""
        container = self.run("from", "--quiet", "--pull-never", tag).splitlines()[-1]
        return Path(self.run("mount", container).splitlines()[-1])
