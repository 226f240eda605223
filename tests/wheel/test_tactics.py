"""Tables of tactics and the installed wheel: loaded at import, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fp4aot

CAPABILITIES = ((10, 0), (10, 3), (11, 0), (12, 0), (12, 1))
GEMM = {
    capability: count
    for capability in CAPABILITIES
    if (count := torch.ops.fp4aot._mm_fp4_tactic_count(*capability))
}


MOE = [c for c in CAPABILITIES if torch.ops.fp4aot._has_kernel("nvfp4_moe", *c)]
MOE_ROW = [12, 0, 0, 1, 1, 64, 32, 3, 2, 1, 0, -1]


def table(capability: tuple[int, int], tactic: int, **changes: str) -> dict:
    manifest = fp4aot._MANIFEST
    wheel = {
        "plan_hash": manifest.plan_hash,
        "version": manifest.version,
        "flashinfer": dict(manifest.versions)["flashinfer"],
    }
    entry = {"n": 64, "k": 96, "out_dtype": "bfloat16", "m": 1, "tactic": tactic}
    section = {
        "device": "a GPU",
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "wheel": wheel | changes,
        "driver": None,
        "cuda_runtime": manifest.cuda_version,
        "written": "2026-01-31T12:00:00Z",
        "origin": "tune",
        "entries": [entry],
    }
    return {"format": "fp4aot mm_fp4 tactics", "schema": 1, "sections": [section]}


PROGRAM = """
import json, torch, fp4aot
from fp4aot import tactics
print(json.dumps([[c.n, c.k, c.tactic] for c in tactics.active()]))
assert not torch.cuda.is_initialized()
"""


def test_the_wheel_counts_tactics_for_the_architectures_of_its_gemm():
    carried = {
        capability
        for capability in CAPABILITIES
        if any(t.runs_on(capability) for t in fp4aot._MANIFEST.targets_of("mm_fp4"))
    }
    assert set(GEMM) == carried
    assert all(count > 1 for count in GEMM.values())
    assert torch.ops.fp4aot._mm_fp4_tactic_count(9, 0) == 0


def test_a_table_of_another_wheel_stops_the_import(python, tmp_path: Path):
    file = tmp_path / "table.json"
    file.write_text(json.dumps(table((12, 0), 0, plan_hash="0" * 64)))
    output = python(PROGRAM, check=False, FP4AOT_TACTICS=str(file))
    assert "ImportError" in output
    assert str(file) in output


def test_a_table_for_the_wheel_is_in_force_after_the_import(python, tmp_path: Path):
    capability, count = next(iter(GEMM.items()), ((12, 0), 0))
    file = tmp_path / "table.json"
    file.write_text(json.dumps(table(capability, max(count - 1, 0))))
    output = python(PROGRAM, check=False, FP4AOT_TACTICS=str(file))
    if count:
        assert json.loads(output.strip().splitlines()[-1]) == [[64, 96, count - 1]]
    else:
        # A wheel without GEMM, such as `quick`: no table can fit it.
        assert "ImportError" in output
        assert "FP4 GEMM" in output


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(1, 7, dtype=torch.int32),
        torch.zeros(7, dtype=torch.int64),
        torch.zeros(1, 6, dtype=torch.int64),
        torch.tensor([[9, 0, 0, 64, 96, 1, 0]]),
        torch.tensor([[12, 0, 2, 64, 96, 1, -1]]),
        torch.tensor([[12, 0, 0, 64, 96, 1, 10_000]]),
    ],
    ids=["int32", "1-D", "six columns", "no such device", "no such dtype", "no such tactic"],
)
def test_the_operator_refuses_what_no_table_holds(rows):
    with pytest.raises(RuntimeError, match="argument 'table'"):
        torch.ops.fp4aot._set_mm_fp4_tactics(rows)
    torch.ops.fp4aot._set_mm_fp4_tactics(torch.empty(0, 7, dtype=torch.int64))


def test_a_call_does_not_depend_on_a_table_that_names_other_shapes():
    a = torch.randint(0, 256, (5, 48), dtype=torch.uint8)
    b = torch.randint(0, 256, (64, 48), dtype=torch.uint8)
    scales = torch.full((128, 8), 0x38, dtype=torch.uint8)
    arguments = (a, b.T, scales, scales, torch.ones(1))
    before = fp4aot.mm_fp4(*arguments)
    if GEMM:
        (major, minor), count = next(iter(GEMM.items()))
        torch.ops.fp4aot._set_mm_fp4_tactics(
            torch.tensor([[major, minor, 0, 128, 96, 1, count - 1]])
        )
    assert torch.equal(fp4aot.mm_fp4(*arguments), before)
    torch.ops.fp4aot._set_mm_fp4_tactics(torch.empty(0, 7, dtype=torch.int64))


# Mixtures of experts


def mixture(capability: tuple[int, int]) -> dict:
    """A table of the present schema, with a mixture alone."""
    entry = {
        **{"hidden_size": 64, "intermediate_size": 32, "experts": 3, "top_k": 2},
        **{"output_dtype": "bfloat16", "quantized_input": True, "use_fused_finalize": True},
        **{"tokens": 1, "gemm1_tactic": 0, "gemm2_tactic": 1},
        **{"gemm1_count": 2, "gemm2_count": 2},
    }
    made = table(capability, 0) | {"schema": 2}
    made["sections"][0] |= {"entries": [], "moe_entries": [entry]}
    return made


MOE_PROGRAM = """
import json, torch, fp4aot
from fp4aot import tactics
print(json.dumps([list(c) for c in tactics.active_moe()]))
assert not torch.cuda.is_initialized()
"""


def test_the_wheel_has_mixtures_for_the_architectures_of_its_modules():
    targets = fp4aot._MANIFEST.targets_of("cutlass_fused_moe")
    carried = [c for c in CAPABILITIES if any(target.runs_on(c) for target in targets)]
    assert carried == MOE


def test_mixtures_are_in_force_after_the_import(python, tmp_path: Path):
    capability = next(iter(MOE), (12, 0))
    file = tmp_path / "table.json"
    file.write_text(json.dumps(mixture(capability)))
    output = python(MOE_PROGRAM, check=False, FP4AOT_TACTICS=str(file))
    if MOE:
        assert json.loads(output.strip().splitlines()[-1]) == [
            [*capability, "bfloat16", True, True, 64, 32, 3, 2, 1, 0, 1]
        ]
    else:
        # A wheel without mixtures, such as `dense`: no such table can fit it.
        assert "ImportError" in output
        assert "mixture of experts" in output


def changed(column: int, value: int) -> torch.Tensor:
    row = [*MOE_ROW]
    row[column] = value
    return torch.tensor([MOE_ROW, row])


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(1, 12, dtype=torch.int32),
        torch.zeros(12, dtype=torch.int64),
        torch.zeros(1, 7, dtype=torch.int64),
        changed(2, 2),
        changed(3, -1),
        changed(4, 2),
        changed(10, -2),
        changed(11, -2),
    ],
    ids=[
        *("int32", "1-D", "seven columns", "no such dtype", "no such input", "no such finalize"),
        *("no such first tactic", "no such second tactic"),
    ],
)
def test_the_operator_refuses_what_no_table_of_mixtures_holds(rows):
    with pytest.raises(RuntimeError, match="_set_cutlass_fused_moe_tactics: argument 'table'"):
        torch.ops.fp4aot._set_cutlass_fused_moe_tactics(rows)
    # How many tactics there are, the runner knows, and only on its device.
    torch.ops.fp4aot._set_cutlass_fused_moe_tactics(changed(11, 10_000))
    torch.ops.fp4aot._set_cutlass_fused_moe_tactics(torch.empty(0, 12, dtype=torch.int64))
