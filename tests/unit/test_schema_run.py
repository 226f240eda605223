"""Running the schema probe: here, and for another machine in its emulator."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from aot.errors import BuildError
from aot.host_compiler import HostCompiler, find_host_compiler
from aot.platform_tools import emulation
from aot.platforms import PLATFORMS, platform_named
from aot.schemas import CompiledSchema, run_probe

LINE = (
    '{"module": "m", "function": "f", "metadata": {"type_schema": "{\\"named_args\\": '
    '{\\"return\\": [{\\"type\\": \\"None\\"}], \\"params\\": [{\\"type\\": \\"int\\"}]}}"}}'
)
ELSEWHERE = next(machine for machine in PLATFORMS if machine != platform.machine())


def probe(host: HostCompiler, folder: Path, code: int = 0) -> Path:
    source = folder / "probe.cpp"
    # A machine's C library is used, so that an emulator has to find it.
    source.write_text(
        f'#include <cstdio>\nint main() {{ std::puts(R"({LINE})"); return {code}; }}\n'
    )
    subprocess.run([host.path, source, "-o", folder / "probe"], check=True)
    return folder / "probe"


@pytest.fixture
def cross() -> HostCompiler:
    needed = (f"{ELSEWHERE}-linux-gnu-g++", PLATFORMS[ELSEWHERE].emulator)
    for name in needed:
        if shutil.which(name) is None:
            pytest.skip(f"NOT TESTED: {ELSEWHERE} programs, because {name} is not installed")
    return find_host_compiler(ELSEWHERE, {"PATH": os.environ["PATH"]})


def test_a_probe_of_this_machine_is_run_as_it_is(tmp_path: Path) -> None:
    host = find_host_compiler(environ={"PATH": os.environ["PATH"]})
    assert run_probe(probe(host, tmp_path)) == (CompiledSchema("m", "f", ("int",), "None"),)
    with pytest.raises(BuildError, match="exit code: 3"):
        run_probe(probe(host, tmp_path, code=3))


def test_a_probe_of_another_machine_is_run_in_its_emulator(
    cross: HostCompiler, tmp_path: Path
) -> None:
    command = emulation(platform_named(ELSEWHERE), cross)
    found = run_probe(probe(cross, tmp_path), command)
    assert found == (CompiledSchema("m", "f", ("int",), "None"),)
    with pytest.raises(BuildError, match="exit code: 3"):
        run_probe(probe(cross, tmp_path, code=3), command)


def test_without_its_emulator_it_is_an_error(cross: HostCompiler, tmp_path: Path) -> None:
    if Path("/proc/sys/fs/binfmt_misc", f"qemu-{ELSEWHERE}").exists():
        pytest.skip("NOT TESTED: a program that cannot run, because this system runs every one")
    with pytest.raises(BuildError, match="cannot read the type schemas of the modules"):
        run_probe(probe(cross, tmp_path))
