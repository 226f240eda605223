"""FlashInfer's products and mixtures tuned by its own autotuner, on one side: stock, or fp4aot's.

``python tests/gpu/tuning_side.py BUNDLE SIDE TASK CACHE [times]``, a program for `test_tuning.py`,
prints JSON: the tactic of each shape, how often a kernel was profiled, and device times by graph
replay where they are asked for.

TASK is ``tune`` (and write CACHE, as SGLang does it), ``read`` (CACHE, as vLLM's other ranks do),
``enter`` (a context that would tune, with CACHE), ``nothing``, ``kernels`` (the names of those of
every tactic), or ``rank`` (tune as one of two: its number and a port follow).

Where ``FP4AOT_SGLANG_SOURCES`` names the folder that `integrations/wheels.py` filled, products are
those of SGLang's own NVFP4 linear layer, quantization and all, and its own loader loads the plugin.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from flashinfer_beside import use  # noqa: E402
from gpusuite import factors, mixture  # noqa: E402

BF16 = torch.bfloat16
WEIGHTS = ((4096, 4096), (6144, 2048), (1024, 7168), (7168, 4608))
ROWS = (1, 2, 7, 16, 33, 64, 100, 200, 300, 513, 1000)
MOST_ROWS = 1024
EXPERTS = (1024, 512, 32, 4)
TOKENS = (1, 3, 16, 40, 64, 130, 256, 500)
MOST_TOKENS = 512
OPERATIONS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")


class Side:
    """One side.

    Parameters
    ----------
    bundle
        FlashInfer with prebuilt modules.
    name
        ``"stock"`` or ``"fp4aot"``.
    """

    def __init__(self, bundle: Path, name: str) -> None:
        self.flashinfer = use.import_flashinfer(bundle)
        from flashinfer.autotuner import AutoTuner
        from flashinfer.autotuner import autotuner as module
        from flashinfer.jit import core

        self.profiled = 0
        profile = AutoTuner._profile_single_kernel

        def counted(*arguments, **keywords):
            self.profiled += 1
            return profile(*arguments, **keywords)

        AutoTuner._profile_single_kernel = counted
        self.loaded: list[str] = []
        load = core.JitSpecNvcc.build_and_load

        def noted(spec):
            self.loaded.append(spec.name)
            return load(spec)

        core.JitSpecNvcc.build_and_load = noted
        self.ours = name == "fp4aot"
        sglang = _sglang()
        if self.ours and sglang is not None:
            sglang.load_plugins()
        elif self.ours:
            importlib.import_module("fp4aot.integrations.flashinfer").enable()
        else:
            # The bundle has no module for this, which takes no part in what is measured.
            module.delay_kernel = lambda microseconds: torch.cuda._sleep(microseconds * 2000)
        self.tuner = AutoTuner.get()
        torch.manual_seed(0)
        self.products = {nk: factors.draw(MOST_ROWS, *nk) for nk in WEIGHTS}
        self.layers = {} if sglang is None else {nk: _layer(sglang, *nk) for nk in WEIGHTS}
        self.call = mixture.as_flashinfer_takes_it(mixture.draw(MOST_TOKENS, *EXPERTS))

    def autotune(self, cache: str | None, tune: bool = True):
        from flashinfer import autotune

        return autotune(tune, cache=cache)

    def product(self, m: int, nk: tuple[int, int]) -> torch.Tensor:
        """Multiply as SGLang's NVFP4 linear layer does, or by it."""
        if self.layers:
            layer, x = self.layers[nk]
            return layer(x[:m])
        a, b, a_scales, b_scales, alpha = self.products[nk]
        # They lie in blocks of 128 rows.
        a_scales = a_scales.reshape(MOST_ROWS, -1)[: -(-m // 128) * 128]
        return self.flashinfer.mm_fp4(
            *(a[:m], b, a_scales, b_scales, alpha, BF16), backend="cutlass"
        )

    def mix(self, tokens: int) -> torch.Tensor:
        """Mix as SGLang's `flashinfer_cutlass.py` does."""
        tensors, options = self.call.positional(), dict(self.call.options)
        activation = self.flashinfer.ActivationType(options.pop("activation_type", 3))
        x, experts, weights = (tensor[:tokens] for tensor in tensors[:3])
        return self.flashinfer.cutlass_fused_moe(
            *(x, experts, weights, *tensors[3:5], self.call.dtype, list(tensors[5:])),
            **options,
            activation_type=activation,
            tune_max_num_tokens=MOST_TOKENS,
        )[0]

    def warm_up(self) -> None:
        """The dummy forward of a server."""
        for nk in WEIGHTS:
            self.product(MOST_ROWS, nk)
        self.mix(MOST_TOKENS)
        torch.cuda.synchronize()

    def tactics(self) -> dict[str, object]:
        """Tell what each shape is computed with."""
        chosen: dict[str, object] = {}
        for n, k in WEIGHTS:
            for m in ROWS:
                chosen[f"{m} x {n} x {k}"] = (
                    self._table(m, n, k) if self.ours else self._ask(m, n, k)
                )
        for tokens in TOKENS:
            chosen[f"{tokens} tokens"] = (
                self._moe_table(tokens) if self.ours else self._moe_ask(tokens)
            )
        return chosen

    def _table(self, m: int, n: int, k: int) -> int:
        from fp4aot import tactics

        rows = {
            c.m: c.tactic for c in tactics.active() if (c.out_dtype, c.n, c.k) == ("bfloat16", n, k)
        }
        return rows[max(start for start in rows if start <= m)] if rows else -1

    def _moe_table(self, tokens: int) -> list[int]:
        from fp4aot import tactics

        rows = {c.tokens: [c.gemm1_tactic, c.gemm2_tactic] for c in tactics.active_moe()}
        return rows[max(start for start in rows if start <= tokens)] if rows else [-1, -1]

    def _spied(self, call) -> list[int]:
        """Note what `choose_one` answers during a call."""
        answers = []
        choose = type(self.tuner).choose_one

        def spy(*arguments, **keywords):
            answers.append(choose(*arguments, **keywords))
            return answers[-1]

        type(self.tuner).choose_one = spy
        try:
            call()
        finally:
            type(self.tuner).choose_one = choose
        return [tactic for _, tactic in answers]

    def _ask(self, m: int, n: int, k: int) -> int:
        (tactic,) = self._spied(lambda: self.product(m, (n, k)))
        return tactic

    def _moe_ask(self, tokens: int) -> list[int]:
        first, second = self._spied(lambda: self.mix(tokens))
        return [first, second if second < 0 else second - self.first_count()]

    def first_count(self) -> int:
        (runner,) = self.moe_runner_class().runner_dict.values()
        return runner.get_gemm1_tactic_count()

    def moe_runner_class(self):
        from flashinfer.fused_moe import core

        function = core.get_cutlass_fused_moe_module("120").cutlass_fused_moe
        cells = [cell.cell_contents for cell in function.__closure__]
        (found,) = (value for value in cells if getattr(value, "__name__", "") == "MoERunner")
        return found

    def times(self) -> dict[str, float]:
        """Device time of each shape in microseconds, by replaying a graph."""
        calls = {
            f"{m} x {nk[0]} x {nk[1]}": partial(self.product, m, nk) for nk in WEIGHTS for m in ROWS
        }
        calls |= {f"{tokens} tokens": partial(self.mix, tokens) for tokens in TOKENS}
        return {name: _replayed(call) for name, call in calls.items()}

    def kernels(self) -> dict[str, list[list[str]]]:
        """Name the kernels of every tactic, in FlashInfer's order."""
        from flashinfer.gemm import gemm_base

        a, b, a_scales, b_scales, alpha = self.products[WEIGHTS[0]]
        out = torch.empty(MOST_ROWS, WEIGHTS[0][0], dtype=BF16, device="cuda")
        workspace = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        inputs = [a, b, a_scales, b_scales, alpha, BF16, out, 16, True, workspace]
        runner = gemm_base.get_gemm_sm120_module_cutlass_fp4().cutlass_fp4_gemm_runner()
        found = {"mm_fp4": []}
        for tactic in runner.get_valid_tactics(inputs, None):
            found["mm_fp4"].append(_names(partial(runner.forward, inputs, tactic=tactic)))
        self.mix(1)
        kind = self.moe_runner_class()
        tensors = self.call.positional()
        arguments = [tensors[0], tensors[3], None, tensors[4], None]
        values = {
            "x_dtype": BF16, "weight_dtype": torch.int64, "output_dtype": BF16,
            "top_k": EXPERTS[3], "tp_size": 1, "ep_size": 1, "cluster_size": 1, "enable_pdl": True,
            "activation_type": self.flashinfer.ActivationType.Swiglu, "use_fused_finalize": True,
        }  # fmt: skip
        names = inspect.signature(kind).parameters
        moe = kind(**{name: values.get(name, 0) for name in names})
        for gemm in (1, 2):
            moe.gemm_idx_for_tuning = gemm
            moe.forward(arguments, tactic=-1, do_preparation=True, gemm_idx=gemm)
            found[OPERATIONS[gemm - 1]] = [
                _names(partial(moe.forward, arguments, tactic=tactic, gemm_idx=gemm))
                for tactic in moe.get_valid_tactics(arguments, None)
            ]
        return found


def _sglang():
    """Bring up SGLang's own package, where its source is at hand."""
    folder = os.environ.get("FP4AOT_SGLANG_SOURCES")
    if not folder:
        return None
    from integrations import wheels
    from integrations.sglang_package import bring_up

    python = "{}.{}".format(*sys.version_info)
    sys.path.append(str(Path(folder) / str(wheels.MSGSPEC[python])))
    newest = wheels.SGLANG[-1]
    return bring_up(Path(folder) / str(newest), newest.version)


def _layer(sglang, n: int, k: int):
    """Make SGLang's NVFP4 linear layer, and its inputs."""
    from integrations.sglang_harness import Linear

    from fp4aot import nn

    x = torch.randn(MOST_ROWS, k, device="cuda", dtype=BF16)
    dense = torch.nn.Linear(k, n, bias=False, device="cuda", dtype=BF16)
    quantized = nn.NVFP4Linear.from_linear(dense, activations=x)
    return Linear(sglang.linear_method(), quantized).cuda(), x


def _replayed(call, replays: int = 30, rounds: int = 7) -> float:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(replays):
            call()
    samples = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1000 / replays)
    return min(statistics.median(samples), *samples)


def _names(call) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        call()
        torch.cuda.synchronize()
    return [event.key for event in trace.key_averages() if "cutlass" in event.key.lower()]


def _as_blackwell():
    import fp4aot

    capability = torch.cuda.get_device_capability(0)
    return use.as_capability(*((12, 0) if fp4aot._MANIFEST.is_lowered else capability))


def main() -> None:
    bundle, name, task, cache, *more = sys.argv[1:]
    if task == "rank":
        # It makes a process group of its own.
        os.environ.pop("FP4AOT_SGLANG_SOURCES", None)
    side = Side(Path(bundle), name)
    result: dict[str, object] = {"side": name, "task": task}
    with _as_blackwell(), torch.inference_mode(), contextlib.ExitStack() as stack:
        if task == "rank":
            import torch.distributed as dist
            from flashinfer.autotuner import set_autotune_process_group

            rank = int(more[0])
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": more[1]}
            dist.init_process_group("gloo", rank=rank, world_size=2)
            stack.callback(dist.destroy_process_group)
            set_autotune_process_group(dist.new_group(backend="gloo"))
            with side.autotune(None):
                side.warm_up()
            set_autotune_process_group(None)
        elif task in ("tune", "enter"):
            with side.autotune(cache):
                side.warm_up()
        elif task == "read":
            side.warm_up()
            side.tuner.load_configs(cache)
        if task == "kernels":
            result["kernels"] = side.kernels()
        else:
            result |= {"profiled": side.profiled, "tactics": side.tactics()}
            if "times" in more:
                result["times"] = side.times()
        result["loaded"] = side.loaded
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
