"""The blocking classes and those of asyncio have the same methods, the same code but for ``await``, and one documentation."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sbusd.client
from sbusd.client import (
    AsyncBus,
    AsyncJob,
    AsyncPresence,
    AsyncRemoteStore,
    AsyncStore,
    AsyncSubscription,
    AsyncTap,
    Bus,
    Job,
    Presence,
    RemoteStore,
    Store,
    Subscription,
    Tap,
)
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.blobs import AsyncBlobMethods, AsyncBlobSubscription
from sbusd.client.asyncio.calls import AsyncCallMethods
from sbusd.client.asyncio.control import AsyncControlMethods
from sbusd.client.asyncio.stored_streams import AsyncStoredStreams
from sbusd.client.sync.blobs import BlobMethods, BlobSubscription
from sbusd.client.sync.calls import CallMethods
from sbusd.client.sync.control import ControlMethods
from sbusd.client.sync.stored_streams import StoredStreams
from tools import faces
from tools.stage import ROOT

PAIRS = [
    (Bus, AsyncBus),
    (ControlMethods, AsyncControlMethods),
    (BlobMethods, AsyncBlobMethods),
    (CallMethods, AsyncCallMethods),
    (Subscription, AsyncSubscription),
    (BlobSubscription, AsyncBlobSubscription),
    (Presence, AsyncPresence),
    (Tap, AsyncTap),
    (Store, AsyncStore),
    (StoredStreams, AsyncStoredStreams),
    (RemoteStore, AsyncRemoteStore),
    (Job, AsyncJob),
]


def public(face: type) -> list[str]:
    return [name for name in vars(face) if not name.startswith("_")]


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_same_names_in_the_same_order(blocking: type, asynchronous: type) -> None:
    assert public(blocking) == public(asynchronous)


def blocking_names(text: str) -> str:
    """Return an annotation with the classes of a blocking program."""
    return re.sub(r"\bAsync(?=[A-Z])", "", text)


METHODS = [(one, other, name) for one, other in PAIRS for name in public(one) if callable(getattr(one, name))]


@pytest.mark.parametrize(("blocking", "asynchronous", "name"), METHODS)
def test_same_arguments(blocking: type, asynchronous: type, name: str) -> None:
    one, other = inspect.signature(getattr(blocking, name)), inspect.signature(getattr(asynchronous, name))
    assert [str(each) for each in one.parameters.values()] == [blocking_names(str(each)) for each in other.parameters.values()]
    assert one.return_annotation in {other.return_annotation, blocking_names(other.return_annotation)}


# The code

_ITERATION = {"__iter__", "__aiter__", "__anext__", "__await__", "items", "_next_item"}
"""Written for speed in each class, and tested in both: not compared."""


class _Blocking(ast.NodeTransformer):
    """Makes the code of a class for asyncio that of a blocking one, and leaves out docstrings.

    A blocking class begins at once, one for asyncio when it is awaited: so the one that the former begins is the one it returns.
    """

    def visit_Await(self, node: ast.Await) -> Any:
        return self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "_begun" else node

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST | None:
        if node.name in _ITERATION:
            return None
        self.generic_visit(node)
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        return ast.FunctionDef(node.name, node.args, body, node.decorator_list, node.returns, lineno=0)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast calls

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        decorators = [each for each in node.decorator_list if "documented_by" not in ast.unparse(each)]
        bases = [each for each in node.bases if ast.unparse(each) != "WarnsIfUnused"]  # a blocking one is never unused
        return ast.ClassDef(node.name, bases, node.keywords, node.body[1:], decorators)


_NAMES = [
    (r"sbusd\.client\.asyncio", "sbusd.client.sync"),
    (r"\bA?[Ss]ync(?=[A-Z])", ""),
    (r"\basync(?=contextmanager\b)", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"Coroutine\[None, None, (\w+)\]", r"\1"),
]


def code_of(text: str) -> dict[str, str]:
    """Return the code of each class in *text*, with the names and the keywords of a blocking program."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    codes = [ast.unparse(ast.fix_missing_locations(_Blocking().visit(node))) for node in classes]
    for pattern, replacement in _NAMES:
        codes = [re.sub(pattern, replacement, code) for code in codes]
    return {code.partition(":")[0]: code for code in codes}


@pytest.mark.parametrize(
    "module", ["blobs.py", "bus.py", "calls.py", "control.py", "parts.py", "store.py", "stored_streams.py", "streams.py"]
)
def test_same_code_but_for_await(module: str) -> None:
    sync, asynchronous = (Path(ROOT, "sbusd/client", folder, module).read_text() for folder in ("sync", "asyncio"))
    assert code_of(sync) == code_of(asynchronous)


@pytest.mark.parametrize("change", [("receive(timeout)", "receive(None)"), ("self.close()", "self"), ("= None) -> Item", "= 1) -> Item")])
def test_other_code_is_found(change: tuple[str, str]) -> None:
    sync, asynchronous = (Path(ROOT, "sbusd/client", folder, "streams.py").read_text() for folder in ("sync", "asyncio"))
    assert change[0] in asynchronous
    assert code_of(sync) != code_of(asynchronous.replace(*change))


@pytest.mark.parametrize("module", faces.MODULES)
def test_made_from_that_of_asyncio(module: str) -> None:
    assert faces.path(module).read_text() == faces.made(module), "run make faces"


def test_what_a_blocking_program_is_made_of() -> None:
    asynchronous = '''"""Text for ``async with`` and asyncio.AsyncBus."""

from sbusd.client.asyncio.link import AsyncLink


class AsyncOne(AsyncOther):
    """One."""
    # In sync:
    # The first line: ``with``.
    #
    # The second.

    async def each(self) -> Coroutine[None, None, str]:  # await stays in a comment
        """Await it."""
        async for one in await self.found("await"):
            raise StopAsyncIteration
'''
    blocking = '''"""Text for ``async with`` and asyncio.AsyncBus."""

from sbusd.client.sync.link import SyncLink


class One(Other):
    """The first line: ``with``.

    The second.
    """

    def each(self) -> str:  # await stays in a comment
        """Await it."""
        for one in self.found("await"):
            raise StopIteration
'''
    assert faces.blocking(asynchronous) == blocking


# The documentation


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_one_documentation(blocking: type, asynchronous: type) -> None:
    for name in public(blocking):
        text = inspect.getdoc(getattr(asynchronous, name))
        assert text, name
        assert text == inspect.getdoc(getattr(blocking, name)), name


def test_help_shows_it() -> None:
    text = pydoc.plain(pydoc.render_doc(AsyncBus))
    for name in ("connect", "publish", "coalesce", "address", "statistics", "serve"):
        first = (inspect.getdoc(getattr(Bus, name)) or "").partition("\n")[0]
        assert first in text, name


def test_a_method_without_a_pair_is_an_error() -> None:
    class Other:
        def unknown(self) -> None: ...

    with pytest.raises(AttributeError):
        documented_by(Bus)(Other)


# The package


def test_every_exported_name_is_there() -> None:
    assert sorted(sbusd.client.__all__, key=str) == sorted(set(sbusd.client.__all__))
    for name in sbusd.client.__all__:
        assert getattr(sbusd.client, name) is not None


@pytest.mark.slow
def test_the_client_is_imported_without_pydantic_and_asyncio() -> None:
    """A program that only publishes does not wait for modules that others need."""
    code = "import sys, sbusd.client; sbusd.client.Bus; print('pydantic' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
