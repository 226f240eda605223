"""The C++ refuses what the Python checks refuse, in their words, and returns what the fakes say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE, HOST
from torch._subclasses.fake_tensor import FakeTensorMode

from host.compare import WITHOUT_CPP, cpp_outcome, python_outcome
from host.host_library import DEVICES, NAMESPACE

SCHEMAS = Path(__file__).with_name("schemas.txt")


def has_cpp(operator: str) -> bool:
    return operator.removesuffix(".out") not in WITHOUT_CPP


# A bad input on a meta device cannot be told from one on a GPU by a function of the host.
REFUSED = [case for case in (*EVERY_DEVICE, *HOST) if has_cpp(case.operator)]
TAKEN = [row for row in ACCEPTED if has_cpp(row[0])]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{c.operator}-{c.case}" for c in REFUSED])
def test_bad_input_is_refused_in_the_words_of_the_python_checks(library, case):
    library.reset((12, 0))
    expected = python_outcome(case.operator, *case.build("cpu"))
    assert expected.refusal is not None
    assert cpp_outcome(case.operator, *case.build("cpu")) == expected
    assert library.calls == []


@pytest.mark.parametrize("capability", DEVICES)
def test_a_device_without_kernels_is_refused_by_name(library, capability):
    """KV dequantization has kernels for compute capability 9.0 too, and nothing else has."""
    library.reset(capability)
    for operator, build in TAKEN:
        outcome = cpp_outcome(operator, *build("cpu"))
        if outcome.refusal is None:
            continue
        assert (
            "has no compiled kernel in this wheel" in outcome.refusal
            or "on compute capability" in outcome.refusal
        ), outcome
        assert capability in ((9, 0), (11, 0), (10, 0), (10, 3)), outcome


@pytest.mark.parametrize(("operator", "build"), TAKEN, ids=[name for name, _ in TAKEN])
def test_results_are_those_of_the_fake(library, operator, build):
    library.reset((12, 0))
    with FakeTensorMode():
        expected = python_outcome(operator, *build("cpu"))
    assert expected.refusal is None
    assert cpp_outcome(operator, *build("cpu")) == expected


def test_schemas_are_those_that_users_have(library):
    """Whoever changes a schema changes `schemas.txt`, and VERSIONING.md says what that means."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(f"{NAMESPACE}::"):
            schema = torch._C._get_schema(*name.partition(".")[::2])
            found.append(str(schema).replace(NAMESPACE, "fp4aot", 1))
    assert sorted(found) == SCHEMAS.read_text().splitlines()
