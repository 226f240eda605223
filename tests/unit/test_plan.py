"""The build plan: one hash for equal inputs anywhere, and FlashInfer's flags as they are."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version
from plans import roots_of

from aot import plan as plan_module
from aot import presets
from aot.architectures import Architecture
from aot.catalog import Module
from aot.environment import FlashInferEnvironment
from aot.errors import ArchitectureError, PlanError, ToolchainError
from aot.estimates import estimate
from aot.lowering import toolkit as lowering_toolkit
from aot.plan import (
    ADDED_DEFINES,
    ADDED_HOST_FLAGS,
    BuildPlan,
    Unit,
    check_targets,
    installed_version,
    make_plan,
    narrowed,
    preset_named,
)
from aot.presets import Preset
from aot.specs import SourceUnit, Specification, SpecificationSet
from aot.toolchain import Toolkit

TARGETS = tuple(map(Architecture.parse, ("8.0", "9.0a", "10.0a", "12.0", "12.0a", "12.0f")))
QUICK = presets.PRESETS["quick"]
OTHERS = QUICK.modules[2:]
LOWERED = Preset(
    "quick-lowered",
    "test only",
    (
        QUICK.modules[0],
        *(dataclasses.replace(module, architectures=("9.0a",)) for module in QUICK.modules[1:]),
    ),
    lowered=True,
)


class Machine:
    """FlashInfer's files and specifications for the preset `quick`, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "venv/site-packages"
        self.data = self.site / "flashinfer/data"
        self.python_include = folder / "python/include"
        self.cuda = folder / "cuda"
        for name, version in (("torch", "2.13.0+cpu"), ("apache-tvm-ffi", "0.1.15.post2")):
            self.set_version(name, version)
        self.files = {
            "csrc/thop/quantize.cpp": "int quantize();\n",
            "csrc/kernels/quantization.cu": "__global__ void quantize();\n",
            "csrc/fp4_kv_dequantization.cu": "__global__ void dequantize();\n",
            **{f"csrc/{module.name}.cu": "__global__ void kernel();\n" for module in OTHERS},
        }
        self.flags = {
            "csrc/thop/quantize.cpp": ["-std=c++17", *self.includes()],
            # FlashInfer repeats flags, and the order of undoing ones matters.
            "csrc/kernels/quantization.cu": [
                *("-DENABLE_FP4", *self.includes(), "-U__CUDA_NO_HALF2_OPERATORS__"),
                *("-O3", "-DENABLE_FP4", "-gencode=arch=compute_120f,code=sm_120f"),
            ],
            "csrc/fp4_kv_dequantization.cu": ["-O3", "-use_fast_math"],
            **{f"csrc/{module.name}.cu": ["-O3"] for module in OTHERS},
        }

    def includes(self) -> list[str]:
        return [
            *(f"-I{self.data}/csrc", "-isystem", str(self.python_include)),
            *("-isystem", f"{self.cuda}/include", f"-isystem{self.site}/tvm_ffi/include"),
        ]

    def set_version(self, name: str, version: str) -> None:
        normal = name.replace("-", "_")
        for old in self.site.glob(f"{normal}-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        info = self.site / f"{normal}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def environment(self, version: str = "0.7.2") -> FlashInferEnvironment:
        return FlashInferEnvironment(
            python=self.folder / "venv/bin/python",
            version=Version(version),
            site_packages=self.site,
            flashinfer_data=self.data,
            tvm_ffi_root=self.site / "tvm_ffi",
            torch_include=self.site / "torch/include",
            torch_lib=self.site / "torch/lib",
        )

    def toolkit(
        self, compiler: str = "13.0.88", targets: tuple[Architecture, ...] = TARGETS
    ) -> Toolkit:
        full = Version(compiler)
        return Toolkit(
            root=self.cuda,
            version=Version(f"{full.major}.{full.minor}"),
            compiler_version=full,
            nvcc=self.cuda / "bin/nvcc",
            cuobjdump=None,
            nvdisasm=None,
            source="test",
            targets=targets,
        )

    def unit(self, name: str) -> SourceUnit:
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.files[name])
        return SourceUnit(path, tuple(self.flags[name]))

    def specifications(self, version: str = "0.7.2") -> SpecificationSet:
        units = [self.unit(name) for name in self.files]
        first_of_others = 1 - len(QUICK.modules)
        return SpecificationSet(
            flashinfer_version=version,
            python_include=self.python_include,
            workspace=self.data.parent / "workspace",
            specifications=(
                Specification(QUICK.modules[0].name, tuple(units[:first_of_others])),
                *(
                    Specification(module.name, (unit,))
                    for module, unit in zip(QUICK.modules[1:], units[first_of_others:], strict=True)
                ),
            ),
        )

    def plan(
        self, compiler: str = "13.0.88", flashinfer: str = "0.7.2", preset: Preset = QUICK
    ) -> BuildPlan:
        return make_plan(
            preset,
            self.specifications(flashinfer),
            self.environment(flashinfer),
            self.toolkit(compiler),
        )[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here")


# The hash


def test_the_same_inputs_elsewhere_are_the_same_plan(machine: Machine, tmp_path: Path) -> None:
    elsewhere = Machine(tmp_path / "some" / "quite different place")
    assert machine.plan() == elsewhere.plan()
    assert machine.plan().hash == elsewhere.plan().hash


def test_no_path_of_the_machine_is_in_the_plan(machine: Machine, tmp_path: Path) -> None:
    text = json.dumps(machine.plan().to_json())
    assert str(tmp_path) not in text
    for token in ("@FLASHINFER@/csrc", "@CUDA@/include", "@PYTHON_INCLUDE@", "@TVM_FFI@/include"):
        assert token in text


def _render_sources(machine: Machine, workspace: Path) -> SpecificationSet:
    """Let the KV module have a source that FlashInfer renders, as its GEMM modules do."""
    name = "gen_gemm_sm120_cutlass_fp4/fp4_gemm_cutlass_half_128_64_128.cu"
    rendered = workspace / ".cache/flashinfer/0.7.2/120f/generated" / name
    rendered.parent.mkdir(parents=True)
    rendered.write_text("INSTANTIATE(half, 128, 64, 128)\n")
    found = machine.specifications()
    quantization, kv, *others = found.specifications
    unit = SourceUnit(rendered, ("-O3", f"-I{workspace}/.cache/include"))
    kv = dataclasses.replace(kv, units=(*kv.units, unit))
    return dataclasses.replace(
        found, workspace=workspace, specifications=(quantization, kv, *others)
    )


def test_rendered_sources_make_the_same_plan_in_any_build_folder(
    machine: Machine, tmp_path: Path
) -> None:
    plans, roots = zip(
        *(
            make_plan(
                QUICK,
                _render_sources(machine, tmp_path / folder),
                machine.environment(),
                machine.toolkit(),
            )
            for folder in ("build/flashinfer", "a far/longer/place/of/another/checkout")
        ),
        strict=True,
    )
    assert plans[0] == plans[1]
    assert plans[0].hash == plans[1].hash
    unit = plans[0].modules[1].units[-1]
    assert unit.name == "gen_gemm_sm120_cutlass_fp4_fp4_gemm_cutlass_half_128_64_128"
    assert unit.source.startswith("@WORKSPACE@/.cache/flashinfer/")
    assert "-I@WORKSPACE@/.cache/include" in unit.flags
    assert str(tmp_path) not in json.dumps(plans[0].to_json())
    # Each machine finds its own again.
    places = {one.expand(unit.source) for one in roots}
    assert len(places) == 2
    assert all(Path(place).read_text().startswith("INSTANTIATE") for place in places)


def test_a_workspace_inside_another_root_keeps_its_own_token(
    machine: Machine, tmp_path: Path
) -> None:
    # The build folder usually lies inside the checkout, and may lie beside the environment.
    inside = _render_sources(machine, machine.data / "workspace")
    plan, _ = make_plan(QUICK, inside, machine.environment(), machine.toolkit())
    elsewhere = make_plan(
        QUICK,
        _render_sources(machine, tmp_path / "elsewhere"),
        machine.environment(),
        machine.toolkit(),
    )[0]
    assert plan.hash == elsewhere.hash


def test_another_rendered_text_is_another_plan(machine: Machine, tmp_path: Path) -> None:
    specifications = _render_sources(machine, tmp_path / "build")
    arguments = (machine.environment(), machine.toolkit())
    before = make_plan(QUICK, specifications, *arguments)[0]
    specifications.specifications[1].units[-1].source.write_text("INSTANTIATE(half, 256)\n")
    assert make_plan(QUICK, specifications, *arguments)[0].hash != before.hash


def test_labels_of_local_builds_do_not_count(machine: Machine) -> None:
    before = machine.plan()
    machine.set_version("torch", "2.13.0+cu130")
    assert machine.plan().hash == before.hash
    assert before.versions.torch_headers == "2.13.0"


def _change_source(machine: Machine) -> None:
    machine.files["csrc/kernels/quantization.cu"] += "\n"


def _rename_source(machine: Machine) -> None:
    for mapping in (machine.files, machine.flags):
        mapping["csrc/thop/quantize.cpp"] = mapping.pop("csrc/thop/quantize.cpp")  # type: ignore[attr-defined]
    # Still before the KV module's only file.
    machine.files["csrc/fp4_kv_dequantization.cu"] = machine.files.pop(
        "csrc/fp4_kv_dequantization.cu"
    )


def _add_flag(machine: Machine) -> None:
    machine.flags["csrc/thop/quantize.cpp"].append("-DMORE")


def _drop_flag(machine: Machine) -> None:
    machine.flags["csrc/fp4_kv_dequantization.cu"].pop()


def _swap_flags(machine: Machine) -> None:
    machine.flags["csrc/fp4_kv_dequantization.cu"].reverse()


@pytest.mark.parametrize(
    "change",
    [
        _change_source,
        _rename_source,
        _add_flag,
        _drop_flag,
        _swap_flags,
        lambda machine: machine.set_version("apache-tvm-ffi", "0.1.16"),
        lambda machine: machine.set_version("torch", "2.13.1"),
    ],
)
def test_each_input_changes_the_hash(machine: Machine, change: Callable[[Machine], None]) -> None:
    before = machine.plan().hash
    change(machine)
    assert machine.plan().hash != before


def test_versions_change_the_hash(machine: Machine) -> None:
    hashes = {
        machine.plan().hash,
        machine.plan(compiler="13.0.89").hash,
        machine.plan(compiler="13.1.88").hash,
        machine.plan(flashinfer="0.7.4").hash,
    }
    assert len(hashes) == 4


def test_what_is_built_around_the_units_changes_the_hash(machine: Machine) -> None:
    plan = machine.plan()
    changed = [
        dataclasses.replace(plan, preset="other"),
        dataclasses.replace(plan, modules=plan.modules[:1]),
        dataclasses.replace(plan, modules=plan.modules[::-1]),
        dataclasses.replace(plan, tvm_ffi_sources=plan.tvm_ffi_sources[1:]),
        dataclasses.replace(plan, added_host_flags=()),
        dataclasses.replace(plan, lowering="0123456789abcdef"),
        dataclasses.replace(plan, machine="aarch64"),
    ]
    assert len({plan.hash, *(other.hash for other in changed)}) == 1 + len(changed)


# Flags (case 6)


def test_flashinfers_flags_come_first_all_of_them_and_in_order(machine: Machine) -> None:
    specifications = machine.specifications()
    plan, roots = make_plan(QUICK, specifications, machine.environment(), machine.toolkit())
    pairs = list(
        zip(
            (unit for spec in specifications.specifications for unit in spec.units),
            plan.units,
            strict=True,
        )
    )
    assert len(pairs) == 3 + len(OTHERS)
    for theirs, ours in pairs:
        added = (
            [f"-Xcompiler={flag}" for flag in ADDED_HOST_FLAGS]
            if theirs.is_cuda
            else ADDED_HOST_FLAGS
        )
        wanted = (*map(roots.tokenize, theirs.flags), *ADDED_DEFINES, *added)
        assert ours.flags == wanted
        assert ours.language == ("cuda" if theirs.is_cuda else "c++")


def test_host_code_gets_no_unique_symbols(machine: Machine) -> None:
    for unit in machine.plan().units:
        flag = "-Xcompiler=-fno-gnu-unique" if unit.language == "cuda" else "-fno-gnu-unique"
        assert unit.flags.count(flag) == 1


def test_the_innermost_folder_gives_the_token() -> None:
    site = Path("/usr/lib/python3/site-packages")
    roots = roots_of(site, cuda=Path("/usr"), workspace=Path("/build/flashinfer"))
    assert roots.tokenize("/build/flashinfer/gen/a.cu") == "@WORKSPACE@/gen/a.cu"
    assert roots.tokenize("-I/usr/include/python3.11") == "-I@PYTHON_INCLUDE@"
    assert roots.tokenize("-I/usr/include") == "-I@CUDA@/include"
    assert roots.tokenize(f"-I{roots.torch}/include:{roots.cuda}") == "-I@TORCH@/include:@CUDA@"


# Units


def test_sources_of_equal_stem_are_told_apart_by_their_folder(machine: Machine) -> None:
    machine.files = {"csrc/a/op.cu": "1", "csrc/b/op.cu": "2", **machine.files}
    machine.flags |= {"csrc/a/op.cu": [], "csrc/b/op.cu": []}
    names = [unit.name for unit in machine.plan().modules[0].units]
    assert names[:2] == ["a_op", "b_op"]


def test_units_that_would_share_an_object_are_refused(machine: Machine) -> None:
    machine.files = {"csrc/a/op.cu": "1", "csrc/a/op.cpp": "2", **machine.files}
    machine.flags |= {"csrc/a/op.cu": [], "csrc/a/op.cpp": []}
    with pytest.raises(PlanError, match=r"share a name.*a_op"):
        machine.plan()


def test_a_unit_says_enough_to_estimate_what_it_costs(machine: Machine) -> None:
    """By the folder and name of its source, and by the targets among its flags."""
    machine.flags["csrc/fp4_kv_dequantization.cu"] += [
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120f,code=sm_120f",
    ]
    seconds = {}
    for unit in machine.plan().units:
        seconds[unit.name] = estimate(Path(unit.source), unit.flags)[1]
        # The token in place of a folder changes nothing.
        elsewhere = Path(unit.source.replace("@FLASHINFER@", "/site/flashinfer/data"))
        assert estimate(elsewhere, unit.flags)[1] == seconds[unit.name]
    assert seconds["kernels_quantization"] > seconds["thop_quantize"]
    one_target = estimate(Path("csrc/fp4_kv_dequantization.cu"))[1]
    assert seconds["csrc_fp4_kv_dequantization"] > one_target


def test_what_is_known_of_costs_is_not_in_a_plan(machine: Machine) -> None:
    """What a machine has measured would change the plan's hash."""
    fields = set(Unit.__dataclass_fields__)
    assert fields == {"name", "source", "language", "flags", "sha256"}


def test_architectures_of_all_modules_are_in_order(machine: Machine) -> None:
    assert [str(one) for one in machine.plan().architectures] == ["9.0a", "12.0f"]


# Some of the targets


def targets_of(preset: Preset) -> dict[str, tuple[str, ...]]:
    return {module.name: module.architectures for module in preset.modules}


def test_only_the_targets_that_are_asked_for_are_left() -> None:
    dense = presets.PRESETS["dense"]
    some = narrowed(dense, ["12.0f", "10.0a"])
    assert some.name == dense.name
    every = targets_of(dense)
    left = {
        name: tuple(one for one in targets if one in {"12.0f", "10.0a"})
        for name, targets in every.items()
    }
    # A module that has none of them goes; the others keep their order.
    assert targets_of(some) == {name: targets for name, targets in left.items() if targets}
    assert 0 < len(some.modules) < len(dense.modules)
    assert targets_of(narrowed(dense, ["10.0a", "12.0f"])) == targets_of(some)
    assert targets_of(narrowed(some, ["12.0f"])) == targets_of(narrowed(dense, ["12.0f"]))


@pytest.mark.parametrize("name", presets.PRESETS)
def test_none_and_all_of_them_are_the_preset(name: str) -> None:
    preset = presets.PRESETS[name]
    assert narrowed(preset, ()) == preset
    every = {one for targets in targets_of(preset).values() for one in targets}
    assert narrowed(preset, sorted(every)) == preset


def test_a_part_of_a_preset_is_another_plan(machine: Machine) -> None:
    """The wheel of a part must not be taken for the whole."""
    kv = presets.PRESETS["quick"].modules[1]
    assert kv.architectures == ("9.0a", "12.0f")
    part = narrowed(QUICK, ["12.0f"])
    assert len(part.modules) == len(QUICK.modules)
    assert machine.plan(preset=part).hash != machine.plan().hash
    assert [str(one) for one in machine.plan(preset=part).architectures] == ["12.0f"]


@pytest.mark.parametrize("unknown", [["10.3a"], ["12.0f", "10.3a"], ["12.0a"], ["12.0"]])
def test_a_target_that_the_preset_has_not_is_answered_with_those_it_has(
    unknown: list[str],
) -> None:
    with pytest.raises(PlanError) as caught:
        narrowed(QUICK, unknown)
    assert f"the preset quick has no {unknown[-1]}" in str(caught.value)
    assert str(caught.value).endswith("its architectures are 9.0a, 12.0f")


@pytest.mark.parametrize("name", ["", "sm_120", "12", "12.0g", "x", "12.0f,10.0a"])
def test_a_malformed_target_is_refused(name: str) -> None:
    with pytest.raises(ArchitectureError):
        narrowed(QUICK, ["12.0f", name])


# The machine


@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
def test_a_plan_names_what_its_library_runs_on(machine: Machine, name: str) -> None:
    plan, _ = make_plan(
        *(QUICK, machine.specifications(), machine.environment(), machine.toolkit()), name
    )
    assert plan.machine == name
    assert BuildPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


# Machine code for Hopper


def test_images_are_what_the_targets_are_lowered_to(machine: Machine) -> None:
    modules = tuple(
        dataclasses.replace(row, architectures=targets)
        for row, targets in zip(
            QUICK.modules, (("10.0a",), ("8.0", "12.0f"), *len(OTHERS) * [("8.0",)]), strict=True
        )
    )
    plan = machine.plan(preset=dataclasses.replace(LOWERED, modules=modules))
    quantization, kv, *_ = plan.modules
    assert (quantization.architectures, quantization.images) == (("10.0a",), ("9.0a",))
    assert (kv.architectures, kv.images) == (("8.0", "12.0f"), ("8.0", "9.0a"))
    assert quantization.targets == "9.0a (lowered from 10.0a)"
    assert kv.targets == "8.0 9.0a (lowered from 8.0 12.0f)"


def test_what_is_not_lowered_has_the_images_that_it_is_compiled_for(machine: Machine) -> None:
    plan, others = machine.plan(), len(QUICK.modules) - 1
    assert [module.images for module in plan.modules] == [("12.0f",), *others * [("9.0a", "12.0f")]]
    assert [module.targets for module in plan.modules] == ["12.0f", *others * ["9.0a 12.0f"]]
    assert plan.lowering == ""
    assert plan.compiler == plan.versions.cuda_compiler == "13.0.88"


def test_what_hopper_and_older_devices_run_stays_as_it_is(machine: Machine) -> None:
    quantization, kv, *others = LOWERED.modules
    kv = dataclasses.replace(kv, architectures=("8.0", "9.0a"))
    plan = machine.plan(preset=dataclasses.replace(LOWERED, modules=(quantization, kv, *others)))
    assert plan.modules[0].images == ("9.0a",)
    assert plan.modules[1].images == plan.modules[1].architectures == ("8.0", "9.0a")
    assert plan.modules[1].targets == "8.0 9.0a"


def test_the_lowered_plan_compiles_the_same_units_with_another_compiler(machine: Machine) -> None:
    lowered, normal = machine.plan(preset=LOWERED), machine.plan()
    # nvcc is asked for the same: its assembler is what lowers.
    assert lowered.units == normal.units
    assert lowered.versions == normal.versions
    assert lowered.lowering == lowering_toolkit.digest()
    assert lowered.compiler == "13.0.88 lowered"
    assert lowered.hash != normal.hash


def test_the_lowering_is_part_of_a_lowered_plan_and_of_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, lowered = machine.plan().hash, machine.plan(preset=LOWERED).hash
    monkeypatch.setattr(plan_module, "digest", lambda: "f" * 16)
    assert machine.plan().hash == before
    changed = machine.plan(preset=LOWERED)
    assert changed.lowering == "f" * 16
    assert changed.hash != lowered


def test_a_lowered_plan_survives_its_file(machine: Machine) -> None:
    plan = machine.plan(preset=LOWERED)
    read = BuildPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert read == plan
    assert (read.lowering, read.modules[0].images) == (plan.lowering, ("9.0a",))


@pytest.mark.parametrize("target", ["10.3a", "11.0a", "12.0a", "12.1a"])
def test_what_cannot_be_lowered_is_refused_by_name(machine: Machine, target: str) -> None:
    quantization, *others = QUICK.modules
    modules = (dataclasses.replace(quantization, architectures=(target,)), *others)
    preset = dataclasses.replace(LOWERED, modules=modules)
    toolkit = machine.toolkit(targets=(*TARGETS, Architecture.parse(target)))
    with pytest.raises(PlanError) as caught:
        make_plan(preset, machine.specifications(), machine.environment(), toolkit)
    sm = Architecture.parse(target).sm
    assert f"{quantization.name}: sm_{sm} cannot be lowered to sm_90a" in str(caught.value)
    # What can be is named too.
    for source in ("sm_100a", "sm_120f"):
        assert source in str(caught.value)
    # The same modules without lowering are a plan.
    usual = dataclasses.replace(preset, lowered=False)
    make_plan(usual, machine.specifications(), machine.environment(), toolkit)


@pytest.mark.parametrize("targets", [("10.0a", "12.0f"), ("9.0a", "12.0f")])
def test_two_targets_that_are_lowered_to_the_same_are_refused(
    machine: Machine, targets: tuple[str, str]
) -> None:
    quantization, kv, *others = LOWERED.modules
    modules = (quantization, dataclasses.replace(kv, architectures=targets), *others)
    preset = dataclasses.replace(LOWERED, modules=modules)
    with pytest.raises(PlanError, match=f"{kv.name}: several of .* are lowered to the same"):
        make_plan(preset, machine.specifications(), machine.environment(), machine.toolkit())


# As a file


def test_a_plan_survives_its_file(machine: Machine) -> None:
    plan = machine.plan()
    read = BuildPlan.from_json(json.loads(json.dumps(plan.to_json(), indent=2, sort_keys=True)))
    assert read == plan
    assert read.hash == plan.hash


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("preset",), "other"),
        (("hash",), "0" * 64),
        (("added_host_flags",), []),
        (("versions", "cuda_compiler"), "13.0.89"),
        (("lowering",), "f" * 16),
        (("modules", 0, "architectures"), ["12.0a"]),
        (("modules", 0, "images"), ["9.0a"]),
        (("modules", 0, "functions", 0, "arguments"), ["DLTensor*"]),
        (("modules", 0, "functions", 0, "operator"), None),
        (("modules", 0, "units", 0, "flags"), ["-O0"]),
        (("modules", 0, "units", 0, "sha256"), "0" * 64),
        (("modules", 1, "units"), []),
    ],
)
def test_an_edited_plan_is_refused(
    machine: Machine, where: tuple[str | int, ...], value: object
) -> None:
    data = json.loads(json.dumps(machine.plan().to_json()))
    edited = copy.deepcopy(data)
    place = edited
    for key in where[:-1]:
        place = place[key]
    assert place[where[-1]] != value
    place[where[-1]] = value
    with pytest.raises(PlanError, match="edited or cut off: make it anew"):
        BuildPlan.from_json(edited)
    assert BuildPlan.from_json(data).hash == data["hash"]


# Refusals


def test_an_unknown_preset_is_answered_with_those_there_are() -> None:
    with pytest.raises(PlanError) as caught:
        preset_named("qick")
    assert "'qick'" in str(caught.value)
    for preset in presets.PRESETS.values():
        assert f"{preset.name}: {preset.description}" in str(caught.value)
    assert preset_named("quick") is QUICK


def test_specifications_of_another_flashinfer_are_refused(machine: Machine) -> None:
    with pytest.raises(PlanError, match=r"FlashInfer 0\.7\.20.*pinned to 0\.7\.2;"):
        make_plan(QUICK, machine.specifications("0.7.20"), machine.environment(), machine.toolkit())


def test_an_environment_without_a_package_is_refused(machine: Machine) -> None:
    with pytest.raises(PlanError, match="ninja is not in"):
        installed_version(machine.environment(), "ninja")


def _module(needs_fp4: bool, *architectures: str) -> Module:
    return Module("m", "family", "package:function", architectures, needs_fp4, ())


def test_a_preset_without_modules_is_refused(machine: Machine) -> None:
    empty = Preset("empty", "nothing", ())
    with pytest.raises(PlanError, match="nothing to build"):
        make_plan(
            empty,
            SpecificationSet("0.7.2", machine.python_include, machine.data, ()),
            machine.environment(),
            machine.toolkit(),
        )


@pytest.mark.parametrize("target", ["10.0", "12.0", "9.0a"])
def test_a_target_without_fp4_is_refused_before_anything_is_read(
    machine: Machine, target: str
) -> None:
    with pytest.raises(ArchitectureError, match=target):
        check_targets([_module(True, "12.0f", target)], machine.toolkit())


def test_targets_without_fp4_are_fine_for_modules_that_need_none(machine: Machine) -> None:
    check_targets([_module(False, "8.0", "9.0a", "12.0f")], machine.toolkit())


def test_a_toolkit_that_builds_fp4_out_is_refused_by_its_version(machine: Machine) -> None:
    with pytest.raises(ToolchainError, match=r"12\.6"):
        check_targets([_module(True, "12.0f")], machine.toolkit("12.6.85"))


def test_a_toolkit_that_cannot_target_a_module_is_refused(machine: Machine) -> None:
    toolkit = machine.toolkit(targets=(Architecture.parse("12.0f"),))
    with pytest.raises(ToolchainError, match=r"cannot target 9\.0a.*targets 12\.0f"):
        check_targets([_module(True, "12.0f"), _module(False, "9.0a")], toolkit)
