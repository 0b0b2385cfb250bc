"""Text of docstrings as mdoc(7): paragraphs, lists, literal text, and the few marks of reStructuredText that docstrings here use."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable

WIDTH = 78
"""Bytes of a line of the source; mandoc's lint wants fewer than 80."""

_MARK = re.compile(r"``(.+?)``|:\w+:`~?\.?(.+?)`|(?<![\w*])\*(\w+)\*(?![\w*])")
"""Literal text, a name in the project, and an argument."""

_SENTENCE_END = re.compile(r"(?<=[.!?])([\"')]*)\s+")

_ITEM = re.compile(r"(?:\d+\.|-) ")

_RAISED = re.compile(r"([\w, ]+): (.*)", re.DOTALL)


def paragraphs(docstring: str) -> str:
    """Return *docstring* as paragraphs, the first without a break before it; errors that are raised become a list with tags."""
    made, is_literal = "", False
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        head, _, rest = block.partition("\n")
        if is_literal and block.startswith(" "):
            made += literal(textwrap.dedent(block))
        elif re.match(r"Raises(, .*)?:$", head) and rest.startswith(" "):
            made += ".Pp\n" + filled("Raises:") + tagged(_raised(textwrap.dedent(rest)))
        else:
            made += "".join(f".Pp\n{filled(item)}" for item in _items(re.sub("::$", ":", block)) if item.strip(":"))
        is_literal = block.endswith("::") or (is_literal and block.startswith(" "))
    return made.removeprefix(".Pp\n")


def filled(text: str) -> str:
    """Return one paragraph, each sentence on lines of its own."""
    lines: list[str] = []
    for sentence in _SENTENCE_END.sub(r"\1\n", " ".join(text.split())).split("\n"):
        wrapped = textwrap.wrap(marked(sentence), WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += [f"\\&{line}" if line.startswith((".", "'")) else line for line in wrapped]
    return "".join(f"{line}\n" for line in lines)


def literal(text: str) -> str:
    """Return lines that stay as they are."""
    lines = [escaped(line) for line in text.splitlines()]
    return ".Bd -literal\n" + "".join(f"\\&{line}\n" if line.startswith((".", "'")) else f"{line}\n" for line in lines) + ".Ed\n"


def indented(text: str) -> str:
    """Return *text*, which is roff already, with an indent; nothing if there is none."""
    return f".Bd -filled -offset indent -compact\n{text}.Ed\n" if text else ""


def tagged(items: Iterable[tuple[str, str]]) -> str:
    """Return a list of tags, each with its text; nothing if there are none."""
    made = [f".It \\fB{escaped(tag)}\\fP\n{filled(text)}" for tag, text in items]
    return f".Bl -tag -width Ds -compact\n{''.join(made)}.El\n" if made else ""


def marked(text: str) -> str:
    """Return *text* with its marks as fonts: bold for literal text and names, italic for arguments."""
    made, end = "", 0
    for match in _MARK.finditer(text):
        made += escaped(text[end : match.start()])
        code, name, argument = match.groups()
        made += f"\\fI{escaped(argument)}\\fP" if argument else f"\\fB{escaped(code or name.rpartition('.')[2])}\\fP"
        end = match.end()
    return made + escaped(text[end:])


def escaped(text: str) -> str:
    """Return *text* with the special characters of roff(7), and all characters outside of ASCII, escaped."""
    return "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text.replace("\\", "\\e"))


def _items(block: str) -> list[str]:
    """Return the items of a list, or the one paragraph that *block* is."""
    items: list[str] = [""]
    for line in block.splitlines():
        if _ITEM.match(line):
            items.append("")
        items[-1] += f"{line}\n"
    return [item.strip() for item in items]


def _raised(block: str) -> list[tuple[str, str]]:
    """Return each error of a docstring's list, and when it is raised."""
    entries: list[str] = []
    for line in block.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line)
    matches = [(entry, _RAISED.fullmatch(entry)) for entry in entries]
    return [(match[1], match[2]) if match else (entry, "") for entry, match in matches]
