"""FlashInfer's own autotuner over the wheel's functions, without a GPU: keys, choices, calls."""

from __future__ import annotations

import json
from pathlib import Path

CHOICES = Path(__file__).parents[1] / "integrations" / "tuned_choices.py"
CASES = 60


def test_the_table_answers_what_the_autotuner_would(with_flashinfer):
    output = with_flashinfer(f"sys.argv = ['', '{CASES}']\n{CHOICES.read_text()}")
    # FlashInfer's log comes behind it.
    (line,) = (line for line in output.splitlines() if line.startswith('{"flashinfer"'))
    assert min(json.loads(line)["compared"].values()) > 10 * CASES


def test_flashinfers_own_mixture_calls_the_wheel(with_flashinfer):
    """The arguments of `run_moe` are those of this FlashInfer, and reach the operator's."""
    with_flashinfer("""
from flashinfer.fused_moe import core
assert integration.enable().active
E, H, I, T, K = 4, 64, 96, 5, 2
def packed(rows, columns):
    return torch.randint(0, 256, (E, rows, columns // 2), generator=generator, dtype=torch.uint8)
def scales(rows, columns):
    shape = (E, -(-rows // 128) * 128, -(-columns // 64) * 4)
    return torch.randint(0x28, 0x38, shape, generator=generator, dtype=torch.uint8)
fc1, fc2 = packed(2 * I, H), packed(H, I)
quant_scales = [torch.tensor(20.0), scales(2 * I, H), torch.rand(E, generator=generator) / 99,
                torch.tensor(20.0), scales(H, I), torch.rand(E, generator=generator) / 99]
x = random(T, H)
experts = torch.randint(0, E, (T, K), generator=generator, dtype=torch.int32)
weights = torch.rand(T, K, generator=generator)
arguments = (x, experts, weights, fc1.view(torch.int64), fc2.view(torch.int64))
expected = fp4aot.cutlass_fused_moe(*arguments, torch.bfloat16, quant_scales)
module = core.get_cutlass_fused_moe_module("120")
output = torch.full((T, H), float("nan"), dtype=torch.bfloat16)
found = module.cutlass_fused_moe(
    output, x, experts, weights, arguments[3], None, arguments[4], None, torch.bfloat16,
    [s.view(torch.int32) if s.dtype == torch.uint8 else s for s in quant_scales], enable_pdl=False,
)
assert found[0] is output and same(output, expected)
# Other weights need FlashInfer's own module, which cannot be built here.
assert is_flashinfers(
    module.cutlass_fused_moe, output, x, experts, weights, random(E, 2 * I, H), None,
    random(E, H, I), None, torch.bfloat16, [], enable_pdl=False,
)
# What it was called with is what a cache without extras is read by.
from fp4aot.integrations._flashinfer import tuning
(seen,) = tuning.state.mixtures.values()
assert seen[:4] == (torch.bfloat16, torch.int64, torch.bfloat16, K)
integration.disable()
assert not tuning.state.mixtures
""")


def test_contexts_are_replaced_and_given_back(with_flashinfer):
    with_flashinfer("""
import flashinfer
from flashinfer import autotune, autotuner
from flashinfer.autotuner import AutoTuner
# In a list, for names of modules are bound anew.
originals = [autotune, AutoTuner.load_configs]
assert integration.enable().active
from fp4aot.integrations._flashinfer import tuning
ours = [flashinfer.autotune]
assert ours[0] is autotuner.autotune is not originals[0]
assert AutoTuner.load_configs is not originals[1]
assert inspect.signature(ours[0]) == inspect.signature(originals[0])
with autotune(True):
    assert tuning.state.open == 1 and AutoTuner.get().is_tuning_mode
assert tuning.state.open == 0 and not AutoTuner.get().is_tuning_mode
with autotune(False, tuning_buckets=(64, 128)):
    assert tuning.state.open == 0
with flashinfer.autotune_v2(persistent_cache=False):
    assert tuning.state.open == 2
try:
    autotune(tuning_buckets=()).__enter__()
except ValueError as error:
    assert "at least one value" in str(error)
else:
    raise AssertionError
assert tuning.state.open == 0
integration.disable()
assert flashinfer.autotune is autotuner.autotune is originals[0]
assert AutoTuner.load_configs is originals[1]
""")
