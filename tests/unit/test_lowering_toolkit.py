"""The toolkit that lowers: its layout, and what its programs pass on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aot.lowering import programs, toolkit
from aot.lowering.errors import LoweringError
from aot.lowering.programs import main
from aot.lowering.toolkit import digest, make_toolkit

PTX = """.version 9.0
.target {target}
.address_size 64
.visible .entry first()
{{
	ret;
}}
.visible .entry second()
{{
	.reg .b32 %r<3>;
	// begin inline asm
	{body}
	// end inline asm
	ret;
}}
"""
# Prints its arguments, and the PTX that it was given.
PROGRAM = """#!/bin/sh
for word in "$@"; do
  echo "<$word>"
  case "$word" in *.ptx) cat "$word";; esac
done
{more}
"""


def script(path: Path, more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(more=more))
    path.chmod(0o755)
    return path


@pytest.fixture
def real(tmp_path: Path) -> Path:
    root = tmp_path / "a toolkit; $HOME"
    for name in ("nvcc", "ptxas", "fatbinary", "nvlink", "cudafe++"):
        script(root / "bin" / name)
    (root / "bin" / "crt").mkdir()
    (root / "include").mkdir()
    (root / "lib64").mkdir()
    return root


def call(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, cwd=program.parent
    )


def ptx_file(folder: Path, *, target: str = "sm_120f", body: str = "ret;") -> Path:
    path = folder / "unit $(x).ptx"
    path.write_text(PTX.format(target=target, body=body))
    return path


def test_the_folder_is_the_toolkit_with_three_programs_of_our_own(
    real: Path, tmp_path: Path
) -> None:
    folder = make_toolkit(real, tmp_path / "lowered")
    assert folder == tmp_path / "lowered"
    # Through a link, an object cache finds the real programs.
    assert (folder / "bin/nvcc").resolve().parent == (folder / "bin").resolve()
    assert (folder / "bin/nvcc").read_bytes() == (real / "bin/nvcc").read_bytes()
    assert (folder / "bin/cudafe++").resolve() == (real / "bin/cudafe++").resolve()
    assert (folder / "include").resolve() == (real / "include").resolve()
    assert (folder / "bin/crt").is_dir()
    assert not (folder / "nvvm").exists()
    for name in ("ptxas", "fatbinary", "nvlink"):
        assert not (folder / "bin" / name).is_symlink()


def test_the_wrapped_assembler_lowers(real: Path, tmp_path: Path) -> None:
    wrapper = make_toolkit(real, tmp_path / "lowered") / "bin/ptxas"
    source = ptx_file(tmp_path, body="cvt.rn.f16x2.e2m1x2 %r1, b;")
    done = call(wrapper, "-arch=sm_120f", "-m64", source, "-o", "$(touch x).cubin")
    assert done.returncode == 0, done.stderr
    words = [line for line in done.stdout.splitlines() if line.startswith("<")]
    assert words[:2] == ["<-arch=sm_90a>", "<-m64>"]
    assert words[2].endswith("/unit $(x).ptx>")
    assert words[3:] == ["<-o>", "<$(touch x).cubin>"]
    assert ".target sm_90a\n" in done.stdout
    assert "mul.rn.f16x2 %r1" in done.stdout
    assert "e2m1x2" not in done.stdout
    assert "sm_120f" in source.read_text()


@pytest.mark.parametrize(
    "arguments",
    [["-arch", "sm_100a"], ["--gpu-name=sm_100a"], ["--gpu-name", "sm_100a"]],
)
def test_every_way_to_name_the_target(
    arguments: list[str], real: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = ptx_file(tmp_path, target="sm_100a")
    assert main("ptxas", str(real / "bin/ptxas"), [*arguments, str(source)]) == 0
    output = capfd.readouterr().out
    assert "sm_90a" in output.split("unit")[0]
    assert "sm_100a" not in output


@pytest.mark.parametrize("arguments", [["--version"], ["-arch=sm_90a", "x.cubin"], ["-arch=sm_80"]])
def test_what_hopper_runs_passes_through(
    arguments: list[str], real: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main("ptxas", str(real / "bin/ptxas"), arguments) == 0
    assert capfd.readouterr().out.splitlines() == [f"<{word}>" for word in arguments]


@pytest.mark.parametrize("target", ["sm_103a", "sm_110a", "sm_120a", "sm_121a", "sm_100"])
def test_other_blackwells_are_refused(
    target: str, real: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main("ptxas", str(real / "bin/ptxas"), [f"-arch={target}", "x.ptx"]) == 6
    assert main("nvlink", str(real / "bin/nvlink"), [f"--arch={target}"]) == 6
    image = f"--image3=kind=elf,sm={target[3:]},file=x.cubin"
    assert main("fatbinary", str(real / "bin/fatbinary"), [image]) == 6
    output = capfd.readouterr()
    assert output.out == ""
    assert (
        output.err.count(f"{target} cannot be lowered to sm_90a; build for sm_100a or sm_120f") == 3
    )


def test_an_instruction_that_is_not_known_stops_the_assembler(
    real: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = ptx_file(tmp_path, body="tcgen05.wait::ld.sync.aligned;")
    assert main("ptxas", str(real / "bin/ptxas"), ["-arch=sm_120f", str(source)]) == 6
    output = capfd.readouterr()
    assert output.out == ""
    assert "line 12, in second: tcgen05.wait::ld.sync.aligned" in output.err
    assert str(source) in output.err


def test_what_the_assembler_refuses_is_quoted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = "Feature 'new.thing' requires .target sm_100a or higher"
    real = script(
        tmp_path / "ptxas",
        f'echo "ptxas $2, line 12; error   : {message}" >&2\n'
        'echo "ptxas fatal   : Ptx assembly aborted due to errors" >&2\nexit 255',
    )
    source = ptx_file(tmp_path, body="new.thing.b32 %r1;")
    assert main("ptxas", str(real), ["-arch=sm_120f", str(source)]) == 6
    error = capfd.readouterr().err
    assert f"line 12, in second: new.thing.b32 %r1;\n    {message}" in error


def test_other_failures_of_the_assembler_pass_through(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    real = script(tmp_path / "ptxas", 'echo "ptxas fatal   : no space" >&2\nexit 3')
    assert main("ptxas", str(real), ["-arch=sm_120f", str(ptx_file(tmp_path))]) == 3
    assert "no space" in capfd.readouterr().err


@pytest.mark.parametrize("inputs", [[], ["a.ptx", "b.ptx"]])
def test_one_file_at_a_time(inputs: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main("ptxas", "/nowhere", ["-arch=sm_100a", *inputs]) == 6
    assert f"called with {len(inputs)} PTX files" in capfd.readouterr().err


def test_images_are_labelled_as_what_they_are(
    real: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--create=x_sm=120f.fatbin",
        "-64",
        "--image3=kind=elf,sm=120f,file=/a,sm=100a/x.sm_120f.cubin",
        "--image3=kind=elf,sm=90a,file=y",
    ]
    assert main("fatbinary", str(real / "bin/fatbinary"), arguments) == 0
    assert capfd.readouterr().out.splitlines() == [
        "<--create=x_sm=120f.fatbin>",
        "<-64>",
        "<--image3=kind=elf,sm=90a,file=/a,sm=100a/x.sm_120f.cubin>",
        "<--image3=kind=elf,sm=90a,file=y>",
    ]
    assert main("fatbinary", str(real / "bin/fatbinary"), ["--image=profile=sm_100a,file=z"]) == 0
    assert capfd.readouterr().out == "<--image=profile=sm_90a,file=z>\n"


def test_one_image_is_lowered_at_a_time(real: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = [f"--image3=kind=elf,sm={target},file=x" for target in ("100a", "120f")]
    assert main("fatbinary", str(real / "bin/fatbinary"), images) == 6
    assert "two images that are lowered to the same target" in capfd.readouterr().err


@pytest.mark.parametrize(
    "image", ["--image3=kind=ptx,sm=120f,file=x", "--image=profile=compute_120f,file=x"]
)
def test_ptx_is_not_packed(image: str, real: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main("fatbinary", str(real / "bin/fatbinary"), [image]) == 6
    assert "code=sm_120f" in capfd.readouterr().err


def test_the_linker_links_for_hopper(real: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--arch=sm_120f", "-m64", "sm_120f.o"]
    assert main("nvlink", str(real / "bin/nvlink"), arguments) == 0
    assert capfd.readouterr().out.splitlines() == ["<--arch=sm_90a>", "<-m64>", "<sm_120f.o>"]


def test_it_is_made_anew_when_the_lowering_changes(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toolkit(real, tmp_path / "lowered")
    (folder / "kept").touch()
    make_toolkit(real, folder)
    assert (folder / "kept").exists()
    before = (folder / "bin/ptxas").read_text()
    monkeypatch.setattr(toolkit, "digest", lambda: "0123456789abcdef")
    make_toolkit(real, folder)
    assert not (folder / "kept").exists()
    # An object cache sees another compiler.
    assert (folder / "bin/ptxas").read_text() != before


def test_the_digest_is_over_all_that_lowers() -> None:
    assert len(digest()) == 16
    assert digest() == digest()
    names = {path.name for path in Path(programs.__file__).parent.iterdir() if path.is_file()}
    assert {Path(name).suffix for name in names} <= {".py", ".cpp"}


def test_no_other_folder_is_overwritten(real: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(LoweringError, match="is not a lowering toolkit"):
        make_toolkit(real, tmp_path / "mine")
    assert (tmp_path / "mine" / "file").exists()


def test_a_toolkit_without_an_assembler_is_refused(real: Path, tmp_path: Path) -> None:
    (real / "bin/ptxas").unlink()
    with pytest.raises(LoweringError, match="has no ptxas"):
        make_toolkit(real, tmp_path / "lowered")
    assert not (tmp_path / "lowered").exists()
