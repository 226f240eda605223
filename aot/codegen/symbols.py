"""Names that the entry points of a module get, so that modules with equal exports can be linked."""

from __future__ import annotations

EXPORT_PREFIX = "__tvm_ffi_"
SCHEMA_PREFIX = "__tvm_ffi__metadata_"


def entry_symbol(module: str, function: str) -> str:
    """Symbol of an exported function after renaming."""
    return f"fp4aot_{module}_{function}"


def schema_symbol(module: str, function: str) -> str:
    """Symbol of the function that returns the type schema, after renaming."""
    return f"fp4aot_schema_{module}_{function}"
