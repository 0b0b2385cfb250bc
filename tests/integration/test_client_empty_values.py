"""Every argument of the public functions of the client that can be left out, with each empty value: it never means the same as nothing.

A program that computes an argument, and computes nothing, must not remove all messages instead of none, or get each job in each worker.
An argument that is a function is in the same table: what cannot be called is refused at the call, not where it would be called.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from sbus import Allow, AsyncBus, Bus, NewMessage, SbusError, Twins
from sbus.asyncio.store import AsyncJob, AsyncStore
from sbus.asyncio.stored_streams import AsyncRemoteStore
from sbus.asyncio.streams import AsyncPresence, AsyncSubscription
from sbus.sync.store import Job, Store
from sbus.sync.stored_streams import RemoteStore
from sbus.sync.streams import Presence, Subscription
from tests.support.client_methods import REQUIRED, subject
from tests.support.daemons import Daemon

EMPTY: list[Any] = ["", b"", [], (), {}, set(), bytearray()]
NO_FUNCTIONS: list[Any] = [5, "print"]

BLOCKING = (Bus, Subscription, Presence, Store, RemoteStore, Job, NewMessage, Allow, Twins)
COROUTINES = (AsyncBus, AsyncSubscription, AsyncPresence, AsyncStore, AsyncRemoteStore, AsyncJob)
FUNCTIONS = ("on_gap", "ready", "on_refused")

MEANING: dict[str, tuple[object, ...]] = {
    "payload": ("", b"", bytearray()),
    "data": ("", b"", bytearray()),
    "connect.name": ("",),  # a label for people
    "context": ("",),  # that of a request without one
    "get_blob.host": ("",),  # this host: of a reference to one of its blobs
    "publish_blob.type": ("",),
    "service.group": ("", b""),  # this service runs every call, as the page says
    "pattern": ("", b""),  # matches every key, as in subscribe
    "Allow.users": ([], ()),  # it admits no caller
    "Allow.groups": ([], ()),
    "Twins.numbers": ([], ()),  # no other host may call
    "Twins.relays": ([], ()),
    "fail.reason": ("",),
    "purge.seqs": ([], ()),  # nothing is removed
}
"""Arguments of which an empty value has a meaning of its own."""


SHARES_BUS = True


def optional_arguments(kind: type) -> Iterator[tuple[str, str, inspect.Signature]]:
    """Yield the method, the name and the signature of each argument of *kind* with a default, but truth values, which any object has."""
    for name, method in inspect.getmembers(kind, callable):
        if not name.startswith("_") or (name == "__init__" and kind in {NewMessage, Allow, Twins}):
            signature = inspect.signature(method)
            for each in signature.parameters.values():
                if each.default is not each.empty and each.annotation != "bool":
                    yield name, each.name, signature
    for name, value in inspect.getmembers(kind):
        if isinstance(value, property) and value.fset is not None:
            yield name, name, inspect.signature(value.fset)


def is_to_refuse(label: str, value: object) -> bool:
    """Return whether the argument *label* must not be *value*, with the type that it has."""
    meant = MEANING.get(label, MEANING.get(label.partition(".")[2], ()))
    return not any(type(value) is type(each) for each in meant)


def cases(kind: type, address: str) -> Iterator[tuple[str, str, list[Any], dict[str, Any], bool]]:
    """Yield calls of *kind* that give one optional argument: label, method, the arguments, and whether they must be refused."""
    for method, name, signature in optional_arguments(kind):
        label = f"{kind.__name__}.{name}" if method == "__init__" else f"{method}.{name}"
        for value in EMPTY + (NO_FUNCTIONS if name in FUNCTIONS else []):
            given: list[Any] = []
            named: dict[str, Any] = {name: value}
            for each in signature.parameters.values():
                if each.name in {"self", name} or each.default is not each.empty:
                    continue
                if each.kind is each.VAR_POSITIONAL:
                    given += REQUIRED.get(each.name, [])
                elif each.kind is each.KEYWORD_ONLY:
                    named[each.name] = REQUIRED[each.name]
                else:
                    given.append(REQUIRED.get(each.name))
            if method == "connect":
                named = {"address": address, **named}
            elif method == "purge":
                named |= {"queue": "q"} if name == "seqs" else {} if name in {"stream", "queue"} else {"stream": "s"}
            elif method == "peek":
                named |= {"queue": "q"} if name == "state" else {} if name in {"stream", "queue"} else {"stream": "s"}
            is_property = isinstance(getattr(kind, method, None), property)
            yield (
                label,
                method,
                [value] if is_property else given,
                {} if is_property else named,
                (is_to_refuse(label, value) or (label, method) == ("purge.pattern", "purge")),
            )


@contextlib.contextmanager
def judged(label: str, given: list[Any], named: dict[str, Any], *, is_refused: bool, found: list[str]) -> Iterator[None]:
    """Note a call that does not raise what it must. One that reaches the bus raises another error: neither a store nor a service runs."""
    words = f"{label}: {given} {named}"
    try:
        yield
    except (TypeError, ValueError) as error:
        if not is_refused:
            found.append(f"{words} is refused: {error!r}")
    except SbusError as error:
        if is_refused:
            found.append(f"{words} is sent: {error!r}")
    else:
        if is_refused:
            found.append(f"{words} is accepted")


def test_no_empty_value_means_the_same_as_nothing(bus: Daemon) -> None:
    found: list[str] = []
    count = 0
    for kind in BLOCKING:
        for label, method, given, named, is_refused in cases(kind, bus.path):
            count += 1
            with Bus.connect(bus.path, timeout=5) as one:
                target = subject(kind, one)
                one.publish("k/1", "x")
                with judged(label, given, named, is_refused=is_refused, found=found):
                    if isinstance(getattr(kind, method, None), property):
                        setattr(target, method, given[0])
                        continue
                    made = (target if method == "__init__" else getattr(target, method))(*given, **named)
                    if isinstance(made, Iterator):
                        next(made, None)
                    elif hasattr(made, "__enter__"):
                        with made:
                            pass
    assert not found, "\n".join(found)
    assert count > 400


def test_nor_with_coroutines(bus: Daemon) -> None:
    found: list[str] = []

    async def call(kind: type, target: Any, method: str, given: list[Any], named: dict[str, Any]) -> None:
        if isinstance(getattr(kind, method, None), property):
            setattr(target, method, given[0])
            return
        made = getattr(target, method)(*given, **named)
        if hasattr(made, "__anext__"):
            await anext(made, None)
        elif hasattr(made, "__aenter__"):
            async with made:
                pass
        elif inspect.isawaitable(made):
            await made

    async def main() -> int:
        count = 0
        for kind in COROUTINES:
            for label, method, given, named, is_refused in cases(kind, bus.path):
                count += 1
                async with AsyncBus.connect(bus.path, timeout=5) as one:
                    target = subject(kind, one)
                    if hasattr(target, "__aenter__") and target is not one and not isinstance(target, AsyncJob):
                        await target.__aenter__()
                    await one.publish("k/1", "x")
                    with judged(label, given, named, is_refused=is_refused, found=found):
                        await call(kind, target, method, given, named)
        return count

    count = asyncio.run(main())
    assert not found, "\n".join(found)
    assert count > 300


def test_an_empty_list_removes_nothing_and_is_not_sent(bus: Daemon) -> None:
    with Bus.connect(bus.path) as one:
        assert one.store.purge(queue="q", seqs=[]) == 0
        assert one.store.revive("q") == 0
        assert one.store.forget("s") == 0
        for wrong in (["1"], [1.0], [True], [0], "12", b"\x01"):
            with pytest.raises((TypeError, ValueError)):
                one.store.purge(queue="q", seqs=wrong)  # type: ignore[arg-type]
