"""A container as a cluster runs it: read-only root, a number for a user, no rights, no network."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finished:
    """What a program in a container left."""

    exit_code: int
    stdout: str
    stderr: str


def run_read_only(
    root: Path, config: dict[str, Any], command: Sequence[str], scratch: Path
) -> Finished:
    """Run a command in an image's files with the image's own environment, user and folder.

    Parameters
    ----------
    root
        The files.
    config
        What the image says of itself.
    command
        Found on the image's PATH.
    scratch
        Folder for the runtime's own files.
    """
    name = f"fp4aot-{uuid.uuid4().hex[:12]}"
    bundle = scratch / name
    bundle.mkdir(parents=True)
    subprocess.run(["runc", "spec", "--bundle", bundle], check=True)
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    user, group = map(int, config["User"].split(":"))
    spec["root"] = {"path": str(root), "readonly": True}
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": user, "gid": group},
        "args": list(command),
        "env": config["Env"],
        "cwd": config["WorkingDir"],
        "noNewPrivileges": True,
        "capabilities": {},
    }
    options = ["nosuid", "nodev", "mode=1777"]
    tmp = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": options}
    spec["mounts"].append(tmp)
    path.write_text(json.dumps(spec))
    done = subprocess.run(
        ["runc", "--root", scratch / "state", "run", "--bundle", bundle, name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
