"""The errors of public functions: those that their documentation names, and no others; and words that say what has happened."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus import AsyncBus, Bus, CallTimeout, Disconnected, ProtocolError, RemoteRefusal, SbusError, TimedOut, errors
from sbus.store.items import Lease, StoredMessage
from sbus.sync.store import Job, Store
from sbus.sync.streams import Presence, Subscription, Tap
from tests.support.daemons import Daemon, StartDaemon

WRONG: list[Any] = [None, 5, 1.5, "a\0b", "", "\udfff\ud800", b"\0", [5], {}, object()]

KINDS = (Bus, Subscription, Presence, Tap, Store, Job)

GENERAL = {"Closed", "Disconnected", "TimedOut", "TypeError", "ValueError", "ProtocolError"}
"""What every call can raise, by the documentation of ``Bus``."""

STORE = {"StoreNotRunning", "StoreError", "PeerDisconnected", "CallTimeout", "RemoteRefusal", "PayloadTooLarge", "AnswerLost"}
"""What every method of the store can raise, by its documentation."""

REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("key", "data", "command", "ticket", "stream", "reader", "queue", "pattern"), "x"),
    **dict.fromkeys(("seq", "count", "twin", "to", "fd"), 1),
    "patterns": ["k/"],
    "messages": [],
    "jobs": [],
}


SHARES_BUS = True


def documented(kind: type, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the errors that the documentation of a method names, and those of the methods that it refers to."""
    text = inspect.getdoc(getattr(kind, name)) or ""
    found = GENERAL | (STORE if kind in {Store, Job} else set())
    found |= {
        each for each in re.findall(r"\b[A-Z]\w+\b", text) if hasattr(errors, each) or each.endswith("Error") or each == "StoreNotRunning"
    }
    for sentence in re.findall(r"\b[Rr]aises what (.*?) raises?|: as (``\w+``)", " ".join(text.split())):
        for other in re.findall(r"``(?:(\w+)\.)?(\w+)``", "".join(sentence)):
            owner = {each.__name__: each for each in KINDS}.get(other[0], kind)
            owner = owner if hasattr(owner, other[1]) else Bus
            if hasattr(owner, other[1]) and other[1] not in seen:
                found |= documented(owner, other[1], seen | {name})
    return found


def calls(kind: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls of the public methods of *kind*: one with good arguments, and for each argument some that are wrong."""
    for name, method in inspect.getmembers(kind, callable):
        if name.startswith("_") or name in {"connect", "iterate", "batches", "items", "serve"}:
            continue
        parameters = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
        required = {
            each.name: REQUIRED[each.name] for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
        }
        yield name, required
        for each in parameters:
            if each.annotation in {"float | None", "bool"} or each.name in {"timeout", "follow"}:
                continue  # numbers: test_client_numbers; a truth value is never wrong
            for value in WRONG:
                yield name, {**required, each.name: value}


def call(method: Callable[..., Any], given: dict[str, Any]) -> None:
    """Call *method*, and take the first of what it yields."""
    parameters = inspect.signature(method).parameters.values()
    many = [given[each.name] for each in parameters if each.kind is each.VAR_POSITIONAL and each.name in given]
    named = {each.name: given[each.name] for each in parameters if each.kind is not each.VAR_POSITIONAL and each.name in given}
    if "timeout" in {each.name for each in parameters}:
        named["timeout"] = 0
    made = method(*named.values(), *many) if many else method(**named)
    if isinstance(made, Iterator):
        next(made, None)
    elif hasattr(made, "_queue"):
        with made:
            pass


def subject(kind: type, bus: Bus) -> Any:
    """Return an object of *kind*."""
    makers: dict[type, Callable[[], Any]] = {
        Bus: lambda: bus,
        Subscription: lambda: bus.subscribe("k/"),
        Presence: bus.presence,
        Tap: bus.tap,
        Store: lambda: bus.store,
        Job: lambda: Job(bus.store, "q", Lease(1, StoredMessage("s", 1, 0.0, b"k", b"", 0, 0, 0), 1, 0.0, 1.0), 1.0),
    }
    return makers[kind]()


def check(kind: type, target: Any) -> set[str]:
    """Make all calls of *target*; return the names of the errors, each of which is documented."""
    found = set()
    for name, given in calls(kind):
        if name == "close":
            continue
        try:
            call(getattr(target, name), given)
        except Exception as error:
            if not {each.__name__ for each in type(error).__mro__} & documented(kind, name):
                raise AssertionError(f"{kind.__name__}.{name}({given!r}) raised {error!r}") from error
            found.add(type(error).__name__)
    return found


@pytest.mark.filterwarnings("ignore::sbus.PatternWarning")
def test_functions_raise_what_their_documentation_names(daemon: StartDaemon) -> None:
    bus, found = daemon(), set()
    for kind in KINDS:
        with Bus.connect(bus.path) as client:
            found |= check(kind, subject(kind, client))
            assert client.whoami()
    with contextlib.ExitStack() as stack:
        targets = []
        for kind in KINDS:
            targets.append((kind, subject(kind, stack.enter_context(Bus.connect(bus.path)))))
            if kind not in {Store, Job}:  # the store is waited for while the bus restarts
                again = stack.enter_context(Bus.connect(bus.path, reconnect=True))
                targets.append((kind, subject(kind, again)))
                again._link.timeout = 0.01  # not before: the bus that runs may need longer
            client = Bus.connect(bus.path)
            closed = subject(kind, client)
            client.close()
            found |= check(kind, closed)
        bus.stop()
        for kind, target in targets:
            found |= check(kind, target)
    assert {"TypeError", "ValueError", "ProtocolError", "Closed", "Disconnected", "TimedOut"} <= found
    assert {"CallTimeout", "NoRecipient"} & found  # with a time-out of 0, the speed of the bus decides which of them comes


def test_errors_without_a_connection_say_so(daemon: StartDaemon) -> None:
    bus = daemon()
    client = Bus.connect(bus.path, reconnect=True)
    client._link.timeout = 0.2  # not before: the bus that runs may need longer

    async def main() -> list[Exception]:
        async with AsyncBus.connect(bus.path, reconnect=True) as other:
            other._link.timeout = 0.2
            await asyncio.to_thread(bus.stop)
            while other.state == "connected":
                await asyncio.sleep(0)
            return [error for error in await asyncio.gather(*_actions(other), return_exceptions=True) if isinstance(error, Exception)]

    found = asyncio.run(main())
    for action in _actions(client):
        with pytest.raises(TimedOut) as caught:
            action()
        found.append(caught.value)
    assert len(found) == 8
    for error in found:
        assert f"not connected to {bus.path}, and nothing was sent" in str(error)
        assert not isinstance(error, CallTimeout) or not error.is_sent
    client.close()


def _actions(bus: Any) -> list[Any]:
    """Return calls, as coroutines or as functions."""
    made: list[Callable[[], Any]] = [lambda: bus.publish("a", "b"), lambda: bus.call("x", timeout=0.2), bus.ping, bus.whoami]
    return [each() for each in made] if isinstance(bus, AsyncBus) else made


def test_a_refusal_that_ends_the_connection_says_so(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("other/") as other:
        for malformed in ("!/cred/*/0//x", "!/cred/1/2/3", b"!/cred/", "!/cred/-1/2/3/x"):
            with pytest.raises(ProtocolError, match="each id decimal or empty"):
                client.subscribe("a", malformed)
        client.publish("other/1", "still connected", receipt=True)
        with pytest.raises(RemoteRefusal, match=r"EACCES .*; the bus has closed the connection$"):
            client.subscribe("!/cred//54321//x")
        assert getattr(other.receive(0), "text", "") == "still connected"
        with pytest.raises(Disconnected, match="EACCES"):
            client.ping()


def test_a_service_that_calls_itself_learns_why_that_fails(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, Bus.connect(bus.path) as caller:
        words: list[str] = []

        @client.service("inner")
        def inner(_request: object) -> str:
            return "done"

        @client.service("outer")
        def outer(_request: object) -> str:
            try:
                client.call("inner", timeout=0.3)
            except SbusError as error:
                words.append(str(error))
            client.stop_serving()
            return "done"

        thread = threading.Thread(target=lambda: caller.call("outer", timeout=30))
        client.serve(ready=thread.start)
        thread.join()
        assert len(words) == 1
        assert "the service is on the same bus object" in words[0]


def test_objects_describe_themselves(bus: Daemon) -> None:
    with Bus.connect(Path(bus.path)) as client, client.subscribe("chat/", "b") as chat:
        assert repr(client) == f"<Bus connected: {bus.path}>"
        assert repr(chat) == "<Subscription to 'chat/' 'b', 0 pending>"
        described = [subject(kind, client) for kind in KINDS] + [client.store.take("q"), client.store.on(7)]
        assert [repr(each) for each in described if " object at " in repr(each)] == []
    assert repr(client) == f"<Bus closed: {bus.path}>"
    assert repr(chat) == "<Subscription, closed>"
