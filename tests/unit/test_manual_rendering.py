"""The manual as readers see it: no markup in the text, and references to pages and sections that exist."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import skips
from tests.support.manual import examples, source, sources
from tests.unit.test_house import committed_files
from tools.stage import ROOT

PAGES = tuple(sorted(path for path in (ROOT / "man").iterdir() if re.fullmatch(r".+\.[1-8]", path.name)))

NUMBERED = {
    "sbus-protocol.7": [
        *("TRANSPORT", "PACKETS", "ROUTING KEYS AND PATTERNS", "PRIVATE KEYS", "THE RESERVED NAMESPACE", "CONTROL MESSAGES"),
        *("QUEUES AND LOSSES", "ERRORS", "LIMITS"),
    ],
    "sbus-rpc.7": [
        *("KEYS", "THE ENVELOPE", "A CALL", "VALID RESPONSES", "FAILURES", "CALLS TO A GROUP", "SERVICES", "STATISTICS", "REMOTE HOSTS"),
    ],
}
"""The pages whose sections have numbers, which the code cites."""

_MACROS = (
    "A[dopqr]|B[cdfkloq]|Br[coq]|Cm|D[cdlqtv]|E[cdfklmnorv]|F[acdlnort]|Ic|L[ikp]|M[st]|N[dms]|O[copt]|P[acfopq]|Q[cloq]|Rs|S[chmqsxy]|Tn|"
    "V[at]|X[cor]"
)
"""Macros of mdoc(7) that are not English words."""

_WORDS = "the|a|an|of|to|in|is|are|and|or|for|on|at|by|from|it|its|be|was|not|this|has|have|can|which|than|as"
"""Words of which two in a row are a mistake."""

_LEAKS = {
    "a macro": re.compile(rf"(?:^|[\s(‘“])\.[A-Z][a-z] |(?<![\w/.-])(?:{_MACROS})(?![\w/.=-])"),
    "quotes in quotes": re.compile(r"‘[^’]{0,80}‘|’’|“[^”]{0,80}“|””"),
    "a doubled word": re.compile(rf"(?<![\w-])({_WORDS}) \1(?![\w-])"),
    "a doubled item": re.compile(r"(?<![\w-])([a-z]\w{3,}), \1(?=[,.](?: |$))"),
    "a space before a mark": re.compile(r"\w [,.;](?= )"),
    "a character that is not rendered": re.compile(r"<\?>|\\[&ef(\[]"),
}

_DOUBLED = re.compile(r"\S (?<!-- )([A-Za-z]{2,}) \1(?![\w-]|\.\w).*")

_REFERENCE = re.compile(
    r"\b((?:sbus|msgbus|store\.|link\.|blob\.|trigger\.|feed-dbus\.)[\w.-]*)\((\d)\)(?:'s)?(?:,\s+\"?([A-Z][A-Z]+(?: [A-Z]+)*\b))?"
)
"""A page of ours in plain text, and after it the name of a section in capital letters."""

_ACCEPTED = re.compile("referenced manual not found|ALERTS instead of CAVEATS|possible typo in section name: Sh [0-9]")

_COLUMNS = 80
"""Width of the terminal in which an example must not be wrapped: it could not be copied."""

_SECTION = re.compile(r'^\.Sx (".+?"|.+?)(?: No in Xr (\S+) (\d))?(?: [.,;)])?(?: Pc)?$')
_CAPITALS = re.compile(r"^([A-Z][A-Z]+(?: [A-Z]+)*)(?: ?[.,;)]|$)")
_PAGE = re.compile(r"^\.Xr (\S+) (\d)(?: [.,;)]|$)")
_PAGE_BEFORE = re.compile(r"^\.Xr (\S+) (\d) ,$")


@functools.cache
def _rendered(page: Path, form: str) -> str:
    """Return *page* as a terminal of 80 columns shows it; *form* is utf8 or ascii."""
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", form, "-O", "width=78", str(page)], capture_output=True, check=False)
    # A letter in bold is the letter, a backspace, and the letter.
    return re.sub(r".\x08", "", done.stdout.decode())


def _leaks(text: str) -> Iterator[str]:
    """Yield what a reader of *text* must not see, with the words around it."""
    flat = " ".join(text.split())
    for what, pattern in _LEAKS.items():
        for found in pattern.finditer(flat):
            yield f"{what}: {flat[max(0, found.start() - 30) : found.end() + 30]}"
    # In lines, because more than one space is between the columns of a list.
    yield from (f"a doubled word: {found[0]}" for found in _DOUBLED.finditer(text))


@functools.cache
def _sections(name: str) -> frozenset[str]:
    """Return the titles of the sections of a page, in capital letters; with numbers also without them."""
    titles = [title.strip('"') for title in re.findall(r"^\.S[hs] (.+)$", (ROOT / "man" / name).read_text(), re.MULTILINE)]
    return frozenset(each.upper() for title in titles for each in (title, re.sub(r"^[\d.]+ ", "", title)))


def _wrong_reference(name: str, number: str, section: str) -> str:
    """Return what is wrong with a reference to a page of ours and a section of it; empty if nothing is."""
    page = f"{name}.{number}"
    if not (ROOT / "man" / page).exists():
        return "" if section and not name.startswith("sbus") else f"no page {name}({number})"
    return f"no section {section} in {name}({number})" if section and section.upper() not in _sections(page) else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_markup_is_in_the_text(page: Path) -> None:
    assert list(_leaks(_rendered(page, "utf8"))) == []
    assert "<?>" not in _rendered(page, "ascii")


def _section_references(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name and number of the page, and the title, of each reference to a section in the source of *page*."""
    lines = page.read_text().splitlines()
    own = page.name.rpartition(".")
    for before, line, after, then in zip(["", *lines], lines, [*lines[1:], ""], [*lines[2:], "", ""], strict=False):
        named = _PAGE_BEFORE.match(before)
        if found := _SECTION.match(line):
            where = _PAGE.match(then) if after in ("in", "of") else None
            page_found = where or named
            name, number = (found[2], found[3]) if found[2] else page_found.groups() if page_found else (own[0], own[2])
            yield name, number, found[1].strip('"')
        elif named and (found := _CAPITALS.match(line)):
            yield named[1], named[2], found[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mandoc_and_man_have_no_warnings(page: Path) -> None:
    skips.require_program("mandoc", "mandoc")
    linted = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(page)], capture_output=True, text=True, check=False)
    # Pages of others need not be installed on this machine; sbus-live(8) has a section ALERTS.
    assert [line for line in linted.stdout.splitlines() if not _ACCEPTED.search(line)] == []
    skips.require_program("man", "man-db")
    command = ["man", "--warnings", "-l", str(page)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert (shown.stderr, "SEE ALSO" in shown.stdout) == ("", True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_references_to_sections_lead_somewhere(page: Path) -> None:
    assert [each for each in itertools.starmap(_wrong_reference, _section_references(page)) if each] == []


@pytest.mark.parametrize("name", NUMBERED)
def test_numbered_sections_are_those_that_are_cited(name: str) -> None:
    titles = re.findall(r"^\.Sh (\d+\. .+)$", source(name), re.MULTILINE)
    assert titles == [f"{number}. {title}" for number, title in enumerate(NUMBERED[name], 1)]
    citation = re.compile(rf"{name[:-2]}\(7\) (§\d+(?:(?:, | and | to )§\d+)*)")
    cited = [run for path in sources() for run in citation.findall(path.read_text("utf-8"))]
    assert len(cited) > 5
    cited += re.findall(r"\bsections? (\d+)", source(name))
    assert {int(each) for run in cited for each in re.findall(r"\d+", run)} <= set(range(1, len(titles) + 1))


def test_references_to_our_pages_lead_somewhere() -> None:
    ours = {path.name.rpartition(".")[0] for path in PAGES}
    wrong = []
    for path in committed_files():
        if path.suffix in {".md", ".py", ".pyx", ".pxi", ".toml", ".service", ".socket", ".catalog", ".Debian"} or path in PAGES:
            text = path.read_text(errors="replace")
            if path in PAGES:
                text = "\n".join(f"{name}({number})" for name, number in re.findall(r"^\.Xr (\S+) (\d)", text, re.MULTILINE))
            found = ((name, _wrong_reference(name, number, section)) for name, number, section in _REFERENCE.findall(text))
            wrong += [
                f"{path.relative_to(ROOT)}: {reason}" for name, reason in found if reason and (name in ours or name.startswith("sbus"))
            ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Response: .Cm seqs , the number", "a macro"),
        ("below ‘host/<host>‘/’’.", "quotes in quotes"),
        ("to the the other", "a doubled word"),
        ("uses Ar FILE here", "a macro"),
        ("call, close, close.", "a doubled item"),
        ("this , and that", "a space before a mark"),
    ],
)
def test_a_leak_is_found(text: str, what: str) -> None:
    assert any(each.startswith(what) for each in _leaks(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_line_of_an_example_can_be_copied(page: Path) -> None:
    shown = [" ".join(line.split()) for line in _rendered(page, "utf8").splitlines() if len(line) <= _COLUMNS]
    lines = [" ".join(line.split()) for example in examples(page.name) for line in example]
    assert [line for line in lines if line and not any(line in each for each in shown)] == []


def test_a_guide_denies_only_what_the_manual_does() -> None:
    items = re.findall(r"^\.It (.+)\n(.+)", (ROOT / "man/sbus.7").read_text(), re.MULTILINE)
    wrong = []
    for guide in sorted((ROOT / "docs/guides").glob("from-*.md")):
        for row in re.findall(r"^\| (.+?) \| none", guide.read_text(), re.MULTILINE):
            words = {word.rstrip("s") for word in re.findall(r"[a-z]{5,}", row)}
            wrong += [f"{guide.name}: {row}" for item, text in items if words & set(item.split()) and not text.startswith("Not available")]
    assert wrong == []
