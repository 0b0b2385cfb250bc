"""Names on the bus for completion."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from sbus import Bus
from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbusctl.completion.bus_names import MAX_NAMES, BusNames, command_of, fitting, key_of, pattern_of


class ListingBus:
    """A bus with subscriptions in pages of two, and connections; None: it refuses to list subscriptions."""

    def __init__(self, subscriptions: list[dict[str, Any]] | None, connections: list[dict[str, Any]] | None = None) -> None:
        self.subscriptions = subscriptions
        self.connections = connections or []

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return a page."""
        if key == controls.CONNECTIONS:
            return json.dumps({"connections": self.connections, "next": None}).encode()
        if self.subscriptions is None:
            raise ProtocolError(ErrorCode.EPERM, "not you")
        start = int(payload or b"0")
        following = str(start + 2) if start + 2 < len(self.subscriptions) else None
        return json.dumps({"subscriptions": self.subscriptions[start : start + 2], "next": following}).encode()


def _names(begin: str, bus: ListingBus, name_of: Any = key_of) -> list[str]:
    names = BusNames(begin, name_of)
    names.read(cast("Bus", bus))
    return names.chosen()


def _subscription(pattern: str, uid: int = 1, **more: object) -> dict[str, object]:
    return {"id": 1, "cred": f"!/cred/1/{uid}/7", "pattern": pattern, **more}


@pytest.mark.parametrize(
    ("pattern", "key"), [("a/b", "a/b"), ("a/", "a/"), ("a/*/c", "a/"), ("a/b*", "a/"), ("*", ""), ("*/a", ""), ("a*", ""), ("", "")]
)
def test_the_key_for_a_pattern(pattern: str, key: str) -> None:
    assert key_of(pattern) == key


@pytest.mark.parametrize(("pattern", "command"), [("rpc/a/b", "a/b"), ("rpc/", ""), ("rpc/a/", ""), ("rpc/*", ""), ("a", ""), ("", "")])
def test_the_command_for_a_pattern(pattern: str, command: str) -> None:
    assert command_of(pattern) == command


def test_all_pages_are_read() -> None:
    bus = ListingBus([_subscription(f"a/{number}") for number in range(5)])
    assert _names("a/", bus) == [f"a/{number}" for number in range(5)]


def test_reserved_keys_are_offered_only_if_they_are_asked_for() -> None:
    bus = ListingBus([_subscription("!/cred//1//x"), _subscription("a")], [{"id": 7, "uid": 1}])
    assert _names("", bus) == ["a"]
    assert _names("!", bus) == ["!/conn/7/", "!/cred//1//x"]


def test_names_that_are_not_printable_or_not_exact_are_omitted() -> None:
    bus = ListingBus([_subscription("a\n"), _subscription("a\x1b"), _subscription("a\ufffd", pattern_base64="Yf8="), _subscription("ab")])
    assert _names("a", bus, pattern_of) == ["ab"]


def test_no_user_displaces_the_names_of_another() -> None:
    flood = [_subscription(f"a/{number:04}", uid=2) for number in range(1000)]
    found = _names("a/", ListingBus([*flood, _subscription("a/the-name-of-another")]))
    assert len(found) == MAX_NAMES
    assert "a/the-name-of-another" in found


def test_addresses_are_there_without_the_right_to_list_subscriptions() -> None:
    assert _names("!/conn/", ListingBus(None, [{"id": 7, "uid": 1}, {"id": 12, "uid": 1}])) == ["!/conn/12/", "!/conn/7/"]
    assert _names("a", ListingBus(None)) == []


def test_local_names() -> None:
    assert fitting(["root", "redis", "alice", "r\n"], "r") == ["redis", "root"]
