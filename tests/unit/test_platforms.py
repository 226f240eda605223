"""The machines that libraries are built for."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from aot.errors import PlanError
from aot.platforms import PLATFORMS, check_wheel_platform, platform_named

# The numbers of ELF's field e_machine.
NUMBERS = {"x86_64": 62, "aarch64": 183}


def test_both_machines_are_known_by_the_name_that_uname_prints() -> None:
    assert {name: one.machine for name, one in PLATFORMS.items()} == {n: n for n in NUMBERS}


def test_this_machine_is_the_default() -> None:
    assert platform_named() == PLATFORMS[platform.machine()]
    assert [name for name, one in PLATFORMS.items() if one.is_here] == [platform.machine()]


@pytest.mark.parametrize("machine", ["arm64", "riscv64", "AARCH64", "sbsa"])
def test_another_machine_is_refused_with_those_there_are(machine: str) -> None:
    with pytest.raises(PlanError) as caught:
        platform_named(machine)
    assert repr(machine) in str(caught.value)
    assert "x86_64 and aarch64" in str(caught.value)


@pytest.mark.parametrize("machine", PLATFORMS)
def test_elf_names_are_those_of_the_reader(machine: str, tmp_path: Path) -> None:
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, NUMBERS[machine], 1, 0, 0, 0, 0, 64, 0, 0, 64, 0, 0)
    (tmp_path / "head").write_bytes(head)
    with (tmp_path / "head").open("rb") as stream:
        assert ELFFile(stream).header.e_machine == PLATFORMS[machine].elf_machine


@pytest.mark.parametrize("machine", PLATFORMS)
def test_packages_are_asked_for_by_tags_of_the_machine(machine: str) -> None:
    tags = PLATFORMS[machine].package_tags
    assert tags
    assert all(tag.startswith("manylinux") and tag.endswith(f"_{machine}") for tag in tags)


@pytest.mark.parametrize("machine", PLATFORMS)
def test_a_wheel_is_tagged_for_the_machine_of_its_library(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("_PYTHON_HOST_PLATFORM", raising=False)
    if machine == platform.machine():
        check_wheel_platform(machine)
    else:
        with pytest.raises(PlanError) as caught:
            check_wheel_platform(machine)
        assert f"tagged linux-{platform.machine()}" in str(caught.value)
        assert f"--platform {machine}" in str(caught.value)
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", f"linux-{machine}")
    check_wheel_platform(machine)
