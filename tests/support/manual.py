"""Manual pages as tests read them: their sections, the items of their lists, and the text without macros."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

from tools.stage import ROOT, house_files

_ESCAPES = {"(dq": '"', "(aq": "'", "(ga": "`", "(ti": "~", "(ha": "^", "e": "\\", "-": "-", "&": ""}

_EXAMPLE = re.compile(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed$|^\.Dl ([^\n]+)$", re.MULTILINE | re.DOTALL)


@dataclass(slots=True)
class Item:
    """An item of a list: its head without the macro, and its own lines, without those of lists in it."""

    head: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its own text as the reader sees it."""
        return words("\n".join(self.lines))

    @property
    def names(self) -> list[str]:
        """The names in a head such as ``Cm users , groups`` or ``Li name Ta meaning``."""
        return self.head.partition(" ")[2].partition(" No ")[0].partition(" Pq ")[0].split(" , ")

    @property
    def options(self) -> frozenset[str]:
        """The names in a head such as ``Fl C , Fl -config Ar FILE``, as they are typed."""
        head = re.sub(r" Ns .*| Ar [^ ,]+", "", self.head.replace("Fl Fl ", "Fl -"))
        return frozenset(f"-{name}" for name in re.findall(r"(?:\bFl|, (?!Fl)) ?(-?\w[\w-]*)", head))

    @property
    def default(self) -> str | None:
        """The TOML of the default in a head such as ``Cm file No = Qq x``; None without one."""
        _, sign, value = self.head.partition(" No = ")
        value = re.sub(r" Ns |(?<=\[) ", "", re.sub(r"Qo (\S+) Qc|Qq ?([^] ]*)", r'"\1\2"', unescaped(value)))
        return value if sign else None


def source(name: str) -> str:
    """Return the source of a page, such as ``sbusd.8``."""
    return (ROOT / "man" / name).read_text("utf-8")


def sources() -> list[Path]:
    """Return every source file of the packages."""
    return house_files(".py", ".pyi", ".pyx", ".pxi", ".pxd")


def section(name: str, title: str) -> str:
    """Return one section of a page, by its title or its number, with its subsections, or one subsection."""
    end = rf"{re.escape(title)}(?:\. [^\n]*)?\n(.*?)(?=^\.S"
    pattern = rf"^\.Sh {end}h |\Z)|^\.Ss {end}[hs] |\Z)"
    (found,) = re.findall(pattern, source(name), re.MULTILINE | re.DOTALL)
    return "".join(found)


def words(text: str) -> str:
    """Return *text* in one line, without macros and escapes, its marks without spaces before them."""
    plain = re.sub(r"^\.\w+ ?", "", re.sub(r"^\.(?:\\\"|T[SE]).*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    plain = re.sub(r"(?<=\s)(?:No|Xr|Li|Ar|Cm|Ql|Pa|Pc|Po) ", "", plain.replace("Fl Fl ", "--").replace("Fl ", "-"))
    return re.sub(r" (?=[,.;:)](?: |$))", "", " ".join(unescaped(plain).replace(" Ns ", "").split()))


def unescaped(text: str) -> str:
    """Return *text* of a page without the escapes of mdoc(7)."""
    return re.sub(r"\\(\((?:dq|aq|ga|ti|ha)|[e&-])", lambda found: _ESCAPES[found[1]], text)


def examples(name: str) -> list[list[str]]:
    """Return the lines of each example that a page displays."""
    found = (block or line for block, line in _EXAMPLE.findall(source(name)))
    return [[unescaped(line) for line in each.splitlines() if not line.startswith(".")] for each in found]


def lists(text: str) -> list[list[Item]]:
    """Return the items of each list of *text*, those in items of others too, in the order in which they begin."""
    found: list[list[Item]] = []
    within: list[list[Item]] = []
    for line in text.splitlines():
        if line.startswith(".Bl "):
            found.append([])
            within.append(found[-1])
        elif line.startswith(".It"):
            within[-1].append(Item(line.removeprefix(".It ")))
        elif line == ".El":
            del within[-1:]  # *text* may end with a list that began before it
        elif within and within[-1]:
            within[-1][-1].lines.append(line)
    return found


def items(text: str) -> list[Item]:
    """Return the items of all lists of *text*."""
    return list(itertools.chain.from_iterable(lists(text)))
