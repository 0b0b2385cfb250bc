"""Phrases to avoid in the manual, docstrings, comments and messages: their number may only fall. CONTRIBUTING.md has the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.unit.test_house import committed_files
from tools.stage import ROOT

AT_MOST = {
    "man": 14,
    "sbus": 16,
    "sbus_archive": 7,
    "sbus_programs": 1,
    "sbus_services": 3,
    "sbusctl": 9,
    "sbusd": 20,
    "stubs": 1,
    "tests": 40,
    "tools": 3,
    "units": 1,
}
"""How many of the phrases each file or folder of the top level has; one that is not here has none.

The numbers may only fall. Whoever removes phrases lowers the number, so that they do not return unnoticed.
"""

SLACK = 10
"""How far below its maximum a count may be, so that a commit that removes one phrase need not change the table."""

_SUBJECT = "is|was|has|had|does|may|can|cannot|wants|asks|sends|comes|goes|gives|takes|waits|reads"
_OBJECT = "waits|comes|goes|is left|stands|came|they|it takes|none"

PHRASES = re.compile(
    "|".join(
        [
            r"\b(?:anew|somebody|nobody|whoever|so many|for ever|with none|that are none|held up|lets? go of|gives? way)\b",
            r"\b(?:is|are|was|were) told\b",
            r"\btold (?:to|of|by|about|in|when|how|at)\b",
            r"\btells? (?:of|who|what|whom|how)\b",
            r"\b(?:is|are) no [a-z]+\b",
            rf"\bwhat (?:{_OBJECT})\b",
            rf"(?:^|[.;:,(] ?)who (?:{_SUBJECT})\b",
            r"\bstands? (?:for|in|at|behind|beside|before|there|twice)\b",
            r"\bhow it stands\b",
            r"\bin (?:the|its) place of\b",
            r"\bno more than what\b",
            r"\bas it (?:is|was) meant\b",
            r"\bof (?:its|his|their) own word\b",
            r"\bhas none of\b",
            r"\bis worth as much\b",
            r"\bthe kernel'?s word\b",
            r"\bbeside(?! (?:each|one))\b",
        ]
    ),
    re.IGNORECASE | re.MULTILINE,
)
"""What makes a reader stop. Some uses are right, so a few may stay."""

_CODE = {".py", ".pyi", ".pyx", ".pxi", ".pxd", ".c", ".h", ".js", ".html", ".lua"}
_TEXT = _CODE | {".md", ".toml", ".catalog", ".service", ".socket", ".timer"}
_MANUAL = re.compile(r"\.[13578]$|\.README\.Debian$")


def _count(paths: Iterable[Path], root: Path) -> Counter[str]:
    """Return how many phrases there are in each file or folder of the top level of *root*."""
    counts: Counter[str] = Counter()
    for path in paths:
        if (path.suffix in _TEXT or _MANUAL.search(path.name)) and path != Path(__file__):
            found = len(PHRASES.findall(path.read_text(errors="replace")))
            counts.update({path.relative_to(root).parts[0]: found} if found else {})
    return counts


def _wrong(counts: Counter[str], maxima: dict[str, int]) -> list[str]:
    """Return a line for each place that has too many phrases, and for each whose maximum can be lowered."""
    wrong = []
    for place in sorted(counts.keys() | maxima.keys()):
        count, maximum = counts[place], maxima.get(place, 0)
        if count > maximum:
            wrong.append(f"{place}: {count} phrases to avoid, at most {maximum} are allowed: reword what is new")
        elif count < maximum - SLACK:
            wrong.append(f"{place}: {count} phrases to avoid are left of {maximum}: lower its number in AT_MOST")
    return wrong


def test_phrases_to_avoid_do_not_increase() -> None:
    assert not _wrong(_count(committed_files(), ROOT), AT_MOST)


@pytest.mark.parametrize(
    "text",
    [
        "Nobody is there.",
        "The client is told so.",
        "It is made anew.",
        "A program, who asks, waits.",
        "It keeps what waits.",
        "'x' is no size.",
        "It tells who is there.",
        "the kernel's word",
    ],
)
def test_a_phrase_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.7").write_text(f"{text}\n")
    assert _count([tmp_path / "page.7"], tmp_path) == {"page.7": 1}


@pytest.mark.parametrize("text", ["The bus notifies the client.", "Run them beside each other.", "A user who\nis there.", "bystander"])
def test_plain_text_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text)
    assert not _count([tmp_path / "page.md"], tmp_path)


def test_only_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_text("nobody")
    assert not _count([tmp_path / "picture.png"], tmp_path)


def test_a_maximum_may_only_fall() -> None:
    assert not _wrong(Counter(man=5), {"man": 5})
    assert not _wrong(Counter(), {"man": SLACK})
    assert _wrong(Counter(man=6), {"man": 5}) == ["man: 6 phrases to avoid, at most 5 are allowed: reword what is new"]
    assert _wrong(Counter(docs=1), {}) == ["docs: 1 phrases to avoid, at most 0 are allowed: reword what is new"]
    assert _wrong(Counter(man=5), {"man": 16}) == ["man: 5 phrases to avoid are left of 16: lower its number in AT_MOST"]
