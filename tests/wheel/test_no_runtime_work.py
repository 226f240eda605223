"""After import there is only tracing and launching: no file, no process, no import (case 2)."""

from __future__ import annotations

import json

PROGRAM = '''
import json, sys
import torch
import fp4aot

class Layer(torch.nn.Module):
    """Quantize, matrix product."""
    def __init__(self):
        super().__init__()
        weight = torch.randn(128, 256).to(torch.bfloat16)
        self.register_buffer("scale", (448 * 6 / weight.abs().amax().float()).reshape(1))
        weight, weight_scale = fp4aot.fp4_quantize(weight, self.scale)
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
    def forward(self, x):
        scale = (448 * 6 / x.abs().amax().float()).reshape(1)
        values, scales = fp4aot.fp4_quantize(x, scale)
        alpha = 1 / (scale * self.scale)
        return fp4aot.mm_fp4(values, self.weight.T, scales, self.weight_scale.T, alpha)

def prepare(function):
    # torch.compile looks for a bisection file, here; it compiles when the result is first called.
    return torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")

# torch imports and reads much of itself when it compiles for the first time. That is not ours: it
# happens here, with a module of the same shape but without our operators.
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(128, 256), requires_grad=False)
    def forward(self, x):
        scale = (448 * 6 / x.abs().amax().float()).reshape(1)
        values, scales = torch.var_mean(x.float() * scale, dim=1)
        return (x.float() * scales.unsqueeze(1) / scale) @ self.weight.t()
generator = torch.Generator().manual_seed(0)
x = torch.randn(32, 256, generator=generator).to(torch.bfloat16)
prepare(Plain())(x)
torch.export.export(Plain(), (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
prepared = prepare(Layer())

events = []
recording = True
WATCHED = ("open", "import", "subprocess", "os.", "shutil", "socket", "ctypes.dlopen", "tempfile")
def hook(event, arguments):
    if recording and event.startswith(WATCHED):
        events.append((event, str(arguments[:1])))
sys.addaudithook(hook)

layer = prepared._orig_mod
eager = layer(x)
compiled = prepared(x)
for tokens in (4, 64, 1000, 16384):
    many = torch.randn(tokens, 256, generator=generator).to(torch.bfloat16)
    assert torch.equal(prepared(many), layer(many))
exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
values, scales = fp4aot.nvfp4_quantize(x, torch.ones(1), fp4aot.SfLayout.layout_linear)
fp4aot.block_scale_interleave(scales)
fp4aot.nvfp4_kv_dequantize(*fp4aot.nvfp4_kv_quantize(x, torch.ones(1)), torch.ones(1))
fp4aot.nvfp4_quantize(x, 1 / 2688, per_token_activation=True)
fp4aot.nvfp4_batched_quantize(x.unsqueeze(0), torch.ones(1))
rows = torch.tensor([32], dtype=torch.int32)
fp4aot.scaled_fp4_grouped_quantize(x.unsqueeze(0), rows, torch.ones(1))
fp4aot.silu_and_mul_scaled_nvfp4_experts_quantize(x.unsqueeze(0), rows, torch.ones(1))
fp4aot.mxfp4_dequantize(*fp4aot.mxfp4_quantize(x))
fp4aot.mxfp4_dequantize_host(values, torch.full((32, 8), 127, dtype=torch.uint8))
recording = False
assert torch.equal(eager, compiled) and torch.equal(exported.module()(x), eager)
print(json.dumps({"events": events, "flashinfer": "flashinfer" in sys.modules}))
'''


def is_dynamo_reading_source(event: list[str]) -> bool:
    """Dynamo looks at the source of the functions that it traces, to write its guards' messages."""
    name, argument = event
    return name == "open" and argument.endswith(".py',)")


def test_calls_traces_and_compiles_do_nothing_but_that(python):
    result = json.loads(python(PROGRAM).strip().splitlines()[-1])
    assert not result["flashinfer"]
    events = [event for event in result["events"] if not is_dynamo_reading_source(event)]
    assert events == []


def test_the_hook_would_see_it(python):
    """The test above fails when an operator's Python opens a file."""
    broken = PROGRAM.replace(
        "eager = layer(x)\n", "eager = layer(x)\nopen('/proc/self/status').close()\n"
    )
    result = json.loads(python(broken).strip().splitlines()[-1])
    assert ["open", "('/proc/self/status',)"] in result["events"]


WITHOUT_MACHINERY = """
import builtins, os, subprocess, sys
import torch
import fp4aot
from torch.fx.experimental.proxy_tensor import make_fx

def layer(x, scale, weight):
    values, scales = fp4aot.fp4_quantize(x, scale)
    restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(values, scales, 1 / scale)
    return restored @ weight

def plain(x, scale, weight):
    return (x.float() * scale) @ weight

weight = torch.randn(256, 64)
# What torch itself imports when it traces for the first time.
make_fx(plain, tracing_mode="fake")(torch.empty(4, 256), torch.ones(1), weight)

def out_of_order(real):
    def refuse(*arguments, **keywords):
        # Every stack trace that torch keeps looks up source lines: not what this is about.
        caller = os.path.basename(sys._getframe(1).f_code.co_filename)
        if caller in ("linecache.py", "tokenize.py"):
            return real(*arguments, **keywords)
        raise AssertionError(f"{real.__name__} called with {arguments}")
    return refuse

loaded = set(sys.modules)
real_import = builtins.__import__

def no_new_import(name, *rest):
    module = real_import(name, *rest)
    if set(sys.modules) != loaded:
        raise AssertionError(f"imported {set(sys.modules) - loaded}")
    return module

for module, name in ((subprocess, "Popen"), (subprocess, "run"), (builtins, "open"), (os, "stat")):
    setattr(module, name, out_of_order(getattr(module, name)))
builtins.__import__ = no_new_import
for tokens in (4, 16, 64, 256, 1024, 4096, 16384):
    x = torch.empty(tokens, 256, dtype=torch.bfloat16)
    graph = make_fx(layer, tracing_mode="fake")(x, torch.ones(1), weight)
    assert "fp4aot.fp4_quantize" in graph.code
"""


def test_it_traces_when_the_machinery_of_a_jit_raises(python):
    """Case 2: with `subprocess`, `open`, `os.stat` and new imports out of order."""
    python(WITHOUT_MACHINERY)
