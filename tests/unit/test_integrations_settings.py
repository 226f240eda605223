"""What the environment and the versions decide about the FlashInfer integration."""

from __future__ import annotations

import sys

import pytest

from fp4aot._recipes import NVFP44Over6Config, NVFP44Over6ErrMode
from fp4aot.integrations import devices
from fp4aot.integrations.errors import IntegrationError
from fp4aot.integrations.settings import OWN_BACKENDS, Settings, is_disabled
from fp4aot.integrations.versions import judge

# The environment


def test_nothing_set():
    assert Settings.read({}) == Settings(
        disabled=False, version_check="1", backends=OWN_BACKENDS, recipe=None
    )


@pytest.mark.parametrize(
    ("value", "disabled"),
    [("1", True), ("true", True), ("yes", True), ("0", False), ("", False), ("off", False)],
)
def test_disable(value, disabled):
    assert is_disabled({"FP4AOT_DISABLE": value}) is disabled
    assert Settings.read({"FP4AOT_DISABLE": value}).disabled is disabled


def test_more_backends():
    settings = Settings.read({"FP4AOT_FLASHINFER_BACKENDS": "cute-dsl, cudnn"})
    assert settings.backends == (*OWN_BACKENDS, "cute-dsl", "cudnn")
    again = Settings.read({"FP4AOT_FLASHINFER_BACKENDS": "cuda"})
    assert again.backends == OWN_BACKENDS


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("FP4AOT_FLASHINFER_BACKENDS", "trtllm", "trtllm cannot be replaced"),
        ("FP4AOT_FLASHINFER_VERSION_CHECK", "lax", "set it to 0, 1 or strict"),
    ],
)
def test_a_value_that_means_nothing_is_named(name, value, named):
    with pytest.raises(IntegrationError, match=named) as raised:
        Settings.read({name: value})
    assert f"{name}='{value}'" in str(raised.value)


def test_recipe_of_flashinfers_variables():
    variables = {
        "FLASHINFER_NVFP4_4OVER6": "1",
        "FLASHINFER_NVFP4_4OVER6_E4M3_USE_256": "1",
        "FLASHINFER_NVFP4_4OVER6_ERR_MODE": "mse",
        "FLASHINFER_NVFP4_4OVER6_ERR_USE_FAST_MATH": "1",
    }
    expected = NVFP44Over6Config(256, NVFP44Over6ErrMode.MSE, True)
    assert Settings.read(variables).recipe == expected
    assert Settings.read({"FLASHINFER_NVFP4_4OVER6": "1"}).recipe == NVFP44Over6Config()
    # As in FlashInfer, only "1" turns it on, and without it the others do not count.
    assert Settings.read(variables | {"FLASHINFER_NVFP4_4OVER6": "true"}).recipe is None


def test_an_unknown_error_mode_is_named():
    variables = {"FLASHINFER_NVFP4_4OVER6": "1", "FLASHINFER_NVFP4_4OVER6_ERR_MODE": "max"}
    with pytest.raises(IntegrationError, match="ERR_MODE='MAX'; set it to MAE or MSE"):
        Settings.read(variables)


# Versions


@pytest.mark.parametrize("found", ["0.7.2", "0.7.2+cu130", "0.7.2.post1", "0.7.2rc1", "0.7.2.0"])
def test_the_same_release_needs_no_word(found):
    for check in ("1", "0", "strict"):
        verdict = judge(found, "0.7.2", check)
        assert verdict.accepted
        assert verdict.message == ""


@pytest.mark.parametrize("found", ["0.7.20", "0.7.4", "0.7.1", "0.7", "0.6.18", "0.6.8.post1"])
def test_another_release_with_known_functions_is_accepted_and_named(found):
    verdict = judge(found, "0.7.2", "1")
    assert verdict.accepted
    assert f"FlashInfer {found} is installed" in verdict.message
    assert "kernels of 0.7.2" in verdict.message
    # A release is compared with those that were tested by its segments: 0.7.4 is one, 0.7.20 not.
    assert ("are tested" in verdict.message) is (found != "0.7.4")


@pytest.mark.parametrize("found", ["0.8.0", "0.8.0.dev1", "1.0", "0.6.7", "0.6.7.post9", "0.5.20"])
def test_a_release_out_of_range_is_refused_with_both_versions_and_a_remedy(found):
    verdict = judge(found, "0.7.2", "1")
    assert not verdict.accepted
    for part in (f"FlashInfer {found}", "0.7.2", "pip", "FP4AOT_FLASHINFER_VERSION_CHECK=0"):
        assert part.replace("pip", "install flashinfer-python==0.7.2") in verdict.message
    assert judge(found, "0.7.2", "0").accepted


@pytest.mark.parametrize("found", ["0.7.4", "0.7.20", "0.7.1"])
def test_strict_accepts_one_release(found):
    verdict = judge(found, "0.7.2", "strict")
    assert not verdict.accepted
    assert "strict" in verdict.message


# Devices


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),
        ("-1", []),
        ("0,-1,2", [0]),
        ("GPU-8f3a", [0, 1, 2, 3]),
    ],
)
def test_visible_devices(value, chosen):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert devices.visible(4, environment) == chosen


class NvmlError(Exception):
    pass


NVMLError_LibraryNotFound = type("NVMLError_LibraryNotFound", (NvmlError,), {})
NVMLError_Unknown = type("NVMLError_Unknown", (NvmlError,), {})


class Nvml:
    """NVML's Python module, with two GPUs, or an error."""

    NVMLError = NvmlError

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_open = False

    def nvmlInit(self) -> None:
        if self.error is not None:
            raise self.error
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        assert self.is_open
        return [(12, 0), (9, 0)][handle]


@pytest.fixture
def with_nvml(monkeypatch):
    """A PyTorch for CUDA, with such an NVML."""

    def install(nvml) -> None:
        monkeypatch.setattr(devices.torch.version, "cuda", "13.0")
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    return install


def test_capabilities_come_from_nvml(with_nvml):
    nvml = Nvml()
    with_nvml(nvml)
    assert devices.capabilities({}) == ((12, 0), (9, 0))
    assert devices.capabilities({"CUDA_VISIBLE_DEVICES": "1"}) == ((9, 0),)
    assert not nvml.is_open


def test_no_driver_is_no_gpu_and_another_error_is_not_known(with_nvml):
    with_nvml(Nvml(NVMLError_LibraryNotFound()))
    assert devices.capabilities({}) == ()
    with_nvml(Nvml(NVMLError_Unknown()))
    assert devices.capabilities({}) is None


@pytest.mark.parametrize(("count", "expected"), [(0, ()), (1, None), (-1, None)])
def test_without_nvmls_module_torch_counts(with_nvml, monkeypatch, count, expected):
    with_nvml(None)
    monkeypatch.setattr(devices.torch.cuda, "_device_count_nvml", lambda: count)
    assert devices.capabilities({}) == expected


def test_a_pytorch_without_cuda_has_no_gpu(with_nvml, monkeypatch):
    with_nvml(Nvml())
    monkeypatch.setattr(devices.torch.version, "cuda", None)
    assert devices.capabilities({}) == ()
