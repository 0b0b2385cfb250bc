"""Who is there after a restart: addresses, events and member lists agree, whatever happened in between."""

from __future__ import annotations

import json
import signal

import pytest

from sbus.protocol import controls
from tests.support.fdstore import Manager
from tests.support.wire import RawClient, message

LOST = b"CMSG !/bus/lost\x000"


def _members(client: RawClient, key: bytes) -> list[int]:
    """Return the numbers of those who would get a message with *key*."""
    return [each["id"] for each in json.loads(client.ask(controls.MEMBERS, key))["members"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_connection_keeps_its_address(manager: Manager, number: signal.Signals) -> None:
    owner, other = manager.client(), manager.client()
    address = owner.ask(controls.ADDRESS)
    owner.subscribe(address + b"rpc/x")
    assert owner.barrier() == other.barrier() == []
    manager.end(number)
    manager.start()
    assert [packet for packet in owner.barrier() if packet != LOST] == []
    assert [packet for packet in other.barrier() if packet != LOST] == []
    other.publish(address + b"rpc/x", b"call")
    assert owner.receive() == message(address + b"rpc/x", b"call")
