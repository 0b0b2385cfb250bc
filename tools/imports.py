"""Which module of the project imports which other: read from the source, Python and Cython, without running it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.stage import HOUSES, house_files

_CYTHON_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(?P<origin>[\w.]+)[ \t]+)?c?import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)", re.MULTILINE)

_INCLUDE = re.compile(r'^include "([\w/.]+)"$', re.MULTILINE)


_ONE_PART = {"sbus", "sbusctl"}
"""Houses whose rooms may import each other as they need."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import, by the absolute name of what is imported: a module, or a name in one."""

    path: Path
    line: int
    target: str

    def __str__(self) -> str:
        """Return it as a compiler would name it."""
        return f"{self.path}:{self.line}: imports {self.target}"


def imports_of_tree(root: Path) -> Iterator[Import]:
    """Yield every import in the packages under *root*; paths are relative to *root*."""
    for path in house_files(".py", ".pyi", ".pyx", ".pxi", ".pxd", root=root):
        yield from _imports_of(path, path.relative_to(root), path.read_text())


@functools.cache
def _imports_of(path: Path, relative: Path, text: str) -> tuple[Import, ...]:
    """Return the imports of a file; reading the whole tree takes seconds."""
    return tuple((_python_imports if path.suffix in {".py", ".pyi"} else _cython_imports)(text, relative))


def included_in(path: Path) -> list[str]:
    """Return the files that a Cython file includes, in their order, by their names relative to its folder."""
    return _INCLUDE.findall(path.read_text())


def part_of(target: str) -> str:
    """Return the part of the project that the absolute name *target* is in, or ``""``.

    ``sbusd.broker`` for ``sbusd.broker.access.Access``. The client is one part, except for its protocol, and so is sbusctl.
    """
    house, *rest = target.split(".")
    if house not in HOUSES:
        return ""
    if not rest or (house in _ONE_PART and rest[0] != "protocol"):
        return house
    return f"{house}.{rest[0]}"


def module_of(path: Path) -> str:
    """Return the absolute name of the module at *path*, relative to the root."""
    names = list(path.with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def _python_imports(text: str, relative: Path) -> Iterator[Import]:
    """Yield the imports of a Python file, those inside functions and those by name too."""
    for node in ast.walk(ast.parse(text, str(relative))):
        match node:
            case ast.Import(names=names):
                yield from (Import(relative, node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = _absolute(relative, "." * level + (module or ""))
                yield from (Import(relative, node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(target)), *_]):
                if name in {"import_module", "__import__", "run_module"}:
                    yield Import(relative, node.lineno, target)


def _cython_imports(text: str, relative: Path) -> Iterator[Import]:
    """Yield the imports and cimports of a Cython file."""
    for match in _CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, match.start("names")) + 1
        for name in match["names"].strip("()").split(","):
            imported = name.split()[0] if name.split() else ""
            if not imported:
                continue
            yield Import(relative, line, f"{_absolute(relative, match['origin'])}.{imported}" if match["origin"] else imported)


def _absolute(relative: Path, module: str) -> str:
    """Return the absolute name of *module*, which may begin with dots, as the file at *relative* means it."""
    dots = len(module) - len(module.lstrip("."))
    if not dots:
        return module
    package = relative.parent.parts[: len(relative.parent.parts) - dots + 1]
    return ".".join([*package, *filter(None, [module[dots:]])])
