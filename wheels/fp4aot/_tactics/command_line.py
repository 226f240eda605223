"""The commands of this package, as `python -m fp4aot` adds them to its own."""

from __future__ import annotations

from typing import Any

from fp4aot._tactics import commands as table_commands
from fp4aot._tactics import tune


def add_tactics(commands: Any) -> None:
    """Add ``tune`` and ``tactics``.

    Parameters
    ----------
    commands
        What `argparse.ArgumentParser.add_subparsers` returned.
    """
    tune.add_parser(commands)
    table_commands.add_parser(commands)
