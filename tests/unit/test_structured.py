"""What follows from an operator's check, its reference and its schema."""

from __future__ import annotations

import types
from itertools import count

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot.operators import structured
from fp4aot.operators.argument_checks import check_dtype, check_output_dtype
from fp4aot.operators.structured import Layout, operator, register

NUMBERS = count()


@pytest.fixture(autouse=True)
def only_operators_of_the_test(monkeypatch):
    monkeypatch.setattr(structured, "OPERATORS", {})


@pytest.fixture
def define():
    """Define schemas in a namespace of the test's own and register all operators there."""
    libraries = []

    def define(*schemas):
        namespace = f"fp4aot_test_structured_{next(NUMBERS)}"
        library = torch.library.Library(namespace, "DEF")
        libraries.append(library)
        for schema in schemas:
            library.define(schema)
        register(namespace)
        return getattr(torch.ops, namespace)

    yield define
    for library in libraries:
        library._destroy()


SCALED = (
    "scaled(Tensor x, ScalarType out_dtype, float by=2.0, bool plus_one=False) -> Tensor",
    "scaled.out(Tensor x, float by=2.0, bool plus_one=False, *, Tensor(a!) out) -> ()",
)


def scaled_operator():
    """Return an operator with defaults, whose `.out` takes the dtype from its buffer."""

    @operator
    def scaled(x: torch.Tensor, out_dtype: torch.dtype, by: float, plus_one: bool) -> Layout:
        check_dtype("scaled", "x", x, (torch.float32,))
        check_output_dtype("scaled", "out_dtype", out_dtype)
        return Layout((x.shape[1], x.shape[0]), out_dtype, (1, 0))

    @scaled.reference
    def _(x: torch.Tensor, out_dtype: torch.dtype, by: float, plus_one: bool) -> torch.Tensor:
        return (x * by + plus_one).to(out_dtype).t().contiguous().t()

    return scaled


FIRSTS = (
    "firsts(Tensor x, int rows, ScalarType dtype) -> (Tensor, Tensor)",
    "firsts.out(Tensor x, *, Tensor(a!)? room=None, Tensor(b!) first, Tensor(c!) second) -> ()",
)


def firsts_operator(log):
    """Return an operator that keeps parts of its buffers and takes one that is no output."""

    @operator(derived={"rows": lambda first, second: first.shape[0]})
    def firsts(x: torch.Tensor, rows: int, dtype: torch.dtype) -> tuple[Layout, Layout]:
        log.append("check")
        return Layout((rows, 2), dtype), Layout((rows,), torch.int32)

    @firsts.buffers
    def _(x: torch.Tensor, rows: int, dtype: torch.dtype, room: torch.Tensor | None) -> None:
        log.append("buffers")
        if room is not None:
            check_dtype("firsts", "room", room, (torch.uint8,))

    @firsts.writes
    def _(x: torch.Tensor, rows: int, dtype: torch.dtype, outputs: tuple[torch.Tensor, ...]):
        log.append("writes")
        outputs[0][0] = x[:2]
        outputs[1][0] = 1

    return firsts


def doubling(x: torch.Tensor) -> Layout:
    return Layout(tuple(x.shape), x.dtype)


X = torch.arange(6, dtype=torch.float32).reshape(3, 2)


def test_defaults_are_the_schemas(define):
    scaled_operator()
    ops = define(*SCALED)
    for arguments, keywords, expected in (
        ((torch.bfloat16,), {}, X * 2),
        ((torch.bfloat16, 3.0), {}, X * 3),
        ((torch.bfloat16,), {"plus_one": True}, X * 2 + 1),
        ((torch.bfloat16, 2.0, False), {}, X * 2),
    ):
        result = ops.scaled(X, *arguments, **keywords)
        assert torch.equal(result, expected.bfloat16())
        assert result.stride() == (1, 3)
        with FakeTensorMode() as mode:
            fake = ops.scaled(mode.from_tensor(X), *arguments, **keywords)
        assert (fake.shape, fake.stride(), fake.dtype) == ((3, 2), (1, 3), torch.bfloat16)


def test_the_operator_itself_is_called_like_its_schema(define, monkeypatch):
    scaled = scaled_operator()
    ops = define(*SCALED)
    monkeypatch.setattr(torch.ops, "fp4aot", ops)
    assert torch.equal(scaled(X, torch.float16), (X * 2).half())
    assert torch.equal(scaled(X, by=3.0, out_dtype=torch.float16), (X * 3).half())
    out = torch.empty_strided((3, 2), (1, 3), dtype=torch.float16)
    assert scaled.out(X, plus_one=True, out=out) is None
    assert torch.equal(out, (X * 2 + 1).half())
    assert scaled.default.fake(X, torch.float16).stride() == (1, 3)
    for arguments, keywords in (
        ((X,), {}),
        ((X, torch.float16, 2.0, False, 1), {}),
        ((X, torch.float16), {"x": X}),
        ((X, torch.float16), {"unknown": 1}),
    ):
        with pytest.raises(TypeError, match=r"do not fit .*scaled\(Tensor x, ScalarType"):
            scaled(*arguments, **keywords)


def test_out_takes_the_dtype_from_its_buffer(define):
    scaled_operator()
    ops = define(*SCALED)
    for dtype in (torch.bfloat16, torch.float16):
        out = torch.empty_strided((3, 2), (1, 3), dtype=dtype)
        assert ops.scaled.out(X, 3.0, out=out) is None
        assert torch.equal(out, (X * 3).to(dtype))
    with pytest.raises(RuntimeError, match=r"'out': got dtype torch\.float32, expected .*bfloat16"):
        ops.scaled.out(X, out=X.t().contiguous().t())


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (torch.zeros(3, 2, dtype=torch.half), r"'out': got shape \[3, 2\] with strides \[2, 1\]"),
        (torch.zeros(2, 3, dtype=torch.half), r"expected shape \[3, 2\] with strides \[1, 3\]"),
        (torch.zeros(6, dtype=torch.half), r"allocate it as the functional form returns it"),
    ],
)
def test_out_refuses_another_layout(define, out, words):
    scaled_operator()
    ops = define(*SCALED)
    with pytest.raises(RuntimeError, match=words):
        ops.scaled.out(X, out=out)
    assert not out.any()


def test_the_device_of_buffers_is_that_of_the_first_tensor(define):
    scaled = scaled_operator()
    ops = define(*SCALED)
    with FakeTensorMode() as mode:
        out = torch.empty_strided((3, 2), (1, 3), dtype=torch.half, device="cuda:1")
        x = mode.from_tensor(X)
        form = structured.Overload(scaled, ops.name, "out")
        with pytest.raises(RuntimeError, match=r"'out': got device cuda:1, expected cpu .*of 'x'"):
            form.fake(x, out=out)


def test_what_is_not_written_is_kept_and_is_zero_in_the_functional_form(define):
    firsts_operator([])
    ops = define(*FIRSTS)
    first, second = ops.firsts(torch.tensor([3.0, 4.0, 5.0]), 2, torch.float16)
    assert first.tolist() == [[3, 4], [0, 0]]
    assert second.tolist() == [1, 0]
    first = torch.full((2, 2), 7, dtype=torch.bfloat16)
    second = torch.full((2,), 7, dtype=torch.int32)
    ops.firsts.out(torch.tensor([3.0, 4.0]), first=first, second=second)
    assert first.tolist() == [[3, 4], [7, 7]]
    assert second.tolist() == [1, 7]


@pytest.mark.parametrize(
    ("changes", "checked", "words"),
    [
        ({"first": torch.zeros(2, 2)}, [], "'first': got dtype torch.float32"),
        ({"first": torch.zeros(2, 3).half()}, ["check", "buffers"], r"'first': got shape \[2, 3\]"),
        ({"second": torch.zeros(2)}, ["check", "buffers"], "'second': got dtype torch.float32"),
        ({"room": torch.zeros(2)}, ["check", "buffers"], "'room': got dtype torch.float32"),
    ],
)
def test_nothing_is_written_before_every_buffer_is_checked(define, changes, checked, words):
    log = []
    firsts_operator(log)
    ops = define(*FIRSTS)
    buffers = {
        "first": torch.zeros(2, 2).half(),
        "second": torch.zeros(2, dtype=torch.int32),
        "room": torch.zeros(5, dtype=torch.uint8),
    }
    ops.firsts.out(torch.ones(2), **buffers)
    assert log == ["check", "buffers", "writes"]
    buffers = {name: torch.zeros_like(buffer) for name, buffer in buffers.items()}
    buffers |= {name: torch.zeros_like(buffer) for name, buffer in changes.items()}
    log.clear()
    with pytest.raises(RuntimeError, match=words):
        ops.firsts.out(torch.ones(2), **buffers)
    assert log == checked
    assert not any(buffer.any() for buffer in buffers.values())


def test_an_operator_that_writes_to_its_arguments(define):
    @operator
    def append(x: torch.Tensor, cache: torch.Tensor, at: int) -> tuple[Layout, ...]:
        check_dtype("append", "x", x, (cache.dtype,))
        return ()

    @append.reference
    def _(x: torch.Tensor, cache: torch.Tensor, at: int) -> None:
        cache[at : at + len(x)] = x

    ops = define("append(Tensor x, Tensor(a!) cache, int at=0) -> ()")
    cache = torch.zeros(4)
    assert ops.append(torch.ones(2), cache, 1) is None
    assert cache.tolist() == [0, 1, 1, 0]
    with pytest.raises(RuntimeError, match=r"fp4aot::append: argument 'x': got dtype torch\.int64"):
        ops.append(torch.ones(2).long(), cache)
    torch.library.opcheck(ops.append.default, (torch.ones(2), torch.zeros(4), 2))

    def twice(x, cache):
        ops.append(x, cache)
        ops.append(x + 1, cache, 2)
        return cache * 2

    cache = torch.zeros(4)
    result = torch.compile(twice, fullgraph=True, backend="aot_eager")(torch.ones(2), cache)
    assert cache.tolist() == [1, 1, 2, 2]
    assert result.tolist() == [2, 2, 4, 4]


@pytest.mark.parametrize("operators", [scaled_operator, lambda: firsts_operator([])])
def test_opcheck(define, operators):
    name = operators().name
    ops = define(*(SCALED if name == "scaled" else FIRSTS))
    if name == "scaled":
        torch.library.opcheck(ops.scaled.default, (X, torch.half))
        out = torch.empty_strided((3, 2), (1, 3), dtype=torch.half)
        torch.library.opcheck(ops.scaled.out, (X,), {"out": out})
    else:
        x = torch.ones(2)
        torch.library.opcheck(ops.firsts.default, (x, 3, torch.half))
        buffers = {"first": torch.ones(2, 2).half(), "second": torch.ones(2, dtype=torch.int32)}
        torch.library.opcheck(ops.firsts.out, (x,), buffers)


def test_keys_say_where_the_reference_serves(define):
    for keys in ((), ("CPU",), ("CPU", "CUDA")):
        made = operator(keys=keys)(doubling)
        made.reference(lambda x: x + x)
        packet = define("doubling(Tensor x) -> Tensor").doubling
        kernels = torch._C._dispatch_has_kernel_for_dispatch_key
        qualified = packet.default.name()
        assert tuple(key for key in ("CPU", "CUDA") if kernels(qualified, key)) == keys
        assert kernels(qualified, "Meta")


def with_more(x: torch.Tensor, y: torch.Tensor) -> Layout:
    return doubling(x)


def of_another_name(y: torch.Tensor) -> torch.Tensor:
    return y + y


@pytest.mark.parametrize(
    ("check", "reference", "words"),
    [
        (with_more, of_another_name, r"\(x\).*takes \(x, y\)"),
        (doubling, of_another_name, r"\(x\).*takes \(y\)"),
    ],
)
def test_parameters_that_are_not_the_schemas_are_refused(define, check, reference, words):
    made = operator(check)
    made.reference(reference)
    with pytest.raises(RuntimeError, match=rf"test_structured.*{made.name}\(Tensor x\).*{words}"):
        define(f"{made.name}(Tensor x) -> Tensor")


def test_parameters_of_references_that_write_are_the_schemas(define):
    made = operator(doubling)
    made.writes(lambda x, out: None)
    with pytest.raises(RuntimeError, match=r"a function of \(x, outputs\).*takes \(x, out\)"):
        define("doubling(Tensor x) -> Tensor")


def test_parameters_of_the_check_of_buffers_are_the_schemas(define):
    made = firsts_operator([])
    made.buffers(lambda x, rows, dtype: None)
    with pytest.raises(RuntimeError, match=r"\(x, rows, dtype, room\).*takes \(x, rows, dtype\)"):
        define(*FIRSTS)


def test_arguments_in_one_parameter_are_named_apart(define):
    @operator(parameters=("x", "by"))
    def scaled(*arguments) -> Layout:
        return doubling(arguments[0])

    scaled.reference(lambda *arguments: arguments[0] * arguments[1])
    assert define("scaled(Tensor x, int by=3) -> Tensor").scaled(X).equal(X * 3)
    with pytest.raises(RuntimeError, match=r"\(x, times\).*takes \(x, by\)"):
        define("scaled(Tensor x, int times=3) -> Tensor")


def test_what_out_lacks_is_a_dtype_or_derived(define):
    made = firsts_operator([])
    made.derived = {}
    with pytest.raises(RuntimeError, match=r"lacks rows, which is no dtype; derive it"):
        define(*FIRSTS)


def test_an_operator_without_schema_or_reference_is_refused(define):
    made = operator(doubling)
    with pytest.raises(RuntimeError, match=r"::doubling has no reference in test_structured"):
        define("doubling(Tensor x) -> Tensor")
    made.reference(lambda x: x + x)
    with pytest.raises(RuntimeError, match=r"::doubling is not defined in C\+\+"):
        define("other(Tensor x) -> Tensor")


def with_another_signature(monkeypatch):
    def find(name):
        def register(function):
            raise AssertionError("called with the arguments of another torch")

        return types.SimpleNamespace(fake_impl=types.SimpleNamespace(register=register))

    # The public function finds the true entry.
    real, calls = torch._library.simple_registry.singleton.find, count()
    monkeypatch.setattr(
        torch._library.simple_registry.singleton,
        "find",
        lambda name: find(name) if next(calls) == 0 else real(name),
    )


def without_the_public_function(monkeypatch):
    monkeypatch.delattr(torch.library.Library, "_register_fake")


@pytest.mark.parametrize("way", [without_the_public_function, with_another_signature])
def test_fakes_are_registered_in_either_way(define, monkeypatch, way):
    made = operator(doubling)
    made.reference(lambda x: x + x)
    way(monkeypatch)
    ops = define("doubling(Tensor x) -> Tensor")
    with FakeTensorMode() as mode:
        assert ops.doubling(mode.from_tensor(X)).shape == X.shape
    with pytest.raises(RuntimeError, match="already"):
        register(ops.name)
