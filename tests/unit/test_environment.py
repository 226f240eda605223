"""FlashInfer's environments, with a recorder in place of pip."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aot import environment, locks, process
from aot.errors import PlanError

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


class Recorder:
    """Makes empty environments, and notes which locks pip is given."""

    def __init__(self) -> None:
        self.created: list[Path] = []
        self.installed: list[str] = []
        self.options: list[str] = []
        self.failing: set[str] = set()
        self.version = "0.7.2"

    def create_venv(self, folder: Path, *, error: type[Exception]) -> Path:
        assert not folder.exists()
        self.created.append(folder)
        for path in ("flashinfer/data/csrc", "tvm_ffi/src", "torch/include/torch/csrc/stable"):
            (folder / SITE / path).mkdir(parents=True)
        (folder / SITE / "torch/include/torch/csrc/stable/library.h").touch()
        (folder / SITE / "torch/lib").mkdir()
        (folder / SITE / "torch/lib/libtorch.so").touch()
        return folder / "bin/python"

    def run(self, command: list[Any], *, error: type[Exception], **_: Any) -> Any:
        if "pip" not in command:
            return type("Done", (), {"stdout": f"a warning\n{self.version}\n"})
        name = command[-1].name
        self.options = command
        if name in self.failing:
            raise error(f"cannot install what {name} lists")
        self.installed.append(name)
        return None


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    fake = Recorder()
    monkeypatch.setattr(process, "create_venv", fake.create_venv)
    monkeypatch.setattr(process, "run", fake.run)
    return fake


def test_both_flashinfer_versions_are_pinned() -> None:
    assert {"0.7.2", "0.7.4"} <= set(map(str, environment.available_versions()))


def test_torch_comes_first_and_everything_is_hash_checked(
    tmp_path: Path, recorder: Recorder
) -> None:
    found = environment.ensure("0.7.2", tmp_path)
    assert recorder.installed == ["torch-cpu.txt", "flashinfer-0.7.2.txt"]
    for option in ("--no-deps", "--require-hashes", "--only-binary=:all:"):
        assert option in recorder.options
    assert found.python == tmp_path / "flashinfer-0.7.2/bin/python"
    assert str(found.version) == "0.7.2"
    assert found.site_packages == tmp_path / "flashinfer-0.7.2" / SITE
    for path in (
        found.flashinfer_data / "csrc",
        found.tvm_ffi_root / "src",
        found.torch_include / "torch/csrc/stable/library.h",
        found.torch_lib / "libtorch.so",
    ):
        assert path.exists()


def test_the_index_build_of_torch_is_used_where_there_is_no_cpu_build(
    tmp_path: Path, recorder: Recorder
) -> None:
    recorder.failing = {"torch-cpu.txt"}
    environment.ensure("0.7.2", tmp_path)
    assert recorder.installed == ["torch.txt", "flashinfer-0.7.2.txt"]


def test_without_any_torch_both_failures_are_told(tmp_path: Path, recorder: Recorder) -> None:
    recorder.failing = {"torch-cpu.txt", "torch.txt"}
    with pytest.raises(PlanError, match=r"torch-cpu\.txt lists\n.*torch\.txt lists"):
        environment.ensure("0.7.2", tmp_path)


def test_an_environment_is_made_once(tmp_path: Path, recorder: Recorder) -> None:
    first = environment.ensure("0.7.2", tmp_path)
    assert environment.ensure("0.7.2", tmp_path) == first
    assert len(recorder.created) == 1


def test_an_interrupted_one_is_started_over(tmp_path: Path, recorder: Recorder) -> None:
    recorder.failing = {"flashinfer-0.7.2.txt"}
    with pytest.raises(PlanError):
        environment.ensure("0.7.2", tmp_path)
    (tmp_path / "flashinfer-0.7.2/leftover").touch()
    recorder.failing = set()
    environment.ensure("0.7.2", tmp_path)
    assert len(recorder.created) == 2
    assert not (tmp_path / "flashinfer-0.7.2/leftover").exists()


def test_one_from_other_locks_is_replaced(tmp_path: Path, recorder: Recorder) -> None:
    environment.ensure("0.7.2", tmp_path)
    (tmp_path / "flashinfer-0.7.2/complete.sha256").write_text("another\n")
    environment.ensure("0.7.2", tmp_path)
    assert len(recorder.created) == 2


def test_another_interpreter_makes_another(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.ensure("0.7.2", tmp_path)
    monkeypatch.setattr(sys, "version", "3.99.0")
    environment.ensure("0.7.2", tmp_path)
    assert len(recorder.created) == 2


def test_an_index_that_serves_another_version_is_noticed(
    tmp_path: Path, recorder: Recorder
) -> None:
    recorder.version = "0.7.2.post1"
    with pytest.raises(PlanError, match=r"expected FlashInfer 0\.7\.2 "):
        environment.ensure("0.7.2", tmp_path)


def test_a_damaged_one_says_what_to_delete(tmp_path: Path, recorder: Recorder) -> None:
    found = environment.ensure("0.7.2", tmp_path)
    (found.torch_lib / "libtorch.so").unlink()
    with pytest.raises(PlanError, match=r"delete .*flashinfer-0\.7\.2 and try again"):
        environment.ensure("0.7.2", tmp_path)


@pytest.mark.parametrize("version", ["0.7.20", "0.7", "0.7.2.post1", "0.7.2+cu130", "0.7.2rc1"])
def test_versions_are_matched_exactly(tmp_path: Path, recorder: Recorder, version: str) -> None:
    with pytest.raises(PlanError, match=r"0\.7\.2, 0\.7\.4"):
        environment.ensure(version, tmp_path)
    assert recorder.created == []


def test_a_malformed_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="'latest' is not a FlashInfer version; there are"):
        environment.ensure("latest", tmp_path)


@pytest.mark.parametrize("lock", locks.available("flashinfer"), ids=lambda lock: lock.path.stem)
def test_heavy_dependencies_stay_out(lock: locks.Lock) -> None:
    excluded = (locks.FOLDER / "flashinfer-excluded.in").read_text().splitlines()
    names = {line.split("==")[0] for line in lock.path.read_text().splitlines() if "==" in line}
    assert names.isdisjoint(line for line in excluded if line and not line.startswith("#"))
