"""What decides whether anything is replaced, and what is said of it."""

from __future__ import annotations

import pytest


def test_versions(with_flashinfer):
    """FlashInfer says that it is another release: refused, or accepted with a word."""
    with_flashinfer("""
import flashinfer
original = flashinfer.fp4_quantize
installed = flashinfer.__version__
def says(version):
    flashinfer.__version__ = version
    try:
        return integration.enable()
    finally:
        integration.disable()
for version in ("0.9.0", "0.6.7"):
    try:
        says(version)
    except IntegrationError as error:
        assert version in str(error) and integration.status().wheel in str(error)
        assert "FP4AOT_FLASHINFER_VERSION_CHECK=0" in str(error)
    else:
        raise AssertionError(version)
    assert flashinfer.fp4_quantize is original and not integration.status().active
    assert version in integration.status().problems[0]
    assert not any(type(finder).__name__ == "AfterImport" for finder in sys.meta_path)
report = says("0.7.20")
assert report.active and "FlashInfer 0.7.20 is installed" in report.problems[0]
assert says(installed + "+cu130").problems == says(installed + ".post1").problems == ()
# Before 0.7 the functions inside some modules have other arguments: their getters stay.
old = says("0.6.18")
assert {one.name for one in old.kept} == {row.name for row in table.MODULE_GETTERS if row.oldest}
# A function without a parameter that the operator needs stays, the others do not.
flashinfer.__version__ = installed
exec("def shuffle_matrix_a(input_tensor, tile): pass",
     module := vars(sys.modules["flashinfer.quantization.fp4_quantization"]))
report = integration.enable()
(kept,) = report.kept
assert kept.name == "shuffle_matrix_a" and "it has no parameter epilogue_tile_m" in kept.reason
""")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FP4AOT_DISABLE": "1"}, "FP4AOT_DISABLE is set"),
        ({"FP4AOT_FLASHINFER_BACKENDS": "trtllm"}, "trtllm cannot be replaced"),
    ],
)
def test_a_plugin_that_does_nothing_says_so_and_never_raises(with_flashinfer, environ, message):
    output = with_flashinfer(
        """
import logging
logging.basicConfig(level=logging.INFO)
from fp4aot.integrations import sglang, vllm
sglang.activate()
vllm.activate()
import flashinfer
assert not integration.status().active
assert flashinfer.fp4_quantize.__globals__["__name__"].startswith("flashinfer")
try:
    assert not integration.enable().active
except IntegrationError:
    pass
""",
        **environ,
    )
    lines = [line for line in output.splitlines() if "fp4aot: " in line]
    assert len(lines) == 2
    assert all(message in line for line in lines)


def test_without_flashinfer(python):
    """In the environment of the tests, which has none."""
    output = python("""
import logging, sys
logging.basicConfig(level=logging.INFO)
import fp4aot
from fp4aot.integrations import IntegrationError, flashinfer, sglang, vllm
sglang.activate()
vllm.activate()
assert not flashinfer.status().active and flashinfer.status().flashinfer is None
try:
    flashinfer.enable()
except IntegrationError as error:
    assert "pip install flashinfer-python==" in str(error)
else:
    raise AssertionError
assert not any(type(finder).__name__ == "AfterImport" for finder in sys.meta_path)
flashinfer.disable()
""")
    assert output.count("not active, FlashInfer is left as it is: FlashInfer is not installed") == 2


def test_doctor_shows_the_integrations(with_flashinfer, python):
    program = """
from fp4aot.__main__ import main
main(["doctor"])
"""
    output = with_flashinfer(program)
    assert "not active in this process" in output
    assert "would be replaced: fp4_quantize, nvfp4_quantize" in output
    for name, group in (("SGLang", "sglang.srt.plugins"), ("vLLM", "vllm.general_plugins")):
        (line,) = [line for line in output.splitlines() if line.strip().startswith(name)]
        assert f"plugin fp4aot in {group}" in line
    active = with_flashinfer("import flashinfer; integration.enable()" + program)
    assert "active in this process" in active.replace("not active in this process", "")
    assert "FlashInfer  not installed" in python(program)
