"""Finished objects in the build folder, by what they were made from.

A name is a hash over everything that an object depends on, so an object that is there is up to
date: for every preset, after an interruption, and in another checkout.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from aot import files
from aot.compile.job import Job
from aot.files import sha256_of

StoredOrigin = Literal["compiled", "cache", "imported"]


@dataclass(frozen=True)
class StoredObject:
    """What is known of an object.

    Parameters
    ----------
    name
        The job that made it, for a reader.
    sha256
        Of the object.
    origin
        Where it came from when it was put here.
    """

    name: str
    sha256: str
    origin: StoredOrigin


class ObjectStore:
    """A folder of objects.

    Parameters
    ----------
    folder
        Created when something is put there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, job: Job) -> Path:
        """Where the object of a job is, or would be."""
        return self.folder / job.key[:2] / f"{job.key}.o"

    def find(self, job: Job) -> StoredObject | None:
        """Look a job's object up; None where there is none, or it is damaged.

        A damaged object is removed: it is compiled again.
        """
        path = self.path(job)
        try:
            stored = StoredObject(**json.loads(self._record(path).read_text()))
            whole = sha256_of(path) == stored.sha256
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            whole = False
        if not whole:
            self.remove(job)
            return None
        return stored

    def has_traces(self, job: Job) -> bool:
        """Say whether something of a job's object is there, whole or not; nothing is read."""
        path = self.path(job)
        return path.exists() or self._record(path).exists()

    def put(self, job: Job, made: Path, origin: StoredOrigin) -> StoredObject:
        """Take a finished object over; it is moved."""
        stored = StoredObject(job.name, sha256_of(made), origin)
        path = self.path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The record last: without it the object does not count.
        self._record(path).unlink(missing_ok=True)
        if made.stat().st_dev == path.parent.stat().st_dev:
            made.replace(path)
        else:
            fresh = path.with_suffix(".new")
            try:
                shutil.copyfile(made, fresh)
                fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)  # where the disk is full, half of it takes space
            made.unlink()
        files.write_json(self._record(path), asdict(stored))
        return stored

    def remove(self, job: Job) -> None:
        """Forget an object."""
        path = self.path(job)
        self._record(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    @staticmethod
    def _record(path: Path) -> Path:
        return path.with_suffix(".json")
