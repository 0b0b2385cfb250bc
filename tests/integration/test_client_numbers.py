"""Every duration, size and count of the public functions of the client, with values that system calls and JSON cannot express."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sbus import Allow, AsyncBus, Bus, Cancellation, NewMessage, SbusError, Twins
from sbus.asyncio.store import AsyncJob, AsyncStore
from sbus.asyncio.streams import AsyncPresence, AsyncSubscription
from sbus.sync.store import Job, Store
from sbus.sync.streams import Presence, Subscription, Tap
from tests.support.client_methods import REQUIRED, subject
from tests.support.daemons import Daemon

VALUES: list[Any] = [
    *(0, -1, math.nan, math.inf, -math.inf, 30 * 86_400, 2_147_484, 1e10, 1e300, sys.maxsize, 1 << 64, 10**400, -(10**400), 10**5_000),
    *("5", b"5", [5], {}, object(), 1 + 1j, True),
]
"""A month, the ends of the ranges of poll(2), of 64 bits, of floats, and of what Python writes, and wrong types."""

BLOCKING = (Bus, Subscription, Presence, Tap, Store, Job, Cancellation, NewMessage, Allow, Twins)
COROUTINES = (AsyncBus, AsyncSubscription, AsyncPresence, AsyncStore, AsyncJob)

ANNOTATIONS = ("int", "float", "tuple[int", "tuple[str | int", "Sequence[int", "BlobRecipient")
"""How the annotations of numbers begin."""


SHARES_BUS = True


def numbers_of(kind: type) -> Iterator[tuple[str, inspect.Signature, str]]:
    """Yield each argument of a public method of *kind* that is a number: the method, its signature, and the argument."""
    for name, method in inspect.getmembers(kind, callable):
        if name.startswith("_") and not (name == "__init__" and kind in {NewMessage, Allow, Twins}):
            continue
        signature = inspect.signature(method)
        for parameter in signature.parameters.values():
            if str(parameter.annotation).startswith(ANNOTATIONS):
                yield name, signature, parameter.name


def arguments(signature: inspect.Signature, name: str, value: object, address: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call in which *name* is *value*."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for each in signature.parameters.values():
        chosen = {"address": address, **REQUIRED, name: value}.get(each.name)
        if each.name == "self" or (
            each.name not in {name, "address"} and (each.default is not each.empty or each.kind is each.VAR_POSITIONAL)
        ):
            continue
        if each.kind is each.KEYWORD_ONLY:
            named[each.name] = chosen
        else:
            given.append(chosen)
    return given, named


@contextmanager
def documented_errors(call: str, value: object) -> Iterator[None]:
    """Accept the errors that the page names for wrong values, and those of the bus: there is neither a store nor a service."""
    try:
        yield
    except (SbusError, TypeError, ValueError, LookupError, OSError):
        pass
    except Exception as error:
        raise AssertionError(f"{call}={type(value).__name__} raised {error!r}") from error


def test_blocking_calls_wait_or_refuse_each_value(bus: Daemon) -> None:
    called = set()
    with Bus.connect(bus.path) as other:
        for kind in BLOCKING:
            for method, signature, name in numbers_of(kind):
                called.add(f"{kind.__name__}.{method}({name})")
                for value in VALUES:
                    with documented_errors(f"{kind.__name__}.{method}({name})", value), Bus.connect(bus.path) as one:
                        target = subject(kind, one)
                        if isinstance(target, Cancellation):
                            target.set()
                        other.publish("k/1", "x")
                        given, named = arguments(signature, name, value, bus.path)
                        made = (target if method == "__init__" else getattr(target, method))(*given, **named)
                        if isinstance(made, Iterator):
                            next(made, None)
                        elif hasattr(made, "__exit__"):
                            with made:
                                pass
    assert {
        "Bus.connect(timeout)",
        "Bus.connect(queue_bytes)",
        "Job.retry(after)",
        "Tap.receive(timeout)",
        "Bus.publish_blob(expire)",
    } < called
    assert {"Bus.pass_fd(fd)", "Store.read(start)", "Store.revive(seqs)", "Twins.__init__(numbers)", "NewMessage.__init__(at)"} < called
    assert len(called) > 50


def test_coroutines_wait_or_refuse_each_value(bus: Daemon) -> None:
    async def main() -> int:
        count = 0
        for kind in COROUTINES:
            for method, signature, name in numbers_of(kind):
                count += 1
                for value in VALUES:
                    call = f"{kind.__name__}.{method}({name})"
                    with documented_errors(call, value):
                        async with AsyncBus.connect(bus.path) as one:
                            target = subject(kind, one)
                            if hasattr(target, "__aenter__"):
                                await target.__aenter__()
                            await one.publish("k/1", "x")
                            given, named = arguments(signature, name, value, bus.path)
                            made = getattr(target, method)(*given, **named)
                            if hasattr(made, "__anext__"):
                                made = anext(made, None)
                            elif hasattr(made, "__aenter__"):
                                made = made.__aenter__()
                            if inspect.isawaitable(made) and (method, kind) != ("close", AsyncBus):
                                made = await made
                            if isinstance(made, AsyncBus) and made is not one:
                                await made.close()
        return count

    assert asyncio.run(main()) > 35


def test_a_wait_without_a_limit_ends_with_a_message(bus: Daemon) -> None:
    for timeout in (math.inf, 1e10, 2_147_484, sys.maxsize, 10**400, None):
        with Bus.connect(bus.path, timeout=timeout) as one, one.subscribe("k/") as sub:
            one.publish("k/1", "x")
            assert getattr(sub.receive(timeout), "payload", None) == b"x"
            assert one.ping() >= 0
