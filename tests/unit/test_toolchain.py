"""Finding and installing toolkits, with scripts in place of NVIDIA's programs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest
from packaging.version import Version

from aot import host_compiler, locks, process, toolchain
from aot.architectures import Architecture
from aot.errors import BuildError, ToolchainError

PTXAS_HELP = """--gpu-name <gpu name>
        Allowed values for this option:  'compute_120','compute_120f','lto_120f','sm_120',
        'sm_120f','sm_90','sm_90a'.
"""


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_toolkit(root: Path, version: str = "13.0", *, without: str = "") -> Path:
    """A folder that looks like a toolkit; its nvcc knows its version and its folder."""
    script(
        root / "bin/nvcc",
        f'case "$1" in --version) echo "release {version}, V{version}.88";;\n'
        f'--dryrun) echo "#$ TOP={root}/bin/.." >&2;; esac',
    )
    script(root / "bin/ptxas", f"cat <<'END'\n{PTXAS_HELP}END")
    script(root / "bin/cuobjdump", "exit 0")
    (root / "include").mkdir()
    for header in ("cuda_runtime.h", "cublasLt.h", "curand_kernel.h"):
        (root / "include" / header).touch()
    if without:
        (root / without).unlink()
    return root


def path_of_system_tools() -> str:
    """A PATH with `cat` for the scripts, in which no real nvcc is found."""
    return "/usr/bin:/bin"


@pytest.fixture(autouse=True)
def no_real_nvcc() -> None:
    if shutil.which("nvcc", path=path_of_system_tools()):
        pytest.skip("NOT TESTED: finding toolkits, because nvcc lies among the system's programs")


def find(version: str, folder: Path, **variables: str) -> toolchain.Toolkit:
    return toolchain.find(version, folder, {"PATH": path_of_system_tools(), **variables})


def test_toolkit_from_cuda_home(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        toolkit = find("13.0", tmp_path / "none", **{variable: str(root)})
        assert toolkit.root == root
        assert toolkit.source == toolchain.FROM_CUDA_HOME
        assert toolkit.version == Version("13.0")
        assert toolkit.compiler_version == Version("13.0.88")
        assert toolkit.cuobjdump == root / "bin/cuobjdump"
        assert toolkit.nvdisasm is None


def test_targets_keep_their_suffixes(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    toolkit = find("13.0", tmp_path / "none", CUDA_HOME=str(root))
    assert [str(target) for target in toolkit.targets] == ["9.0", "9.0a", "12.0", "12.0f"]
    toolkit.require_targets([Architecture(12, 0, "f")])
    with pytest.raises(ToolchainError, match=re.escape("cannot target 10.3a; it targets 9.0")):
        toolkit.require_targets([Architecture(12, 0, "f"), Architecture(10, 3, "a")])


def test_toolkit_on_path_behind_a_script(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    script(tmp_path / "bin/nvcc", f'exec "{root}/bin/nvcc" "$@"')
    toolkit = find("13.0", tmp_path, PATH=f"{tmp_path}/bin:{path_of_system_tools()}")
    assert toolkit.root == root
    assert toolkit.source == toolchain.FROM_PATH


def test_only_major_and_minor_count(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    assert find("13.0.88", tmp_path, CUDA_HOME=str(root)).root == root


@pytest.mark.parametrize(
    ("there", "wanted", "without", "reason"),
    [
        ("13.0", "13.1", "", "is CUDA 13.0.88, not 13.1"),
        ("13.1", "13.0", "", "is CUDA 13.1.88, not 13.0"),
        ("13.10", "13.1", "", "is CUDA 13.10.88, not 13.1"),
        ("12.4", "12.8", "", "is CUDA 12.4.88, which builds FP4 out"),
        ("13.0", "13.0", "bin/nvcc", "holds no bin/nvcc"),
        ("13.0", "13.0", "bin/ptxas", "holds no bin/ptxas"),
        ("13.0", "13.0", "include/cublasLt.h", "holds no include/cublasLt.h"),
    ],
)
def test_the_error_says_why_each_place_was_rejected(
    tmp_path: Path, there: str, wanted: str, without: str, reason: str
) -> None:
    root = fake_toolkit(tmp_path / "cuda", there, without=without)
    with pytest.raises(ToolchainError) as caught:
        find(wanted, tmp_path / "none", CUDA_HOME=str(root))
    message = str(caught.value)
    assert reason in message
    assert "not installed" in message or "there are no packages of CUDA" in message
    assert "not on PATH" in message


def test_a_broken_compiler_is_a_rejection(tmp_path: Path) -> None:
    root = fake_toolkit(tmp_path / "cuda")
    script(root / "bin/nvcc", "echo out of order >&2; exit 3")
    with pytest.raises(ToolchainError, match=r"exit code: 3\n.*\n.*out of order"):
        find("13.0", tmp_path / "none", CUDA_HOME=str(root))


def test_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=re.escape("CUDA 13.0 installs from packages")):
        find("13.0", tmp_path)
    with pytest.raises(ToolchainError, match="set CUDA_HOME to its folder"):
        find("12.9", tmp_path)


def test_a_version_without_packages_is_listed_as_such(tmp_path: Path) -> None:
    packages, home, _ = toolchain.candidates("12.9", tmp_path, {"PATH": path_of_system_tools()})
    assert packages.rejection == "there are no packages of CUDA 12.9"
    expected = "neither is set; set one to the folder of NVIDIA's CUDA 12.9 toolkit"
    assert home.rejection == expected
    packages, _, _ = toolchain.candidates("13.0", tmp_path, {"PATH": path_of_system_tools()})
    assert packages.rejection == "not installed"


@pytest.mark.parametrize("version", ["12.7", "11.8.0", "12.4"])
def test_a_version_without_fp4_is_refused_up_front(tmp_path: Path, version: str) -> None:
    for look in (toolchain.find, toolchain.install, toolchain.find_or_install):
        with pytest.raises(ToolchainError, match=f"CUDA {re.escape(version)} builds FP4 out"):
            look(version, tmp_path)


def test_a_malformed_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="'cu130' is not a CUDA version"):
        toolchain.find("cu130", tmp_path)


class FakePip:
    """Stands in for the interpreter that runs pip: 'installs' a toolkit where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "pip.log"
        self.model = fake_toolkit(folder / "model")
        for name in ("libcublasLt.so.13", "libnvrtc.so.13", "libcudart_static.a"):
            (self.model / "lib").mkdir(exist_ok=True)
            (self.model / "lib" / name).touch()
        self.python = script(
            folder / "python",
            f'echo "$@" >> "{self.log}"\n'
            'while [ "$1" != --target ]; do shift; done\n'
            f'mkdir -p "$2/nvidia" && cp -r "{self.model}" "$2/nvidia/cu13"',
        )

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    (tmp_path / "pip").mkdir()
    fake = FakePip(tmp_path / "pip")
    monkeypatch.setattr(process, "python_with_pip", lambda scratch, *, error: fake.python)
    return fake


def test_install_gives_the_layout_that_cmake_expects(tmp_path: Path, pip: FakePip) -> None:
    folder = tmp_path / "toolkits"
    toolkit = toolchain.install("13.0", folder)
    assert toolkit.root == folder / "cuda-13.0/nvidia/cu13"
    assert toolkit.source == toolchain.FROM_PACKAGES
    assert (toolkit.root / "lib64").readlink() == Path("lib")
    assert list((toolkit.root / "lib/stubs").iterdir()) == []
    assert {path.name for path in (toolkit.root / "lib").iterdir()} == {
        "stubs",
        "libcudart_static.a",
    }
    assert [path.name for path in folder.iterdir()] == ["cuda-13.0"]
    for option in ("--no-deps", "--require-hashes", "--only-binary=:all:"):
        assert option in pip.calls()[0]


def test_install_is_idempotent_and_preferred(tmp_path: Path, pip: FakePip) -> None:
    folder = tmp_path / "toolkits"
    first = toolchain.find_or_install("13.0", folder, {"PATH": path_of_system_tools()})
    home = fake_toolkit(tmp_path / "home")
    again = toolchain.find_or_install("13.0", folder, {"CUDA_HOME": str(home), "PATH": ""})
    assert again == first == toolchain.install("13.0", folder)
    assert len(pip.calls()) == 1


def test_a_present_toolkit_is_not_installed_again(tmp_path: Path, pip: FakePip) -> None:
    home = fake_toolkit(tmp_path / "home")
    found = toolchain.find_or_install("13.0", tmp_path / "none", {"CUDA_HOME": str(home)})
    assert found.root == home
    assert pip.calls() == []


def test_a_toolkit_from_an_older_lock_is_replaced(tmp_path: Path, pip: FakePip) -> None:
    folder = tmp_path / "toolkits"
    toolkit = toolchain.install("13.0", folder)
    (toolkit.root / "leftover").touch()
    (folder / "cuda-13.0/lock.sha256").write_text("another\n")
    looked_at = toolchain.candidates("13.0", folder, {"PATH": ""})
    assert "installed from an older cuda-13.0.txt" in str(looked_at[0])
    assert not (toolchain.install("13.0", folder).root / "leftover").exists()
    assert [path.name for path in folder.iterdir()] == ["cuda-13.0"]


def test_an_interrupted_install_leaves_nothing(
    tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "toolkits"
    monkeypatch.setattr(toolchain, "_complete", interrupt)
    with pytest.raises(KeyboardInterrupt):
        toolchain.install("13.0", folder)
    assert list(folder.iterdir()) == []


def test_a_failed_pip_shows_its_output(tmp_path: Path, pip: FakePip) -> None:
    script(pip.python, "echo THESE PACKAGES DO NOT MATCH THE HASHES >&2; exit 1")
    with pytest.raises(ToolchainError, match="DO NOT MATCH THE HASHES"):
        toolchain.install("13.0", tmp_path / "toolkits")
    assert list((tmp_path / "toolkits").iterdir()) == []


def test_a_version_without_packages_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=re.escape("From packages there are 13.0")):
        toolchain.install("12.9", tmp_path)


# Host compiler


def compiler(path: Path, machine: str = "x86_64", version: str = "13.2.0") -> Path:
    return script(
        path, f'case "$1" in -dumpmachine) echo {machine}-linux-gnu;; *) echo {version};; esac'
    )


def test_the_host_compiler_is_gxx(tmp_path: Path) -> None:
    gxx = compiler(tmp_path / "g++", os.uname().machine)
    found = host_compiler.find_host_compiler(environ={"PATH": str(tmp_path)})
    assert found == host_compiler.HostCompiler(gxx, Version("13.2.0"), os.uname().machine)


def test_cxx_is_honoured(tmp_path: Path) -> None:
    compiler(tmp_path / "g++")
    other = compiler(tmp_path / "clang++", version="18.1.3")
    for name in (str(other), "clang++"):
        found = host_compiler.find_host_compiler("x86_64", {"CXX": name, "PATH": str(tmp_path)})
        assert (found.path, found.version) == (other, Version("18.1.3"))


def test_cross_compiling_takes_the_prefixed_compiler(tmp_path: Path) -> None:
    target = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    cross = compiler(tmp_path / f"{target}-linux-gnu-g++", target)
    assert host_compiler.find_host_compiler(target, {"PATH": str(tmp_path)}).path == cross


@pytest.mark.parametrize(
    ("machine", "cxx", "complaint"),
    [
        (None, "", "`apt install g++` or `dnf install gcc-c++`"),
        (None, "ccache g++", "CXX is 'ccache g++'"),
        ("riscv64", "", "`apt install g++-riscv64-linux-gnu`"),
    ],
)
def test_no_compiler_says_how_to_get_one(
    tmp_path: Path, machine: str | None, cxx: str, complaint: str
) -> None:
    with pytest.raises(ToolchainError, match=re.escape(complaint)):
        host_compiler.find_host_compiler(machine, {"CXX": cxx, "PATH": str(tmp_path)})


def test_a_compiler_for_another_machine_is_refused(tmp_path: Path) -> None:
    other = compiler(tmp_path / "g++", "riscv64")
    with pytest.raises(ToolchainError, match="compiles for riscv64, and the build is for x86_64"):
        host_compiler.find_host_compiler("x86_64", {"CXX": str(other), "PATH": str(tmp_path)})


def test_a_compiler_without_a_version_is_refused(tmp_path: Path) -> None:
    other = compiler(tmp_path / "g++", version="none")
    with pytest.raises(ToolchainError, match="tells 'none' as its version"):
        host_compiler.find_host_compiler("x86_64", {"CXX": str(other), "PATH": str(tmp_path)})


# Running programs


def test_a_failed_program_tells_all(tmp_path: Path) -> None:
    program = script(tmp_path / "fails", "echo one; echo two >&2; exit 9")
    with pytest.raises(BuildError) as caught:
        process.run([program, "a b"], purpose="do it", error=BuildError)
    message = str(caught.value)
    assert message.startswith("cannot do it\n")
    assert f"command: {program} 'a b'" in message
    assert "exit code: 9" in message
    assert "    one\n    two" in message


def test_a_program_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="absent does not start"):
        process.run([tmp_path / "absent"], purpose="do it", error=BuildError)


def test_where_there_is_no_pip_an_environment_with_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    python = process.python_with_pip(tmp_path, error=BuildError)
    done = process.run([python, "-I", "-m", "pip", "--version"], purpose="ask", error=BuildError)
    assert str(tmp_path / "pip") in done.stdout


# Locks

LOCK_FILES = sorted(locks.FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", LOCK_FILES, ids=lambda path: path.name)
def test_every_line_of_a_lock_is_pinned_and_hashed(path: Path) -> None:
    text = path.read_text()
    blocks = re.split(r"\n(?=\S)", text.strip())
    for block in blocks:
        assert re.match(r"[a-z0-9.-]+==[\w.+]+( ;[^\\]+)? \\\n", block), block
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", block), block
    assert "://" not in text
    assert "index-url" not in text


@pytest.mark.parametrize("path", LOCK_FILES, ids=lambda path: path.name)
def test_a_lock_holds_what_its_source_asks_for(path: Path) -> None:
    source = path.with_suffix(".in").read_text()
    wanted = [line for line in source.splitlines() if line and not line.startswith("#")]
    locked = path.read_text()
    for requirement in wanted:
        pinned = requirement if "==" in requirement else f"{requirement}=="
        assert re.search(rf"^{re.escape(pinned)}", locked, re.MULTILINE), requirement


TOOLKIT_LOCKS = locks.available("cuda")


def pins(path: Path) -> dict[str, tuple[Version, list[str]]]:
    """The version and the hashes of each package in a lock."""
    blocks = re.split(r"\n(?=\S)", path.read_text().strip())
    found = {}
    for block in blocks:
        name, version = block.split()[0].split("==")
        found[name] = (Version(version), re.findall(r"sha256:([0-9a-f]{64})", block))
    return found


@pytest.mark.parametrize("lock", TOOLKIT_LOCKS, ids=lambda lock: lock.path.name)
def test_every_toolkit_has_the_same_packages_of_one_release(lock: locks.Lock) -> None:
    pinned = pins(lock.path)
    assert list(pinned) == list(pins(TOOLKIT_LOCKS[0].path))
    versions = {name: version for name, (version, _) in pinned.items()}
    # The parts of the compiler are of one build.
    compiler = {versions[f"nvidia-{name}"] for name in ("cuda-nvcc", "cuda-crt", "nvvm")}
    assert len(compiler) == 1
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-nvrtc"):
        assert versions[name].release[:2] == lock.version.release, name
    cccl = versions["nvidia-cuda-cccl"].release
    # From 13.3 on CCCL counts 13.3.<minor version of CUDA>.
    assert (cccl[0], cccl[2] if len(cccl) > 3 else cccl[1]) == lock.version.release
    for name in ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"):
        # Newer ones read older code, and there are none from before 13.2.
        assert versions[name].release[:2] == max(lock.version, Version("13.2")).release, name


@pytest.mark.parametrize("lock", TOOLKIT_LOCKS, ids=lambda lock: lock.path.name)
def test_a_lock_of_a_toolkit_has_a_hash_for_each_processor(lock: locks.Lock) -> None:
    for name, (_, hashes) in pins(lock.path).items():
        # x86_64 and aarch64 on Linux, and Windows.
        assert len(set(hashes)) >= 3, name


def test_locks_are_sorted_and_matched_by_version_not_by_text(tmp_path: Path) -> None:
    for name in ("0.7.10", "0.7.2", "0.7.2.post1", "not-a-version"):
        (tmp_path / f"thing-{name}.txt").touch()
    versions = [str(lock.version) for lock in locks.available("thing", tmp_path)]
    assert versions == ["0.7.2", "0.7.2.post1", "0.7.10"]
    assert locks.find("thing", Version("0.7.1"), tmp_path) is None
    found = locks.find("thing", Version("0.7.2"), tmp_path)
    assert found is not None
    assert found.path.name == "thing-0.7.2.txt"
