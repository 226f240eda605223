"""An error that FlashInfer raises becomes an exception with its text.

The operators check everything that FlashInfer checks, so no call of theirs gets there: the bridge
is driven by a small program, linked with the objects of the build.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aot.compile.job_list import JobList

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"

PROGRAM = r"""
#include <tvm/ffi/function.h>
#include <cstdio>
#include <stdexcept>
#include "flashinfer/function.h"

void always_fails(int64_t number, bool flag) {
  TVM_FFI_THROW(ValueError) << "cannot take " << number << (flag ? " with" : " without") << " flag";
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(always_fails, always_fails);
void never_fails(int64_t number) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(never_fails, never_fails);

// Where the build generates types from the catalogue, no wrong number of arguments compiles.
struct Anything {
  template <typename Signature>
  static constexpr bool takes = true;
};

int main() {
  const fp4aot::Kernel<Anything> fails(__tvm_ffi_always_fails, "some_operator");
  for (int64_t i = 0; i < 3; ++i) {
    try {
      fails(i, i == 1);
      return 1;
    } catch (const std::runtime_error& error) {
      std::puts(error.what());
    }
  }
  const fp4aot::Kernel<Anything> succeeds(__tvm_ffi_never_fails, "some_operator");
  succeeds(int64_t{7});
  try {
    succeeds(true, false);
    return 1;
  } catch (const std::runtime_error& error) {
    std::puts(error.what());
  }
}
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("bridge")
    # Of the FlashInfer that this build used; others may be there too.
    roots = json.loads((BUILD / "wheel/plan/roots.json").read_text())
    site_packages = Path(roots["torch"]).parent
    jobs = JobList.from_json(json.loads((BUILD / "wheel/plan/jobs.json").read_text()))
    calls = [jobs.store.path(job) for job in jobs.jobs if job.name == "operators/function"]
    (folder / "main.cpp").write_text(PROGRAM)
    includes = [site_packages / "torch/include", site_packages / "tvm_ffi/include"]
    command = [
        *("g++", "-std=c++20", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"),
        *(f"-isystem{path}" for path in includes),
        f"-I{ROOT / 'wheels/fp4aot/csrc'}",
        *(folder / "main.cpp", *calls, BUILD / "wheel/libtvm_ffi.a"),
        "-Wl,--unresolved-symbols=ignore-all",
        *("-o", folder / "program", "-lpthread", "-ldl"),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_kind_and_text_of_each_error_arrive(output):
    prefix = "fp4aot::some_operator: FlashInfer raised ValueError: cannot take"
    assert output[0] == f"{prefix} 0 without flag"
    assert output[1] == f"{prefix} 1 with flag"
    assert output[2] == f"{prefix} 2 without flag"


def test_a_wrong_number_of_arguments_is_an_error(output):
    assert "fp4aot::some_operator: FlashInfer raised TypeError" in output[3]
    assert "never_fails" in output[3]
