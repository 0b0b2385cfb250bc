"""The limits on connections of remote hosts, and on the bytes of bodies of unverified senders."""

from __future__ import annotations

import functools

from sbus_programs.config.hosts import AddressGroups
from sbus_programs.config.relay import PeerSettings, RelaySettings
from sbus_programs.systemd.log_records import LogMessage
from sbus_services.relay.http.limits import PARTS, ConnectionLimiter, ConnectionSlot, UnverifiedBytes
from sbus_services.relay.log_messages import TOO_MANY

PEER = "10.0.0.2"


class LimiterFixture:
    """A limiter and its reports."""

    def __init__(self, connections: int, address_connections: int, peer_connections: int = 0, *peers: str) -> None:
        self.rejections: list[tuple[LogMessage, str, str]] = []
        settings = RelaySettings(
            connections=connections,
            address_connections=address_connections,
            peer_connections=peer_connections,
            peers=tuple(PeerSettings(twin, address) for twin, address in enumerate(peers, 1)),
        )
        self.limiter = ConnectionLimiter(settings, AddressGroups(settings.peer_hosts), self._note)

    def admit(self, *addresses: str) -> list[bool]:
        """Return for each of *addresses* whether a connection is admitted, and mark those as verified."""
        return [self._admit(address) for address in addresses]

    def _admit(self, address: str) -> bool:
        slot = self.limiter.admit(address)
        if slot is not None:
            self.limiter.mark_verified(slot)
        return slot is not None

    def slot(self, address: str, *, is_verified: bool = True) -> ConnectionSlot:
        """Admit a connection from *address*; return its slot."""
        slot = self.limiter.admit(address)
        assert slot is not None
        if is_verified:
            self.limiter.mark_verified(slot)
        return slot

    def _note(self, event: LogMessage, address: str, _reason: str, counter: str) -> None:
        self.rejections.append((event, address, counter))


def test_excess_connections_are_rejected_until_others_close() -> None:
    fixture = LimiterFixture(3, 2)
    slot = fixture.slot("10.0.0.8")
    assert fixture.admit("10.0.0.8", "10.0.0.8") == [True, False]
    assert fixture.admit("10.0.0.9", "10.0.0.9") == [True, False]
    assert fixture.rejections == [(TOO_MANY, "10.0.0.8", "connections-refused"), (TOO_MANY, "10.0.0.9", "connections-refused")]
    fixture.limiter.release(slot)
    assert fixture.admit("10.0.0.9") == [True]


def test_an_ipv6_network_has_the_limit_of_one_address() -> None:
    fixture = LimiterFixture(1_024, 64)
    attacker = [f"2001:db8:1:1::{number:x}" for number in range(1_024)]
    assert sum(fixture.admit(*attacker)) == 64
    assert fixture.admit("2001:db8:1:2::1") == [True]


def test_an_address_of_ipv4_is_one_however_it_is_written() -> None:
    fixture = LimiterFixture(1_024, 2)
    assert fixture.admit("10.0.0.8", "::ffff:10.0.0.8", "::ffff:a00:8", "10.0.0.8") == [True, True, False, False]


def test_an_interface_makes_no_other_network() -> None:
    fixture = LimiterFixture(1_024, 1)
    assert fixture.admit("fe80::1%eth0", "fe80::2%eth1") == [True, False]


def test_slots_of_peers_are_reserved() -> None:
    fixture = LimiterFixture(16, 8, 4, f"{PEER}:8051", "[fd00::2]:8051")
    assert sum(fixture.admit(*(f"2001:db8:{number:x}::1" for number in range(64)))) == 16
    assert fixture.admit("10.0.0.9") == [False]
    assert fixture.admit(PEER, f"::ffff:{PEER}", "fd00::2") == [True, True, True]
    # An address in the network of a peer is not a peer, and does not use its slots.
    assert fixture.admit("fd00::3") == [False]


def test_peer_uses_common_slots_within_its_limit() -> None:
    fixture = LimiterFixture(2, 4, 3, f"{PEER}:8051", "10.0.0.3:8051")
    assert fixture.admit(*[PEER] * 5) == [True, True, True, True, False]
    assert fixture.admit("10.0.0.3", "10.0.0.3") == [True, False]


def test_released_slot_keeps_its_kind() -> None:
    fixture = LimiterFixture(1, 8, 1, f"{PEER}:8051")
    reserved, common = fixture.slot(PEER), fixture.slot(PEER)
    assert fixture.admit(PEER, "10.0.0.9") == [False, False]
    fixture.limiter.release(common)
    assert fixture.admit("10.0.0.9") == [True]
    fixture.limiter.release(reserved)
    assert fixture.admit("10.0.0.8", PEER) == [False, True]


def test_closed_limiter_admits_no_connection_and_reports_nothing() -> None:
    fixture = LimiterFixture(3, 2)
    fixture.limiter.close()
    assert fixture.admit("10.0.0.8") == [False]
    assert fixture.rejections == []


def test_unverified_connection_makes_room_for_a_new_one_of_its_group() -> None:
    """A user without a key on a peer's host must not keep the peer out."""
    fixture = LimiterFixture(8, 2, 2, f"{PEER}:8051")
    closed: list[int] = []
    places = [fixture.slot(PEER, is_verified=False) for _ in range(2)]
    for number, slot in enumerate(places):
        slot.close = functools.partial(closed.append, number)
    fixture.limiter.mark_verified(places[0])
    newest = fixture.slot(PEER, is_verified=False)
    assert closed == [1]
    assert fixture.rejections == [(TOO_MANY, PEER, "connections-evicted")]
    fixture.limiter.release(places[1])  # it ends later, and does not release a slot twice
    fixture.limiter.mark_verified(newest)
    assert fixture.admit(PEER) == [False]
    fixture.limiter.release(places[0])
    assert fixture.admit(PEER) == [True]


def test_one_group_has_a_part_of_the_total() -> None:
    unverified = UnverifiedBytes(AddressGroups([PEER]), 8_000, 100)
    bodies = [unverified.body(f"10.1.0.{number}") for number in range(PARTS + 1)]
    assert [body.grow(1_000) for body in bodies] == [True] * PARTS + [False]
    assert not bodies[0].grow(1)
    with bodies[0]:
        pass
    assert bodies[-1].grow(1_000)


def test_addresses_of_one_network_are_one_group() -> None:
    unverified = UnverifiedBytes(AddressGroups([]), 8_000, 100)
    first, second = (unverified.body(f"2001:db8::{number}") for number in (1, 2))
    assert first.grow(600)
    assert second.grow(600)
    assert first.is_evicted


def test_a_body_of_the_maximum_size_is_accepted_in_any_parts() -> None:
    unverified = UnverifiedBytes(AddressGroups([]), 1_000, 1_000)
    assert unverified.body("10.1.0.1").grow(1_000)


def test_configured_peers_have_bytes_of_their_own() -> None:
    unverified = UnverifiedBytes(AddressGroups([PEER]), 1_000, 1_000)
    assert unverified.body("10.1.0.1").grow(1_000)
    assert not unverified.body("10.1.0.3").grow(1)
    assert unverified.body(PEER).grow(1_000)


def test_released_bodies_are_forgotten() -> None:
    unverified = UnverifiedBytes(AddressGroups([]), 1_000, 1_000)
    for number in range(100):
        with unverified.body(f"10.1.0.{number}") as body:
            assert body.grow(1_000)
    assert (sum(unverified._of.values()), len(unverified._of), unverified._total[False]) == (0, 0, 0)


def test_oldest_body_of_a_group_makes_room_for_a_new_one() -> None:
    """A user without a key on a peer's host must not block the messages of the peer."""
    unverified = UnverifiedBytes(AddressGroups([PEER]), 8_000, 100)
    ended: list[str] = []
    oldest, empty, other = unverified.body(PEER), unverified.body(PEER), unverified.body("10.0.0.9")
    for name, body in (("oldest", oldest), ("empty", empty), ("other", other)):
        body.end = functools.partial(ended.append, name)
    assert [body.grow(1_000) for body in (other, oldest)] == [True, True]
    with unverified.body(PEER) as new:
        assert new.grow(1_000)
        assert ended == ["oldest"]
        assert oldest.is_evicted
        assert not oldest.grow(1)
        assert not new.grow(1), "there is no other connection to close"
        with oldest:
            pass
        assert not new.grow(1), "its bytes were given back once"
