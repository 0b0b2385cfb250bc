"""Imports inside functions: a long-lived program has made all of them before its package can be replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sbus.late_modules import BOTH, STYLES
from tools.stage import ROOT


def imports_in_functions() -> Iterator[str]:
    """Yield the modules that functions of the client import, those of the protocol apart."""
    paths = [path for path in (ROOT / "sbus").rglob("*.py") if "protocol" not in path.parts]
    for path in paths:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import):
                        yield from (each.name for each in node.names)
                    elif isinstance(node, ast.ImportFrom) and node.module:
                        yield node.module


def test_the_table_has_all_late_imports() -> None:
    assert set(imports_in_functions()) == {*BOTH, *STYLES["sync"], *STYLES["asyncio"]}
