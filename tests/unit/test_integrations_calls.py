"""How the arguments of a call reach an operator, or FlashInfer, whatever their order there."""

from __future__ import annotations

import functools
import inspect

import pytest

from fp4aot.integrations._flashinfer import inspection
from fp4aot.integrations._flashinfer.call import Route, is_default, replace


def original_with(parameters: str):
    """A function with such parameters, and the calls that reach it."""
    namespace: dict = {}
    exec(f"def f({parameters}): pass", namespace)
    calls: list = []

    @functools.wraps(namespace["f"])
    def original(*arguments, **keywords):
        namespace["f"](*arguments, **keywords)
        calls.append((arguments, keywords))
        return "the original's"

    return original, calls


def quantize(a, scale=None, size=16, backend="cuda"):
    return NotImplemented if backend == "other" else (a, scale, size, backend)


def by_dictionary(values):
    # Whatever it does to the dictionary stays here.
    backend = values.pop("backend", "cuda")
    result = quantize(**values, backend=backend)
    values.clear()
    return result


ROUTES = {
    "names": Route(quantize),
    "dictionary": Route(by_dictionary, quantize),
}
ORDERS = (
    "a, scale=None, size=16, backend='cuda'",
    "a, scale=None, size=16, backend='cuda', *, exact=False",
    "a, scale=None, layout=None, size=16, backend='cuda'",
    "a, backend='cuda', scale=None, size=16",
    "size, scale, a, backend",
    "a, *, backend='cuda', size=16, scale=None",
)


@pytest.fixture(params=ROUTES.values(), ids=ROUTES)
def route(request):
    return request.param


@pytest.mark.parametrize("parameters", ORDERS)
def test_arguments_are_bound_by_the_originals_names(route, parameters):
    original, calls = original_with(parameters)
    routed = replace(original, route)
    passed = {"a": 1, "scale": 2, "size": 3, "backend": "b"}
    described = inspect.signature(original).parameters
    in_order = {name: passed.get(name, one.default) for name, one in described.items()}
    positions = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in described.values())
    for count in range(positions + 1):
        names = list(in_order)
        keywords = {name: in_order[name] for name in names[count:]}
        positional = [in_order[name] for name in names[:count]]
        assert routed(*positional, **keywords) == (1, 2, 3, "b")
        keywords = dict(reversed(keywords.items()))
        assert routed(*positional, **keywords, skip_check=True) == (1, 2, 3, "b")
    assert calls == []


def test_what_is_omitted_has_the_originals_default(route):
    original, _ = original_with("a, size=32, *, backend='auto', scale=None")
    assert replace(original, route)(1) == (1, None, 32, "auto")
    assert replace(original, route)(1, 16) == (1, None, 16, "auto")
    assert replace(original, route)(a=1, backend="cuda") == (1, None, 32, "cuda")


def test_what_the_original_lacks_has_the_operators_default(route):
    original, _ = original_with("a, backend='auto'")
    assert replace(original, route)(1, "b") == (1, None, 16, "b")


@pytest.mark.parametrize(
    ("keywords", "stays"),
    [
        ({"exact": True}, True),
        ({"exact": None}, False),
        ({"exact": False, "level": 1}, False),
        ({"level": 2}, True),
        ({"level": None}, True),
        ({"buffer": None}, False),
        ({"buffer": []}, True),
        ({"exact": True, "skip_check": True}, True),
        ({"backend": "other"}, True),
    ],
)
def test_a_call_that_stays_reaches_the_original_as_it_came(route, keywords, stays):
    original, calls = original_with(
        "a, scale=None, size=16, backend='cuda', *, exact=False, level=1, buffer=None, "
        "skip_check=False"
    )
    routed = replace(original, route)
    value = object()
    for arguments, named in (((value, None), {}), ((), {"a": value})):
        calls.clear()
        result = routed(*arguments, **named, **keywords)
        if stays:
            assert result == "the original's"
            assert calls == [(arguments, named | keywords)]
        else:
            assert result == (value, None, 16, "cuda")
            assert calls == []


def test_a_new_argument_without_a_default_is_the_originals(route):
    original, calls = original_with("a, workspace")
    assert replace(original, route)(1, None) == "the original's"
    assert calls == [((1, None), {})]


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'a'"),
        ((), {"size": 16}, "missing 1 required positional argument: 'a'"),
        ((1, 2, 3, "b", 5), {}, "takes from 1 to 4 positional arguments but 5 were given"),
        ((1,), {"a": 1}, "got multiple values for argument 'a'"),
        ((1, "b", 3), {"backend": "b"}, "got multiple values for argument 'backend'"),
        ((1,), {"tile": 8}, "got an unexpected keyword argument 'tile'"),
        # No value makes an unknown name a known one.
        ((1,), {"tile": None}, "got an unexpected keyword argument 'tile'"),
    ],
)
def test_the_original_says_what_is_wrong_with_a_call(route, arguments, keywords, message):
    original, calls = original_with("a, backend='cuda', scale=None, size=16")
    with pytest.raises(TypeError, match=rf"f\(\) {message}"):
        replace(original, route)(*arguments, **keywords)
    assert calls == []


def test_what_an_operator_leaves_is_the_originals():
    original, calls = original_with("a, scale=None, size=16, backend='cuda'")
    routed = replace(original, Route(by_dictionary, quantize, leaves=("size",)))
    assert routed(1, None, 16) == routed(1) == (1, None, 16, "cuda")
    assert routed(1, size=32) == "the original's"
    assert calls == [((1,), {"size": 32})]


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        (None, False, True),
        (False, None, True),
        (False, True, False),
        (None, 1, False),
        (1, True, True),
        (16, 16, True),
        (32, 16, False),
        ("".join(["cut", "lass"]), "cutlass", True),
        ("cake", "cutlass", False),
        ([], None, False),
        (None, inspect.Parameter.empty, False),
    ],
)
def test_defaults(value, default, expected):
    assert is_default(value, default) is expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        *((parameters, "") for parameters in ORDERS),
        ("a, size=32, *, exact=False", ""),
        ("scale=None", "it has no parameter a"),
        ("a, *rest", "it takes *rest"),
        ("a, **rest", "it takes *rest"),
        ("a, /, scale=None", "it takes a by position alone"),
    ],
)
def test_parameters_are_looked_at(route, parameters, expected):
    original, _ = original_with(parameters)
    assert inspection.difference(original, route) == expected
