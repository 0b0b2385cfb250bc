"""Decodes captured messages of a real kernel; see data/changes.hex for the commands."""

from __future__ import annotations

import contextlib
import struct

import pytest

from sbus_services.feeds.netlink.entries import Address, Hop, Link, Neighbour, Route
from sbus_services.feeds.netlink.notices import DecodeError, Notice, parse_notices
from tests.support.netlink_captures import captured, notices_of


def entries(command: str, kind: type) -> list[Notice]:
    return [notice for notice in notices_of(command) if isinstance(notice.entry, kind)]


def test_loopback_comes_up() -> None:
    link, address, *routes, address6, route6 = notices_of("ip link set lo up")
    assert link == Notice(Link(1, b"lo", "unknown", ("up", "loopback", "running", "lower_up"), 65536, "00:00:00:00:00:00", None, None))
    assert address == Notice(Address(1, "inet", "127.0.0.1", None, 8, "host", ("permanent",), None, "lo"))
    assert address6 == Notice(Address(1, "inet6", "::1", None, 128, "host", ("permanent",), None, None))
    assert [notice.entry.destination for notice in routes if isinstance(notice.entry, Route)] == [
        "127.0.0.1/32",
        "127.0.0.0/8",
        "127.255.255.255/32",
    ]
    assert isinstance(route6.entry, Route)
    assert (route6.entry.family, route6.entry.table, route6.entry.type) == ("inet6", "local", "local")
    assert not any(notice.is_partial or notice.gone for notice in (link, address, *routes, address6, route6))


def test_bridge_kind_and_hostile_name() -> None:
    [notice] = notices_of("ip link add 'br*!' type bridge")  # forwarding entries of the bridge are skipped
    assert isinstance(notice.entry, Link)
    assert (notice.entry.name, notice.entry.kind, notice.entry.mtu) == (b"br*!", "bridge", 1500)


def test_a_name_that_is_not_utf8_stays_bytes() -> None:
    [notice] = notices_of("ip link add $(printf 'x\\377y') type bridge")
    assert isinstance(notice.entry, Link)
    assert notice.entry.name == b"x\xffy"


def test_addresses_with_two_prefix_lengths_and_a_peer() -> None:
    first = [notice.entry for notice in entries("ip addr add 10.1.0.1/24 dev veth0", Address)]
    more = [
        notice.entry for notice in entries("ip addr add 10.1.0.1/16 dev veth0; ip addr add 10.9.0.1 peer 10.9.0.2/32 dev veth0", Address)
    ]
    assert [entry.identity[2:] for entry in first + more] == [
        ("10.1.0.1", None, 24),
        ("10.1.0.1", None, 16),
        ("10.9.0.1", "10.9.0.2", 32),
    ]


def test_route_with_gateway_and_metric() -> None:
    [notice] = notices_of("ip route add 10.2.0.0/16 via 10.1.0.2 metric 7")
    route = Route("inet", "main", "10.2.0.0/16", None, 0, 7, "unicast", "global", "boot", 4, "10.1.0.2", None, (), ())
    assert notice == Notice(route)


def test_default_route_and_its_replacement() -> None:
    [added] = notices_of("ip route add default via 10.1.0.2")
    [replaced] = notices_of("ip route replace default via 10.1.0.3")
    assert isinstance(added.entry, Route)
    assert (added.entry.destination, added.is_partial) == ("default", False)
    assert replaced.is_partial, "which route it replaces is not said"


def test_appended_ipv6_route_is_unsure() -> None:
    added, appended = notices_of("ip -6 route add 2001:db8::/32 dev veth0; ip -6 route append 2001:db8::/32 via fe80::1 dev veth0")
    assert (added.is_partial, appended.is_partial) == (False, True)


def test_route_with_several_hops() -> None:
    [notice] = notices_of("ip route add 10.3.0.0/16 nexthop via 10.1.0.2 nexthop via 10.1.0.3")
    assert isinstance(notice.entry, Route)
    assert notice.entry.hops == (Hop(4, "10.1.0.2", 1), Hop(4, "10.1.0.3", 1))
    assert notice.entry.index is None


def test_blackhole_has_no_link() -> None:
    [notice] = notices_of("ip route add blackhole 10.4.0.0/16")
    assert isinstance(notice.entry, Route)
    assert (notice.entry.type, notice.entry.index, notice.entry.gateway) == ("blackhole", None, None)


def test_neighbour() -> None:
    [notice] = notices_of("ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:01 dev veth0")
    assert notice == Notice(Neighbour(4, "inet", "10.1.0.2", "02:00:00:00:00:01", "permanent", ()))


def test_port_that_leaves_its_bridge_is_not_gone() -> None:
    masters = [notice.entry.master for notice in entries("ip link set veth1 master 'br*!'", Link) if isinstance(notice.entry, Link)]
    left = entries("ip link set veth1 nomaster", Link)
    assert 2 in masters
    assert left
    assert not any(notice.gone for notice in left)


def test_rename_keeps_the_index() -> None:
    names = {
        (notice.entry.index, notice.entry.name) for notice in notices_of("ip link set veth0 name veth9") if isinstance(notice.entry, Link)
    }
    assert names == {(4, b"veth9")}


def test_removals() -> None:
    notices = notices_of("ip link del veth9")
    gone = [notice.entry for notice in notices if notice.gone]
    assert {(entry.index, entry.name) for entry in gone if isinstance(entry, Link)} == {(3, b"veth1"), (4, b"veth9")}
    assert "10.9.0.1" in {entry.local for entry in gone if isinstance(entry, Address)}


def test_neighbours_without_resolving_count_as_gone() -> None:
    assert all(notice.gone for notice in entries("ip link set veth9 down", Neighbour))


@pytest.mark.parametrize("kind", [16, 20, 24, 28])
def test_message_without_its_attributes_is_a_decode_error(kind: int) -> None:
    bare = struct.pack("=IHHII", 40, kind, 0, 0, 0) + bytes(24)
    if kind in {16, 20}:
        with pytest.raises(DecodeError, match=f"type {kind}"):
            list(parse_notices(bare if kind == 16 else bare[:16] + b"\x02" + bare[17:]))
    else:
        assert list(parse_notices(bare)) == []


def test_any_cut_of_a_datagram_is_decoded_or_a_decode_error() -> None:
    [datagram] = captured()["ip route add 10.2.0.0/16 via 10.1.0.2 metric 7"]
    for size in range(len(datagram)):
        with contextlib.suppress(DecodeError):
            assert len(list(parse_notices(datagram[:size]))) <= 1


def test_unknown_type_says_nothing() -> None:
    assert list(parse_notices(struct.pack("=IHHII", 16, 4000, 0, 0, 0))) == []
