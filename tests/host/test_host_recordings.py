"""The recordings of FlashInfer's calls: their form, and that they cover the catalogue."""

from __future__ import annotations

from enum import IntEnum

import pytest
import torch

from aot import catalog
from host.flashinfer_recordings import RecordingModule, form
from host.user_calls import CALLS, NOT_REACHED, Call, Difference, Memory, contiguous, expected

NOBODY = Memory((), {}, None)


@pytest.mark.parametrize(
    ("argument", "expected_form"),
    [
        (None, {"none": True}),
        (True, {"bool": True}),
        (1, {"int": 1}),
        (1.0, {"float": 1.0}),
        (torch.zeros(2, 3), contiguous("float32", 2, 3)),
        (torch.zeros(0, 3, dtype=torch.uint8), contiguous("uint8", 0, 3)),
        (
            torch.zeros(2, 3, dtype=torch.float8_e4m3fn).T,
            {"tensor": {"dtype": "float8_e4m3fn", "shape": [3, 2], "strides": [1, 3]}},
        ),
    ],
)
def test_an_argument_s_form_is_its_type_and_its_layout(argument, expected_form):
    found = form(argument, NOBODY)
    assert found == expected_form
    # True == 1 == 1.0: the names of the types tell them apart, and so do the types in JSON.
    assert list(map(type, found.values())) == list(map(type, expected_form.values()))


@pytest.mark.parametrize("argument", ["text", (1, 2), IntEnum("Layout", "linear").linear])
def test_an_argument_without_a_form_is_refused(argument):
    with pytest.raises(TypeError, match="no form of"):
        form(argument, NOBODY)


def test_a_tensor_s_form_says_whose_memory_it_is():
    k, v, result = torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3)
    memory = Memory((1, (k, v)), {"out": v}, (None, result))
    owners = [form(t, memory).get("of") for t in (k.T, v[1:], result, torch.zeros(2), k[:0])]
    assert owners == ["argument 1[0]", "argument 1[1] + 12 bytes", "result[1]", None, None]


def test_calls_are_recorded_in_order():
    calls = []
    module = RecordingModule(calls)
    module.second(None)
    module.first(3, False)
    assert calls == [("second", (None,)), ("first", (3, False))]


def call_with(*differences: Difference) -> Call:
    return Call("a call", "package.function", (10, 0), differences, lambda make: ((), {}))


def test_a_difference_changes_its_argument_alone():
    recorded = [
        {"function": "other", "arguments": [{"int": 1}, {"int": 2}]},
        {"function": "kernel", "arguments": [{"int": 1}, {"int": 2}]},
    ]
    difference = Difference("kernel", 1, lambda theirs: {"int": theirs[0]["int"] + 4}, "")
    assert expected(call_with(difference), recorded) == [
        recorded[0],
        {"function": "kernel", "arguments": [{"int": 1}, {"int": 5}]},
    ]
    assert expected(call_with(), recorded) == recorded


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [("kernel", 2, "FlashInfer passes .* too"), ("absent", 5, "absent, which is not called")],
)
def test_a_difference_that_is_not_needed_is_refused(function, value, message):
    difference = Difference(function, 1, lambda theirs: {"int": value}, "")
    recorded = [{"function": "kernel", "arguments": [{"int": 1}, {"int": 2}]}]
    with pytest.raises(AssertionError, match=message):
        expected(call_with(difference), recorded)


def test_every_call_is_recorded_under_an_id_of_its_own(recordings):
    assert list(recordings) == [call.id for call in CALLS]
    assert all(recordings.values())


def test_every_difference_is_needed(recordings):
    for call in CALLS:
        changed = expected(call, recordings[call.id]) != recordings[call.id]
        assert changed == bool(call.differences), call.id


def test_every_compiled_function_that_an_operator_calls_is_reached_or_has_a_reason(recordings):
    reached = {item["function"] for calls in recordings.values() for item in calls}
    called = {
        function.name
        for module in catalog.MODULES
        for function in module.functions
        if function.operator
    }
    assert called - reached == set(NOT_REACHED)
