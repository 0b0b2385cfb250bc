"""Docstrings as mdoc(7)."""

from __future__ import annotations

import pytest

from tools.roff import escaped, filled, indented, literal, marked, paragraphs, tagged


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        ("``a\\0b`` in *key*", "\\fBa\\e0b\\fP in \\fIkey\\fP"),
        (":meth:`Bus.connect` and :class:`~sbus.Bus`", "\\fBconnect\\fP and \\fBBus\\fP"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("*args", "*args"),
    ],
)
def test_marks_are_fonts(text: str, roff: str) -> None:
    assert marked(text) == roff


def test_characters_special_to_roff_are_escaped() -> None:
    assert escaped("a\\b §") == "a\\eb \\[u00A7]"
    assert filled(".Pp is text") == "\\&.Pp is text\n"
    assert literal("'x'\n.y") == ".Bd -literal\n\\&'x'\n\\&.y\n.Ed\n"


def test_each_sentence_begins_a_line_and_no_line_is_long() -> None:
    lines = filled("One sentence. Another one! " + "word " * 40).splitlines()
    assert lines[:2] == ["One sentence.", "Another one!"]
    assert max(map(len, lines)) < 80


def test_paragraphs_literal_text_and_items() -> None:
    docstring = """First line.

    An example::

        code  here

        more

    1. One
       item.
    2. Two.
    """
    code = ".Bd -literal\ncode  here\n.Ed\n.Bd -literal\nmore\n.Ed\n"
    assert paragraphs(docstring) == f"First line.\n.Pp\nAn example:\n{code}.Pp\n1.\nOne item.\n.Pp\n2.\nTwo.\n"


def test_errors_that_are_raised_are_a_list() -> None:
    docstring = """Do it.

    Raises:
        Closed, TimedOut: it is
            too late.
        ValueError: a *bound* is wrong.
    """
    items = ".It \\fBClosed, TimedOut\\fP\nit is too late.\n.It \\fBValueError\\fP\na \\fIbound\\fP is wrong.\n"
    assert paragraphs(docstring) == f"Do it.\n.Pp\nRaises:\n.Bl -tag -width Ds -compact\n{items}.El\n"


def test_nothing_makes_nothing() -> None:
    assert (paragraphs(""), tagged([]), indented("")) == ("", "", "")
