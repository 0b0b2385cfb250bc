"""The stream socket of a real bus: for its clients all is as on the other socket, also over restarts."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES, join_batch
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.frames import FrameEnd, StreamClient, frame
from tests.support.users import FIRST, SECOND
from tests.support.wire import error_code, message

LONG = message(b"a", bytes(range(256)) * 500)


@pytest.fixture
def path(folder: Path) -> str:
    """The path of the stream socket."""
    return str(folder / "stream")


@pytest.fixture
def bus(daemon: StartDaemon, path: str) -> Daemon:
    """A bus with a stream socket."""
    return daemon("--stream-address", path)


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    """A started service to which both sockets were passed."""
    with Manager(folder, has_streams=True) as made:
        made.start()
        yield made
        assert "Traceback" not in made.stderr, made.stderr


# -- one bus


def test_clients_of_both_sockets_exchange_messages(bus: Daemon, path: str) -> None:
    stream, packets = StreamClient.connect(path), bus.client()
    stream.subscribe(b"a")
    packets.subscribe(b"b")
    assert stream.barrier() == packets.barrier() == []
    packets.send(LONG)
    assert stream.receive() == LONG
    for number in range(100):
        stream.publish(b"b", b"%d" % number)
    assert [packets.receive() for _ in range(100)] == [message(b"b", b"%d" % number) for number in range(100)]
    stream.send(join_batch([message(b"b", b"1"), b"CMSG receipt/always\0t", message(b"b", b"2")]))
    assert [packets.receive() for _ in range(2)] == [message(b"b", b"1"), message(b"b", b"2")]
    assert stream.receive() == b"CMSG !/bus/receipt\0t\0001"
    stream.close()


def test_the_kernel_reports_the_users_of_streams(bus: Daemon, path: str) -> None:
    owner = bus.client()
    for user in (FIRST, SECOND):
        sock = user.connect(path, socket.SOCK_STREAM)
        client = StreamClient(sock)
        assert b"/%d/" % user.uid in client.ask(controls.WHOAMI)
        listed = json.loads(owner.ask(controls.CONNECTIONS))["connections"]
        assert user.uid in [each["uid"] for each in listed]
        client.subscribe(b"!/cred/%d/%d/" % (0, 0))
        assert error_code(client.receive()) == "EACCES"
        client.close()


def test_quotas_and_rules_apply(daemon: StartDaemon, folder: Path, path: str) -> None:
    config = folder / "quotas.toml"
    config.write_text("[quotas]\nconnections = 2\nsubscriptions = 3\n")
    bus = daemon("--stream-address", path, "-C", str(config))
    clients = [StreamClient(FIRST.connect(path, socket.SOCK_STREAM)) for _ in range(2)]
    refused = StreamClient(FIRST.connect(path, socket.SOCK_STREAM))
    assert error_code(refused.receive()) == "EDQUOT"
    assert refused.receive() == b""
    for number in range(4):
        clients[0].subscribe(b"%d" % number)
    assert error_code(clients[0].receive()) == "EDQUOT"
    clients[1].publish(b"!/bus/x")
    assert error_code(clients[1].receive()) == "EPERM"
    bus.client().publish(b"0", b"still there")
    assert clients[0].receive() == message(b"0", b"still there")
    for client in (*clients, refused):
        client.close()


@pytest.mark.parametrize("length", [0, MAX_PACKET_BYTES + 1, 0xFFFFFFFF])
def test_a_frame_of_a_wrong_length_is_refused(bus: Daemon, path: str, length: int) -> None:
    client = StreamClient.connect(path)
    client.control(controls.PING, b"before")
    client.socket.sendall(struct.pack("<I", length) + b"rest")
    assert client.receive() == b"CMSG %b\0before" % controls.PING
    said = client.receive()
    assert error_code(said) == "EPROTO"
    assert b"frame" in said
    assert client.receive() == b""
    client.close()
    assert bus.client().barrier() == []


def test_no_client_waits_for_one_that_sends_single_bytes(bus: Daemon, path: str) -> None:
    slow, other = StreamClient.connect(path), bus.client()
    other.subscribe(b"a")
    for byte in frame(message(b"a", b"x")):
        assert other.barrier() == []
        slow.socket.sendall(bytes([byte]))
    assert other.receive() == message(b"a", b"x")
    slow.close()


def test_each_socket_takes_only_its_own_type(bus: Daemon, path: str) -> None:
    for address, kind in ((path, socket.SOCK_SEQPACKET), (bus.path, socket.SOCK_STREAM)):
        with socket.socket(socket.AF_UNIX, kind) as wrong, pytest.raises(OSError, match="Protocol wrong type"):
            wrong.connect(address)


def test_the_path_is_removed_at_the_end(daemon: StartDaemon, path: str) -> None:
    bus = daemon("--stream-address", path)
    assert os.path.exists(path)
    bus.stop()
    assert not os.path.exists(path)


def test_a_restart_in_place_keeps_the_sockets_and_the_streams(daemon: StartDaemon, path: str) -> None:
    bus = daemon("--stream-address", path)
    client = StreamClient.connect(path)
    client.subscribe(b"a")
    assert client.barrier() == []
    client.socket.sendall(frame(LONG)[:100_000])
    before = bus.client()
    started = json.loads(before.ask(controls.STATS))["counters"]["accepted"]
    os.kill(bus.pid, signal.SIGUSR2)
    while "connections after a planned restart" not in bus.stderr:
        assert before.barrier() == []
    client.socket.sendall(frame(LONG)[100_000:])
    assert client.receive() == LONG
    other = StreamClient.connect(path)
    assert other.barrier() == []
    assert json.loads(before.ask(controls.STATS))["counters"]["accepted"] == started + 1
    other.close()
    client.close()
    bus.stop()
    assert not os.path.exists(path)


# -- under a service manager


@pytest.mark.parametrize("how", ["restart", "reload"])
def test_planned_restarts_keep_half_a_frame_in_each_direction(manager: Manager, how: str) -> None:
    stream, other = manager.stream_client(), manager.client()
    stream.subscribe(b"a")
    other.subscribe(b"b")
    assert stream.barrier() == other.barrier() == []
    sent = message(b"b", bytes(300_000))
    packets = [message(b"a", b"%02d" % number + bytes(100_000)) for number in range(10)]
    stream.socket.sendall(frame(sent)[:150_000])
    for packet in packets:
        other.send(packet)
        assert other.barrier() == []
    listed = {each["id"]: each for each in json.loads(other.ask(controls.CONNECTIONS))["connections"]}
    assert listed[min(listed)]["queued_packets"] > 1
    for _ in range(3):
        getattr(manager, how)()
    assert [stream.receive() for _ in packets] == packets
    stream.socket.sendall(frame(sent)[150_000:])
    assert other.receive() == sent
    assert stream.barrier() == []


def test_after_a_kill_streams_are_closed_and_packets_are_not(manager: Manager) -> None:
    stream, other = manager.stream_client(), manager.client()
    stream.subscribe(b"a")
    assert stream.barrier() == other.barrier() == []
    stream.socket.sendall(frame(LONG)[:5])
    manager.end(signal.SIGKILL)
    manager.start()
    end = FrameEnd(stream.socket)
    assert end.receive(1)[-1] in (b"", b"reset")
    assert other.receive() == b"CMSG !/bus/lost\x000"
    again = manager.stream_client()
    assert again.barrier() == []
    assert len(json.loads(other.ask(controls.CONNECTIONS))["connections"]) == 2
