"""Mistakes in the arguments of ``connect``, and in what a bus object is used with: the same errors from both faces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sbus import AsyncBus, Bus, Overflow
from tests.support.minibus import MiniBus


@pytest.mark.parametrize("face", [Bus, AsyncBus])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"timeout": "5"}, TypeError, "timeout must be a number of seconds or None, not str"),
        ({"timeout": True}, TypeError, "not bool"),
        ({"timeout": -1}, ValueError, "invalid timeout -1: must be 0 or more seconds"),
        ({"timeout": float("nan")}, ValueError, "invalid timeout nan"),
        ({"separator": "/"}, TypeError, "separator must be bytes, such as b'/', not str"),
        ({"overflow": "block"}, TypeError, r"overflow must be Overflow.BLOCK or Overflow.DISCARD, not 'block'"),
        ({"overflow": None}, TypeError, "overflow must be"),
        ({"queue_packets": "5"}, TypeError, "queue_packets must be int, not str"),
        ({"queue_bytes": 1e6}, TypeError, "queue_bytes must be int, not float"),
        ({"address": 4222}, TypeError, "address must be str, the path of a socket, not int"),
        ({"address": ["a"]}, TypeError, "address must be str, the path of a socket, not list"),
    ],
)
def test_wrong_arguments(mini_bus: MiniBus, face: Any, arguments: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        face.connect(**({"address": mini_bus.address} | arguments))


def test_right_arguments(mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address, timeout=5, separator=b".", overflow=Overflow.DISCARD, queue_packets=1) as bus:
        bus.ping()
    with Bus.connect(mini_bus.address, timeout=None) as bus:
        bus.ping()


@pytest.mark.parametrize(("face", "name"), [(Bus, "Bus"), (AsyncBus, "AsyncBus")])
def test_the_class_itself_does_not_connect(face: Any, name: str) -> None:
    for arguments in ((), ("/run/sbus.socket",)):
        with pytest.raises(TypeError, match=rf"use {name}\.connect\(\) instead of {name}\(\)"):
            face(*arguments)


def test_the_wrong_kind_of_with(mini_bus: MiniBus) -> None:
    async def wait() -> None:
        with Bus.connect(mini_bus.address) as bus:
            async with bus:
                pass

    with pytest.raises(TypeError, match=r"a Bus does not work with 'async with': use 'with Bus\.connect"):
        asyncio.run(wait())
    with pytest.raises(TypeError, match="an AsyncBus does not work"), AsyncBus.connect(mini_bus.address):
        pass


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5"])
def test_the_timeout_of_a_call(mini_bus: MiniBus, timeout: Any) -> None:
    with Bus.connect(mini_bus.address) as bus, pytest.raises((TypeError, ValueError), match="timeout"):
        bus.call("echo", timeout=timeout)
