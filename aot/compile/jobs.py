"""From a plan to jobs: the command of every compiler run on this machine, and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aot import costs
from aot.architectures import Architecture
from aot.compile.job import Job
from aot.compile.keys import KeyMaker
from aot.compile.own_sources import GENERATED_FOLDER, own_sources
from aot.costs import Measured
from aot.estimates import estimate
from aot.files import sha256_of
from aot.plan import BuildPlan, ModulePlan, Roots, Unit


def make_jobs(
    plan: BuildPlan,
    roots: Roots,
    generated: Path,
    *,
    nvcc: Path,
    host_compiler: Path,
    prefix_maps: Sequence[tuple[str, str]],
    keys: KeyMaker,
    known: Mapping[str, Measured],
    caches_device_code: bool = True,
) -> tuple[Job, ...]:
    """List every compiler run of a build: the modules' units in the plan's order, then our own.

    Parameters
    ----------
    plan, roots
        What is built, and where its tokens point.
    generated
        Folder of what is made from the plan.
    nvcc, host_compiler
        The compilers.
    prefix_maps
        Pairs of folder and the name it gets in messages and debug information, so that no path of
        the build machine ends up in a binary. The first that fits counts.
    keys
        Names the objects.
    known
        What earlier builds have measured.
    caches_device_code
        Whether the object cache understands this nvcc.
    """
    maps = prefix_map_flags(prefix_maps)

    def unit_job(module: ModulePlan, unit: Unit) -> Job:
        name = f"{module.name}/{unit.name}"
        flags = [roots.expand(flag) for flag in unit.flags]
        is_cuda = unit.language == "cuda"
        if is_cuda:
            command = [str(nvcc), "-ccbin", str(host_compiler), *flags]
            command += [f"-Xcompiler={flag}" for flag in maps]
            command += _source_name(mapped(roots.expand(unit.source), prefix_maps))
        else:
            command = [str(host_compiler), *flags, *maps]
        # Also our own sources within a module include FlashInfer's headers alone.
        key = keys.key(*(name, unit.language, unit.source, unit.sha256, unit.flags), ours=False)
        guess = estimate(Path(unit.source), unit.flags)
        megabytes, seconds = costs.expect(known, key, name, guess)
        return Job(
            name=name,
            group="unit",
            source=Path(roots.expand(unit.source)),
            command=tuple(command),
            key=key,
            compiler="cicc" if is_cuda else "cc1plus",
            targets=frozenset(Architecture.parse(one).sm for one in module.architectures),
            megabytes=megabytes,
            seconds=seconds,
            cached=caches_device_code or not is_cuda,
        )

    jobs = [unit_job(module, unit) for module in plan.modules for unit in module.units]
    for source in own_sources(plan, roots, generated):
        path, place = source.path, source.path.name
        if path.is_relative_to(roots.operators):
            # The folder too: a header beside it is found first.
            place = path.relative_to(roots.operators).as_posix()
        key = keys.key(*(source.name, "c++", place, sha256_of(path), source.flags), ours=True)
        guess = estimate(Path(source.name))
        megabytes, seconds = costs.expect(known, key, source.name, guess)
        flags = [
            roots.expand(flag).replace(GENERATED_FOLDER, str(generated)) for flag in source.flags
        ]
        jobs.append(
            Job(
                name=source.name,
                group="own",
                source=path,
                command=(str(host_compiler), *flags, *maps),
                key=key,
                compiler="cc1plus",
                targets=frozenset(),
                megabytes=megabytes,
                seconds=seconds,
            )
        )
    return tuple(jobs)


def prefix_map_flags(prefix_maps: Sequence[tuple[str, str]]) -> list[str]:
    """Write the maps for g++, of which the last that fits counts; of ours it is the first."""
    return [f"-ffile-prefix-map={folder}={name}" for folder, name in reversed(prefix_maps)]


def mapped(path: str, prefix_maps: Sequence[tuple[str, str]]) -> str:
    """Name a file as compilers name it: by the first folder of the maps that it is in."""
    for folder, name in prefix_maps:
        if Path(path).is_relative_to(folder):
            return str(Path(name) / Path(path).relative_to(folder))
    return path


def _source_name(name: str) -> list[str]:
    """Tell nvcc's programs what the source is called.

    They name what is local to a translation unit by a hash over the source's path, in device code
    too: it would differ from checkout to checkout. The last of an option counts.
    """
    return [f"-X{program}=--orig_src_path_name,{name}" for program in ("cicc", "cudafe")]
