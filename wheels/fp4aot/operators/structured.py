"""An operator is a function that checks its arguments, and a reference; the rest is derived here.

The check refuses arguments and returns the layouts of the results. With the schemas that the C++
library has registered there follow the fake, the CPU kernel, and for the overload `.out` both of
these and the checks of its buffers. Check and reference have the parameters of the functional
schema, in its order; defaults are in the schema alone.

    @operator
    def double(x: torch.Tensor) -> Layout:
        check_dtype("double", "x", x, (torch.float32,))
        return Layout(tuple(x.shape), x.dtype)

    @double.reference
    def _(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

An operator that writes to its arguments has one overload, which returns nothing; its check returns
`()`, and its reference writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import torch

from fp4aot import _layouts
from fp4aot.operators.argument_checks import (
    OUTPUT_DTYPES,
    check_dtype,
    check_same_device,
    fail_shape,
)

_VARARGS = 0x04  # `inspect.CO_VARARGS`, without its module


class Layout(NamedTuple):
    """A contiguous buffer of `shape`, seen with its dimensions in `order` (None: as they are)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None = None

    def allocate(self, new: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Return a tensor with this layout, in a buffer from a method such as `new_empty`."""
        buffer = new(self.shape, dtype=self.dtype)
        return buffer if self.order is None else buffer.permute(self.order)


Check = Callable[..., Layout | tuple[Layout, ...]]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Operator:
    """What an operator consists of. Calling it checks the arguments and runs the reference.

    Attributes
    ----------
    name
        The operator's, which is that of its check.
    check
        Refuses arguments and returns the layouts of the results.
    keys
        Dispatch keys that the reference serves.
    derived
        Parameters that `.out` lacks, as functions of its outputs; what it lacks besides these is
        the dtype of the first output.
    parameters
        Of the check; to be given for one that takes `*arguments`.
    """

    def __init__(
        self,
        check: Check,
        keys: tuple[str, ...],
        derived: Mapping[str, Callable[..., Any]],
        parameters: Sequence[str],
    ) -> None:
        self.name = check.__name__
        self.check = check
        self.keys = keys
        self.derived = derived
        self.parameters = tuple(parameters) or _parameters(check, ())
        self.compute: Callable[..., Any] | None = None
        self.write: Callable[..., Any] | None = None
        self.check_buffers: Callable[..., Any] | None = None
        # A torch.library.Library undoes its registrations when it is collected.
        self._libraries: list[torch.library.Library] = []

    def reference(self, function: _Function) -> _Function:
        """Take the function that returns the results, or writes to arguments that it may change."""
        self.compute = function
        return function

    def writes(self, function: _Function) -> _Function:
        """Take a reference that writes to `outputs`, its last parameter, and may keep parts of it.

        The functional form passes zeros, `.out` the caller's buffers.
        """
        self.write = function
        return function

    def buffers(self, function: _Function) -> _Function:
        """Take a function that checks the buffers of `.out` that are no outputs."""
        self.check_buffers = function
        return function

    @property
    def default(self) -> Overload:
        """The functional form, with the schema in the package's namespace."""
        return Overload(self, "fp4aot", "default")

    @property
    def out(self) -> Overload:
        """The form that writes to the caller's buffers."""
        return Overload(self, "fp4aot", "out")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute with the functional form."""
        return self.default(*arguments, **keywords)

    def overloads(self, namespace: str) -> list[Overload]:
        """Return what a namespace defines of the operator.

        Raises
        ------
        RuntimeError
            It defines nothing, or other parameters than the functions have, or there is no
            reference.
        """
        try:
            packet = getattr(getattr(torch.ops, namespace), self.name)
        except AttributeError as error:
            raise RuntimeError(
                f"{namespace}::{self.name} is not defined in C++, and {self.check.__module__} has "
                "a check for it"
            ) from error
        if self.keys and not (self.compute or self.write):
            raise RuntimeError(
                f"{namespace}::{self.name} has no reference in {self.check.__module__}"
            )
        found = [Overload(self, namespace, kind) for kind in packet.overloads()]
        for form in found:
            form.require_parameters()
        return found

    def register(self, overloads: Sequence[Overload], library: torch.library.Library) -> None:
        """Register fakes and kernels for as long as the operator lives."""
        for form in overloads:
            _register_fake(library, form)
            for key in self.keys:
                library.impl(form.name, form.__call__, key)  # type: ignore[no-untyped-call]
        self._libraries.append(library)


class Overload:
    """One form of an operator: arguments are bound by its schema and checked, then computed with.

    Attributes
    ----------
    name
        `<operator>` or `<operator>.out`.
    schema
        As registered.
    """

    def __init__(self, operator: Operator, namespace: str, kind: str) -> None:
        packet = getattr(getattr(torch.ops, namespace), operator.name)
        self.name = operator.name if kind == "default" else f"{operator.name}.{kind}"
        self.schema = getattr(packet, kind)._schema
        self._functional = functional = packet.default._schema
        self._operator = operator
        self._names = tuple(argument.name for argument in self.schema.arguments)
        self._defaults = {
            argument.name: argument.default_value
            for argument in self.schema.arguments
            if argument.has_default_value()
        }
        self._parameters = tuple(argument.name for argument in functional.arguments)
        self._first = next(a.name for a in functional.arguments if str(a.type) == "Tensor")
        buffers = tuple(name for name in self._names if name not in self._parameters)
        others = len(buffers) - len(functional.returns) if buffers else 0
        self._buffers, self._outputs = buffers[:others], buffers[others:]
        # The dtype first: functions of the outputs need not look at what no result can be.
        self._derived = sorted(
            (name for name in self._parameters if name not in self._names),
            key=operator.derived.__contains__,
        )

    def require_parameters(self) -> None:
        """Refuse functions that have other parameters than the schema."""
        operator = self._operator
        demands = [(operator.check, ()), (operator.compute, ()), (operator.write, ("outputs",))]
        if self._outputs:
            demands.append((operator.check_buffers, self._buffers))
        for function, more in demands:
            if function is None:
                continue
            names, expected = _parameters(function, operator.parameters), (*self._parameters, *more)
            if names != expected:
                raise RuntimeError(
                    f"{function.__module__}: the schema {self._functional} needs a function of "
                    f"({', '.join(expected)}), and the one there takes ({', '.join(names)})"
                )
        for name in self._derived:
            if name not in operator.derived and f"ScalarType {name}" not in str(self._functional):
                raise RuntimeError(
                    f"{operator.check.__module__}: {self.schema} lacks {name}, which is no dtype; "
                    "derive it from the outputs"
                )

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute with the reference. Nothing is written before everything is checked."""
        operator = self._operator
        values, layouts, first, outputs = self._checked(arguments, keywords)
        if operator.write is None:
            assert operator.compute is not None  # noqa: S101 (registering has refused that)
            results = operator.compute(*values)
            if not outputs:
                return results
            results = results if isinstance(results, tuple) else (results,)
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)
            return None
        if outputs:
            operator.write(*values, outputs=outputs)
            return None
        outputs = tuple(layout.allocate(first.new_zeros) for layout in layouts)
        operator.write(*values, outputs=outputs)
        return _results(outputs)

    def fake(self, *arguments: Any, **keywords: Any) -> Any:
        """Check the arguments, and return what the results look like."""
        _, layouts, first, outputs = self._checked(arguments, keywords)
        if outputs or not layouts:
            return None
        return _results(tuple(layout.allocate(first.new_empty) for layout in layouts))

    def _checked(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Layout, ...], torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return functional arguments, layouts of the results, the first tensor, and outputs."""
        operator, name = self._operator, self._operator.name
        given = self._bound(arguments, keywords)
        outputs = tuple(given[output] for output in self._outputs)
        for parameter in self._derived:
            if parameter in operator.derived:
                given[parameter] = operator.derived[parameter](*outputs)
            else:
                check_dtype(name, self._outputs[0], outputs[0], OUTPUT_DTYPES)
                given[parameter] = outputs[0].dtype
        values = tuple(given[parameter] for parameter in self._parameters)
        layouts = operator.check(*values)
        layouts = (layouts,) if isinstance(layouts, Layout) else layouts
        first = given[self._first]
        if outputs and operator.check_buffers is not None:
            operator.check_buffers(*values, **{k: given[k] for k in self._buffers})
        for argument, output, layout in zip(
            self._outputs, outputs, layouts if outputs else (), strict=True
        ):
            _check_output(name, argument, output, layout, (self._first, first))
        return values, layouts, first, outputs

    def _bound(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        positional = dict(zip(self._names, arguments, strict=False))
        given = {**self._defaults, **positional, **keywords}
        once = len(positional) == len(arguments) and positional.keys().isdisjoint(keywords)
        if not once or given.keys() != set(self._names):
            raise TypeError(f"the arguments do not fit {self.schema}")
        return given


OPERATORS: dict[str, Operator] = {}
"""Every operator that `operator` has made."""


@overload
def operator(check: Check, /) -> Operator: ...


@overload
def operator(
    *,
    keys: tuple[str, ...] = ...,
    derived: Mapping[str, Callable[..., Any]] = ...,
    parameters: Sequence[str] = ...,
) -> Callable[[Check], Operator]: ...


def operator(
    check: Check | None = None,
    /,
    *,
    keys: tuple[str, ...] = ("CPU",),
    derived: Mapping[str, Callable[..., Any]] | None = None,
    parameters: Sequence[str] = (),
) -> Operator | Callable[[Check], Operator]:
    """Make an operator of its check; `Operator` describes the options."""

    def make(check: Check) -> Operator:
        made = Operator(check, keys, derived or {}, parameters)
        OPERATORS[made.name] = made
        return made

    return make if check is None else make(check)


def register(namespace: str = "fp4aot") -> None:
    """Register fakes and CPU kernels. Call once, after C++ has defined the operators.

    Parameters
    ----------
    namespace
        Where the operators are defined; tests define them in a namespace of their own.

    Raises
    ------
    RuntimeError
        The namespace does not define an operator, or not as its check has it, or has been
        registered before.
    """
    found = [(operator, operator.overloads(namespace)) for operator in OPERATORS.values()]
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    for operator_, overloads in found:
        operator_.register(overloads, library)


def _register_fake(library: torch.library.Library, form: Overload) -> None:
    qualified = f"{library.ns}::{form.name}"
    try:
        # What torch.library.register_fake ends in. Before, it looks up the source of its caller,
        # for which it reads files and walks through all modules.
        handles = library._registration_handles
        entry = torch._library.simple_registry.singleton.find(qualified)
        handle = entry.fake_impl.register(form.fake, __file__, lib=library, allow_override=False)
    except (AttributeError, TypeError):
        torch.library.register_fake(qualified, form.fake, lib=library, allow_override=False)
    else:
        handles.append(handle)


def _parameters(function: Callable[..., Any], behind_varargs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a function's parameters; those of `*arguments` are given."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return (*behind_varargs, *names) if code.co_flags & _VARARGS else names


def _results(results: tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return results if len(results) > 1 else results[0]


def _check_output(
    operator: str,
    argument: str,
    output: torch.Tensor,
    layout: Layout,
    reference: tuple[str, torch.Tensor],
) -> None:
    """Require the layout of the result. Strides of dimensions of size 0 or 1 do not matter."""
    check_dtype(operator, argument, output, (layout.dtype,))
    check_same_device(operator, argument, output, *reference)
    order = range(len(layout.shape)) if layout.order is None else layout.order
    contiguous = _layouts.contiguous_strides(layout.shape)
    sizes, strides = [layout.shape[i] for i in order], [contiguous[i] for i in order]
    if output.dim() != len(sizes) or not all(
        got_size == size and (size <= 1 or got_stride == stride)
        for got_size, got_stride, size, stride in zip(
            output.shape, output.stride(), sizes, strides, strict=True
        )
    ):
        fail_shape(
            operator,
            argument,
            output,
            f"shape {sizes} with strides {strides}",
            "allocate it as the functional form returns it",
            f" with strides {list(output.stride())}",
        )
