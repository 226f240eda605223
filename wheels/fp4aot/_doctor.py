"""What this wheel holds, what this machine has, whether they fit, and what to do where not."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

import fp4aot
from fp4aot import _gpus, _manifest
from fp4aot._tactics import in_force
from fp4aot.integrations import describe
from fp4aot.operators import DEVICE_OPERATORS


@dataclass(frozen=True)
class Device(_gpus.Gpu):
    """One GPU and what runs on it.

    Parameters
    ----------
    runs
        Operators with a device image for it.
    missing
        Operators that have device images, none of them for it.
    """

    runs: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Something that does not fit, and what to do."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Report:
    """The result of an examination.

    Parameters
    ----------
    manifest
        What the wheel holds.
    python, torch_version, torch_cuda
        Interpreter, PyTorch and the CUDA version of its build (None for a CPU build).
    driver_cuda
        Newest CUDA version that the NVIDIA driver supports, or None without a driver.
    devices
        The GPUs that torch sees.
    problems
        Everything that does not fit.
    absent
        Operators for which this wheel holds no kernel at all.
    integrations
        What uses the operators without being told to.
    driver_version
        Version of the NVIDIA driver in the kernel, or None where the kernel does not tell.
    tactics
        Which tables of tactics are in force.
    """

    manifest: _manifest.Manifest
    python: str
    torch_version: str
    torch_cuda: str | None
    driver_cuda: str | None
    devices: tuple[Device, ...]
    problems: tuple[Problem, ...]
    absent: tuple[str, ...] = ()
    integrations: describe.Integrations | None = None
    driver_version: str | None = None
    tactics: in_force.InForce | None = None

    @property
    def ok(self) -> bool:
        """Whether every operator runs on every device, or on the CPU where there is none."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.problems:
            return "Something does not fit: see above."
        if not self.devices:
            return (
                "No GPU: the operators run on the CPU reference (plain PyTorch), for tracing and "
                "testing. That is slow and not what this wheel is for."
            )
        if self.manifest.is_lowered:
            return "All lowered operators run on all devices present: for tests alone."
        return "All operators run on all devices present."

    def to_json(self) -> dict[str, Any]:
        """Plain data for machines and bug reports."""
        wheel = {
            "version": self.manifest.version,
            "preset": self.manifest.preset,
            "plan_hash": self.manifest.plan_hash,
            "lowered": self.manifest.is_lowered,
            "versions": dict(self.manifest.versions),
            "library_sha256": self.manifest.library_sha256,
            "modules": {
                module.name: [str(target) for target in module.targets]
                for module in self.manifest.modules
            },
            "absent": list(self.absent),
        }
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "wheel": wheel,
            "python": self.python,
            "torch": self.torch_version,
            "torch_cuda": self.torch_cuda,
            "driver_version": self.driver_version,
            "driver_cuda": self.driver_cuda,
            "devices": [asdict(device) for device in self.devices],
            "problems": [asdict(problem) for problem in self.problems],
            "integrations": asdict(self.integrations) if self.integrations else None,
            "tactics": asdict(self.tactics) if self.tactics else None,
        }


def examine() -> Report:
    """Look at the wheel and the machine. Initialises CUDA where there is a GPU."""
    manifest = fp4aot._MANIFEST
    driver_cuda = _version_text(torch.ops.fp4aot._cuda_driver_version())
    driver_version = _gpus.driver_version()
    devices = tuple(describe_device(manifest, gpu) for gpu in _gpus.visible())
    absent = absent_operators(manifest)
    return Report(
        manifest=manifest,
        python=platform.python_version(),
        torch_version=torch.__version__,
        torch_cuda=torch.version.cuda,
        driver_cuda=driver_cuda,
        devices=devices,
        problems=tuple(
            find_problems(
                *(manifest, driver_cuda, torch.version.cuda, devices, absent), driver_version
            )
        ),
        absent=absent,
        integrations=describe.describe(),
        driver_version=driver_version,
        tactics=in_force.read(),
    )


def describe_device(manifest: _manifest.Manifest, gpu: _gpus.Gpu) -> Device:
    """Sort the operators by whether the wheel has an image for a device."""
    runs: list[str] = []
    missing: list[str] = []
    for operator in device_operators(manifest):
        targets = manifest.targets_of(operator)
        fits = any(target.runs_on(gpu.capability) for target in targets)
        (runs if fits else missing).append(operator)
    return Device(**vars(gpu), runs=tuple(runs), missing=tuple(missing))


def device_operators(manifest: _manifest.Manifest) -> list[str]:
    """List the operators that run compiled device code."""
    called = {name for module in manifest.modules for _, name in module.functions}
    return [name for name in _offered(called) if not name.endswith("_host")]


def _offered(called: set[str]) -> list[str]:
    """Sort the operators behind some compiled functions; a leading underscore is not for users."""
    shared = {name for name, other in _manifest.SHARED_KERNELS.items() if other in called}
    return sorted(name for name in called | shared if not name.startswith("_"))


def absent_operators(manifest: _manifest.Manifest) -> tuple[str, ...]:
    """List the operators that need compiled device code of which the wheel has none."""
    return tuple(sorted(name for name in DEVICE_OPERATORS if not manifest.targets_of(name)))


def find_problems(
    manifest: _manifest.Manifest,
    driver_cuda: str | None,
    torch_cuda: str | None,
    devices: tuple[Device, ...],
    absent: tuple[str, ...] = (),
    driver_version: str | None = None,
) -> list[Problem]:
    """Compare the wheel with a machine; a pure function of its arguments."""
    problems = []
    if devices and absent:
        problems.append(
            Problem(
                f"this wheel (preset {manifest.preset}) has no kernels for {', '.join(absent)}",
                "install a fp4aot wheel of the preset 'dense'",
            )
        )
    if driver_cuda is not None:
        problems += _driver_problems(manifest, driver_cuda, driver_version)
    if driver_cuda is not None and torch_cuda is None:
        problems.append(
            Problem(
                "there is an NVIDIA driver, but this PyTorch is a CPU build and sees no GPU",
                "install a CUDA build of PyTorch",
            )
        )
    for device in devices:
        if device.missing and manifest.is_lowered:
            major_, minor_ = device.capability
            problems.append(
                Problem(
                    f"cuda:{device.index} ({device.name}, compute capability {major_}.{minor_}) "
                    "cannot run this wheel: its kernels are lowered to compute capability 9.0, to "
                    "test them on a Hopper",
                    "install a fp4aot wheel whose version has no '+lowered'",
                )
            )
        elif device.missing:
            major_, minor_ = device.capability
            targets = {t for name in device.missing for t in manifest.targets_of(name)}
            carried = [str(target) for target in sorted(targets)]
            problems.append(
                Problem(
                    f"cuda:{device.index} ({device.name}, compute capability {major_}.{minor_}) "
                    f"cannot run {', '.join(device.missing)}: this wheel has them for "
                    f"{', '.join(carried)}",
                    _remedy(device.capability),
                )
            )
    return problems


def _driver_problems(
    manifest: _manifest.Manifest, driver_cuda: str, driver_version: str | None
) -> list[Problem]:
    """Tell whether the driver is too old; within a major version of CUDA an older one may do."""
    wanted, supported = _numbers(manifest.cuda_version), _numbers(driver_cuda)
    # A wheel that was built before manifests had it names none.
    minimum = dict(manifest.versions).get("minimum_driver")
    new_enough = (
        _numbers(driver_version) >= _numbers(minimum) if minimum and driver_version else None
    )
    if supported >= wanted or (supported[0] == wanted[0] and new_enough is not False):
        return []
    if new_enough:
        remedy = (
            "the driver in the kernel is new enough and its CUDA library is not: take the older "
            "libcuda.so.1 (a container's cuda-compat, say) out of the library path"
        )
    else:
        remedy = "update the driver to " + (
            f"{minimum} or newer" if minimum else f"one for CUDA {wanted[0]}"
        )
        # A driver for CUDA 12.9 is the first that knows every Blackwell.
        if supported >= (12, 9) and supported[0] < wanted[0]:
            remedy += f", or install the fp4aot wheel for CUDA {supported[0]}"
    name = f"the NVIDIA driver {driver_version}" if driver_version else "the NVIDIA driver"
    return [
        Problem(
            f"{name} supports CUDA {driver_cuda} and this wheel contains the CUDA "
            f"{manifest.cuda_version} runtime",
            remedy,
        )
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _remedy(capability: tuple[int, int]) -> str:
    if capability < (10, 0):
        return (
            "use a Blackwell GPU (compute capability 10.0 or newer): older ones have no FP4 "
            "conversion instructions"
        )
    return f"install a fp4aot wheel that covers compute capability {capability[0]}.{capability[1]}"


def _version_text(version: int) -> str | None:
    """Write CUDA's integer (13000) as a version; None for 0, which means no driver."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def _driver_text(report: Report) -> str:
    if report.driver_cuda is None:
        return (
            f"{report.driver_version} in the kernel, without its CUDA library (libcuda.so.1) here"
            if report.driver_version
            else "none"
        )
    return ", ".join(filter(None, [report.driver_version, f"CUDA {report.driver_cuda}"]))


def render(report: Report) -> str:
    """Write a report for a person."""
    manifest = report.manifest
    versions = dict(manifest.versions)
    lines = [
        f"fp4aot {manifest.version} (preset {manifest.preset}, "
        f"FlashInfer {versions['flashinfer']}, CUDA {versions['cuda_compiler']}, "
        f"plan {manifest.plan_hash[:12]})",
        *([manifest.label] if manifest.is_lowered else []),
        "",
        "this wheel",
    ]
    targets = [module.targets_text for module in manifest.modules]
    width = max(len(module.name) for module in manifest.modules)
    target_width = max(map(len, targets))
    for module, text in zip(manifest.modules, targets, strict=True):
        operators = ", ".join(_offered({operator for _, operator in module.functions}))
        lines.append(f"  {module.name:<{width}}  {text:<{target_width}}  {operators}")
    if report.absent:
        lines.append(f"  not in it: {', '.join(report.absent)}")
    lines += [
        "",
        "this machine",
        f"  Python   {report.python}",
        f"  PyTorch  {report.torch_version} "
        + (f"(CUDA {report.torch_cuda})" if report.torch_cuda else "(CPU build)"),
        f"  driver   {_driver_text(report)}",
    ]
    for device in report.devices:
        lines.append(
            f"  cuda:{device.index}   {device.name}, compute capability "
            f"{device.capability[0]}.{device.capability[1]}"
        )
        lines.append(f"           runs:    {', '.join(device.runs) or 'nothing'}")
        if device.missing:
            lines.append(f"           missing: {', '.join(device.missing)}")
    if report.integrations is not None:
        lines += ["", "integrations", *report.integrations.lines()]
    if report.tactics is not None:
        lines += ["", "tactics", *report.tactics.lines()]
    for problem in report.problems:
        lines += ["", f"PROBLEM  {problem.what}", f"DO       {problem.remedy}"]
    return "\n".join([*lines, "", report.verdict])
