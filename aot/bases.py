"""The images that ours are made of: ``docker/bases.toml``, and what their registries say of it.

``python -m aot.bases`` checks that each is pinned; with ``--online`` also that each digest is still
that of its tag, which takes Docker's buildx.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from aot import command_line, files, process
from aot.command_line import OUT
from aot.errors import BaseImageError

BASES: Final = Path(__file__).resolve().parent.parent / "docker" / "bases.toml"

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_KEYS: Final = {
    "image": str,
    "tag": str,
    "digest": str,
    "source": str,
    "python": str,
    "packages": list,
    "home": str,
}
_REQUIRED: Final = ("image", "tag", "digest", "source")


@dataclass(frozen=True)
class BaseImage:
    """An image that another is made from.

    Parameters
    ----------
    key
        Where it stands in the file: ``"build.x86_64"``.
    image, tag
        Its name and its tag, which moves.
    digest
        What the tag was when it was pinned; empty where nobody has pinned it.
    source
        Where the digest was read.
    python
        Its interpreter.
    packages
        What `apt-get` has to add.
    home
        The folder of its CUDA toolkit.
    """

    key: str
    image: str
    tag: str
    digest: str
    source: str
    python: str = "python3"
    packages: tuple[str, ...] = ()
    home: str = ""

    @property
    def pinned(self) -> bool:
        """Whether its digest is known."""
        return bool(self.digest)

    @property
    def reference(self) -> str:
        """What a Dockerfile takes.

        Raises
        ------
        BaseImageError
            When there is no digest.
        """
        if not self.pinned:
            raise BaseImageError(f"{self.key}: {_how_to_pin(self)}")
        return f"{self.image}:{self.tag}@{self.digest}"


@dataclass(frozen=True)
class Bases:
    """All base images.

    Parameters
    ----------
    build
        What wheels are built in, by platform.
    cuda
        Where CUDA toolkits without packages come from, by version.
    serve
        What images for serving are made of.
    """

    build: Mapping[str, BaseImage]
    cuda: Mapping[str, BaseImage]
    serve: BaseImage

    def every(self) -> tuple[BaseImage, ...]:
        """List all of them, in the order of the file."""
        return (*self.build.values(), *self.cuda.values(), self.serve)

    def listed(self, table: Literal["build", "cuda"], key: str) -> BaseImage:
        """Return what wheels for a platform are built in, or what a version of CUDA comes from.

        Raises
        ------
        BaseImageError
            When none is listed.
        """
        images: Mapping[str, BaseImage] = getattr(self, table)
        if key not in images:
            there = ", ".join(images) or "nothing"
            raise BaseImageError(
                f"docker/bases.toml has [{table}] for {there} and not for {key!r}, which the "
                f"matrix has; add [{table}.{key!r}]"
            )
        return images[key]


def read_bases(path: Path = BASES) -> Bases:
    """Read the base images from a file.

    Raises
    ------
    BaseImageError
        Naming the key that is missing or wrong.
    """
    try:
        data = files.read_toml(path)
    except (OSError, ValueError) as cause:
        raise BaseImageError(f"{path} cannot be read: {cause}") from cause
    if unknown := set(data) - {"build", "cuda", "serve"}:
        raise BaseImageError(
            f"{path}: {', '.join(sorted(unknown))} is unknown; expected build, cuda and serve"
        )
    return Bases(
        build=_images("build", data.get("build", {})),
        cuda=_images("cuda", data.get("cuda", {})),
        serve=_image("serve", data.get("serve")),
    )


def _images(table: str, data: Any) -> dict[str, BaseImage]:
    if not isinstance(data, dict):
        raise BaseImageError(f"{table} is {data!r}; expected a table of images")
    return {key: _image(f"{table}.{key}", value) for key, value in data.items()}


def _image(key: str, data: Any) -> BaseImage:
    if not isinstance(data, dict):
        raise BaseImageError(f"{key} is {data!r}; expected a table with {', '.join(_REQUIRED)}")
    for name, value in data.items():
        kind = _KEYS.get(name)
        if kind is None:
            raise BaseImageError(f"{key}.{name} is unknown; expected one of {', '.join(_KEYS)}")
        if not isinstance(value, kind):
            raise BaseImageError(f"{key}.{name} is {value!r}; expected a {kind.__name__}")
    for name in _REQUIRED:
        if name not in data:
            raise BaseImageError(f"{key}.{name} is missing")
    if data["digest"] and not _DIGEST.fullmatch(data["digest"]):
        raise BaseImageError(
            f"{key}.digest is {data['digest']!r}; expected sha256: and 64 digits, or '' until it "
            "is known"
        )
    return BaseImage(key, **{**data, "packages": tuple(data.get("packages", ()))})


def require_pinned(bases: Bases) -> None:
    """Check that every base has a digest.

    Raises
    ------
    BaseImageError
        Naming each that has none.
    """
    if missing := [base for base in bases.every() if not base.pinned]:
        lines = "\n".join(f"  {base.key}: {_how_to_pin(base)}" for base in missing)
        raise BaseImageError(f"these base images are not pinned:\n{lines}")


def _how_to_pin(base: BaseImage) -> str:
    return (
        f"{base.image}:{base.tag} has no digest; write what `docker buildx imagetools inspect "
        f"{base.image}:{base.tag}` prints, or run `python -m aot.bases --online --update`"
    )


def digest_online(base: BaseImage) -> str:
    """Ask the registry which digest a tag has now.

    Raises
    ------
    BaseImageError
        When Docker is not there, or the registry has no such tag.
    """
    name = f"{base.image}:{base.tag}"
    printed = process.run(
        ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", name],
        purpose=f"ask the registry for {name}",
        error=BaseImageError,
    ).stdout.strip()
    if not _DIGEST.fullmatch(printed):
        raise BaseImageError(f"the registry answers {printed!r} for {name}; expected a digest")
    return printed


def _command(
    online: Annotated[
        bool, typer.Option("--online", help="Compare with the registries; needs Docker.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="With --online: write the new digests.")
    ] = False,
    file: Annotated[Path, typer.Option(help="The base images.", dir_okay=False)] = BASES,
) -> None:
    """Check that every base image is pinned, and with --online that its tag has not moved."""
    if update and not online:
        raise typer.BadParameter("--update takes the digests from the registries: add --online")
    bases = read_bases(file)
    for base in bases.every():
        line = f"{base.key:<14} {base.image}:{base.tag} {base.digest or 'not pinned'}"
        OUT.print(line, highlight=False, soft_wrap=True)
    if online:
        _compare(bases, file, update=update)
    require_pinned(read_bases(file))


def _compare(bases: Bases, file: Path, *, update: bool) -> None:
    now = {base.key: digest_online(base) for base in bases.every()}
    moved = [base for base in bases.every() if now[base.key] != base.digest]
    for base in moved:
        OUT.print(f"{base.key:<14} is {now[base.key]} now", highlight=False, soft_wrap=True)
    if not moved:
        return
    if not update:
        names = ", ".join(base.key for base in moved)
        raise BaseImageError(
            f"the tags of {names} have moved; `python -m aot.bases --online --update`, then "
            "`python -m aot.bake`"
        )
    for base in moved:
        text = file.read_text(encoding="utf-8")
        files.write_text(file, with_digest(text, base, now[base.key]))


def with_digest(text: str, base: BaseImage, digest: str) -> str:
    """Replace one digest in the text of ``bases.toml``, and leave everything else as it is.

    Raises
    ------
    BaseImageError
        When the image's lines are not found.
    """
    head, name, tail = text.partition(f'image = "{base.image}"\ntag = "{base.tag}"\n')
    if not name:
        raise BaseImageError(
            f"{base.key}: the file has no lines image and tag of {base.image}:{base.tag} in this "
            f"order; write {digest} there"
        )
    tail = tail.replace(f'digest = "{base.digest}"', f'digest = "{digest}"', 1)
    return head + name + tail.replace(f'source = "{base.source}"', 'source = "its registry"', 1)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(_command)

if __name__ == "__main__":
    command_line.run(app)
