"""Mistakes in the declaration of a service are reported where they are made, by both faces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest

from sbus import AsyncBus, Bus, Request
from tests.support.minibus import MiniBus


class Handlers:
    """Handlers that are not plain functions."""

    def method(self, request: Request) -> bytes:
        return request.data

    def __call__(self, request: Request, suffix: bytes = b"!") -> bytes:
        return request.data + suffix


def none() -> bytes:
    return b""


def two(request: Request, other: Request) -> bytes:
    return request.data + other.data


def by_name(*, request: Request) -> bytes:
    return request.data


@pytest.fixture(params=[Bus, AsyncBus])
def bus(request: pytest.FixtureRequest, mini_bus: MiniBus) -> Iterator[Any]:
    made = request.param.connect(mini_bus.address)
    yield made
    if isinstance(made, Bus):
        made.close()


@pytest.mark.parametrize("handler", [None, "text", b"bytes", none, two, by_name])
def test_what_cannot_handle_a_request(bus: Any, handler: object) -> None:
    with pytest.raises(TypeError, match="the handler of 'command'"):
        bus.service("command")(handler)
    assert bus.service("command")(lambda request: request.data)


@pytest.mark.parametrize("handler", [Handlers().method, Handlers(), partial(two, other=ANY), lambda *every: every, bytes, str])
def test_what_can_handle_a_request(bus: Any, handler: object) -> None:
    assert bus.service("command")(handler) is handler


def test_the_decorator_needs_a_command(bus: Any) -> None:
    with pytest.raises(TypeError, match=r"not a function: write @bus.service\('command'\)"):
        bus.service(none)

    with pytest.raises(TypeError, match="command must be str, not int"):
        bus.service(5)
