"""A piecewise compiler as servers have one, without what makes theirs long.

Dynamo gives one graph; it is split at operators, and only what lies between them is compiled. The
operators themselves run as they are, for instance between captured CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module


class PiecewiseBackend:
    """A backend for `torch.compile`.

    Parameters
    ----------
    split_operators
        Names such as `glm5.attention`.
    compile_piece
        Another backend, for the pieces.

    Attributes
    ----------
    graphs
        One for each time that Dynamo traced, split.
    pieces, split_pieces
        Names of the graphs' submodules that are compiled, and of those left alone, all together.
    """

    def __init__(
        self, split_operators: Sequence[str], compile_piece: Callable[..., Callable[..., Any]]
    ) -> None:
        self.split_operators = tuple(split_operators)
        self.compile_piece = compile_piece
        self.graphs: list[fx.GraphModule] = []
        self.pieces: list[str] = []
        self.split_pieces: list[str] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        number, numbers, alone = 0, {}, set()
        for node in graph.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            if node.op == "call_function" and str(node.target).startswith(self.split_operators):
                number += 1
                numbers[node] = number
                alone.add(f"submod_{number}")
                number += 1
            else:
                numbers[node] = number
        split = split_module(graph, None, numbers.__getitem__, keep_original_order=True)
        self.graphs.append(split)
        self.split_pieces += sorted(alone)
        _Compiler(split, alone, self).run(*inputs)
        return split


class _Compiler(fx.Interpreter):
    """Run the split graph on fake tensors, and compile each piece for what it gets."""

    def __init__(self, split: fx.GraphModule, alone: set[str], backend: PiecewiseBackend) -> None:
        super().__init__(split)
        self.alone, self.backend = alone, backend
        self.fake_mode = torch._guards.detect_fake_mode(
            [
                node.meta.get("example_value")
                for node in split.graph.nodes
                if node.op == "placeholder"
            ]
        )

    def run(self, *inputs: Any) -> Any:
        def fake(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and self.fake_mode is not None:
                return self.fake_mode.from_tensor(value)
            return value

        with self.fake_mode:
            return super().run(*map(fake, inputs))

    def call_module(self, target: Any, arguments: tuple, keywords: dict) -> Any:
        result = super().call_module(target, arguments, keywords)
        if target not in self.alone:
            piece = _Piece(self.fetch_attr(target), list(arguments), self.backend.compile_piece)
            setattr(self.module, target, piece)
            self.backend.pieces.append(target)
        return result


class _Piece(torch.nn.Module):
    """A compiled piece, as a module for the split graph to call."""

    def __init__(
        self,
        graph: fx.GraphModule,
        inputs: list[Any],
        compile_piece: Callable[..., Callable[..., Any]],
    ) -> None:
        super().__init__()
        # Backends take graphs that return tuples; `split_module` makes others too.
        output = graph.graph.output_node()
        self.is_single = not isinstance(output.args[0], (tuple, list))
        if self.is_single:
            output.args = ((output.args[0],),)
            graph.recompile()
        self.function = compile_piece(graph, inputs)

    def forward(self, *arguments: Any) -> Any:
        results = self.function(*arguments)
        return results[0] if self.is_single else results
