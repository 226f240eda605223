"""``docker/docker-bake.hcl``, made of the release matrix and the base images.

``python -m aot.bake`` writes it, ``--check`` tells whether it is what they say, and ``--list``
names the images to CI.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from aot import command_line, files
from aot.bases import Bases, read_bases
from aot.command_line import OUT
from aot.errors import BakeError
from aot.matrix import Matrix, WheelRow, read_matrix
from aot.toolchain import FROM_CUDA_HOME

ROOT: Final = Path(__file__).resolve().parent.parent
BAKE_FILE: Final = ROOT / "docker" / "docker-bake.hcl"
REQUIREMENTS: Final = ROOT / "docker" / "requirements"

_HEADER: Final = """\
# Made by `python -m aot.bake` of wheels/matrix.toml and docker/bases.toml: change those, not this.
# docker/README.md says how it is used.
"""

# Docker's name of a platform, and a machine of GitHub's that has its processor: an image installs
# packages and runs `doctor`, which nobody wants to emulate.
_DOCKER: Final[Mapping[str, str]] = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
_NATIVE_RUNNER: Final[Mapping[str, str]] = {
    "x86_64": "ubuntu-24.04",
    "aarch64": "ubuntu-24.04-arm",
}
# What is put into an image for serving beside fp4aot, by the suffix of the image's name.
_FLAVOURS: Final[Mapping[str, str]] = {"": "serve", "-sglang": "sglang"}

_VARIABLES: Final[Mapping[str, str]] = {
    "DIST": "./dist",  # wheels, a folder for each
    "SHARDS": "./build/shards",  # shards of wheels, a folder for each wheel
    "SHARD": "1/1",
    "MEMORY_LIMIT": "",
    # Where pip finds CPU builds of PyTorch: without it a build downloads 3 GB more.
    "PIP_EXTRA_INDEX_URL": "",
    "REPOSITORY": "localhost/fp4aot",
    "VERSION": "dev",
    "REVISION": "",
    "SOURCE": "",
}


@dataclass(frozen=True)
class Expression:
    """HCL that is not text, such as the name of a variable."""

    text: str


@dataclass(frozen=True)
class ServeImage:
    """An image for serving, for one processor.

    Parameters
    ----------
    target
        Its target in the bake file.
    cuda, platform
        Of the wheel that is in it.
    index
        The wheel's package index, such as ``"cu130"``.
    flavour
        What its tag ends in: nothing, or ``"-sglang"``.
    """

    target: str
    cuda: str
    platform: str
    index: str
    flavour: str

    def to_json(self) -> dict[str, str]:
        """Plain data for machines."""
        return {
            **vars(self),
            "docker_platform": _DOCKER[self.platform],
            "runner": _NATIVE_RUNNER[self.platform],
        }


def requirements_of(cuda: str, flavour: str) -> str:
    """Name the packages of an image: PyTorch is built for a major version of CUDA."""
    return f"{_FLAVOURS[flavour]}-cuda{cuda.split('.', maxsplit=1)[0]}.txt"


def serve_images(matrix: Matrix, requirements: Path = REQUIREMENTS) -> tuple[ServeImage, ...]:
    """List the images for serving: for every wheel whose CUDA has a PyTorch that is locked.

    SGLang comes with the default CUDA alone: one wheel serves every driver that it runs on.

    Parameters
    ----------
    matrix
        The release.
    requirements
        Folder of the locked packages.
    """
    return tuple(
        ServeImage(f"serve-{row.index}{flavour}", row.cuda, row.platform, row.index, flavour)
        for row in matrix.wheels()
        for flavour in _FLAVOURS
        if not flavour or row.default
        if (requirements / requirements_of(row.cuda, flavour)).is_file()
    )


def without_image(matrix: Matrix, requirements: Path = REQUIREMENTS) -> tuple[str, ...]:
    """List the CUDA versions whose wheels get no image, because no PyTorch for them is locked."""
    served = {image.cuda for image in serve_images(matrix, requirements)}
    return tuple(one.version for one in matrix.cuda if one.version not in served)


def bake_file(matrix: Matrix, bases: Bases, requirements: Path = REQUIREMENTS) -> str:
    """Write the bake file.

    Raises
    ------
    BaseImageError
        When a base image is missing or not pinned.
    """
    rows = matrix.wheels()
    default = next(row for row in rows if row.default)
    images = serve_images(matrix, requirements)
    names = list(dict.fromkeys(image.target for image in images))
    blocks = [
        _HEADER,
        *(
            f'variable "{name}" {{ default = {_value(value)} }}'
            for name, value in _VARIABLES.items()
        ),
        _group("default", [f"wheel-{default.name}"]),
        _group("wheels", [f"wheel-{row.name}" for row in rows]),
        _group("images", names),
        *(block for row in rows for block in _wheel_targets(row, bases)),
        *(_serve_target(name, images, bases) for name in names),
    ]
    if missing := without_image(matrix, requirements):
        blocks.append(
            f"# No image for serving with CUDA {', '.join(missing)}: docker/requirements has no "
            "PyTorch for it."
        )
    return "\n".join(blocks) + "\n"


def _group(name: str, targets: Sequence[str]) -> str:
    return _block("group", name, {"targets": list(targets)})


def _wheel_targets(row: WheelRow, bases: Bases) -> tuple[str, ...]:
    """Three ways to a wheel: at once, one share of its objects, and all shares linked."""
    base = bases.listed("build", row.platform)
    arguments: dict[str, Any] = {
        "BASE": base.reference,
        "PYTHON": base.python,
        "PACKAGES": " ".join(base.packages),
        "CUDA": row.cuda,
        "FLASHINFER": row.flashinfer,
        "PRESET": row.preset,
        "PLATFORM": row.platform,
        "ARCHITECTURES": ",".join(map(str, row.architectures)),
        "MEMORY_LIMIT": Expression("MEMORY_LIMIT"),
        "PIP_EXTRA_INDEX_URL": Expression("PIP_EXTRA_INDEX_URL"),
    }
    if row.toolkit == FROM_CUDA_HOME:
        cuda = bases.listed("cuda", row.cuda)
        arguments |= {"CUDA_BASE": cuda.reference, "CUDA_HOME": f"/cuda{cuda.home}"}
    wheel = {
        "context": ".",
        "dockerfile": "docker/Dockerfile.build",
        "target": "wheel",
        # The build machine: another platform's wheel is cross-compiled.
        "platforms": [_DOCKER["x86_64"]],
        "args": arguments,
        "output": [f"type=local,dest=${{DIST}}/{row.name}"],
    }
    shard = {
        "inherits": [f"wheel-{row.name}"],
        "args": {"SHARD": Expression("SHARD")},
        "output": [f"type=local,dest=${{SHARDS}}/{row.name}"],
    }
    link = {
        "inherits": [f"wheel-{row.name}"],
        "target": "linked",
        "contexts": {"shards": f"${{SHARDS}}/{row.name}"},
    }
    return (
        _block("target", f"wheel-{row.name}", wheel),
        _block("target", f"shard-{row.name}", shard),
        _block("target", f"link-{row.name}", link),
    )


def _serve_target(name: str, images: Iterable[ServeImage], bases: Bases) -> str:
    mine = [image for image in images if image.target == name]
    first = mine[0]
    return _block(
        "target",
        name,
        {
            "context": ".",
            "dockerfile": "docker/Dockerfile.serve",
            "target": "serve",
            "platforms": [_DOCKER[image.platform] for image in mine],
            "contexts": {"wheels": Expression("DIST")},
            "args": {
                "BASE": bases.serve.reference,
                "PYTHON": bases.serve.python,
                "CUDA": first.cuda,
                "WHEELS": first.index,
                "REQUIREMENTS": f"/requirements/{requirements_of(first.cuda, first.flavour)}",
                "VERSION": Expression("VERSION"),
                "REVISION": Expression("REVISION"),
                "SOURCE": Expression("SOURCE"),
            },
            "tags": [f"${{REPOSITORY}}:${{VERSION}}-{first.index}{first.flavour}"],
        },
    )


def _block(kind: str, name: str, attributes: Mapping[str, Any]) -> str:
    lines = [f'{kind} "{name}" {{']
    for key, value in attributes.items():
        if isinstance(value, Mapping):
            inner = (f"    {inner} = {_value(item)}" for inner, item in value.items())
            lines += [f"  {key} = {{", *inner, "  }"]
        else:
            lines.append(f"  {key} = {_value(value)}")
    return "\n".join([*lines, "}"])


def _value(value: Any) -> str:
    """Write a value as HCL; text is JSON's but for ``${``, which stays a template."""
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)


class Listing(str, Enum):
    """What can be listed to CI."""

    IMAGES = "images"
    TAGS = "tags"


def listed(listing: Listing, images: Iterable[ServeImage]) -> dict[str, list[dict[str, str]]]:
    """List images as a matrix for GitHub Actions: one for each processor, or one for each tag."""
    rows = [image.to_json() for image in images]
    if listing is Listing.TAGS:
        shared = ("target", "cuda", "index", "flavour")
        by_target: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            by_target.setdefault(row["target"], []).append(row)
        rows = [
            {key: same[0][key] for key in shared}
            | {"platforms": " ".join(row["platform"] for row in same)}
            for same in by_target.values()
        ]
    return {"include": rows}


def _command(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail where it would change.")
    ] = False,
    listing: Annotated[
        Listing | None, typer.Option("--list", help="Instead: a matrix for CI, in one line.")
    ] = None,
) -> None:
    """Write docker/docker-bake.hcl."""
    matrix = read_matrix()
    if listing is not None:
        print(json.dumps(listed(listing, serve_images(matrix))))
        return
    text = bake_file(matrix, read_bases())
    if not check:
        files.write_text(BAKE_FILE, text)
        OUT.print(f"{BAKE_FILE}", highlight=False, soft_wrap=True)
    elif not BAKE_FILE.is_file() or BAKE_FILE.read_text(encoding="utf-8") != text:
        raise BakeError(
            f"{BAKE_FILE} is not what wheels/matrix.toml and docker/bases.toml say; run "
            "`python -m aot.bake`"
        )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(_command)

if __name__ == "__main__":
    command_line.run(app)
