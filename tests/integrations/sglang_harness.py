"""Drive SGLang's own piecewise compilation with an NVFP4 model; one version and side a process.

``python tests/integrations/sglang_harness.py FOLDER VERSION SIDE`` prints one JSON object, and with
``--graphs breakable`` it uses SGLang's breakable CUDA graphs instead. SIDE is

    stock   FlashInfer as it is
    enable  after `fp4aot.integrations.flashinfer.enable()`, before SGLang is imported
    plugin  after SGLang's own `load_plugins()`, which finds fp4aot's entry point; called after
            SGLang's modules have bound FlashInfer's names, as its scheduler process does

It does what SGLang's graph runner does, in its order: an eager call, `install_torch_compiled(model,
fullgraph=True, …)`, each size under the compile context, largest first, and with a GPU each size
twice under the capture stream (SGLang warms up, then captures), then replays. Without a GPU only
the compiling branch runs: nothing can be captured. `sglang_package` says what of SGLang is real and
what stands in. SGLang's `PiecewiseCudaGraphRunner` itself needs its model runner, memory pools and
attention backends.

The model has GLM-5's structure (``tests/models``). Its NVFP4 projections are SGLang's
`ModelOptFp4LinearMethod.apply`, on tensors in the layout that its weight loading produces;
attention and the experts are operators that the graph is split at.

Breakable graphs: SGLang's own `BreakableCUDAGraphCapture`, with attention and the experts behind
its `eager_on_graph`, as its `RadixAttention` is. Nothing is traced there. Its
`BreakableCudaGraphBackend` needs the distributed groups and a graph runner. Without a GPU the model
runs through the same functions, and nothing is captured.

Without a GPU, FlashInfer's `get_compute_capability` is made to say 12.0 and `torch.version.cuda`
13.0, as on the machine that this is about: FlashInfer refuses CPU tensors and a CPU-only torch
before it comes to what fails there. Nothing can be compiled: ``CUDA_HOME`` names no toolkit, and
FlashInfer's files go to a temporary folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

CPU_SIZES = [4, 8, 16, 64]
# SGLang's own list, `_generate_piecewise_cuda_graph_tokens`, as far as 512.
GPU_SIZES = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32)]
# One dense layer, two with experts: five operators to split at.
LAYERS = 3
SIDES = ("stock", "enable", "plugin")


@dataclass
class Result:
    """What one process found.

    Parameters
    ----------
    version, side, device
        What was run.
    torch, flashinfer
        Their versions.
    sizes
        Numbers of tokens.
    bound
        The function that SGLang's code calls to quantize: whose it is.
    graphs
        "compile" or "breakable".
    log
        What the plugin said.
    seconds
        Since the process began: until a result, and until everything was captured.
    traces
        Whether Dynamo traced the whole model; None where nothing is to be traced.
    error
        Why not, or what else was raised: its type, and the lines that say what happened.
    pieces, split_pieces
        How many the graph was cut into: those that are compiled, and those between.
    captured, wanted
        CUDA graphs, and how many there should be.
    equal
        Whether all results are bit for bit those of the eager call; None without any.
    graph_breaks
        What Dynamo counted.
    files, placeholders
        What was imported of SGLang, and what stood in for packages.
    not_listed
        What of that is not as `sglang_package` says.
    """

    version: str
    side: str
    device: str
    torch: str
    flashinfer: str
    sizes: list[int]
    graphs: str = "compile"
    bound: str = ""
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    traces: bool | None = False
    error: str = ""
    pieces: int = 0
    split_pieces: int = 0
    captured: int = 0
    wanted: int = 0
    equal: bool | None = None
    graph_breaks: int = 0
    files: list[str] = field(default_factory=list)
    placeholders: list[str] = field(default_factory=list)
    not_listed: list[str] = field(default_factory=list)


def make_parser(description: str, sides: tuple[str, ...]) -> argparse.ArgumentParser:
    """Make what reads the arguments that a harness of SGLang has."""
    parser = argparse.ArgumentParser(description=description.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="the unpacked wheel")
    parser.add_argument("version")
    parser.add_argument("side", choices=sides)
    parser.add_argument("--needs", type=Path, help="a folder with msgspec, where it is missing")
    parser.add_argument("--bundle", type=Path, help="FlashInfer as flashinfer_beside made it")
    parser.add_argument("--device", default="cpu")
    return parser


@contextmanager
def temporary_files(arguments: argparse.Namespace) -> Iterator[None]:
    """Let what SGLang and FlashInfer write go to a temporary folder; nothing can be compiled."""
    if arguments.needs:
        sys.path.append(str(arguments.needs))
    # SGLang writes the graphs that it compiles.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SGLANG_CACHE_DIR"] = cache
        if not arguments.bundle:
            os.environ["FLASHINFER_WORKSPACE_BASE"] = cache
            os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "12.0f"
            os.environ["CUDA_HOME"] = str(Path(cache) / "no-toolkit")
        yield


def main() -> int:
    parser = make_parser(__doc__, SIDES)
    parser.add_argument("--graphs", choices=("compile", "breakable"), default="compile")
    arguments = parser.parse_args()
    with temporary_files(arguments):
        result = run(arguments)
    print(json.dumps(dataclasses.asdict(result)))
    return 0


def run(arguments: argparse.Namespace) -> Result:
    """Run one version and side."""
    flashinfer = import_flashinfer(arguments.bundle)
    device, sizes = arguments.device, GPU_SIZES if arguments.device == "cuda" else CPU_SIZES
    result = Result(
        *(arguments.version, arguments.side, device, torch.__version__, flashinfer.__version__),
        sizes,
        arguments.graphs,
    )
    handler = _Log(result.log)
    if arguments.side == "enable":
        enable = importlib.import_module("fp4aot.integrations.flashinfer").enable
        result.log.append(enable().summary())
    from integrations.sglang_package import bring_up

    sglang = bring_up(arguments.folder, arguments.version)
    method = sglang.linear_method()
    if arguments.side == "plugin":
        logger = logging.getLogger("sglang.srt.plugins")
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        sglang.load_plugins()
    result.bound = quantizer(sglang)
    drive = drive_breakable if arguments.graphs == "breakable" else drive_compiled
    with torch.no_grad(), capability(flashinfer, device):
        drive(sglang, method, result)
    # Of each version, whatever the graphs: so that the same is real everywhere.
    for name in ("plugins", "compilation.compile", "compilation.backend"):
        sglang.module(name)
    result.files = sglang.files()
    result.not_listed = sglang.not_listed()
    result.placeholders = sorted(sglang.placeholders.used)
    return result


def run_eager(model: Any, inputs: Any, result: Result) -> dict[int, torch.Tensor]:
    """Run each size without any graph, as far as it works."""
    eager = {}
    try:
        for size in result.sizes:
            eager[size] = model(*inputs(size)).clone()
            result.seconds.setdefault("first result", since_start())
    except Exception as error:
        result.error = f"eager: {describe(error)}"
    return eager


def drive_compiled(sglang: Any, method: Any, result: Result) -> None:
    """Do what SGLang's piecewise graph runner does, and fill in the result."""
    model, inputs, split = make_model(method, result)
    on_gpu = result.device == "cuda"
    config = sglang.compilation_config(result.sizes, split)
    counter = sglang.counter
    eager = run_eager(model, inputs, result)
    pool = torch.cuda.graph_pool_handle() if on_gpu else object()
    outputs: list[tuple[int, torch.Tensor]] = []
    torch._dynamo.utils.counters.clear()
    try:
        with sglang.piecewise():
            sglang.install_torch_compiled(
                model, fullgraph=True, compile_config=config, graph_pool=pool
            )
            with sglang.compiling():
                for size in reversed(result.sizes):
                    outputs.append((size, model(*inputs(size)).clone()))
            result.traces = True
            if on_gpu:
                stream = torch.cuda.Stream()
                torch.cuda.synchronize()
                with sglang.capturing(stream), torch.cuda.stream(stream):
                    for size in reversed(result.sizes):
                        for _ in range(2):
                            model(*inputs(size))
                torch.cuda.synchronize()
                result.seconds["captured"] = since_start()
                for size in result.sizes * 2:
                    outputs.append((size, model(*inputs(size)).clone()))
                torch.cuda.synchronize()
    except Exception as error:
        # What Dynamo could not trace has no graph to be counted.
        result.traces = result.traces or counter.num_graphs_seen > 0
        result.error = "; ".join(filter(None, (result.error, describe(error))))
    result.pieces = counter.num_piecewise_capturable_graphs_seen
    result.split_pieces = counter.num_piecewise_graphs_seen - result.pieces
    result.captured = counter.num_cudagraph_captured
    result.wanted = result.pieces * len(result.sizes) if on_gpu else 0
    result.graph_breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    compare(result, eager, outputs)


def drive_breakable(sglang: Any, method: Any, result: Result) -> None:
    """Capture with SGLang's breakable graphs, and fill in the result."""
    model, inputs, _ = make_model(method, result)
    breakable = sglang.module("model_executor.runner_backend_utils.breakable_cuda_graph")
    for name in ("attention", "moe"):
        setattr(
            torch.ops.glm5, name, breakable.eager_on_graph(caller(getattr(torch.ops.glm5, name)))
        )
    result.traces = None
    eager = run_eager(model, inputs, result)
    if result.device != "cuda":
        with breakable.enable_breakable_cuda_graph():
            compare(result, eager, [(size, model(*inputs(size))) for size in eager])
        return
    try:
        graphs = {}
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        with breakable.enable_breakable_cuda_graph():
            for size in reversed(result.sizes):
                model(*inputs(size))
                torch.cuda.synchronize()
                graph = breakable.BreakableCUDAGraph()
                with breakable.BreakableCUDAGraphCapture(graph, pool=pool, stream=stream):
                    output = model(*inputs(size))
                graphs[size] = (graph, output)
            torch.cuda.synchronize()
            result.seconds["captured"] = since_start()
            segments = [len(graph._segments) for graph, _ in graphs.values()]
            result.pieces, result.captured = max(segments), sum(segments)
            result.split_pieces = result.pieces - 1
            result.wanted = result.pieces * len(result.sizes)
            outputs = []
            for size in result.sizes * 2:
                graph, output = graphs[size]
                output.fill_(float("nan"))
                graph.replay()
                torch.cuda.synchronize()
                outputs.append((size, output.clone()))
        compare(result, eager, outputs)
    except Exception as error:
        result.error = "; ".join(filter(None, (result.error, describe(error))))


def caller(operator: Any) -> Callable[..., Any]:
    """Make a plain function of an operator."""

    def call(*arguments: Any) -> Any:
        return operator(*arguments)

    return call


def compare(
    result: Result, eager: dict[int, torch.Tensor], outputs: list[tuple[int, torch.Tensor]]
) -> None:
    """Compare bit for bit, where there is something to compare."""
    if outputs and eager:
        result.equal = all(torch.equal(output, eager[size]) for size, output in outputs)


def make_model(method: Any, result: Result) -> tuple[Any, Any, tuple[str, ...]]:
    """Build the model with SGLang's linear layers, its inputs in fixed buffers, and its splits."""
    from models import glm5

    from fp4aot import nn

    config = dataclasses.replace(glm5.TINY, num_hidden_layers=LAYERS)
    model = glm5.quantize(glm5.build(config), glm5.tokens(config, 64))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.NVFP4Linear):
                setattr(module, name, Linear(method, child))
    glm5.split_at(model, "attention", "moe")
    model = model.to(result.device)
    # A captured graph reads where it read while it was captured.
    ids, positions = glm5.tokens(config, max(result.sizes), device=result.device)

    def inputs(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return ids[:size], positions[:size]

    names = [form for name in glm5.SPLIT_OPERATORS for form in (name, f"{name}.default")]
    return model, inputs, tuple(names)


class Linear(torch.nn.Module):
    """SGLang's NVFP4 linear layer after its weights were loaded.

    Parameters
    ----------
    method
        SGLang's `ModelOptFp4LinearMethod`.
    quantized
        Where the tensors come from.
    """

    def __init__(self, method: Any, quantized: Any) -> None:
        super().__init__()
        self.method = method
        self.register_buffer("weight", quantized.weight)
        scale = quantized.swizzled_weight_scale.view(torch.float8_e4m3fn)
        self.register_buffer("weight_scale_interleaved", scale)
        # Both are scalars in SGLang, and float32.
        self.register_buffer("alpha", quantized.alpha.reshape(()))
        self.register_buffer("input_scale_inv", quantized.input_global_scale.reshape(()))
        self.output_size_per_partition = quantized.weight.shape[0]
        self.weights_padding_cols = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.apply(self, x)


def quantizer(sglang: Any) -> str:
    """Say which function SGLang's code calls to quantize."""
    fp4_utils = sglang.module("layers.quantization.fp4_utils")
    modelopt = sglang.module("layers.quantization.modelopt_quant")
    function = getattr(fp4_utils, "_flashinfer_fp4_quantize", modelopt.fp4_quantize)
    code: Callable[..., Any] = function
    while not hasattr(code, "__globals__") and hasattr(code, "__wrapped__"):
        code = code.__wrapped__
    where = getattr(code, "__globals__", {}).get("__name__", type(code).__name__)
    through = "sglang's operator" if hasattr(fp4_utils, "_flashinfer_fp4_quantize") else "directly"
    return f"{where}, {through}"


def since_start() -> float:
    """Seconds since this process began."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(uptime - ticks / os.sysconf("SC_CLK_TCK"), 3)


def import_flashinfer(bundle: Path | None) -> Any:
    """Import FlashInfer, from the bundle where there is one."""
    if bundle is None:
        return importlib.import_module("flashinfer")
    from flashinfer_beside.use import import_flashinfer as import_bundle

    return import_bundle(bundle)


class capability:
    """Let FlashInfer take the device for one of capability 12.0."""

    def __init__(self, flashinfer: Any, device: str) -> None:
        self.device = device
        self.undo: list[tuple[Any, Any]] = []
        self.inner: Any = None
        self.cuda = torch.version.cuda

    def __enter__(self) -> None:
        if self.device == "cuda":
            from flashinfer_beside.use import as_capability

            self.inner = as_capability(12, 0)
            self.inner.__enter__()
            return
        torch.version.cuda = "13.0"
        real = importlib.import_module("flashinfer.utils").get_compute_capability

        def answer(device: object) -> tuple[int, int]:
            return (12, 0)

        for name, module in list(sys.modules.items()):
            bound = vars(module).get("get_compute_capability")
            if name.startswith("flashinfer") and bound is real:
                module.get_compute_capability = answer
                self.undo.append((module, real))

    def __exit__(self, *exception: object) -> None:
        if self.inner is not None:
            self.inner.__exit__(*exception)
        torch.version.cuda = self.cuda
        for module, real in self.undo:
            module.get_compute_capability = real


class _Log(logging.Handler):
    """Keep what plugins say, one line each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def describe(error: BaseException) -> str:
    """Name an error, with the first lines of its message and where it came from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines[1:] if _TELLING.search(line)]
    # A line can be a compiler's whole command.
    chosen = (line if len(line) <= 200 else f"{line[:160]} …" for line in lines[:1] + telling[:4])
    return f"{type(error).__name__}: {' | '.join(chosen)}"


_TELLING = re.compile(
    r"Explanation|not found|No such file|FAILED|raised exception|flashinfer.*line"
)


if __name__ == "__main__":
    sys.exit(main())
