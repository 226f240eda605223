"""Whether the installed files are those of the wheel, and the library the one of its manifest.

Pure standard library, and nothing of this package is imported: where `import fp4aot` fails because
a file is damaged, ``python -I …/site-packages/fp4aot/_verify.py`` still says which.

It finds damage and mixed-up installations. Someone who changes a file and RECORD alike is found by
comparing RECORD with that of the published wheel, not here.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

PACKAGE = Path(__file__).resolve().parent
DISTRIBUTION = "fp4aot"
REMEDY = "reinstall it: pip install --force-reinstall --no-deps fp4aot"

# Named in RECORD without a hash: RECORD itself, and what some installers add to it.
_WITHOUT_HASH = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_SAFE_HASHES = frozenset({"sha256", "sha384", "sha512"})

NO_RECORD = "no record"
MISSING = "missing"
CHANGED = "changed"
EXTRA = "extra"
NO_HASH = "no hash"
MANIFEST = "manifest unreadable"
LIBRARY = "library differs from the manifest"
PROVENANCE = "provenance differs from the manifest"
CAUSES = (NO_RECORD, MISSING, CHANGED, EXTRA, NO_HASH, MANIFEST, LIBRARY, PROVENANCE)
"""Everything that can be wrong."""


@dataclass(frozen=True)
class Problem:
    """One difference.

    Parameters
    ----------
    cause
        One of `CAUSES`.
    file
        The file, relative to the folder of the installation.
    expected, found
        What was promised and what is there.
    """

    cause: str
    file: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.file}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Parameters
    ----------
    name
        What was checked.
    compared
        With what, and how much.
    problems
        What differs.
    applies
        ``False`` where the wheel does not carry what the check needs.
    """

    name: str
    compared: str
    problems: tuple[Problem, ...] = ()
    applies: bool = True

    @property
    def result(self) -> str:
        """``"ok"``, ``"DIFFERS"`` or ``"not checked"``."""
        if self.problems:
            return "DIFFERS"
        return "ok" if self.applies else "not checked"


@dataclass(frozen=True)
class Report:
    """The result.

    Parameters
    ----------
    version
        Of the installation; empty where it has no metadata.
    package
        Its folder.
    checks
        One row each.
    """

    version: str
    package: Path
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those of all checks."""
        return tuple(problem for check in self.checks for problem in check.problems)

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ok": self.ok,
            "version": self.version,
            "package": str(self.package),
            "checks": [
                {"name": check.name, "result": check.result, "compared": check.compared}
                for check in self.checks
            ],
            "problems": [asdict(problem) for problem in self.problems],
        }


@dataclass(frozen=True)
class _Entry:
    """One line of RECORD."""

    name: str
    mode: str
    digest: str
    size: int | None


def verify(package: Path = PACKAGE) -> Report:
    """Compare an installed package with the RECORD and the manifest of its wheel.

    Parameters
    ----------
    package
        Its folder. The metadata is looked for beside it, so that another installation of the same
        name elsewhere on the path is never taken for this one.
    """
    found = list(metadata.distributions(name=DISTRIBUTION, path=[str(package.parent)]))
    record = found[0].read_text("RECORD") if len(found) == 1 else None
    inside = (_manifest_check(package), _provenance_check(package))
    if record is None:
        folders = f"{len(found)} folders of metadata" if len(found) != 1 else "one without RECORD"
        problem = Problem(NO_RECORD, package.name, f"one RECORD in {package.parent}", folders)
        return Report("", package, (Check("files", "RECORD", (problem,)), *inside))
    entries = tuple(_read_record(record))
    checks = (_files_check(package, entries), _extra_check(package, entries), *inside)
    return Report(found[0].version, package, checks)


def _read_record(text: str) -> Iterator[_Entry]:
    for row in csv.reader(text.splitlines()):
        if not row:
            continue
        name, hashed, size, *_ = (*row, "", "")
        mode, _, digest = hashed.partition("=")
        yield _Entry(name, mode, digest, int(size) if size.isdecimal() else None)


def _files_check(package: Path, entries: tuple[_Entry, ...]) -> Check:
    problems = []
    total = count = 0
    for entry in entries:
        if _is_bytecode(entry.name):
            continue  # the installer's, made for one interpreter
        path = package.parent / entry.name
        if not entry.digest and PurePosixPath(entry.name).name in _WITHOUT_HASH:
            continue
        if not path.is_file():
            problems.append(Problem(MISSING, entry.name, "a file", "none"))
            continue
        if entry.mode not in _SAFE_HASHES:
            shown = entry.mode or "none"
            problems.append(Problem(NO_HASH, entry.name, "a SHA-2 hash in RECORD", shown))
            continue
        size = path.stat().st_size
        count += 1
        total += size
        digest = base64.urlsafe_b64encode(_hash(path, entry.mode)).rstrip(b"=").decode()
        if digest != entry.digest:
            expected = f"{entry.mode} {entry.digest}"
            if entry.size not in (None, size):
                expected += f" ({entry.size} bytes)"
                digest += f" ({size} bytes)"
            problems.append(Problem(CHANGED, entry.name, expected, digest))
    return Check("files", f"{count} files with RECORD, {total / 1e6:.2f} MB", tuple(problems))


def _extra_check(package: Path, entries: tuple[_Entry, ...]) -> Check:
    listed = {entry.name for entry in entries}
    problems = []
    for folder, folders, files in os.walk(package):
        # Not followed, so what is behind it was not looked at.
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*files, *links]):
            path = (Path(folder) / name).relative_to(package.parent).as_posix()
            if path not in listed and not _is_bytecode(path):
                problems.append(Problem(EXTRA, path, "no such file in RECORD", "a file"))
    problems.sort(key=lambda problem: problem.file)
    return Check("nothing extra", f"the folder {package.name} with RECORD", tuple(problems))


def _is_bytecode(name: str) -> bool:
    """Beside its source alone: a .pyc anywhere else is imported in place of a source."""
    path = PurePosixPath(name)
    return path.suffix == ".pyc" and path.parent.name == "__pycache__"


def _manifest_check(package: Path) -> Check:
    file = f"{package.name}/_manifest.json"
    try:
        library = _read_json(package / "_manifest.json")["library"]
        name, size, sha256 = library["name"], library["size"], library["sha256"]
        path = package / name
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = Problem(MANIFEST, file, "a manifest with a library", _describe(error))
        return Check("library", "the manifest", (problem,))
    shown = f"{name}, {size} bytes, sha256 {sha256}"
    where = f"{package.name}/{name}"
    if not path.is_file():
        return Check("library", shown, (Problem(LIBRARY, where, "a file", "none"),))
    problems = []
    if path.stat().st_size != size:
        found = f"{path.stat().st_size} bytes"
        problems.append(Problem(LIBRARY, where, f"{size} bytes", found))
    digest = _hash(path, "sha256").hex()
    if digest != sha256:
        problems.append(Problem(LIBRARY, where, f"sha256 {sha256}", digest))
    return Check("library", shown, tuple(problems))


def _provenance_check(package: Path) -> Check:
    path = package / "_provenance.json"
    file = f"{package.name}/{path.name}"
    if not path.exists():
        return Check("provenance", f"this wheel carries no {path.name}", applies=False)
    try:
        data = _read_json(path)
        plan = dict(data["plan"])
        written = plan.pop("hash")
        promised = _read_json(package / "_manifest.json")["plan_hash"]
        units = sum(len(module["units"]) for module in plan["modules"])
        sources = data["operator_sources"]
        operators, names = sources["sha256"], sources["files"]
        combined = hash_of_sources(names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(PROVENANCE, file, "a build plan", _describe(error))
        return Check("provenance", "the manifest", (problem,))
    problems = []
    computed = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
    for what, value in (("as it says of itself", written), ("of what it lists", computed)):
        if value != promised:
            problems.append(Problem(PROVENANCE, file, f"plan {promised}", f"{value} {what}"))
    if operators != combined:
        expected = f"operator sources {operators}"
        problems.append(Problem(PROVENANCE, file, expected, f"{combined} of what it lists"))
    shown = f"plan {promised}, {units} units, {len(names)} operator sources"
    return Check("provenance", shown, tuple(problems))


def hash_of_sources(files: dict[str, str]) -> str:
    """Hash names and hashes of files, in the order of their names."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _hash(path: Path, mode: str) -> bytes:
    digest = hashlib.new(mode)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def render(report: Report) -> str:
    """Write a report for a person."""
    rows = [(check.name, check.result, check.compared) for check in report.checks]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"fp4aot {report.version or '(no metadata)'} in {report.package}", ""]
    lines += [
        f"  {name:<{widths[0]}}  {result:<{widths[1]}}  {text}" for name, result, text in rows
    ]
    if report.ok:
        return "\n".join([*lines, "", "The installed files are those of the wheel."])
    lines += ["", *(f"PROBLEM  {problem}" for problem in report.problems), f"DO       {REMEDY}"]
    causes = [cause for cause in CAUSES if any(p.cause == cause for p in report.problems)]
    return "\n".join(
        [*lines, "", f"This installation differs from its wheel: {', '.join(causes)}."]
    )


def print_report(*, as_json: bool, package: Path = PACKAGE) -> int:
    """Verify, print, and return the exit status: 0 when nothing differs."""
    report = verify(package)
    print(json.dumps(report.to_json(), indent=2) if as_json else render(report))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(print_report(as_json="--json" in sys.argv[1:]))
