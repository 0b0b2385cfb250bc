"""The one extension module of the data plane is in rooms: folders whose files are included one after the other. Code uses code of its own
room or of a lower one, files do not use each other in a circle, and each file names the functions of C that it calls.

Structures are not looked at: C demands that each is declared before it is used.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tools.imports import included_in
from tools.stage import ROOT

PLANE = ROOT / "sbusd" / "dataplane"

FACE = ""
"""The folder itself: what the broker and a compiled control plane call."""

MAY_USE = {
    "queue": set(),
    "route": set(),
    "plane": {"queue"},
    "wire": {"queue", "plane"},
    "turn": {"queue", "route", "plane", "wire"},
    FACE: {"queue", "route", "plane", "wire", "turn"},
}
"""For each room, the others whose functions and constants it may use."""

_PROSE = re.compile(r'"""(?:.|\n)*?"""|#[^\n]*')
_DEFINED = re.compile(r"^cdef (?:inline )?(?!class|enum|extern|struct|cppclass)[^\n(=]*?(\w+)\(|^def (\w+)\(", re.MULTILINE)
_ENUM = re.compile(r"^cdef enum[^\n]*:\n((?: {4}[^\n]*\n|\n)+)", re.MULTILINE)
_MEMBER = re.compile(r"^ {4}([A-Z]\w*)", re.MULTILINE)
_SIGNATURE = re.compile(r"^ *(?:cdef|def) [^\n=(]*\(", re.MULTILINE)
_USED = re.compile(r"(?<![.\w])([A-Z][A-Z_]{2,}\w*|\w+(?=\())")
_FROM_C = re.compile(r"^from [\w.]+ cimport (\([^)]*\)|[^\n]*)\n", re.MULTILINE)

Sources = dict[str, str]
"""The code of each file, without prose, by its name relative to the folder."""


def read(folder: Path) -> Sources:
    """Return the code of the module and of all that it includes."""
    names = (*included_in(folder / "switch.pyx"), "switch.pyx")
    return {name: _PROSE.sub("", (folder / name).read_text()) for name in names}


def defined_in(code: str) -> set[str]:
    """Return the functions and constants that a file defines."""
    return {a or b for a, b in _DEFINED.findall(code)} | {name for each in _ENUM.findall(code) for name in _MEMBER.findall(each)}


def uses(sources: Sources) -> dict[str, set[str]]:
    """Return for each file the other files whose functions or constants it uses."""
    home = {name: file for file, code in sources.items() for name in defined_in(code)}
    found = {file: {home[name] for name in _USED.findall(_SIGNATURE.sub("", code)) if name in home} for file, code in sources.items()}
    return {file: others - {file} for file, others in found.items()}


def room_of(file: str) -> str:
    """Return the room of a file."""
    return file.rpartition("/")[0]


def wrong_uses(sources: Sources) -> list[str]:
    """Return a line for each use of a higher room, and one for a circle of files."""
    used = uses(sources)
    wrong = [
        f"{file} uses {other}"
        for file, others in used.items()
        for other in sorted(others)
        if room_of(other) not in MAY_USE[room_of(file)] | {room_of(file)}
    ]
    try:
        TopologicalSorter(used).prepare()
    except CycleError as error:
        wrong.append("a circle: " + " uses ".join(reversed(error.args[1])))
    return wrong


def taken_from_c(code: str) -> set[str]:
    """Return the names that a file cimports."""
    named = ",".join(each.strip("()") for each in _FROM_C.findall(code)).replace("\n", " ")
    return {name.split(" as ")[-1].strip() for name in named.split(",")} - {""}


def test_code_uses_only_lower_rooms() -> None:
    assert wrong_uses(read(PLANE)) == []


def test_each_file_is_included_once() -> None:
    for module in ("switch.pyx", "switch.pxd"):
        named = included_in(PLANE / module)
        kind = ".pxi" if module.endswith("x") else ".pxd"
        alone = {"switch.pxd", "libc.pxd", "traffic.pxd", "ancillary.pxd"}  # the last three are cimported
        there = {str(path.relative_to(PLANE)) for path in PLANE.rglob(f"*{kind}")} - alone
        assert sorted(named) == sorted(there)


def test_each_permission_is_used() -> None:
    used = {(room_of(file), room_of(other)) for file, others in uses(read(PLANE)).items() for other in others}
    assert {(room, other) for room, others in MAY_USE.items() for other in others} <= used


def test_each_file_names_what_it_takes_from_c() -> None:
    """docs/routing-thread.md lists the system calls of each file by these names."""
    sources = read(PLANE)
    known = set().union(*map(taken_from_c, sources.values()))
    for file, code in sources.items():
        calls = set(re.findall(r"(?<![.\w])\w+(?=\()", _SIGNATURE.sub("", _FROM_C.sub("", code)))) - defined_in(code)
        assert calls & known <= taken_from_c(code), file


@pytest.mark.parametrize(
    ("changed", "added", "says"),
    [
        ("route/trie.pxi", "cdef void f() noexcept nogil:\n    serve(NULL)\n", "route/trie.pxi uses turn/turn.pxi"),
        ("queue/order.pxi", "cdef size_t f() noexcept nogil:\n    return PAUSE_MS\n", "queue/order.pxi uses turn/acceptor.pxi"),
        ("wire/intake.pxi", "cdef void f() noexcept nogil:\n    route(NULL, NULL, 0, 0)\n", "wire/intake.pxi uses turn/delivery.pxi"),
        ("queue/packet_memory.pxi", "cdef void f() noexcept nogil:\n    flush(NULL)\n", "a circle: "),
    ],
)
def test_a_use_of_a_higher_room_is_found(changed: str, added: str, says: str) -> None:
    sources = read(PLANE)
    sources[changed] += added
    assert any(line.startswith(says) for line in wrong_uses(sources))
