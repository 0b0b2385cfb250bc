"""The hints of all programs: the commands that their messages tell a reader to run, found in the source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from sbusctl.group import COMMANDS
from tools.stage import ROOT, house_files

_VERBS = "start|stop|restart|enable|disable|unmask|reset-failed|status|reload|try-reload-or-restart"
_NAMES = "|".join(sorted(COMMANDS, key=len, reverse=True))
_WORD = r"(?:\{[^{}]*\}|[^\s;,()'`\"{}])*(?:\{[^{}]*\}|[^\s.:;,()'`\"{}])"
_REST = rf"(?: (?!(?:lists|shows|as|sends|does|wrote|when|or|to)\b){_WORD})*"

_COMMANDS = tuple(
    re.compile(rf"(?<![\w/.-]){pattern}")
    for pattern in (
        rf"(?:systemctl|\{{[\w.()]*systemctl(?:\(\w+\))?\}})(?: --user|\{{[^{{}}]*\}})? (?:{_VERBS}){_REST}",
        rf"(?:sudo )?(?:sbusctl|\{{sbusctl(?:\(\w+\))?\}}) (?:{_NAMES})\b{_REST}",
        r"start sbus[\w@-]*\.socket",
        r"sbusd --check-config",
        rf"journalctl{_REST}",
        rf"(?:chmod|chown|sysctl|sqlite3|runuser|usermod)(?! \d| or){_REST}",
        r"ss -x\w+(?: \| grep \S+)?",
        r"(?:python3 -m )?pip install .+",
        r"apt-get install [\w-]+",
        rf"(?<=[Rr]un )sbus-[a-z]+(?: --?{_WORD})*",
    )
)
"""A command in the text of a message, up to a mark or a word that does not belong to it."""

_NOT_PRINTED = ("help", "epilog", "metavar", "show_default")
"""Arguments whose texts are of help pages."""


def _text(node: ast.expr) -> str | None:
    """Return the text of a literal; fields of an f-string have their source in braces. None for others."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(each.value)}}}" if isinstance(each, ast.FormattedValue) else _text(each) or "" for each in node.values
        )
    return None


def _messages(node: ast.AST) -> Iterator[str]:
    """Yield the literals below *node* that are not docstrings or help texts."""
    for child in ast.iter_child_nodes(node):
        if (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)) or (
            isinstance(child, ast.keyword) and child.arg in _NOT_PRINTED
        ):
            continue
        if isinstance(child, ast.expr) and (text := _text(child)) is not None:
            yield text
        else:
            yield from _messages(child)


def hints_in(text: str) -> list[str]:
    """Return the commands in *text*."""
    return [found[0] for each in _COMMANDS for found in each.finditer(text)]


@functools.cache
def source_hints(root: Path = ROOT) -> frozenset[str]:
    """Return each hint in the Python files of the packages in the tree *root*, after the path of its file."""
    return frozenset(
        f"{path.relative_to(root)}: {command}"
        for path in house_files(".py", root=root)
        for text in _messages(ast.parse(path.read_text("utf-8")))
        for command in hints_in(text)
    )
