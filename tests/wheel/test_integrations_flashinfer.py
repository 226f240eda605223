"""FlashInfer itself, from the environment of the build, with its functions routed to the wheel.

Each program runs in that environment's interpreter, which has PyTorch for the CPU and FlashInfer,
and sees of this one only the installed wheel. There is no GPU: routed calls run the reference, and
what FlashInfer does itself fails in FlashInfer's code, which is how the two are told apart.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import fp4aot

BUILD = Path(__file__).resolve().parents[2] / "build"


@pytest.fixture(scope="session")
def with_flashinfer(tmp_path_factory) -> Callable[..., str]:
    """Run a program where FlashInfer and the installed wheel are; return what it printed."""
    # Of the FlashInfer that this build used; others may be there too.
    roots = json.loads((BUILD / "wheel/plan/roots.json").read_text())
    python = Path(roots["torch"]).parents[3] / "bin/python"
    site = tmp_path_factory.mktemp("site")
    (site / "fp4aot").symlink_to(Path(fp4aot.__file__).parent)
    metadata = Path(str(importlib.metadata.distribution("fp4aot").locate_file("")))
    (dist_info,) = metadata.glob("fp4aot-*.dist-info")
    (site / dist_info.name).symlink_to(dist_info)
    workspace = tmp_path_factory.mktemp("workspace")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLASHINFER_", "FP4AOT_", "PYTHON"))
    }

    def run(program: str, *, check: bool = True, path: tuple[Path, ...] = (), **environ) -> str:
        folders = os.pathsep.join(map(str, (*path, site)))
        done = subprocess.run(
            [python, "-c", PREAMBLE + program],
            env=inherited
            | {"PYTHONPATH": folders, "FLASHINFER_WORKSPACE_BASE": str(workspace)}
            | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


PREAMBLE = """
import inspect, sys, types
import torch
import fp4aot
from fp4aot.integrations import IntegrationError
from fp4aot.integrations import flashinfer as integration
from fp4aot.integrations._flashinfer import table

ROWS = (*table.PUBLIC_FUNCTIONS, *table.MODULE_GETTERS)
NAMES = tuple(row.name for row in ROWS)
generator = torch.Generator().manual_seed(5)

def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=generator).to(dtype)

def bindings(objects):
    "Where any of some objects is bound."
    ids = {id(one) for one in objects}
    return {
        (module.__name__, name): value
        for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)
        for name, value in list(vars(module).items()) if id(value) in ids
    }

def same(left, right):
    "Results are equal in kind, dtype, shape, strides and values."
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype and left.shape == right.shape
            and left.stride() == right.stride()
            and torch.equal(*(one.contiguous().view(torch.uint8) for one in (left, right)))
        )
    return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))

def is_flashinfers(function, *arguments, **keywords):
    "Whether a call fails in FlashInfer's code, for want of a GPU."
    try:
        function(*arguments, **keywords)
    except Exception as error:
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_globals.get("__name__", ""))
            trace = trace.tb_next
        return any(name.split(".")[0] == "flashinfer" for name in frames)
    return False
"""


# Names


def test_every_binding_is_replaced_and_given_back(with_flashinfer):
    """FlashInfer imported before, names bound elsewhere, two `enable()`, another import since."""
    with_flashinfer("""
import flashinfer
from flashinfer import fp4_quantize as quantize, mm_fp4
from flashinfer.fp4_quantization import nvfp4_block_scale_interleave

originals = {row.name: getattr(sys.modules[row.module], row.name) for row in ROWS}
signatures = {name: inspect.signature(function) for name, function in originals.items()}
before = bindings(originals.values())
assert ("__main__", "quantize") in before and len(before) > 2 * len(NAMES)
rest = {
    name: value for name, value in vars(flashinfer).items() if ("flashinfer", name) not in before
}

first = integration.enable()
assert first.active and not first.pending and not first.kept, first
assert set(first.replaced) == set(NAMES)
assert first.flashinfer == flashinfer.__version__ and not first.problems
assert not bindings(originals.values())
for place in before:
    module, name = place
    assert vars(sys.modules[module])[name] is not before[place], place
assert quantize is flashinfer.fp4_quantize is flashinfer.quantization.fp4_quantize
assert nvfp4_block_scale_interleave is flashinfer.block_scale_interleave
assert all(vars(flashinfer)[name] is value for name, value in rest.items())

# What callers look at besides calling.
assert mm_fp4.is_backend_supported("cutlass", 120) and mm_fp4.__name__ == "mm_fp4"
assert mm_fp4.__doc__ == originals["mm_fp4"].__doc__
for name in ("nvfp4_kv_quantize", "mm_fp4", "nvfp4_kv_dequantize"):
    assert inspect.signature(getattr(flashinfer, name)) == signatures[name]
assert quantize.fi_trace is originals["fp4_quantize"].fi_trace
flashinfer.get_fp4_quantization_module.cache_clear()

routed = bindings([flashinfer.fp4_quantize])
second = integration.enable()
assert second is first and bindings([flashinfer.fp4_quantize]) == routed

late = types.ModuleType("late")
sys.modules["late"] = late
exec("from flashinfer import fp4_quantize as mine, mm_fp4", vars(late))
assert late.mine is quantize

report = integration.disable()
assert not report.active and not report.problems
assert late.mine is originals["fp4_quantize"] and late.mm_fp4 is originals["mm_fp4"]
after = bindings(originals.values())
assert {place: after[place] for place in before} == before
assert integration.disable().active is False

assert integration.enable().active and late.mine is not originals["fp4_quantize"]
assert not torch.cuda.is_initialized()
""")


def test_flashinfer_is_imported_later(with_flashinfer):
    """Enabling imports nothing; the import is patched; another one too; a thread waits."""
    with_flashinfer("""
import importlib, logging, threading
report = integration.enable()
assert report.active and report.pending and set(report.replaced) == set(NAMES), report
assert integration.status() == report
assert not [name for name in sys.modules if name.split(".")[0] == "flashinfer"]

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("fp4aot").addHandler(handler)
logging.getLogger("fp4aot").setLevel(logging.INFO)

# Importing and enabling at once, from many threads.
reports = []
threads = [threading.Thread(target=lambda: importlib.import_module("flashinfer"))]
threads += [threading.Thread(target=lambda: reports.append(integration.enable())) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(600)
assert not any(thread.is_alive() for thread in threads) and len(reports) == 8

import flashinfer
assert flashinfer.__spec__.loader is flashinfer.__loader__
assert type(flashinfer.__loader__).__module__ != "fp4aot.integrations.import_hook"
status = integration.status()
assert status.active and not status.pending and set(status.replaced) == set(NAMES)
assert messages == [status.summary()], messages
x, scale = random(7, 256), torch.tensor([90.0])
assert same(flashinfer.fp4_quantize(x, scale), fp4aot.fp4_quantize(x, scale))
integration.disable()
assert is_flashinfers(flashinfer.fp4_quantize, x, scale)
""")


# Calls


def test_results_are_those_of_the_operators_in_flashinfers_form(with_flashinfer):
    with_flashinfer("""
import flashinfer
assert integration.enable().active
fi = flashinfer
x, weight = random(7, 256), random(96, 256)
scale, weight_scale = torch.tensor([90.0]), torch.tensor([110.0])

# Scale factors: any dtype, as FlashInfer takes them.
expected = fp4aot.fp4_quantize(x, scale)
for given in (scale, scale.to(torch.bfloat16), scale[0]):
    assert same(fi.fp4_quantize(x, given), expected)
assert same(fi.fp4_quantize(x, scale, 16, False, False),
            fp4aot.fp4_quantize(x, scale, 16, False, False))
assert same(fi.fp4_quantize(x, 1 / scale, is_global_scale_inversed=True, backend="cuda"),
            fp4aot.fp4_quantize(x, 1 / scale, is_global_scale_inversed=True))
assert same(fi.fp4_quantize(weight.T, scale), fp4aot.fp4_quantize(weight.T, scale))
assert same(tuple(torch.ops.flashinfer.fp4_quantize(x, scale)), expected)

for layout in fi.SfLayout:
    ours = fp4aot.SfLayout(int(layout))
    assert same(fi.nvfp4_quantize(x, scale, layout), fp4aot.nvfp4_quantize(x, scale, ours))
    assert same(fi.mxfp4_quantize(x, sfLayout=layout), fp4aot.mxfp4_quantize(x, sfLayout=ours))
    assert same(fi.mxfp4_dequantize(*fi.mxfp4_quantize(x, sfLayout=layout), layout),
                fp4aot.mxfp4_dequantize(*fp4aot.mxfp4_quantize(x, sfLayout=ours), ours))
tall = random(128, 256)
assert same(fi.nvfp4_quantize(tall, scale, do_shuffle=True),
            fp4aot.nvfp4_quantize(tall, scale, do_shuffle=True))
for base in (1 / 2688, torch.tensor([1 / 2688])):
    assert same(fi.nvfp4_quantize(x, base, per_token_activation=True),
                fp4aot.nvfp4_quantize(x, 1 / 2688, per_token_activation=True))
order = torch.tensor([3, 1, -1, 0, 2, 4, 5], dtype=torch.int32)
assert same(
    fi.nvfp4_quantize(x, torch.tensor([1 / 2688]), per_token_activation=True,
                      expanded_idx_to_permuted_idx=order),
    fp4aot.nvfp4_quantize(x, float(torch.tensor(1 / 2688)), per_token_activation=True,
                          expanded_idx_to_permuted_idx=order))

batch, rows = random(3, 5, 128), torch.tensor([5, 0, 2], dtype=torch.int32)
scales = torch.tensor([50.0, 60.0, 70.0])
assert same(fi.nvfp4_batched_quantize(batch, scale), fp4aot.nvfp4_batched_quantize(batch, scale))
assert same(fi.scaled_fp4_grouped_quantize(batch, rows, scales),
            fp4aot.scaled_fp4_grouped_quantize(batch, rows, scales))
assert same(fi.silu_and_mul_scaled_nvfp4_experts_quantize(batch, rows, scales),
            fp4aot.silu_and_mul_scaled_nvfp4_experts_quantize(batch, rows, scales))

linear = torch.randint(1, 120, (128, 24), generator=generator).to(torch.uint8)
assert same(fi.block_scale_interleave(linear), fp4aot.block_scale_interleave(linear))
assert same(fi.nvfp4_block_scale_interleave(linear), fp4aot.block_scale_interleave(linear))
for tile in (64, 128):
    assert same(fi.shuffle_matrix_a(linear, tile), fp4aot.shuffle_matrix_a(linear, tile))
    assert same(fi.shuffle_matrix_sf_a(linear, tile), fp4aot.shuffle_matrix_sf_a(linear, tile))
values, block_scales = expected
assert same(fi.e2m1_and_ufp8sf_scale_to_float(values, block_scales, 1 / scale),
            fp4aot.e2m1_and_ufp8sf_scale_to_float(values, block_scales, 1 / scale))
exponents = torch.randint(120, 130, (7, 8), generator=generator).to(torch.uint8)
assert same(fi.mxfp4_dequantize_host(values, exponents),
            fp4aot.mxfp4_dequantize_host(values, exponents))

packed = fi.nvfp4_kv_quantize(x, 1 / scale)
assert same(packed, fp4aot.nvfp4_kv_quantize(x, 1 / scale))
dense = fp4aot.nvfp4_kv_dequantize(*packed, 1 / scale, torch.float16)
assert same(fi.nvfp4_kv_dequantize(*packed, 1 / scale, torch.float16), dense)
assert same(fi.nvfp4_kv_dequantize(*packed, 1 / scale, torch.float16, skip_check=True), dense)
pages = torch.randint(0, 256, (2, 4, 3, 4, 32), generator=generator).to(torch.uint8)
page_scales = torch.randint(1, 120, (2, 4, 3, 4, 4), generator=generator).to(torch.uint8)
tables = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32)
lengths = torch.tensor([4, 6], dtype=torch.int32)
caches = (tuple(pages), tuple(page_scales), tables, lengths, 1 / scale, 1 / scale)
ours, theirs = ([torch.full((2, 6, 4, 64), 7.0, dtype=torch.bfloat16) for _ in "kv"] for _ in "ab")
assert fi.nvfp4_kv_dequantize_paged(*caches, *theirs) is None
fp4aot.nvfp4_kv_dequantize_paged(*caches, *ours)
assert all(map(same, ours, theirs)) and not torch.equal(ours[0], torch.full_like(ours[0], 7.0))

weight_values, weight_scales = fp4aot.fp4_quantize(weight, weight_scale)
factors = (values, weight_values.T, block_scales, weight_scales.T, 1 / (scale * weight_scale))
product = fp4aot.mm_fp4(*factors)
assert same(fi.mm_fp4(*factors), product) and same(fi.mm_fp4(*factors, backend="cutlass"), product)
out = torch.full((7, 96), float("nan"), dtype=torch.bfloat16)
assert fi.mm_fp4(*factors, out=out, skip_check=True) is out and same(out, product)

# The compiled modules, as FlashInfer's own Python calls them.
module = fi.get_fp4_quantization_module("120")
flat = (expected[0], expected[1].reshape(-1))
assert same(module.fp4_quantize_sm100(x, scale, enable_pdl=False, nvfp4_4over6_code=0), flat)
assert same(module.block_scale_interleave_sm100(linear), fp4aot.block_scale_interleave(linear))
linear_layout = fp4aot.SfLayout.layout_linear
per_token = fp4aot.nvfp4_quantize(x, 1 / 2688, linear_layout, per_token_activation=True)
assert same(module.nvfp4_quant_and_per_token_scale_sm100(x, 1 / 2688), per_token)
buffers = [torch.full_like(one, 1) for one in per_token]
module.nvfp4_quant_and_per_token_scale_out_sm100(x, 1 / 2688, *buffers)
assert same(tuple(buffers), per_token)
assert same(module.scaled_fp4_grouped_quant_sm100(batch, scales, rows),
            fp4aot.scaled_fp4_grouped_quantize(batch, rows, scales))
from flashinfer.quantization import fp4_quantization
buffers = [torch.full_like(one, 1) for one in packed]
fp4_quantization.get_fp4_kv_quantization_module().nvfp4_kv_quant(x, 1 / scale, *buffers)
assert same(tuple(buffers), packed)
out = torch.full_like(dense, float("nan"))
fp4_quantization.get_fp4_kv_dequantization_module().nvfp4_kv_dequant(*packed, 1 / scale, out)
assert same(out, dense)
from flashinfer.gemm import gemm_base
runner = gemm_base.get_cutlass_fp4_gemm_module(12, 0).cutlass_fp4_gemm_runner()
out = torch.full((7, 96), float("nan"), dtype=torch.bfloat16)
inputs = [*factors, torch.bfloat16, out, 16, True, torch.empty(1)]
assert runner(inputs=inputs, tactic=-1) is out and same(out, product)
from flashinfer.autotuner import TunableRunner
assert isinstance(runner, TunableRunner)
""")


def test_what_the_wheel_does_not_have_goes_to_flashinfer(with_flashinfer):
    program = """
import flashinfer as fi
assert integration.enable().active
x, scale = random(8, 256), torch.tensor([90.0])
values, block_scales = fi.fp4_quantize(x, scale)
factors = (values, values.T, block_scales, block_scales.T, 1 / (scale * scale))
taken = %r

assert is_flashinfers(fi.fp4_quantize, x, scale, backend="cute-dsl") is not taken
assert is_flashinfers(fi.nvfp4_quantize, x, scale, backend="cute-dsl") is not taken
assert is_flashinfers(fi.mxfp4_quantize, x, backend="cute-dsl") is not taken
assert is_flashinfers(fi.nvfp4_quantize, x, scale, backend="cake", per_token_activation=True)
assert is_flashinfers(fi.nvfp4_quantize, x, 90.0, backend="cute-dsl")
assert is_flashinfers(fi.nvfp4_quantize, x, scale, per_token_activation=True, backend="cute-dsl",
                      out_scale=scale)
for backend in ("trtllm", "cudnn", "cake", "cutedsl_low_latency"):
    assert is_flashinfers(fi.mm_fp4, *factors, backend=backend), backend
mxfp4 = {"use_nvfp4": False, "block_size": 32}
for change in (mxfp4, {"use_8x4_sf_layout": True}, {"block_size": 32}):
    assert is_flashinfers(fi.mm_fp4, *factors, **change), change
assert is_flashinfers(fi.mm_fp4, *factors[:4], None)
assert is_flashinfers(fi.mm_fp4, *factors[:4], torch.ones(8))
# Here N, which is 8, is not divisible by 32.
assert is_flashinfers(fi.mm_fp4, *factors)
assert is_flashinfers(fi.fp4_quantize, x, scale, batch_invariant=True)
assert is_flashinfers(fi.nvfp4_kv_quantize, x, scale, something=1)
"""
    with_flashinfer(program % False)
    with_flashinfer(program % True, FP4AOT_FLASHINFER_BACKENDS="cute-dsl")


def test_they_are_traced_as_one_graph(with_flashinfer):
    """No graph break, no guard on the number of rows, the same bits; the choice is traced too."""
    with_flashinfer("""
import flashinfer
from flashinfer import fp4_quantize as quantize, nvfp4_quantize
assert integration.enable().active
weight_scale = torch.tensor([110.0])
weight, weight_block_scales = fp4aot.fp4_quantize(random(96, 256), weight_scale)

def layer(x):
    scale = (448 * 6 / x.abs().amax().float()).reshape(1)
    values, block_scales = quantize(x, scale)
    linear = nvfp4_quantize(x, scale, flashinfer.SfLayout.layout_linear)[1]
    alpha = 1 / (scale * weight_scale)
    y = flashinfer.mm_fp4(values, weight.T, block_scales, weight_block_scales.T, alpha, x.dtype)
    cached = flashinfer.nvfp4_kv_dequantize(*flashinfer.nvfp4_kv_quantize(x, 1 / scale), 1 / scale)
    per_token = nvfp4_quantize(x, 1 / 2688, per_token_activation=True)
    return y, flashinfer.block_scale_interleave(linear), cached, *per_token

graphs = []
def backend(module, inputs):
    graphs.append(module)
    return module.forward
compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
for rows in (2, 3, 7, 16, 33, 64, 128, 129, 200, 1000):
    x = random(rows, 256)
    assert same(compiled(x), layer(x)), rows
assert len(graphs) == 1, len(graphs)
names = {node.target.name() for node in graphs[0].graph.nodes if hasattr(node.target, "name")}
assert {"fp4aot::fp4_quantize", "fp4aot::mm_fp4", "fp4aot::nvfp4_kv_quantize",
        "fp4aot::nvfp4_kv_dequantize", "fp4aot::block_scale_interleave",
        "fp4aot::nvfp4_quantize_per_token"} <= names, names
exported = torch.export.export(
    type("Layer", (torch.nn.Module,), {"forward": lambda self, x: layer(x)})(),
    (random(8, 256),), dynamic_shapes=({0: torch.export.Dim("rows")},))
x = random(50, 256)
assert same(tuple(exported.module()(x)), layer(x))
""")


def test_the_recipe_of_the_environment_is_the_default(with_flashinfer):
    with_flashinfer(
        """
import os
import flashinfer as fi
report = integration.enable()
recipe = fp4aot.NVFP44Over6Config(256, fp4aot.NVFP44Over6ErrMode.MSE)
assert report.recipe == recipe
for name in [name for name in os.environ if name.startswith("FLASHINFER_NVFP4")]:
    del os.environ[name]  # It was read once.
x, scale = random(64, 256), torch.tensor([90.0])
standard, other = (fp4aot.fp4_quantize(x, scale, nvfp4_4over6=one) for one in (None, recipe))
assert not same(standard, other)
assert same(fi.fp4_quantize(x, scale), other)
assert same(fi.nvfp4_quantize(x, scale), other)
assert same(tuple(torch.ops.flashinfer.fp4_quantize(x, scale)), other)
assert same(fi.fp4_quantize(x, scale, nvfp4_4over6=None), standard)
theirs = fi.NVFP44Over6Config(448)
assert same(fi.fp4_quantize(x, scale, nvfp4_4over6=theirs),
            fp4aot.fp4_quantize(x, scale, nvfp4_4over6=fp4aot.NVFP44Over6Config(448)))
module = fi.get_fp4_quantization_module("120")
assert same(module.fp4_quantize_sm100(x, scale)[0], other[0])
batch, rows = random(2, 5, 128), torch.tensor([5, 2], dtype=torch.int32)
scales = torch.full((2,), 60.0)
for name in ("scaled_fp4_grouped_quantize", "silu_and_mul_scaled_nvfp4_experts_quantize"):
    expected = getattr(fp4aot, name)(batch, rows, scales, recipe)
    assert same(getattr(fi, name)(batch, rows, scales), expected)
assert same(fi.nvfp4_batched_quantize(batch, scale),
            fp4aot.nvfp4_batched_quantize(batch, scale, 16, recipe))
# These have no other recipe, and FlashInfer ignores the environment's.
assert same(fi.mxfp4_quantize(x), fp4aot.mxfp4_quantize(x))
eight = x.to(torch.float8_e4m3fn)
assert same(fi.fp4_quantize(eight, scale), fp4aot.fp4_quantize(eight, scale))
assert same(fi.nvfp4_quantize(eight, scale), fp4aot.nvfp4_quantize(eight, scale))
""",
        FLASHINFER_NVFP4_4OVER6="1",
        FLASHINFER_NVFP4_4OVER6_E4M3_USE_256="1",
        FLASHINFER_NVFP4_4OVER6_ERR_MODE="mse",
    )


CALLS = """
def calls(functions):
    x, scale = random(7, 256), torch.tensor([90.0])
    values, block_scales = functions.fp4_quantize(x, scale)
    functions.nvfp4_quantize(x, scale)
    functions.nvfp4_quantize(x, 1 / 2688, per_token_activation=True)
    functions.mxfp4_dequantize(*functions.mxfp4_quantize(x))
    functions.e2m1_and_ufp8sf_scale_to_float(values, block_scales, 1 / scale)
    functions.mxfp4_dequantize_host(values, torch.full((7, 8), 127, dtype=torch.uint8))
    batch, rows = random(3, 5, 128), torch.tensor([5, 0, 2], dtype=torch.int32)
    functions.nvfp4_batched_quantize(batch, scale)
    functions.scaled_fp4_grouped_quantize(batch, rows, torch.ones(3))
    functions.silu_and_mul_scaled_nvfp4_experts_quantize(batch, rows, torch.ones(3))
    linear = torch.ones(128, 24, dtype=torch.uint8)
    functions.shuffle_matrix_a(linear, 128)
    functions.shuffle_matrix_sf_a(linear, 128)
    functions.block_scale_interleave(linear)
    functions.nvfp4_kv_dequantize(*functions.nvfp4_kv_quantize(x, scale), scale)
    weight, weight_scales = functions.fp4_quantize(random(32, 256), scale)
    functions.mm_fp4(values, weight.T, block_scales, weight_scales.T, scale)
"""


def test_a_call_starts_nothing_opens_nothing_and_locks_nothing(with_flashinfer):
    program = f"""
import json, threading
import flashinfer
assert integration.enable().active
{CALLS}
calls(fp4aot)  # What torch itself does the first time.
events = []
recording = False
WATCHED = ("open", "import", "subprocess", "os.", "shutil", "socket", "ctypes", "tempfile", "fcntl")
def hook(event, arguments):
    if recording and event.startswith(WATCHED):
        events.append((event, str(arguments[:1])))
sys.addaudithook(hook)
class Refused:
    def __enter__(self): raise AssertionError("the lock of enable() was taken")
    def __exit__(self, *rest): pass
integration._integration._lock = Refused()
recording = True
calls(flashinfer)
recording = False
print(json.dumps(events))
"""
    assert json.loads(with_flashinfer(program).splitlines()[-1]) == []
    # The test above sees it when a call opens a file.
    broken = program.replace(
        "calls(flashinfer)\n", "calls(flashinfer); open('/dev/null').close()\n"
    )
    assert "/dev/null" in with_flashinfer(broken)


# Other patches, other processes


def test_another_patch_is_left_alone_and_named(with_flashinfer):
    with_flashinfer("""
import functools
import flashinfer
from flashinfer.quantization import fp4_quantization

other = types.ModuleType("another_plugin")
exec('''
import functools
def wrap(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        wrapper.calls += 1
        return function(*arguments, **keywords)
    wrapper.calls = 0
    return wrapper
''', vars(other))

# Before: where FlashInfer defines it, and where it only exports it.
theirs = fp4_quantization.block_scale_interleave = other.wrap(flashinfer.block_scale_interleave)
original_mm = [flashinfer.mm_fp4]  # A global name would be replaced too.
exported = flashinfer.mm_fp4 = other.wrap(flashinfer.mm_fp4)
report = integration.enable()
kept = {one.name: one.reason for one in report.kept}
assert kept == {"block_scale_interleave": "replaced by another_plugin before"}, kept
assert fp4_quantization.block_scale_interleave is theirs and flashinfer.mm_fp4 is exported
assert any("flashinfer.mm_fp4 was replaced by another_plugin" in one for one in report.problems)
assert flashinfer.gemm.mm_fp4 is not original_mm[0] and "mm_fp4" in report.replaced

# After: theirs calls ours, and goes on to do so.
original = integration._integration._routes[0].original
mine = flashinfer.fp4_quantize
wrapped = flashinfer.fp4_quantize = other.wrap(mine)
assert any("flashinfer.fp4_quantize was replaced by another_plugin" in one
           for one in integration.status().problems)
x, scale = random(7, 256), torch.tensor([90.0])
assert same(flashinfer.fp4_quantize(x, scale), fp4aot.fp4_quantize(x, scale)) and wrapped.calls == 1
report = integration.disable()
assert any("flashinfer.fp4_quantize was replaced by another_plugin" in one
           for one in report.problems)
assert flashinfer.fp4_quantize is wrapped and fp4_quantization.fp4_quantize is original
assert flashinfer.gemm.mm_fp4 is original_mm[0] and flashinfer.mm_fp4 is exported
assert same(flashinfer.fp4_quantize(x, scale), fp4aot.fp4_quantize(x, scale))
""")


def test_a_forked_process_keeps_it_and_a_spawned_one_starts_anew(with_flashinfer, tmp_path):
    child = tmp_path / "fp4aot_test_child.py"
    child.write_text("""
def look(queue):
    import torch
    import fp4aot
    from fp4aot.integrations import flashinfer as integration
    before = integration.status().active
    if not before:
        from fp4aot.integrations import sglang
        sglang.activate()
    import flashinfer
    x, scale = torch.ones(2, 32, dtype=torch.bfloat16), torch.tensor([90.0])
    same = torch.equal(flashinfer.fp4_quantize(x, scale)[0], fp4aot.fp4_quantize(x, scale)[0])
    queue.put((before, integration.status().active, same, torch.cuda.is_initialized()))
""")
    with_flashinfer(
        """
if __name__ == "__main__":
    import multiprocessing
    import flashinfer
    import fp4aot_test_child
    torch.set_num_threads(1)
    assert integration.enable().active
    for method, kept in (("fork", True), ("spawn", False)):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=fp4aot_test_child.look, args=(queue,))
        process.start()
        assert queue.get(timeout=600) == (kept, True, True, False), method
        process.join()
        assert process.exitcode == 0
""",
        path=(tmp_path,),
    )


# What can be wrong


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
# Before 0.7 the functions inside the modules have other arguments: their getters stay.
old = says("0.6.18")
assert {one.name for one in old.kept} == {row.name for row in table.MODULE_GETTERS}
# A function with other parameters stays, the others do not.
flashinfer.__version__ = installed
exec("def shuffle_matrix_a(input_tensor, tile): pass",
     module := vars(sys.modules["flashinfer.quantization.fp4_quantization"]))
report = integration.enable()
(kept,) = report.kept
assert kept.name == "shuffle_matrix_a" and "parameter 1 is tile, not epilogue_tile_m" in kept.reason
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
