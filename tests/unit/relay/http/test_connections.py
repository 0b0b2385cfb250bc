"""How many connections of other hosts may stay, and what becomes of those that come too late."""

from __future__ import annotations

import functools

from sbusd.config.relay import PeerSettings, RelaySettings
from sbusd.relay.addresses import Parties
from sbusd.relay.http.connections import Connections, Place
from sbusd.relay.log_messages import CROWDED
from sbusd.systemd.log_record import LogMessage

PEER = "10.0.0.2"


class Hall:
    """Connections, and what was refused."""

    def __init__(self, connections: int, address_connections: int, peer_connections: int = 0, *peers: str) -> None:
        self.refused: list[tuple[LogMessage, str, str]] = []
        settings = RelaySettings(
            connections=connections,
            address_connections=address_connections,
            peer_connections=peer_connections,
            peers=tuple(PeerSettings(twin, address) for twin, address in enumerate(peers, 1)),
        )
        self.connections = Connections(settings, Parties(settings.peer_hosts), self._note)

    def enter(self, *addresses: str) -> list[bool]:
        """Return for each of *addresses* whether it may stay; whoever may is verified."""
        return [self._enter(address) for address in addresses]

    def _enter(self, address: str) -> bool:
        place = self.connections.enter(address)
        if place is not None:
            self.connections.verified(place)
        return place is not None

    def place(self, address: str, *, is_verified: bool = True) -> Place:
        """Return the place of *address*."""
        place = self.connections.enter(address)
        assert place is not None
        if is_verified:
            self.connections.verified(place)
        return place

    def _note(self, event: LogMessage, address: str, _reason: str, counter: str) -> None:
        self.refused.append((event, address, counter))


def test_too_many_are_refused_and_counted_and_come_in_when_others_have_left() -> None:
    hall = Hall(3, 2)
    place = hall.place("10.0.0.8")
    assert hall.enter("10.0.0.8", "10.0.0.8") == [True, False]
    assert hall.enter("10.0.0.9", "10.0.0.9") == [True, False]
    assert hall.refused == [(CROWDED, "10.0.0.8", "connections-refused"), (CROWDED, "10.0.0.9", "connections-refused")]
    hall.connections.leave(place)
    assert hall.enter("10.0.0.9") == [True]


def test_a_network_of_ipv6_has_the_places_of_one_address() -> None:
    hall = Hall(1_024, 64)
    attacker = [f"2001:db8:1:1::{number:x}" for number in range(1_024)]
    assert sum(hall.enter(*attacker)) == 64
    assert hall.enter("2001:db8:1:2::1") == [True]


def test_an_address_of_ipv4_is_one_however_it_is_written() -> None:
    hall = Hall(1_024, 2)
    assert hall.enter("10.0.0.8", "::ffff:10.0.0.8", "::ffff:a00:8", "10.0.0.8") == [True, True, False, False]


def test_an_interface_makes_no_other_network() -> None:
    hall = Hall(1_024, 1)
    assert hall.enter("fe80::1%eth0", "fe80::2%eth1") == [True, False]


def test_the_places_of_configured_peers_are_not_for_others() -> None:
    hall = Hall(16, 8, 4, f"{PEER}:8051", "[fd00::2]:8051")
    assert sum(hall.enter(*(f"2001:db8:{number:x}::1" for number in range(64)))) == 16
    assert hall.enter("10.0.0.9") == [False]
    assert hall.enter(PEER, f"::ffff:{PEER}", "fd00::2") == [True, True, True]
    # A neighbour of a peer is not a peer, and does not use up its places.
    assert hall.enter("fd00::3") == [False]


def test_a_peer_has_no_more_places_than_others_and_uses_theirs_when_the_reserved_ones_are_full() -> None:
    hall = Hall(2, 4, 3, f"{PEER}:8051", "10.0.0.3:8051")
    assert hall.enter(*[PEER] * 5) == [True, True, True, True, False]
    assert hall.enter("10.0.0.3", "10.0.0.3") == [True, False]


def test_a_place_that_was_left_is_where_it_was() -> None:
    hall = Hall(1, 8, 1, f"{PEER}:8051")
    reserved, common = hall.place(PEER), hall.place(PEER)
    assert hall.enter(PEER, "10.0.0.9") == [False, False]
    hall.connections.leave(common)
    assert hall.enter("10.0.0.9") == [True]
    hall.connections.leave(reserved)
    assert hall.enter("10.0.0.8", PEER) == [False, True]


def test_nobody_comes_in_once_the_relay_ends_and_that_is_nobodys_offence() -> None:
    hall = Hall(3, 2)
    hall.connections.close()
    assert hall.enter("10.0.0.8") == [False]
    assert hall.refused == []


def test_an_unverified_connection_makes_room_for_a_new_one_of_its_party() -> None:
    """Another user of a peer's host, who has no key, must not keep the peer out."""
    hall = Hall(8, 2, 2, f"{PEER}:8051")
    closed: list[int] = []
    places = [hall.place(PEER, is_verified=False) for _ in range(2)]
    for number, place in enumerate(places):
        place.close = functools.partial(closed.append, number)
    hall.connections.verified(places[0])
    newest = hall.place(PEER, is_verified=False)
    assert closed == [1]
    assert hall.refused == [(CROWDED, PEER, "connections-evicted")]
    hall.connections.leave(places[1])  # its end comes later, and frees nothing again
    hall.connections.verified(newest)
    assert hall.enter(PEER) == [False]
    hall.connections.leave(places[0])
    assert hall.enter(PEER) == [True]
