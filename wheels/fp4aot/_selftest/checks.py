"""Runs one case on one device: against the reference, into poisoned buffers, faked and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot._selftest.case import Case

PASSED, REFUSED, FAILED = "passed", "refused", "FAILED"


@dataclass(frozen=True)
class Outcome:
    """What one case did on one device.

    Parameters
    ----------
    operator, variant, device
        Which call.
    result
        ``passed``, ``refused`` (no device image, and the error said so) or ``FAILED``.
    detail
        What was compared, or what went wrong.
    """

    operator: str
    variant: str
    device: str
    result: str
    detail: str


def run_case(case: Case, device: torch.device) -> Outcome:
    """Run a case and judge it; never raises for a failure of the operator."""
    try:
        detail = _check(case, device)
        result = PASSED
    except _RefusedError as refusal:
        result, detail = REFUSED, str(refusal)
    except Exception as error:
        result, detail = FAILED, f"{type(error).__name__}: {error}".splitlines()[0]
    return Outcome(case.operator, case.variant, str(device), result, detail)


class _RefusedError(Exception):
    """The wheel has no image for the device, and the operator said so by name."""


class _MismatchError(Exception):
    """A result is not what it must be."""


def _check(case: Case, device: torch.device) -> str:
    packet = getattr(torch.ops.fp4aot, case.operator)
    if not packet.default._schema.returns:
        return _check_in_place(case, packet.default, device)
    arguments = _moved(case.arguments, device)
    expected = _tuple(case.reference(*case.arguments))
    eager = _tuple(_unless_refused(lambda: packet.default(*arguments), device))
    if case.largest_error is None:
        differing = _compare("eager", eager, expected, case.tie_tolerance)
        judged = f", {differing} differ at ties" if case.tie_tolerance else ""
    else:
        distance = _distance(eager, expected, case.largest_error)
        judged = f", relative error {distance:.2g}"

    inputs, names = out_form(packet, arguments)
    make = _poisoned if case.writes_all else torch.zeros_like
    buffers = {name: make(t) for name, t in zip(names, eager, strict=True)}
    packet.out(*inputs, **buffers)
    _compare("out", tuple(buffers[name] for name in names), eager, 0.0)

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        faked = _tuple(packet.default(*fakes))
    for fake, real in zip(faked, eager, strict=True):
        if (fake.shape, fake.dtype, fake.stride(), fake.device) != (
            real.shape,
            real.dtype,
            real.stride(),
            real.device,
        ):
            raise _MismatchError(f"the fake says {fake!r} and the operator returned {real.shape}")

    torch._dynamo.reset()
    # aot_eager traces, functionalizes and runs: inductor would need a C++ compiler on this machine.
    compiled: Any = torch.compile(packet.default, fullgraph=True, backend="aot_eager")
    _compare("compiled", _tuple(compiled(*arguments)), eager, 0.0)
    return f"eager, out, fake, fullgraph: {_numel(eager)} elements{judged}"


def _check_in_place(case: Case, operator: Any, device: torch.device) -> str:
    """Judge an operator by what it writes to its arguments."""
    schema = operator._schema.arguments
    written = [i for i, one in enumerate(schema) if one.alias_info and one.alias_info.is_write]

    def run(function: Any, where: torch.device) -> tuple[torch.Tensor, ...]:
        copies = (a.clone() if isinstance(a, torch.Tensor) else a for a in case.arguments)
        arguments = _moved(tuple(copies), where)
        function(*arguments)
        return tuple(arguments[i] for i in written)

    expected = run(case.reference, torch.device("cpu"))
    eager = _unless_refused(lambda: run(operator, device), device)
    differing = _compare("eager", eager, expected, case.tie_tolerance)
    torch._dynamo.reset()
    compiled: Any = torch.compile(operator, fullgraph=True, backend="aot_eager")
    _compare("compiled", run(compiled, device), eager, 0.0)
    return f"eager, fullgraph: {_numel(eager)} elements, {differing} differ at ties"


def _unless_refused(call: Callable[[], Any], device: torch.device) -> Any:
    try:
        return call()
    except RuntimeError as error:
        if device.type == "cuda" and "has no compiled kernel in this wheel" in str(error):
            raise _RefusedError(str(error)) from error
        raise


def out_form(packet: Any, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the inputs of an operator's ``.out`` form and the names of its buffers.

    Parameters
    ----------
    packet
        The operator, with both overloads.
    arguments
        Positional arguments of the functional form. The other form lacks those that its buffers
        tell, such as an output dtype.
    """
    functional = (argument.name for argument in packet.default._schema.arguments)
    by_name = dict(zip(functional, arguments, strict=False))
    schema = packet.out._schema.arguments
    inputs = tuple(
        by_name[argument.name]
        for argument in schema
        if not argument.kwarg_only and argument.name in by_name
    )
    # A workspace is a buffer that nobody has to pass.
    buffers = (one for one in schema if one.kwarg_only and not one.has_default_value())
    return inputs, tuple(argument.name for argument in buffers)


def _distance(
    got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], largest: float
) -> float:
    """Return the relative difference of the worst result, which must be small enough."""
    errors: list[float] = []
    for left, right in zip(got, expected, strict=True):
        _same_kind("eager", len(errors), left, right)
        difference = left.cpu().double() - right.cpu().double()
        errors.append(float(difference.norm() / right.double().norm()))
        if not errors[-1] <= largest:
            raise _MismatchError(
                f"eager, result {len(errors) - 1}: relative error {errors[-1]:.3g}, expected at "
                f"most {largest}"
            )
    return max(errors)


def _same_kind(what: str, index: int, left: torch.Tensor, right: torch.Tensor) -> None:
    if left.shape != right.shape or left.dtype != right.dtype:
        raise _MismatchError(
            f"{what}, result {index}: {list(left.shape)} {left.dtype}, expected "
            f"{list(right.shape)} {right.dtype}"
        )


def _compare(
    what: str,
    got: tuple[torch.Tensor, ...],
    expected: tuple[torch.Tensor, ...],
    tolerance: float,
) -> int:
    differing = 0
    for index, (left, right) in enumerate(zip(got, expected, strict=True)):
        _same_kind(what, index, left, right)
        count = int((left.cpu() != right.cpu()).sum())
        if left.dtype in (torch.bfloat16, torch.float16) and tolerance:
            # Sums: the results that differ may only differ by a rounding.
            torch.testing.assert_close(left.cpu(), right.cpu(), rtol=2**-6, atol=1e-3)
        if count > tolerance * right.numel():
            raise _MismatchError(
                f"{what}, result {index}: {count} of {right.numel()} elements differ"
            )
        differing += count
    return differing


def _poisoned(like: torch.Tensor) -> torch.Tensor:
    """Return a buffer of the same layout in which every byte must be overwritten."""
    buffer = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    # 0x7F is NaN as E4M3, and a large number in every other dtype here.
    return buffer.fill_(127)


def _moved(arguments: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments)


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _numel(tensors: tuple[torch.Tensor, ...]) -> int:
    return sum(tensor.numel() for tensor in tensors)
