"""The benchmark's picture, drawn from a report."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest
from benchmarks import names, picture
from benchmarks.results import to_json
from test_benchmarks_results import measurement, quantize_report, report

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str, family: str) -> list[float]:
    root = ElementTree.fromstring(svg)
    color = picture.COLORS[family]
    return [
        float(one.get("width"))
        for one in root.iter(f"{SVG}rect")
        if one.get("fill") == color and one.get("width") != "12"  # the legend's squares
    ]


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_medians():
    svg = picture.draw(quantize_report(10, 25, 40, 6))
    (ours,), (theirs, operator), (torch,) = (
        bars(svg, family) for family in ("fp4aot", "flashinfer", "torch")
    )
    assert theirs / ours == pytest.approx(2.5, rel=0.02)
    assert operator / ours == pytest.approx(4.0, rel=0.02)
    assert torch / ours == pytest.approx(0.6, rel=0.05)


def test_it_says_what_was_measured_where():
    shown = " ".join(texts(picture.draw(quantize_report(10, 25, 40, 6))))
    for part in ("µs", "NVIDIA H200", "0.7.2", "2.11.0", "25.0  2.5x", "0.1.0+lowered"):
        assert part in shown
    assert picture.LOWERED in shown


def test_a_normal_wheel_is_not_called_lowered():
    svg = picture.draw(report(measurement("fp4aot.fp4_quantize", 10.0), lowered=False))
    assert picture.LOWERED not in svg


def test_panels_without_numbers_are_left_out():
    svg = picture.draw(quantize_report(10, 25, 40, 6))
    assert "mm_fp4" not in svg
    group = names.gemm_group(1, 256)
    more = report(
        measurement("fp4aot.mm_fp4", 15.0, group=group),
        measurement("flashinfer.mm_fp4", 90.0, "flashinfer", group),
    )
    assert "mm_fp4, m = 1" in picture.draw(more)


def test_everything_lies_inside_and_on_its_own_background():
    slow = quantize_report(10, 25, 90000, 6)
    root = ElementTree.fromstring(picture.draw(slow))
    width, height = float(root.get("width")), float(root.get("height"))
    first = next(root.iter(f"{SVG}rect"))
    assert first.get("fill") == "#ffffff"
    for one in root.iter(f"{SVG}rect"):
        assert float(one.get("x")) + float(one.get("width")) <= width
        assert float(one.get("y")) + float(one.get("height")) <= height
    for one in root.iter(f"{SVG}path"):
        assert float(re.search(r"H([\d.]+)", one.get("d"))[1]) <= width
    for one in root.iter(f"{SVG}text"):
        assert float(one.get("y")) <= height


def test_names_are_escaped():
    hostile = report(measurement("fp4aot.fp4_quantize", 10.0))
    hostile.machine["device"] = "<b> & Co"
    assert "<b> & Co" in " ".join(texts(picture.draw(hostile)))


def test_it_is_made_again_from_the_file(tmp_path, monkeypatch):
    import json

    original = quantize_report(10, 25, 40, 6)
    source, target = tmp_path / "report.json", tmp_path / "picture.svg"
    source.write_text(json.dumps(to_json(original, [])))
    monkeypatch.setattr(sys, "argv", ["picture.py", str(source), str(target)])
    picture.main()
    assert target.read_text() == picture.draw(original)
