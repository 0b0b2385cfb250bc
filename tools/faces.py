"""Makes modules of ``sbus.sync`` from those of ``sbus.asyncio``: ``python -m tools.faces``, or ``make faces``.

Keywords of asyncio are removed and names are replaced; comments, docstrings and the order of lines stay. A docstring of a module or a
class can be followed by a comment that begins with ``# In sync:``. That comment becomes the docstring of the blocking counterpart.

What differs otherwise is in modules that both folders have, written by hand, with the same names: ``beginning``, ``iteration``, ``link``
and others.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import accumulate, takewhile
from pathlib import Path

from tools.stage import ROOT

CLIENT = ROOT / "sbus"

MODULES = ("blobs", "bus", "calls", "control", "last_values", "store", "stored_streams", "streams")
"""The modules that are made."""

_NAMES = (
    (r"AsyncLink", "SyncLink"),
    (r"(Stop)?Async([A-Z]\w*)", r"\1\2"),
    (r"asyncio", "sync"),
    (r"asynccontextmanager", "contextmanager"),
    (r"aclosing", "closing"),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
)
"""Patterns of whole names, and what replaces them; the first that matches counts."""

_COMMENT = "# In sync:"


def main() -> None:
    """Write every module that is made."""
    for name in MODULES:
        path(name).write_text(made(name))


def path(name: str) -> Path:
    """Return the file of the made module *name*."""
    return CLIENT / "sync" / f"{name}.py"


def made(name: str) -> str:
    """Return the text of the made module *name*, with its imports sorted and used, and formatted."""
    source = CLIENT / "asyncio" / f"{name}.py"
    text = f'# Made from {source.relative_to(ROOT)} by "make faces": edit that.\n' + blocking(source.read_text())
    return _ruff(_ruff(text, name, "check", "--select=I,F401", "--fix-only"), name, "format")


def blocking(text: str) -> str:
    """Return the code *text* without asyncio."""
    text = re.sub(r"\bCoroutine\[None, None, (\w+)\]", r"\1", _with_docstrings(text))
    begins = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    pieces, end = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and (name := _blocking_name(token.string)) != token.string:
            place = begins[token.start[0] - 1] + token.start[1]
            pieces += [text[end:place], name]
            end = place + len(token.string) + (not name)  # a keyword is followed by a space
    return "".join([*pieces, text[end:]])


def _blocking_name(name: str) -> str:
    """Return what replaces a name; an empty string instead of a keyword."""
    if name in {"async", "await"}:
        return ""
    for pattern, replacement in _NAMES:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return name


def _with_docstrings(text: str) -> str:
    """Return *text* with the docstrings that the comments behind them have for the blocking program."""
    lines = text.splitlines()
    for first, last in reversed(list(_docstrings(ast.parse(text)))):
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        begin = last + (1 if lines[last + 1].strip() else 2)  # the formatter puts an empty line behind the docstring of a class
        if lines[begin].strip() != _COMMENT:
            continue
        comment = list(takewhile(lambda line: line.startswith("#"), (line.strip() for line in lines[begin + 1 :])))
        words = [line[2:] for line in comment]
        words[0] = f'"""{words[0]}'
        words = [*words, '"""'] if len(words) > 1 else [words[0] + '"""']
        lines[first : begin + 1 + len(comment)] = [(indent + line).rstrip() for line in words]
    return "\n".join([*lines, ""])


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the indexes of the first and last lines of the docstrings of a module and its classes."""
    for node in (tree, *tree.body):
        if isinstance(node, ast.Module | ast.ClassDef) and ast.get_docstring(node):
            yield node.body[0].lineno - 1, (node.body[0].end_lineno or 0) - 1


def _ruff(text: str, name: str, *command: str) -> str:
    """Return *text* as ruff changes it."""
    ruff = Path(sys.executable).with_name("ruff")
    words = [str(ruff), *command, "--quiet", f"--stdin-filename={path(name)}", "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    main()
