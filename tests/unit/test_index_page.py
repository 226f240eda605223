"""The page that tells people which command is for them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_index_wheel import DENSE, OF_HOPPER, QUICK, Recipe

from aot import presets
from aot.index import collect
from aot.index.choices import GPUS, Gpu, choices, family_operators, offer
from aot.index.page import PLACEHOLDER, page

ADDRESS = "https://example.org/fp4aot"
HOPPER, RTX = Gpu("Hopper", (9, 0)), Gpu("RTX", (12, 0))
B200 = Gpu("B200", (10, 0))


class Table(HTMLParser):
    """The commands of the table, by the name of the GPU, and every tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: dict[str, str] = {}
        self.commands: dict[str, list[str]] = {}
        self.addresses: list[str] = []
        self.row = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src"}]
        if tag == "tr":
            self.row = ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tbody" not in self.open or not data.strip():
            return
        if "th" in self.open:
            self.row = data
            self.rows[data], self.commands[data] = "", []
        self.rows[self.row] += f"{data}\n"
        if "pre" in self.open:
            self.commands[self.row].append(data)


def written(folder: Path, address: str = ADDRESS) -> Table:
    table = Table(page(collect(folder), address))
    assert table.open == []
    return table


def test_every_gpu_has_a_row_with_its_command_or_the_reason(tmp_path: Path) -> None:
    Recipe().make(tmp_path)
    table = written(tmp_path)
    assert list(table.rows) == [gpu.name for gpu in GPUS]
    command = f"pip install --index-url {ADDRESS}/cu130/simple/ fp4aot"
    for gpu in GPUS:
        if gpu.capability in {(9, 0), (12, 0), (12, 1)}:
            assert table.commands[gpu.name] == [command]
        else:
            assert table.commands[gpu.name] == []
            assert "No wheel here runs on it." in table.rows[gpu.name]


def test_capability_driver_processor_preset_and_what_runs(tmp_path: Path) -> None:
    Recipe(tag="py3-none-manylinux_2_28_x86_64").make(tmp_path)
    rows = written(tmp_path).rows
    (rtx,) = (text for name, text in rows.items() if name.startswith("RTX"))
    (hopper,) = (text for name, text in rows.items() if name.startswith("H100"))
    for fact in ("\n12.0\n", "CUDA 13.0", "driver 580 or newer", "x86_64", "preset dense-12.0f"):
        assert fact in rtx
    assert "Runs: quantization, KV cache, GEMM (no mixture of experts, no grouped GEMM)\n" in rtx
    only = (
        f"Runs: {', '.join(sorted(OF_HOPPER))} (no quantization, no GEMM, "
        "no mixture of experts, no grouped GEMM)\n"
    )
    assert only in hopper


def test_older_drivers_get_a_command_of_their_own(tmp_path: Path) -> None:
    for cuda, driver in (("12.9", "575.51.03"), ("13.0", "580"), ("13.5", "580")):
        Recipe(cuda=cuda, minimum_driver=driver).make(tmp_path / cuda)
    table = written(tmp_path)
    (name,) = (name for name in table.rows if name.startswith("RTX"))
    assert [re.findall(r"cu\d+", command) for command in table.commands[name]] == [
        ["cu135"],
        ["cu129"],
    ]
    assert "driver 575.51.03 or newer" in table.rows[name]
    # The other wheel for the same driver is named below the first.
    assert "cu130" in table.rows[name]
    assert "#cu130" in table.addresses


def test_without_an_address_the_page_says_what_to_write(tmp_path: Path) -> None:
    Recipe().make(tmp_path)
    text = page(collect(tmp_path))
    assert f"--index-url {PLACEHOLDER}/cu130/simple/" in text
    assert f"<code>{PLACEHOLDER}</code> is the address" in text
    assert PLACEHOLDER not in page(collect(tmp_path), ADDRESS)


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    Recipe(version="0.1.0+a").make(tmp_path)
    table = written(tmp_path)
    text = page(collect(tmp_path), ADDRESS)
    assert not re.search(r"<(script|link|img|iframe)|@import|url\(", text)
    outside = [address for address in table.addresses if re.match("[a-z]+:", address)]
    assert outside == ["https://pytorch.org/get-started/locally/"]
    assert any(
        address.startswith("cu130/simple/fp4aot/fp4aot-0.1.0%2Ba-") for address in table.addresses
    )
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text


def test_what_a_manifest_says_is_escaped(tmp_path: Path) -> None:
    Recipe(preset="<script>alert(1)</script>").make(tmp_path)
    text = page(collect(tmp_path), ADDRESS)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 2


@pytest.mark.parametrize(
    ("requires", "words"),
    [
        ("torch>=2.10", "</a> 2.10 or newer,"),
        ("torch<3,>=2.10", "</a> &lt;3,&gt;=2.10,"),
        ("torch", "</a>,"),
    ],
)
def test_the_torch_that_is_needed(requires: str, words: str, tmp_path: Path) -> None:
    Recipe(requires=requires).make(tmp_path)
    assert words in page(collect(tmp_path), ADDRESS)


def test_two_wheels_that_need_different_torches(tmp_path: Path) -> None:
    Recipe().make(tmp_path)
    Recipe(version="0.2.0", requires="torch>=2.13").make(tmp_path)
    text = page(collect(tmp_path), ADDRESS)
    assert "in a version that the wheel accepts (below)" in text
    assert "torch &gt;=2.10</dd>" in text
    assert "torch &gt;=2.13</dd>" in text


# Choices


def test_the_newest_is_chosen_without_naming_it(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0"):
        Recipe(version=version).make(tmp_path)
    (choice,) = choices(RTX, collect(tmp_path)[0])
    assert (str(choice.wheel.version), choice.requirement) == ("0.10.0", "fp4aot")


def test_an_older_one_that_runs_more_is_named(tmp_path: Path) -> None:
    Recipe(version="0.1.0").make(tmp_path)
    Recipe(version="0.2.0", preset="quick", modules=QUICK).make(tmp_path)
    index = collect(tmp_path)[0]
    (rtx,) = choices(RTX, index)
    assert rtx.requirement == "fp4aot==0.1.0"
    assert rtx.runs == "quantization, KV cache, GEMM (no mixture of experts, no grouped GEMM)"
    # Both have the same for a Hopper: the newer one.
    (hopper,) = choices(HOPPER, index)
    assert hopper.requirement == "fp4aot"
    assert str(hopper.wheel.version) == "0.2.0"


def test_a_pre_release_is_named_where_it_is_meant(tmp_path: Path) -> None:
    """pip takes no pre-release by itself where there is a release."""
    Recipe(version="0.1.0", modules=QUICK).make(tmp_path)
    Recipe(version="0.2.0rc1").make(tmp_path)
    (choice,) = choices(RTX, collect(tmp_path)[0])
    assert choice.requirement == "fp4aot==0.2.0rc1"
    (hopper,) = choices(HOPPER, collect(tmp_path)[0])
    assert (hopper.requirement, str(hopper.wheel.version)) == ("fp4aot", "0.1.0")


def test_a_part_of_a_family_is_named_by_operator(tmp_path: Path) -> None:
    Recipe(modules=QUICK).make(tmp_path)
    (choice,) = choices(RTX, collect(tmp_path)[0])
    assert choice.runs == (
        f"quantization, {', '.join(sorted(OF_HOPPER))} "
        "(no GEMM, no mixture of experts, no grouped GEMM)"
    )


def test_processors_share_a_choice_only_when_it_is_the_same(tmp_path: Path) -> None:
    for machine, modules in (("x86_64", DENSE), ("aarch64", QUICK)):
        Recipe(modules=modules, tag=f"py3-none-manylinux_2_28_{machine}").make(tmp_path)
    index = collect(tmp_path)[0]
    assert [one.machines for one in choices(RTX, index)] == [("x86_64",), ("aarch64",)]
    assert [one.machines for one in choices(HOPPER, index)] == [("x86_64", "aarch64")]
    assert choices(B200, index) == ()


def test_only_what_the_same_driver_runs_is_one_group(tmp_path: Path) -> None:
    for cuda in ("12.8", "12.9", "13.0", "13.5"):
        Recipe(cuda=cuda).make(tmp_path / cuda)
    groups = offer(RTX, collect(tmp_path))
    assert [[one.index.cuda for one in group] for group in groups] == [
        ["13.5", "13.0"],
        ["12.9", "12.8"],
    ]


def test_another_driver_is_another_group(tmp_path: Path) -> None:
    for cuda, driver in (("13.5", "595"), ("13.4", "580"), ("13.0", "580"), ("12.9", "580")):
        Recipe(cuda=cuda, minimum_driver=driver).make(tmp_path / cuda)
    groups = offer(RTX, collect(tmp_path))
    assert [[one.index.cuda for one in group] for group in groups] == [
        ["13.5"],
        ["13.4", "13.0"],
        ["12.9"],
    ]


def test_a_wheel_that_names_no_driver(tmp_path: Path) -> None:
    Recipe(minimum_driver="").make(tmp_path)
    (choice,) = choices(RTX, collect(tmp_path)[0])
    assert choice.driver == "for CUDA 13"


def test_another_processor_is_another_group(tmp_path: Path) -> None:
    for cuda, machine in (("13.5", "x86_64"), ("13.0", "x86_64"), ("13.0", "aarch64")):
        Recipe(cuda=cuda, tag=f"py3-none-manylinux_2_28_{machine}").make(tmp_path / cuda)
    groups = offer(RTX, collect(tmp_path))
    assert [[one.machines for one in group] for group in groups] == [
        [("x86_64",)],
        [("x86_64", "aarch64")],
    ]


# Data that is written twice, or could be forgotten


def test_every_architecture_of_the_fullest_preset_is_for_a_gpu_of_the_table() -> None:
    from aot.architectures import Architecture

    for module in presets.PRESETS["dense"].modules:
        for text in module.architectures:
            target = Architecture.parse(text)
            assert any(target.runs_on(gpu.capability) for gpu in GPUS), text


def test_every_family_of_the_catalogue_has_a_name_on_the_page(tmp_path: Path) -> None:
    families = {module.family for preset in presets.PRESETS.values() for module in preset.modules}
    Recipe().make(tmp_path)
    (choice,) = choices(RTX, collect(tmp_path)[0])
    # Each is there, or named as what is not.
    assert len(choice.runs.replace(" (", ", ").split(", ")) == len(families)
    assert all(family_operators(family) for family in families)
