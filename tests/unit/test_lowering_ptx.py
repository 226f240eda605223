"""Reading PTX: statements, scopes, guards, comments, operands over several lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Chunk, Instruction, chunks, kernel_name, split_operands, vector


def instructions(text: str) -> list[Instruction]:
    found = [s.instruction() for c in chunks(text.splitlines(True)) for s in c.statements()]
    return [one for one in found if one is not None]


def test_a_guard_a_label_and_comments_are_not_the_instruction() -> None:
    (found,) = instructions(
        "$L__BB0_1: // here\n\t/* a; b */ @!%p1 add.s32 \t%r1, %r2, /* c */ -1;\n"
    )
    assert found == Instruction("@!%p1 ", "add.s32", ("%r1", "%r2", "-1"))
    assert found.predicate == "!%p1"


def test_an_instruction_may_go_over_several_lines() -> None:
    text = "mma.sync.kind::x \n  {%0,\n %1},\n{%2}, // the rest\n [%r1+-16]\n;\nret;\n"
    first, second = instructions(text)
    assert first.opcode == "mma.sync.kind::x"
    assert first.operands == ("{%0,\n %1}", "{%2}", "[%r1+-16]")
    assert second.opcode == "ret"
    assert [c.line for c in chunks(text.splitlines(True))] == [1, 7]


def test_scopes_and_several_statements_on_a_line() -> None:
    text = "{ .reg .pred p; { redux.sync.max.f32 %f1, %f2, %r1;} }\n}\n{mov.b32 {a, b}, %r1;}\n"
    found = instructions(text)
    assert [i.opcode for i in found] == ["redux.sync.max.f32", "mov.b32"]
    assert found[1].operands == ("{a, b}", "%r1")


def test_a_kernel_its_parameters_and_its_body_on_one_line() -> None:
    text = ".visible .entry k(.param .u64 p) { ld.param.u64 %rd1, [p]; ret; }\n"
    assert [i.opcode for i in instructions(text)] == ["ld.param.u64", "ret"]


def test_initializers_strings_and_directives_are_no_instructions() -> None:
    text = (
        '.file 1 "/a;b/cvt.e2m1x2 \\" {"\n.global .align 4 .b8 x[4] = {1, 2, 3, 4};\n'
        '.target sm_100a\n.pragma "nounroll";\n.loc 1 2 3\nret;\n'
    )
    assert [i.opcode for i in instructions(text)] == ["ret"]


def test_a_call_over_several_lines() -> None:
    (found,) = instructions("call.uni (retval0), \n vprintf, \n (\n param0, \n param1\n );\n")
    assert found.operands[1:] == ("vprintf", "(\n param0, \n param1\n )")


def test_lines_are_counted() -> None:
    text = "// one\n\n/* two\n three; */\n@p add.s32 a, b, c;\n"
    (statement,) = (
        s for c in chunks(text.splitlines(True)) for s in c.statements() if s.instruction()
    )
    assert statement.line == 5


@given(
    st.lists(
        st.sampled_from(
            [
                "{",
                "}",
                "\n",
                "// x;\n",
                "/* ; */",
                "@%p1 add.s32 %r1, %r2, 1;",
                "L1:",
                " ",
                "mov.b32 {a,\n b}, %r1;",
                ".reg .b32 x;",
                '.file 1 "a;b"\n',
                ".entry k(\n",
                ")\n",
            ]
        )
    )
)
def test_nothing_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    lines = text.splitlines(keepends=True)
    assert "".join(c.text for c in chunks(lines)) == text
    whole = "".join(s.before + s.text for c in chunks(lines) for s in c.statements())
    assert whole == text


def test_the_name_of_a_kernel() -> None:
    assert kernel_name(".visible .entry _Z1kv(\n") == "_Z1kv"
    assert kernel_name(".entry k (.param .u64 p)") == "k"
    assert kernel_name(".func (.param .b32 r) helper(") == "helper"
    assert kernel_name("\tret;") is None


def test_operands() -> None:
    assert split_operands("") == ()
    assert split_operands(" {a, b}, [c, {d, e}], f ") == ("{a, b}", "[c, {d, e}]", "f")
    assert vector("{%r1,  _}", 2) == ("%r1", "_")
    with pytest.raises(LoweringError, match=r"\{a, b\} is not a vector of 3"):
        vector("{a, b}", 3)
    with pytest.raises(LoweringError, match="add has 1 operands"):
        Instruction("", "add", ("a",)).expect(2)


def test_an_unfinished_end_is_kept() -> None:
    assert [c.text for c in chunks(["add.s32 a,\n", " b"])] == ["add.s32 a,\n b"]
    assert [s.text for s in Chunk("add.s32 a,\n b", 1).statements()] == ["add.s32 a,\n b"]
