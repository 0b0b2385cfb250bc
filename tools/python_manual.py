"""Makes man/sbus-python.3 from the docstrings of ``sbus``: ``python -m tools.python_manual``, or ``make docs``.

The sources are read, not imported, so the page is the same with every version of Python.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Container, Iterable, Iterator
from datetime import UTC, datetime

from tools.roff import indented, literal, paragraphs, tagged
from tools.stage import ROOT

PAGE = ROOT / "man" / "sbus-python.3"

SECTIONS = {
    "CONNECTIONS": ("Bus", "AsyncBus", "bus_address", "Scope", "Statistics"),
    "SUBSCRIPTIONS": ("Subscription", "AsyncSubscription", "raise_missing", "Overflow", "QUEUE_BYTES", "QUEUE_PACKETS"),
    "MESSAGES": ("Item", "Message", "Gap", "Replaced", "Reconnected"),
    "BLOBS": ("Blob", "BlobData", "BlobRecipient", "BlobMessage", "BlobGone"),
    "PRESENCE": ("Presence", "AsyncPresence", "PresenceItem", "PresenceEvent", "Change", "Peer"),
    "CALLS AND SERVICES": (
        "Request",
        "Cancellation",
        "Answer",
        "Outcome",
        "Allow",
        "Twins",
        "ServiceError",
        "CALL_SECONDS",
        "CALL_TRIES",
        "STREAM_WINDOW",
    ),
    "STORED MESSAGES": (
        "Store",
        "AsyncStore",
        "RemoteStore",
        "AsyncRemoteStore",
        "NewMessage",
        "Put",
        "StoredMessage",
        "StoreGap",
        "StoreItem",
        "Job",
        "AsyncJob",
        "QueuedJob",
    ),
    "TAPS": ("Tap", "AsyncTap", "TapItem", "TapRecord"),
}
"""The sections of the page, and the names that each describes; the rest are errors."""

_HEAD = """\
.\\" Made from the docstrings of sbus: edit those, then run "make docs".
.Dd {date}
.Dt SBUS-PYTHON 3
.Os
.Sh NAME
.Nm sbus-python
.Nd Python client of the message bus
.Sh SYNOPSIS
.Bd -literal
from sbus import Bus

with Bus.connect() as bus, bus.subscribe("chat/") as chat:
    bus.publish("chat/python", "hello")
    for message in chat:
        print(message.key, message.text)
.Ed
.Sh DESCRIPTION
The module
.Ql sbus
has two clients with the same methods.
.Ql Bus
blocks the calling thread, and
.Ql AsyncBus
is for asyncio.
Keys, patterns and payloads are given as
.Vt str
or
.Vt bytes .
Of a received message,
.Ql key
and
.Ql text
are
.Vt str ,
and
.Ql key_bytes
and
.Ql payload
are
.Vt bytes .
.Pp
.Xr sbus 7
introduces the bus.
"""

_TAIL = """\
.Sh SEE ALSO
.Xr sbusctl 1 ,
.Xr sbus 7 ,
.Xr sbus-protocol 7 ,
.Xr sbus-rpc 7
"""

LINE = 70
"""Columns of the longest signature in one line."""

_DEFAULT = re.compile(r"(: [^=]+)=")
"""The equals sign of a default behind a type, which ast.unparse() prints without spaces."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign


def main() -> None:
    """Write the page, with today's date if anything in it has changed."""
    old = PAGE.read_text() if PAGE.exists() else ""
    if page(date_of(old)) != old:
        now = datetime.now(UTC)
        PAGE.write_text(page(f"{now:%B} {now.day}, {now.year}"))


def date_of(text: str) -> str:
    """Return the date in the head of a page, or no words."""
    match = re.search(r"^\.Dd (.*)$", text, re.MULTILINE)
    return match[1] if match else ""


def page(date: str) -> str:
    """Return the whole page."""
    names = _public_names()
    chosen = {name for section in SECTIONS.values() for name in section}
    sections = {**SECTIONS, "ERRORS": tuple(sorted(names.keys() - chosen))}
    parts = [_HEAD.format(date=date)]
    for title, section in sections.items():
        parts.append(f".Sh {title}\n")
        for name in section:
            node, text = _definition(names[name], name)
            parts += _described(name, _with_parts(names[name], node, names), text)
            parts += _module_text(names[name]) if name in {"Bus", "AsyncBus"} else []
    return "".join([*parts, _TAIL])


def _public_names() -> dict[str, str]:
    """Return the public names of ``sbus``, and the module of each."""
    tree = _parse("sbus")
    (modules,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES")
    return {name: module for module, names in ast.literal_eval(modules).items() for name in names}


@functools.cache
def _parse(module: str) -> ast.Module:
    """Return the source of *module*."""
    path = ROOT.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def _definition(module: str, name: str) -> tuple[Definition, str]:
    """Return where *module*, or the one that it imports *name* from, defines it, and the docstring. Raises: LookupError."""
    body = _parse(module).body
    for number, node in enumerate(body):
        match node:
            case ast.ClassDef(name=defined) | ast.FunctionDef(name=defined) if defined == name:
                return node, ast.get_docstring(node) or ""
            case ast.Assign(targets=[ast.Name(id=defined)]) if defined == name:
                return node, _text_behind(body, number)
            case ast.ImportFrom(module=str(origin), names=names) if any(alias.name == name for alias in names):
                return _definition(origin, name)
    raise LookupError(f"{module} does not define {name}")


def _module_text(module: str) -> list[str]:
    """Return what the docstring of *module* says after its first paragraph: the rules that hold for a whole client."""
    rules = paragraphs((ast.get_docstring(_parse(module)) or "").partition("\n\n")[2])
    return [f".Pp\n{rules}"] if rules else []


def _text_behind(body: list[ast.stmt], number: int) -> str:
    """Return the docstring behind the assignment *number* of *body*."""
    match body[number + 1 : number + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return text
    return ""


def _described(name: str, node: Definition, text: str) -> Iterator[str]:
    """Yield the subsection about one public name."""
    yield f".Ss {name}\n"
    match node:
        case ast.ClassDef():
            yield from _class(node, text)
        case ast.Assign():
            yield literal(f"{name} = {ast.unparse(node.value)}") + indented(paragraphs(text))
        case _:
            yield literal(_signature(node, name)) + indented(paragraphs(text))


def _with_parts(module: str, node: Definition, public: Container[str]) -> Definition:
    """Return a class with the methods of its bases that are not *public*, in place of these bases: no other section has them."""
    if not isinstance(node, ast.ClassDef):
        return node
    bases, body = [], list(node.body)
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        try:
            part = None if name in public else _with_parts(_home(module, name), _definition(module, name)[0], public)
        except (LookupError, FileNotFoundError):  # of the standard library
            part = None
        if isinstance(part, ast.ClassDef):
            own = {each.name for each in _methods(node)}
            body += [each for each in _methods(part) if each.name not in own]
        else:
            bases.append(base)
    return ast.ClassDef(node.name, bases, node.keywords, body, node.decorator_list)


def _home(module: str, name: str) -> str:
    """Return the module that *module* imports *name* from, or itself."""
    imports = [node for node in _parse(module).body if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names)]
    return str(imports[0].module) if imports else module


def _class(node: ast.ClassDef, text: str) -> Iterator[str]:
    """Yield what a class is, its fields, and its methods."""
    fields = tagged(_fields(node))
    if node.bases:
        yield literal(f"class {node.name}({', '.join(ast.unparse(base) for base in node.bases)})") + ".Pp\n"
    yield paragraphs(text) + (f".Pp\n{fields}" if fields else "")
    if node.name.startswith("Async"):
        yield f".Pp\n{paragraphs(_of_asyncio(node))}"
        return
    for method in _methods(node):
        is_property = any(ast.unparse(each) == "property" for each in method.decorator_list)
        yield literal(
            f"{method.name}: {ast.unparse(method.returns)}" if is_property and method.returns else _signature(method, method.name)
        )
        yield indented(paragraphs(ast.get_docstring(method) or ""))


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the public methods of a class, without overloads."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_")]
    return [each for each in methods if not any(ast.unparse(decorator) == "overload" for decorator in each.decorator_list)]


def _of_asyncio(node: ast.ClassDef) -> str:
    """Return how the methods of a class differ from those of the class without ``Async``: only in how they are waited for."""
    # A property that can be set is two methods with one name.
    kinds: dict[str, dict[str, None]] = {
        "Await": {},
        "Use with ``async with``": {},
        "Iterate with ``async for``": {},
        "Call without ``await``": {},
    }
    for method in _methods(node):
        kinds[_kind(method)][f"``{method.name}``"] = None
    sentences = [f"{kind}: {', '.join(names)}." for kind, names in kinds.items() if names]
    return f"The methods are those of ``{node.name.removeprefix('Async')}``.\n\n" + "\n\n".join(sentences)


def _kind(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return how a method of an asyncio class is used."""
    if any(ast.unparse(decorator) == "asynccontextmanager" for decorator in method.decorator_list):
        return "Use with ``async with``"
    returns = ast.unparse(method.returns) if method.returns else ""
    if returns.startswith(("AsyncIterator", "AsyncGenerator")):
        return "Iterate with ``async for``"
    return "Await" if isinstance(method, ast.AsyncFunctionDef) or returns.startswith("Coroutine") else "Call without ``await``"


def _fields(node: ast.ClassDef) -> Iterable[tuple[str, str]]:
    """Yield the public fields of a class: members of an enumeration, fields of a dataclass, and what the constructor of an error sets."""
    for number, each in enumerate(node.body):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                default = f" = {ast.unparse(each.value)}" if each.value else ""
                yield f"{name}: {ast.unparse(each.annotation)}{default}", _text_behind(node.body, number)
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("_"):
                yield f"{name} = {ast.unparse(each.value)}", _text_behind(node.body, number)
            case ast.FunctionDef(name="__init__"):
                yield from _set_by(each)


def _set_by(constructor: ast.FunctionDef) -> Iterable[tuple[str, str]]:
    """Yield the public fields that a constructor sets from its arguments, with their types."""
    types = {each.arg: ast.unparse(each.annotation) for each in constructor.args.args if each.annotation}
    for number, each in enumerate(constructor.body):
        match each:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]) if not name.startswith("_"):
                known = types.get(ast.unparse(each.value))
                yield f"{name}: {known}" if known else name, _text_behind(constructor.body, number)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """Return how a function is called, with an argument per line where one line would be too long."""
    arguments = [_DEFAULT.sub(r"\1 = ", each) for each in _split(ast.unparse(node.args)) if each not in {"self", "cls", ""}]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({', '.join(arguments)}){returns}"
    return line if len(line) <= LINE else f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){returns}"


def _split(arguments: str) -> list[str]:
    """Return the single arguments of a list of them; commas within brackets do not separate."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


if __name__ == "__main__":
    main()
