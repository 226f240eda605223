"""AOTInductor packages, where this machine's torch can load one at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpusuite.wheel import did_not_run

PROBE = """
import sys, torch, torch._inductor.config
# How fast the wrapper runs is no matter.
torch._inductor.config.aot_inductor.compile_wrapper_opt_level = "O0"
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32).cuda()
    def forward(self, x):
        return torch.relu(self.linear(x))
model, x = Plain(), torch.randn(8, 32, device="cuda")
rows = torch.export.Dim("rows", min=2, max=64)
program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
print("compiled", flush=True)
loaded = torch._inductor.aoti_load_package(package)
print("loaded", flush=True)
torch.testing.assert_close(loaded(x), model(x))
print("equal", flush=True)
"""

PACKAGE = """
import sys, torch, torch._inductor.config
torch._inductor.config.aot_inductor.compile_wrapper_opt_level = "O0"
sys.path.insert(0, sys.argv[2])
import fp4aot
from gpusuite.models import Stack
model = Stack()
rows = torch.export.Dim("rows", min=2, max=4096)
program = torch.export.export(model, (model.inputs(8),), dynamic_shapes=({0: rows},))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
loaded = torch._inductor.aoti_load_package(package)
for count in (2, 3, 77, 1000):
    x = model.inputs(count, count)
    assert torch.equal(loaded(x), model(x)), count
print("equal", flush=True)
"""


def run_program(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.subject("AOTInductor")
@pytest.mark.needs("fp4_quantize", "mm_fp4")
def test_a_package_equals_eager(details, tmp_path):
    """Where this torch can load the package of a plain model at all, which a subprocess finds."""
    probe = run_program(PROBE, tmp_path / "plain.pt2")
    if "equal" not in probe.stdout.split():
        how = (
            signal.Signals(-probe.returncode).name
            if probe.returncode < 0
            else f"status {probe.returncode}: {(probe.stderr.strip().splitlines() or [''])[-1]}"
        )
        reached = (probe.stdout.split() or ["nothing"])[-1]
        did_not_run(
            f"torch {torch.__version__} on Python {sys.version.split()[0]} cannot load the "
            f"AOTInductor package of a plain model either: {how} after '{reached}'"
        )
    done = run_program(PACKAGE, tmp_path / "model.pt2", Path(__file__).parent)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    details.compared("results of a package, eager", 4, 0)
