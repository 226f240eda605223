"""What calls of FlashInfer's functions compute, and which of them stay FlashInfer's."""

from __future__ import annotations

import json
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


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


def test_each_of_them_is_traced_as_one_graph(with_flashinfer):
    """Through a module's attribute, by position and by name."""
    with_flashinfer(
        """
import flashinfer
from integrations.start import calls
signatures = {row.name: inspect.signature(getattr(sys.modules[row.module], row.name))
              for row in table.PUBLIC_FUNCTIONS}
assert integration.enable().active
graphs = []
def backend(module, inputs):
    graphs.append(module)
    return module.forward

made = calls("cpu")
for row in table.PUBLIC_FUNCTIONS:
    name, module = row.name, sys.modules[row.module]
    recorded = made[name](lambda *arguments, **keywords: (arguments, keywords))
    by_name = signatures[name].bind(*recorded[0], **recorded[1]).arguments
    for arguments, keywords in (recorded, ((), by_name)):
        def call():
            return getattr(module, name)(*arguments, **keywords)
        buffers = [by_name[one] for one in ("output_k", "output_v") if one in by_name]
        if name == "nvfp4_quantize_append_paged_kv_cache":
            buffers = [*by_name["paged_kv_cache"], *by_name["kv_cache_sf"]]
        def filled():
            for buffer in buffers:
                buffer.fill_(7)  # Some of it is not written.
        filled()
        expected = call()
        written = [one.clone() for one in buffers]
        filled()
        torch._dynamo.reset()
        graphs.clear()
        result = torch.compile(call, fullgraph=True, backend=backend)()
        if name == "cutlass_fused_moe_workspace_size":
            # A number, which needs no graph.
            assert result == expected and not graphs
        else:
            assert buffers or same(result, expected), name
            assert same(buffers, written) and len(graphs) == 1, (name, len(graphs))
""",
        path=(TESTS,),
    )


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
