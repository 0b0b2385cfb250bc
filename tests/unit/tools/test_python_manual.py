"""sbus-python(3) says what the docstrings of sbus say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sbus
from tools import python_manual
from tools.python_manual import PAGE, SECTIONS, date_of, main, page


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == page(date_of(text)), "man/sbus-python.3 is not up to date; run: make docs"


def test_each_public_name_is_described_once() -> None:
    described = re.findall(r"^\.Ss (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(described) == sorted(sbus.__all__)


def test_each_method_is_described_where_its_class_is_also_an_inherited_one() -> None:
    sections = dict(re.findall(r"^\.Ss (\w+)\n(.*?)(?=^\.S[sh] )", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    found = 0
    for name, text in sections.items():
        kind = getattr(sbus, name)
        if not isinstance(kind, type) or issubclass(kind, Exception):
            continue
        public = {base.__name__ for base in kind.__mro__[1:]} & set(sections)
        for owner in kind.__mro__:
            if owner.__module__.startswith("sbus.") and owner.__name__ not in public:
                methods = [each for each, value in vars(owner).items() if callable(value) or isinstance(value, property | classmethod)]
                missing = [each for each in methods if not each.startswith("_") and not re.search(rf"(\b|fB){each}\b", text)]
                assert not missing, f"{name}: {missing}"
                found += len(methods)
    assert found > 150


def test_only_errors_are_left_for_the_section_of_errors() -> None:
    rest = set(sbus.__all__) - {name for section in SECTIONS.values() for name in section}
    classes = [getattr(sbus, name) for name in rest - {"ErrorCode"}]
    assert all(issubclass(each, Exception) for each in classes)


def test_the_date_changes_with_the_page_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / PAGE.name
    monkeypatch.setattr(python_manual, "PAGE", target)
    target.write_text(page("January 1, 2000"))
    main()
    assert date_of(target.read_text()) == "January 1, 2000"
    target.write_text(page("January 1, 2000") + "stale\n")
    main()
    assert target.read_text() == page(date_of(target.read_text()))
    assert date_of(target.read_text()) != "January 1, 2000"


def test_the_parts_of_a_class() -> None:
    (node,) = ast.parse(
        '''class AsyncThing(Base):
    """A thing."""
    limit: int = 3
    """Its limit."""
    async def get(self) -> int: ...
    def walk(self) -> AsyncIterator[int]: ...
    @asynccontextmanager
    async def hold(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def name(self) -> Coroutine[None, None, str]: ...
'''
    ).body
    assert isinstance(node, ast.ClassDef)
    text = "".join(python_manual._class(node, "A thing."))
    assert "class AsyncThing(Base)\n" in text
    assert ".It \\fBlimit: int = 3\\fP\nIts limit.\n" in text
    assert "Await: \\fBget\\fP, \\fBname\\fP.\n" in text
    assert "Iterate with \\fBasync for\\fP: \\fBwalk\\fP.\n" in text
    assert "Use with \\fBasync with\\fP: \\fBhold\\fP.\n" in text
    assert "Call without \\fBawait\\fP: \\fBstop\\fP.\n" in text


@pytest.mark.parametrize(
    ("source", "signature"),
    [
        ("def f(self, a: int=1, *b: str) -> None: ...", "f(a: int = 1, *b: str) -> None"),
        ("def f() -> int: ...", "f() -> int"),
        (
            "def f(cls, first: dict[str, int], *, second: tuple[int, ...]=(), third: str | None=None) -> None: ...",
            "f(\n    first: dict[str, int],\n    *,\n    second: tuple[int, ...] = (),\n    third: str | None = None,\n) -> None",
        ),
    ],
)
def test_signatures(source: str, signature: str) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert python_manual._signature(node, "f") == signature
