"""A connection to another link whose frames never end, and one that was not read for a while."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sbus_services.link.network import direct_frames, direct_peer, streams
from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.network.direct_peer import PeerConnection
from sbus_services.link.network.streams import Stall
from tests.support.link_networks import Gate


class NoEvents:
    """Fails at each event."""

    def peer_sent(self, peer: PeerConnection, subject: str, head: bytes, body: bytes) -> None:
        pytest.fail(subject)

    def peer_changed(self, peer: PeerConnection) -> None:
        pytest.fail(peer.name)

    def peer_passed(self, peer: PeerConnection, number: int) -> None:
        pytest.fail(str(number))

    def peer_rejected(self, peer: PeerConnection, reason: str) -> None:
        pytest.fail(reason)

    def peer_forged(self, peer: PeerConnection, reason: str) -> None:
        pytest.fail(reason)

    def peer_got(self, peer: PeerConnection, content: int) -> None:
        pytest.fail(str(content))

    def peer_has_room(self) -> None:
        """Pings are written."""


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[PeerConnection, asyncio.StreamWriter]]:
    """Yield a connection that has been greeted, and its other end."""
    made: asyncio.Future[PeerConnection] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.set_result(PeerConnection("alpha", "alpha", reader, writer, 1_000))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    peer = await made
    writer.write(direct_frames.hello("R"))
    await peer.greet("R")
    try:
        yield peer, writer
    finally:
        writer.transport.abort()
        server.close()


def test_a_frame_that_comes_byte_by_byte_has_a_limit_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_peer, "PING_SECONDS", 0.05)
    monkeypatch.setattr(direct_peer, "FRAME_SECONDS", 0.3)

    async def run() -> str:
        async with connected() as (peer, writer):
            stall = Stall(Gate().writable, NetworkCounters())
            running = asyncio.create_task(peer.run("R", NoEvents(), stall))
            writer.write(struct.pack("<I", 1_000_000))
            while not running.done():
                writer.write(b"\2")
                await asyncio.sleep(0.02)
        return await running

    assert asyncio.run(run()) == "it has not completed a frame within 0.3 s"


def test_a_pause_of_this_process_is_not_a_silence_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_peer, "PING_SECONDS", 0.05)

    async def run() -> str:
        loop = asyncio.get_running_loop()
        clock, paused = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: clock() + paused)
        async with connected() as (peer, _):
            running = asyncio.create_task(peer.run("R", NoEvents(), Stall(Gate().writable, NetworkCounters())))
            await asyncio.sleep(0.1)
            paused = 100.0
            await asyncio.sleep(0.2)
            assert not running.done()
            monkeypatch.setattr(direct_peer, "SILENCE_SECONDS", 0.5)
            return await running

    assert asyncio.run(run()) == "it has sent nothing for 0.5 s"


def test_the_frames_of_one_read_are_handled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TURN_SECONDS", 1e6)
    frames = 4 * streams.TURN_FRAMES
    handled = [0]
    sizes: list[int] = []

    class Counted(NoEvents):
        def peer_passed(self, peer: PeerConnection, number: int) -> None:
            handled[0] += 1

    async def run() -> None:
        async with connected() as (peer, writer):
            running = asyncio.create_task(peer.run("R", Counted(), Stall(Gate().writable, NetworkCounters())))
            writer.write(direct_frames.pong(1) * frames)
            before = 0
            while before < frames:
                await asyncio.sleep(0)
                sizes.append(handled[0] - before)
                before = handled[0]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert 1 < max(sizes) <= streams.TURN_FRAMES


def test_users_share_what_waits_for_a_host_that_does_not_read() -> None:
    """Of the user with the most, the newest messages are dropped. The frames of the connection itself are not."""

    class Counted(NoEvents):
        def __init__(self) -> None:
            self.contents: list[int] = []

        def peer_got(self, peer: PeerConnection, content: int) -> None:
            self.contents.append(content)

    async def run() -> None:
        async with connected() as (peer, writer):
            dropped = [peer.send_message(bytes(90), number, 1001) for number in range(20)]
            peer.send(bytes(60))
            assert dropped == [0] * 11 + [1] * 9
            assert [peer.send_message(bytes(90), 100 + number, 1000) for number in range(3)] == [2, 1, 1]
            assert peer.send_message(bytes(90), 200, 1001) == 1
            assert peer.pending_bytes == 60 + 10 * 90
            events = Counted()
            running = asyncio.create_task(peer.run("R", events, Stall(Gate().writable, NetworkCounters())))
            while len(events.contents) < 10:
                await asyncio.sleep(0)
            writer.transport.abort()
            await running
            assert events.contents == [*range(7), 100, 101, 102]

    asyncio.run(run())
