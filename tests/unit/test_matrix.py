"""The release matrix: what is read from it, what is refused, and what the command prints."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.version import Version
from typer.testing import CliRunner, Result

from aot import catalog, locks, matrix_report, presets
from aot.architectures import Architecture, fp4_rejection
from aot.errors import AotError
from aot.index.choices import GPUS
from aot.matrix import (
    MATRIX,
    PLATFORMS,
    Matrix,
    MatrixError,
    parse_matrix,
    preset_targets,
    read_matrix,
)
from aot.matrix_report import OWN_PROCESSOR, entries, gpus, matrix_command, select

BASE: dict[str, Any] = {
    "flashinfer": "0.7.2",
    "preset": "full",
    "platforms": {
        "x86_64": {
            "runner": "ubuntu-24.04",
            "manylinux": "manylinux_2_28_x86_64",
            "architectures": ["9.0a", "10.0a", "12.0f"],
        },
        "aarch64": {
            "runner": "ubuntu-24.04-arm",
            "manylinux": "manylinux_2_34_aarch64",
            "architectures": ["10.0a", "11.0a"],
        },
    },
    "cuda": [
        {
            "version": "12.9",
            "toolkit": "CUDA_HOME",
            "driver": "575.57.08",
            "excluded_architectures": ["11.0a"],
            "shards": 3,
        },
        {
            "version": "13.0",
            "toolkit": "packages",
            "driver": "580",
            "default": True,
            "shards": 2,
            "preset": "dense",
        },
    ],
}


def as_toml(data: dict[str, Any]) -> str:
    """Write a matrix; JSON's texts, numbers, truth values and flat lists are TOML's too."""

    def block(title: str, values: dict[str, Any]) -> str:
        return f"{title}\n" + "".join(
            f"{key} = {json.dumps(value)}\n"
            for key, value in values.items()
            if key not in {"platforms", "cuda"}
        )

    return "\n".join(
        [
            block("", data),
            *(block(f"[platforms.{name}]", one) for name, one in data["platforms"].items()),
            *(block("[[cuda]]", one) for one in data["cuda"]),
        ]
    )


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    change(data)
    return data


# Reading


def test_a_row_for_every_cuda_version_on_every_platform(tmp_path: Path) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(as_toml(BASE))
    rows = read_matrix(path).wheels()
    assert [row.name for row in rows] == [
        *("cu129-x86_64", "cu129-aarch64", "cu130-x86_64", "cu130-aarch64")
    ]
    assert [" ".join(map(str, row.architectures)) for row in rows] == [
        *("9.0a 10.0a 12.0f", "10.0a", "9.0a 10.0a 12.0f", "10.0a 11.0a")
    ]
    assert [row.preset for row in rows] == ["full", "full", "dense", "dense"]
    assert [(row.driver, row.toolkit, row.shards, row.default) for row in rows[1:3]] == [
        ("575.57.08", "CUDA_HOME", 3, False),
        ("580", "packages", 2, True),
    ]
    assert (rows[1].runner, rows[1].manylinux) == ("ubuntu-24.04-arm", "manylinux_2_34_aarch64")


def test_another_preset_for_every_wheel() -> None:
    rows = parse_matrix(
        changed(lambda data: data["platforms"]["aarch64"]["architectures"].append("12.0f"))
    ).wheels("quick")
    assert {row.preset for row in rows} == {"quick"}
    assert [" ".join(map(str, row.architectures)) for row in rows] == ["9.0a 12.0f", "12.0f"] * 2


def test_a_preset_that_leaves_a_wheel_without_a_blackwell() -> None:
    matrix = parse_matrix(BASE)
    with pytest.raises(MatrixError, match="on aarch64 would be for nothing, without a Blackwell"):
        matrix.wheels("quick")
    with pytest.raises(MatrixError, match=r"on x86_64 would be for 9\.0a, without a Blackwell"):
        matrix.wheels("dense-12.1a")
    with pytest.raises(MatrixError, match="--preset is 'qick', which is unknown; write one of qui"):
        matrix.wheels("qick")


def test_the_driver_of_a_cuda_version() -> None:
    matrix = parse_matrix(BASE)
    assert [matrix.minimum_driver(version) for version in ("12.9", "13.0", "13.1", "13")] == [
        *("575.57.08", "580", None, None)
    ]
    assert matrix.default_cuda == "13.0"


def buildable(target: Architecture, version: str) -> bool:
    return target.capability < (10, 0) or fp4_rejection(target, version) is None


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid matrix."""
    names = st.sampled_from([name for name, one in presets.PRESETS.items() if not one.lowered])
    top = draw(names)
    versions = draw(
        st.lists(
            st.tuples(st.integers(12, 15), st.integers(0, 12))
            .filter(lambda pair: pair >= (12, 8))
            .map(lambda pair: f"{pair[0]}.{pair[1]}"),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    own = {version: draw(st.none() | names) for version in versions}
    used = {version: preset or top for version, preset in own.items()}
    targets = sorted({one for preset in used.values() for one in preset_targets(preset)})
    # Every wheel is for one Blackwell at least.
    common = [
        one
        for one in targets
        if one.capability >= (10, 0)
        and all(one in preset_targets(used[v]) and buildable(one, v) for v in versions)
    ]
    assume(common)
    platforms = {}
    for name in draw(st.permutations([*PLATFORMS]))[: draw(st.integers(1, 2))]:
        chosen = {*draw(st.sets(st.sampled_from(targets))), draw(st.sampled_from(common))}
        platforms[name] = {
            "runner": draw(st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)),
            "manylinux": f"manylinux_2_{draw(st.integers(17, 40))}_{name}",
            "architectures": [str(one) for one in draw(st.permutations(sorted(chosen)))],
        }
    anywhere = {name for one in platforms.values() for name in one["architectures"]}
    default = draw(st.sampled_from(versions))
    cuda = []
    for version in versions:
        locked = locks.find("cuda", Version(version)) is not None
        excluded = [name for name in anywhere if not buildable(Architecture.parse(name), version)]
        row: dict[str, Any] = {
            "version": version,
            "toolkit": draw(st.sampled_from(["packages", "CUDA_HOME"])) if locked else "CUDA_HOME",
            "driver": draw(
                st.from_regex(r"[1-9][0-9]{2}(\.[0-9]{2,3}(\.[0-9]{2})?)?", fullmatch=True)
            ),
            "shards": draw(st.integers(1, 40)),
        }
        if version == default or draw(st.booleans()):
            row["default"] = version == default
        if own[version]:
            row["preset"] = own[version]
        if excluded or draw(st.booleans()):
            row["excluded_architectures"] = sorted(excluded)
        cuda.append(row)
    flashinfer = draw(
        st.sampled_from([str(lock.version) for lock in locks.available("flashinfer")])
    )
    return {"flashinfer": flashinfer, "preset": top, "platforms": platforms, "cuda": cuda}


@given(matrices())
def test_any_valid_matrix_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("matrix") / "matrix.toml"
    path.write_text(as_toml(data))
    rows = read_matrix(path).wheels()
    assert [(row.cuda, row.platform) for row in rows] == [
        (release["version"], name) for release in data["cuda"] for name in data["platforms"]
    ]
    by_version = {release["version"]: release for release in data["cuda"]}
    for row in rows:
        release, platform = by_version[row.cuda], data["platforms"][row.platform]
        preset = release.get("preset", data["preset"])
        there = {
            name for module in presets.PRESETS[preset].modules for name in module.architectures
        }
        assert list(map(str, row.architectures)) == [
            name
            for name in platform["architectures"]
            if name in there and name not in release.get("excluded_architectures", [])
        ]
        assert (row.flashinfer, row.preset) == (data["flashinfer"], preset)
        assert (row.runner, row.manylinux) == (platform["runner"], platform["manylinux"])
        assert (row.driver, row.toolkit, row.shards, row.default) == (
            *(release["driver"], release["toolkit"], release["shards"]),
            release.get("default", False),
        )


@given(matrices())
def test_any_matrix_is_one_for_github_actions(data: dict[str, Any]) -> None:
    rows = parse_matrix(data).wheels()
    for each_shard in (False, True):
        made = entries(rows, each_shard=each_shard)
        assert json.loads(json.dumps({"include": made})) == {"include": made}
        # An expression of GitHub's takes a text, a number or a truth value.
        assert {type(value) for one in made for value in one.values()} <= {str, int, bool}
        assert len({tuple(one.items()) for one in made}) == len(made)
    assert [one["name"] for one in entries(rows)] == [row.name for row in rows]
    sharded = [(one["name"], one["shard"]) for one in entries(rows, each_shard=True)]
    assert sharded == [(row.name, i + 1) for row in rows for i in range(row.shards)]


# What is refused


def release(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["cuda"][1].update(values)


def platform(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["platforms"]["x86_64"].update(values)


def root(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.update(values)


def without(*path: Any) -> Callable[[dict[str, Any]], object]:
    def remove(data: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            data = data[key]
        del data[last]

    return remove


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # Keys
        (root(flashnfer="0.7.2"), "flashnfer is unknown; expected flashinfer, preset, platforms"),
        (platform(image="x"), "platforms.x86_64.image is unknown; expected runner, manylinux"),
        (release(drivers="580"), "cuda[1].drivers is unknown; expected version, toolkit, driver"),
        (
            lambda data: data["platforms"].update(riscv64={}),
            "platforms.riscv64 is unknown; expected x86_64, aarch64",
        ),
        (without("flashinfer"), "flashinfer is missing; write text in quotes there"),
        (without("platforms"), "platforms is missing; write a table there"),
        (without("cuda"), "cuda is missing; write a list there"),
        (without("platforms", "x86_64", "runner"), "platforms.x86_64.runner is missing"),
        (without("cuda", 1, "driver"), "cuda[1].driver is missing"),
        (without("cuda", 0, "shards"), "cuda[0].shards is missing; write a whole number there"),
        # Kinds
        (root(cuda={"version": "13.0"}), "cuda is {'version': '13.0'}; write a list"),
        (root(cuda=["13.0"]), "cuda[0] is '13.0'; write a table: [[cuda]]"),
        (root(platforms=["x86_64"]), "platforms is ['x86_64']; write a table"),
        (root(cuda=[]), "cuda is empty"),
        (root(platforms={}), "platforms is empty"),
        (release(version=13.0), "cuda[1].version is 13.0; write text in quotes"),
        (release(shards="8"), "cuda[1].shards is '8'; write a whole number"),
        (release(shards=True), "cuda[1].shards is True; write a whole number"),
        (release(default=1), "cuda[1].default is 1; write true or false"),
        (platform(architectures="10.0a"), "architectures is '10.0a'; write a list"),
        (
            platform(architectures=[10.0]),
            "platforms.x86_64.architectures[0] is 10.0; write an architecture such as '10.0a'",
        ),
        # Versions
        (root(flashinfer="0.7"), "flashinfer is '0.7', and aot/locks has 0.7.2, 0.7.4; write one"),
        (root(flashinfer="newest"), "flashinfer is 'newest', and aot/locks has"),
        (release(version="13"), "cuda[1].version is '13'; write something like '13.0'"),
        (release(version="13.0.2"), "cuda[1].version is '13.0.2'; write something like '13.0'"),
        (release(version="cu130"), "cuda[1].version is 'cu130'; write something like '13.0'"),
        (
            release(version="12.6", toolkit="CUDA_HOME"),
            "cuda[1].version is '12.6', which builds FP4 out; write '12.8' or a newer one",
        ),
        (release(driver="R580"), "cuda[1].driver is 'R580'; write something like '580.65.06'"),
        (release(driver=">=580"), "cuda[1].driver is '>=580'; write something like"),
        (release(driver="13.0"), "cuda[1].driver is '13.0'; write something like"),
        (release(driver=580), "cuda[1].driver is 580; write text in quotes"),
        (release(shards=0), "cuda[1].shards is 0; write 1 or more"),
        # Names
        (root(preset="ful"), "preset is 'ful', which is unknown; write one of quick, "),
        (root(preset="lowered"), "preset is 'lowered', which is for tests alone; write one of"),
        (release(preset="ful"), "cuda[1].preset is 'ful', which is unknown; write one of quick, "),
        (release(toolkit="PATH"), "cuda[1].toolkit is 'PATH'; write one of packages, CUDA_HOME"),
        (
            release(version="13.1"),
            "cuda[1].toolkit is 'packages', and aot/locks has 13.0, 13.2, 13.4, 13.5 but not 13.1",
        ),
        (platform(runner="ubuntu 24.04"), "platforms.x86_64.runner is 'ubuntu 24.04'; write"),
        (
            platform(manylinux="manylinux_2_28_aarch64"),
            "platforms.x86_64.manylinux is 'manylinux_2_28_aarch64'; write something like "
            "'manylinux_2_28_x86_64'",
        ),
        # Architectures
        (
            platform(architectures=["sm_100a"]),
            "platforms.x86_64.architectures[0]: cannot read the architecture 'sm_100a'; write ",
        ),
        (
            platform(architectures=["10.0a", "12.1a"]),
            "platforms.x86_64.architectures[1] is '12.1a', and the presets dense, full are for "
            "9.0a, 10.0a, 10.3a, 11.0a, 12.0f; write some of these",
        ),
        (platform(architectures=["10.0"]), "architectures[0] is '10.0', and the presets"),
        (
            platform(architectures=["10.0a", "10.0a"]),
            "architectures[1] is '10.0a', which is there already; remove one of them",
        ),
        (platform(architectures=[]), "on x86_64 would be for nothing, without a Blackwell"),
        (platform(architectures=["9.0a"]), "on x86_64 would be for 9.0a, without a Blackwell"),
        (
            without("cuda", 0, "excluded_architectures"),
            "platforms.aarch64.architectures[1] is '11.0a', and cuda[0] is CUDA 12.9: the target "
            "needs CUDA 13.0 or newer, and the compiler is CUDA 12.9; add it to "
            "cuda[0].excluded_architectures",
        ),
        (
            release(version="12.8", toolkit="CUDA_HOME"),
            "platforms.x86_64.architectures[2] is '12.0f', and cuda[1] is CUDA 12.8: the target "
            "needs CUDA 12.9 or newer",
        ),
        (
            release(excluded_architectures=["10.3a"]),
            "cuda[1].excluded_architectures[0] is '10.3a', which no platform has; remove it",
        ),
        (
            release(excluded_architectures=["10.0a", "11.0a"]),
            "CUDA 13.0 on aarch64 would be for nothing, without a Blackwell",
        ),
        (release(excluded_architectures=["new"]), "excluded_architectures[0]: cannot read"),
        # Twice, and the default
        (
            release(version="12.9", toolkit="CUDA_HOME", excluded_architectures=["11.0a"]),
            "cuda[1].version is '12.9', as cuda[0].version is; remove one of them",
        ),
        (
            release(default=False),
            "no cuda[…].default is true; write default = true for exactly one version",
        ),
        (
            lambda data: data["cuda"][0].update(default=True),
            "cuda[0].default, cuda[1].default is true; write default = true for exactly one",
        ),
    ],
)
def test_what_is_refused_names_the_key_and_what_to_do(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    with pytest.raises(MatrixError) as caught:
        parse_matrix(changed(change))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"flashinfer = ", "is not TOML"),
        (b"preset = 'a'\npreset = 'b'\n", "is not TOML"),
        (as_toml(BASE).encode() + b"[platforms.x86_64]\n", "is not TOML"),
        (b"\xff\xfe\x00", "is not TOML"),
        (b"", "flashinfer is missing"),
        (as_toml(changed(release(driver="R580"))).encode(), "cuda[1].driver is 'R580'"),
    ],
)
def test_a_file_that_is_refused_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.toml"
    path.write_bytes(content)
    with pytest.raises(MatrixError, match=re.escape(said)) as caught:
        read_matrix(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"cannot be read: .*absent\.toml"):
        read_matrix(tmp_path / "absent.toml")


def test_its_errors_have_an_exit_code_of_their_own() -> None:
    def every(error: type[AotError]) -> set[type[AotError]]:
        return {error}.union(*map(every, error.__subclasses__()))

    assert [one for one in every(AotError) if one.exit_code == 11] == [MatrixError]


# The project's own


@pytest.fixture(scope="module")
def own() -> Matrix:
    return read_matrix()


def test_the_own_matrix_has_five_cuda_versions_on_two_platforms(own: Matrix) -> None:
    assert [row.name for row in own.wheels()] == [
        f"cu{version}-{name}"
        for version in ("129", "130", "132", "134", "135")
        for name in ("x86_64", "aarch64")
    ]


def test_its_defaults_are_those_of_a_build(own: Matrix) -> None:
    assert own.default_cuda == catalog.DEFAULT_CUDA
    assert own.flashinfer == catalog.DEFAULT_FLASHINFER


def test_every_lock_of_a_toolkit_is_for_a_wheel(own: Matrix) -> None:
    from_packages = [one.version for one in own.cuda if one.toolkit == "packages"]
    assert from_packages == [str(lock.version) for lock in locks.available("cuda")]


def test_every_target_of_its_preset_is_built_somewhere(own: Matrix) -> None:
    rows = own.wheels()
    for preset in {row.preset for row in rows}:
        built = {target for row in rows if row.preset == preset for target in row.architectures}
        assert built == set(preset_targets(preset))


def test_the_file_is_where_the_build_looks_for_it() -> None:
    assert MATRIX.relative_to(Path(__file__).resolve().parents[2]) == Path("wheels/matrix.toml")


# GPUs


def test_every_product_with_a_processor_of_its_own_is_in_the_table() -> None:
    assert {name for gpu in GPUS for name in gpu.name.split(", ")} >= OWN_PROCESSOR


def test_a_wheel_is_for_gpus_that_its_machines_can_have(own: Matrix) -> None:
    names = {
        row.name: {name for gpu in gpus(row) for name in gpu.name.split(", ")}
        for row in own.wheels()
    }
    every = {name for gpu in GPUS for name in gpu.name.split(", ")}
    assert names["cu130-x86_64"] == every - OWN_PROCESSOR
    assert names["cu130-aarch64"] == every
    # CUDA 12 does not know Thor by its present name.
    assert names["cu129-aarch64"] == every - {"Jetson Thor"}


# The command

APP = typer.Typer()
APP.command("matrix")(matrix_command)


@APP.callback()
def callback() -> None:
    """With it, the name of the one command has to be written."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(APP, ["matrix", *arguments], env={"COLUMNS": "120"})


def included(*arguments: str) -> list[dict[str, Any]]:
    result = invoke("--json", *arguments)
    assert result.exit_code == 0, result.output
    # A step's output in GitHub Actions is one line.
    assert result.stdout.count("\n") == 1
    data = json.loads(result.stdout)
    assert list(data) == ["include"]
    return data["include"]


def test_people_get_a_row_for_each_wheel(own: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    # Wide enough for a line a row, whatever the environment says of the terminal.
    monkeypatch.setattr(matrix_report.OUT, "width", 140)
    result = invoke()
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for row in own.wheels():
        (line,) = (line for line in lines if row.name in line)
        for text in (" ".join(map(str, row.architectures)), row.driver, row.toolkit, row.preset):
            assert text in line
    assert "the default is CUDA 13.0" in result.stdout


def test_machines_get_an_entry_for_each_wheel(own: Matrix) -> None:
    assert included() == [row.to_json() for row in own.wheels()]
    first = included("--cuda", "13.0", "--platform", "x86_64")
    assert first == [
        {
            "name": "cu130-x86_64",
            "index": "cu130",
            "cuda": "13.0",
            "platform": "x86_64",
            "architectures": "9.0a,10.0a,10.3a,12.0f",
            "flashinfer": "0.7.2",
            "preset": "full",
            "driver": "580",
            "toolkit": "packages",
            "shards": 8,
            "runner": "ubuntu-24.04",
            "manylinux": "manylinux_2_28_x86_64",
            "default": True,
        }
    ]


def test_an_entry_for_each_shard(own: Matrix) -> None:
    made = included("--shards", "--cuda", "12.9")
    assert [(one["platform"], one["shard"]) for one in made] == [
        (row.platform, shard)
        for row in own.wheels()
        if row.cuda == "12.9"
        for shard in range(1, row.shards + 1)
    ]


def test_filters_may_be_repeated_and_keep_the_order(own: Matrix) -> None:
    wanted = included("--cuda", "13.5", "--cuda", "12.9", "--platform", "aarch64")
    assert [one["name"] for one in wanted] == ["cu129-aarch64", "cu135-aarch64"]
    rows = own.wheels()
    assert select(rows) == rows
    assert select(rows, platforms=PLATFORMS) == rows


def test_another_preset_on_the_command_line() -> None:
    (one,) = included("--preset", "quick", "--cuda", "13.5", "--platform", "x86_64")
    assert (one["preset"], one["architectures"]) == ("quick", "9.0a,12.0f")


def test_another_matrix_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(as_toml(BASE))
    assert [one["cuda"] for one in included("--file", str(path))] == [
        "12.9",
        "12.9",
        "13.0",
        "13.0",
    ]


def test_the_table_of_the_documentation(own: Matrix) -> None:
    result = invoke("--markdown")
    assert result.exit_code == 0, result.output
    head, rule, *lines = result.stdout.splitlines()
    assert head == "| wheel | CUDA | NVIDIA driver | platform | GPUs |"
    assert rule.count("---") == head.count("|") - 1
    assert len(lines) == len(own.wheels())
    assert {line.count("|") for line in lines} == {head.count("|")}
    assert lines[2] == (
        "| `cu130-x86_64` | 13.0 (default) | 580 or newer | Linux x86_64 | B200 (10.0); "
        "B300 (10.3); RTX 50 series, RTX PRO 6000 Blackwell (12.0); "
        "H100, H200 (9.0, KV dequantization alone) |"
    )
    assert "Jetson Thor (11.0)" in lines[3]
    assert "DGX Spark (GB10) (12.1)" in lines[3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--cuda", "13.1"),
            "--cuda is '13.1'; the matrix has 12.9, 13.0, 13.2, 13.4, 13.5: choose one of them",
        ),
        (("--cuda", "13.0", "--cuda", "13"), "--cuda is '13'; the matrix has 12.9, 13.0,"),
        (("--platform", "arm64"), "--platform is 'arm64'; the matrix has x86_64, aarch64: choose"),
        (("--preset", "lowered"), "--preset is 'lowered', which is for tests alone; write one of"),
        (("--file", "absent.toml"), "absent.toml"),
    ],
)
def test_a_choice_that_is_not_there_says_what_is(arguments: tuple[str, ...], said: str) -> None:
    for form in ((), ("--json",), ("--markdown",)):
        result = invoke(*form, *arguments)
        assert isinstance(result.exception, MatrixError)
        assert said in str(result.exception)
        assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments", [("--shards",), ("--markdown", "--json"), ("--markdown", "--shards")]
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
