"""A client with many addresses gets no more connections to a relay than one with a single address; on a test network."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyroute2 import NetNS, netns

from sbus_services.relay.http.credentials import signed_headers
from tests.support.http_requests import PEER, TWIN, of_peer
from tests.support.relays import Host, peer_table, require_redis, shared_key, wait_for

RELAY = "fd00:77::1"
PEER_ADDRESS = "fd00:77:0:2::2"
PORT = 8051
MOST, MOST_OF_ADDRESS = 16, 4

_IP_FREEBIND = 15
"""A socket may be bound to any address that is local according to a route, ip(7)."""


class RelayNamespace:
    """A network namespace in which all addresses of fd00:77::/32 are local, with a relay."""

    def __init__(self, folder: Path) -> None:
        self.name = f"sbus-places-{os.getpid()}"
        netns.create(self.name)
        with NetNS(self.name) as within:
            lo = within.link_lookup(ifname="lo")[0]
            within.link("set", index=lo, state="up")
            within.addr("add", index=lo, address=RELAY, prefixlen=128)
            within.route("add", dst="fd00:77::/32", oif=lo, type="local", table=255, family=socket.AF_INET6)
        self.key = shared_key(folder)

    def start(self, folder: Path) -> None:
        """Start the relay."""
        self.host = Host(folder, TWIN, netns=self.name)
        settings = f'connections = {MOST}\naddress_connections = {MOST_OF_ADDRESS}\npeer_connections = 2\nbody_timeout = "5min"\n'
        settings += 'pending_bytes = "1MiB"\nbody_bytes = "1MiB"\n'
        table = peer_table(PEER, f"[{PEER_ADDRESS}]:{PORT}", self.key)
        self.host.relay.write(f'listen = "[{RELAY}]:{PORT}"\n{settings}', table)
        self.host.relay.start()

    def connect(self, address: str) -> socket.socket:
        """Return a connection from *address*."""
        made = netns_socket(self.name)
        made.settimeout(30)
        made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        made.bind((address, 0))
        made.connect((RELAY, PORT))
        return made

    def close(self) -> None:
        """Remove it."""
        netns.remove(self.name)
        self.host.close()


def netns_socket(name: str) -> socket.socket:
    """Return a TCP socket within the namespace *name*, which this thread enters briefly."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        netns.setns(name)
        try:
            return socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        finally:
            netns.setns(own)
    finally:
        os.close(own)


@pytest.fixture
def namespace(folder: Path, needs_root: None) -> Iterator[RelayNamespace]:
    require_redis()
    made = RelayNamespace(folder)
    try:
        made.start(folder)
        yield made
    finally:
        made.close()


def is_open(connection: socket.socket) -> bool:
    """Return whether the relay keeps *connection* open; it closes excess ones at once."""
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(1) != b""
    except ConnectionError:
        return False


def test_one_network_cannot_use_up_the_connections(namespace: RelayNamespace) -> None:
    network = ipaddress.IPv6Network("fd00:77:0:9::/64")
    with ExitStack() as open_ones:
        for number in range(MOST):
            open_ones.enter_context(namespace.connect(str(network[number + 1])))
        namespace.host.wait_counted("connections-evicted", MOST - MOST_OF_ADDRESS)
        namespace.host.relay.wait_logged("fd00:77:0:9::/64 already has 4, the limit of address_connections in relay.toml")
        other = open_ones.enter_context(namespace.connect("fd00:77:0:a::1"))
        assert is_open(other)


def test_many_networks_leave_the_peer_its_connections(namespace: RelayNamespace) -> None:
    with ExitStack() as open_ones:
        for number in range(MOST + 4):
            open_ones.enter_context(namespace.connect(f"fd00:77:1:{number:x}::1"))
        namespace.host.wait_counted("connections-refused", 4)
        body = json.dumps(of_peer("placed")).encode()
        with namespace.connect(PEER_ADDRESS) as connection:
            spoken = http.client.HTTPConnection(RELAY, PORT)
            spoken.sock = connection
            headers = signed_headers(namespace.key.read_bytes().strip(), PEER, TWIN, "/zbus-remote", body, now=time.time())
            spoken.request("POST", "/zbus-remote", body, headers)
            assert spoken.getresponse().status == 200
        wait_for(lambda: namespace.host.redis.llen("msgbus.placed") == 1, "the request of the peer")
        # An address in the network of the peer is not the peer.
        with namespace.connect(f"{PEER_ADDRESS}2") as neighbour:
            assert not is_open(neighbour)


def test_a_user_of_the_peers_host_does_not_keep_the_peer_out(namespace: RelayNamespace) -> None:
    with ExitStack() as open_ones:
        half_open = [open_ones.enter_context(namespace.connect(PEER_ADDRESS)) for _ in range(MOST_OF_ADDRESS)]
        for connection in half_open:
            connection.sendall(b"POST /zbus-remote HTTP/1.1\r\nHost:")
        body = json.dumps(of_peer("let.in")).encode()
        with namespace.connect(PEER_ADDRESS) as connection:
            spoken = http.client.HTTPConnection(RELAY, PORT)
            spoken.sock = connection
            for _ in range(2):
                headers = signed_headers(namespace.key.read_bytes().strip(), PEER, TWIN, "/zbus-remote", body, now=time.time())
                spoken.request("POST", "/zbus-remote", body, headers)
                response = spoken.getresponse()
                assert (response.status, bool(response.read())) == (200, True)
                # New connections do not evict that of the peer.
                for _ in range(MOST_OF_ADDRESS + 1):
                    open_ones.enter_context(namespace.connect(PEER_ADDRESS))
                namespace.host.wait_counted("connections-evicted", MOST_OF_ADDRESS)
        assert not is_open(half_open[0])
        namespace.host.relay.wait_logged(
            f"{PEER_ADDRESS} already has 4, the limit of address_connections in relay.toml; closed its oldest unverified one"
        )


def test_bodies_of_a_user_of_the_peers_host_do_not_keep_the_peers_out(namespace: RelayNamespace) -> None:
    part = 1 << 20
    head = f"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nContent-Length: {part}\r\n"
    signature = signed_headers(b"k" * 32, PEER, TWIN, "/zbus-remote", b"", now=time.time())
    head += "".join(f"{name}: {value}\r\n" for name, value in signature.items()) + "\r\n"
    with ExitStack() as open_ones:
        for _ in range(2):
            connection = open_ones.enter_context(namespace.connect(PEER_ADDRESS))
            connection.sendall(head.encode() + b"x" * (part - 1))
        namespace.host.wait_counted("bodies-evicted")
        body = json.dumps(of_peer("small")).encode()
        spoken = http.client.HTTPConnection(RELAY, PORT)
        spoken.sock = open_ones.enter_context(namespace.connect(PEER_ADDRESS))
        headers = signed_headers(namespace.key.read_bytes().strip(), PEER, TWIN, "/zbus-remote", body, now=time.time())
        spoken.request("POST", "/zbus-remote", body, headers)
        assert spoken.getresponse().status == 200
