"""How many connections of other hosts may stay, and what becomes of those that come too late."""

from __future__ import annotations

from sbusd.events import Event
from sbusd.relay.connections import Connections
from sbusd.relay.journal import CROWDED


def test_too_many_are_refused_and_counted_and_come_in_when_others_have_left() -> None:
    refused: list[tuple[Event, str, str]] = []
    connections = Connections(3, 2, 1.0, 1.0, lambda event, address, _reason, counter: refused.append((event, address, counter)))
    assert [connections.enter("a"), connections.enter("a"), connections.enter("a")] == [True, True, False]
    assert [connections.enter("b"), connections.enter("b")] == [True, False]
    assert refused == [(CROWDED, "a", "connections-refused"), (CROWDED, "b", "connections-refused")]
    connections.leave("a")
    assert connections.enter("b")


def test_nobody_comes_in_once_the_relay_ends_and_that_is_nobodys_offence() -> None:
    refused: list[str] = []
    connections = Connections(3, 2, 1.0, 1.0, lambda _event, address, _reason, _counter: refused.append(address))
    connections.close()
    assert not connections.enter("a")
    assert refused == []
