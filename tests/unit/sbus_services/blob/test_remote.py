"""Blobs of other hosts: who pays, what is repeated, what is refused, and that nothing is left of a pull that has failed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbus.protocol.blobs import CHUNK_BYTES, F_GET_SEALS, SEALS
from sbus_programs.config.blob import BlobQuotas
from sbus_programs.config.users import ChargedUsers
from sbus_services.blob import remote
from sbus_services.blob.bus_calls import AgainError, LinkCalls, NoLinkError
from sbus_services.blob.registry import User, Users
from sbus_services.blob.remote import WINDOW, Pulled, RemoteBlobs
from sbus_services.blob.requests import Cause, Refusal

DATA = os.urandom(20 * CHUNK_BYTES + 5)
MIB = 1 << 20


class Link(LinkCalls):
    """A link to a host that has one blob under every ticket; tests change what it says."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.data = DATA
        self.changes: dict[str, object] = {}
        self.errors: list[Exception] = []
        self.asked: list[tuple[str, object]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.gate: asyncio.Event | None = None

    async def ask(self, host: str, ticket: str, ask: str, **members: object) -> tuple[dict[str, Any], list[bytes]]:
        """Answer as the host."""
        self.asked.append((ask, members.get("offset")))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await (asyncio.sleep(0) if self.gate is None or ask == "open" else self.gate.wait())
        finally:
            self.under_way -= 1
        if self.errors:
            raise self.errors.pop(0)
        if ask == "open":
            return {"size": len(self.data), "type": "text/plain", "expire": 60.0} | self.changes, []
        if ask == "digest":
            return {"sha256": hashlib.sha256(self.data).hexdigest()} | self.changes, []
        offset = members["offset"]
        assert isinstance(offset, int)
        return {"offset": offset}, [self.data[offset : offset + CHUNK_BYTES]]


class World:
    """The pulled blobs of one service."""

    def __init__(self, *, max_bytes: int = 64 * MIB, quota: int = 64 * MIB) -> None:
        self.link = Link()
        self.users = Users(BlobQuotas(bytes=quota), lambda: 0.0, ChargedUsers())
        self.dropped: list[int] = []
        self.blobs = RemoteBlobs(self.link, self.users, max_bytes=max_bytes, drop=self._drop, has_room=lambda: True)

    async def refusal(self, user: User, ticket: str = "t") -> Refusal:
        """Return why *user* does not get the blob."""
        with pytest.raises(Refusal) as refused:
            await self.blobs.get(user, "alpha", ticket)
        return refused.value

    def _drop(self, _user: User, fd: int) -> None:
        self.dropped.append(fd)
        os.close(fd)


def run_with(test: Callable[[World], Awaitable[None]], **terms: int) -> None:
    """Run *test*; at the end nothing is charged and nothing is open."""

    async def run() -> None:
        world = World(**terms)
        await test(world)
        await world.blobs.close()
        await asyncio.sleep(0.01)
        assert len(world.blobs) == world.blobs.bytes == 0
        assert all(user.is_idle and not user.bytes for user in world.users)
        for fd in world.dropped:
            assert not os.path.exists(f"/proc/self/fd/{fd}") or "sbus-blob" not in os.readlink(f"/proc/self/fd/{fd}")

    asyncio.run(run())


def content(blob: Pulled) -> bytes:
    """Return the bytes of a complete blob."""
    return os.pread(blob.fd, blob.size + 1, 0)


def test_a_blob_is_pulled_once_for_all_users() -> None:
    async def test(world: World) -> None:
        one, two = world.users.of(1), world.users.of(2)
        blobs = await asyncio.gather(*(world.blobs.get(user, "alpha", "t") for user in (one, two, one)))
        assert all(blob is blobs[0] for blob in blobs)
        assert content(blobs[0]) == DATA
        assert fcntl.fcntl(blobs[0].fd, F_GET_SEALS) & SEALS == SEALS  # and F_SEAL_EXEC, if the kernel knows it
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(blobs[0].fd, b"x")
        assert [ask for ask, _ in world.link.asked] == ["open", *["read"] * 21, "digest"]
        assert 1 < world.link.most_under_way <= WINDOW
        assert (one.blobs, one.bytes, two.blobs, two.bytes) == (1, len(DATA), 0, 0)
        assert await world.blobs.get(two, "alpha", "t") is blobs[0]
        assert (await world.blobs.get(two, "beta", "t")) is not blobs[0]

    run_with(test)


def test_a_pull_continues_at_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0.01)

    async def test(world: World) -> None:
        world.link.errors = [AgainError("the host is away") for _ in range(30)]
        blob = await world.blobs.get(world.users.of(1), "alpha", "t")
        assert content(blob) == DATA
        assert world.users.of(1).counters["pull-repeated"] == 30
        assert len(world.link.asked) == 23 + 30

    run_with(test)


def test_a_host_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(remote, "STALL_SECONDS", 0.05)

    async def test(world: World) -> None:
        world.link.errors = [AgainError("no answer") for _ in range(10_000)]
        refusal = await world.refusal(world.users.of(1))
        assert (refusal.cause, "no answer" in refusal.reason) == (Cause.UNREACHABLE, True)

    run_with(test)


def test_without_a_link_the_refusal_comes_at_once() -> None:
    async def test(world: World) -> None:
        world.link.errors = [NoLinkError("none")]
        assert (await world.refusal(world.users.of(1))).cause is Cause.NO_LINK
        world.link.errors = [Refusal(Cause.NOT_THERE, "gone")]
        assert (await world.refusal(world.users.of(1))).cause is Cause.NOT_THERE
        assert content(await world.blobs.get(world.users.of(1), "alpha", "t")) == DATA

    run_with(test)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"size": -1}, Cause.NOT_PULLED),
        ({"size": True}, Cause.NOT_PULLED),
        ({"size": 1e3}, Cause.NOT_PULLED),
        ({"size": None}, Cause.NOT_PULLED),
        ({"size": 1 << 62}, Cause.QUOTA_BYTES),
        ({"size": len(DATA) + 1}, Cause.NOT_PULLED),
        ({"size": len(DATA) - 1}, Cause.NOT_PULLED),
        ({"size": len(DATA) + CHUNK_BYTES}, Cause.NOT_PULLED),
        ({"type": 5}, Cause.NOT_PULLED),
        ({"type": "x\n"}, Cause.NOT_PULLED),
        ({"sha256": "0" * 64}, Cause.DIGEST),
        ({"sha256": None}, Cause.DIGEST),
        ({"expire": "x"}, Cause.GONE),
        ({"expire": -5.0}, Cause.GONE),
    ],
)
def test_a_host_that_lies(changes: dict[str, object], cause: Cause) -> None:
    async def test(world: World) -> None:
        world.link.changes = changes
        refusal = await world.refusal(world.users.of(1))
        while cause is Cause.GONE and len(world.blobs):
            await asyncio.sleep(0.001)
        assert refusal.cause is cause
        assert world.blobs.bytes == world.users.of(1).bytes == 0

    run_with(test)


def test_the_user_pays_by_its_quotas() -> None:
    async def test(world: World) -> None:
        world.link.data = bytes(3 * MIB)
        await world.blobs.get(world.users.of(1), "alpha", "a")
        assert (await world.refusal(world.users.of(1), "b")).cause is Cause.QUOTA_BYTES
        assert (world.users.of(1).blobs, world.users.of(1).bytes) == (1, 3 * MIB)
        assert content(await world.blobs.get(world.users.of(2), "alpha", "b")) == bytes(3 * MIB)

    run_with(test, quota=5 * MIB)


def test_pulls_without_a_caller_are_bounded() -> None:
    """A user could ask and leave, again and again, while the other host does not answer."""

    async def test(world: World) -> None:
        world.link.gate, world.link.data = asyncio.Event(), b"x"
        user = world.users.of(1)
        for number in range(BlobQuotas().blobs):
            leaving = asyncio.ensure_future(world.blobs.get(user, "alpha", f"t{number}"))
            await asyncio.sleep(0)
            leaving.cancel()
        assert (await world.refusal(user, "more")).cause is Cause.QUOTA_BLOBS
        assert len(world.blobs) == BlobQuotas().blobs

    run_with(test)


def test_the_room_of_all_is_divided() -> None:
    """The user that has most loses the oldest, also while it is pulled; a user with no more than others loses nothing."""

    async def test(world: World) -> None:
        world.link.data = bytes(MIB)
        one, two, three = (world.users.of(number) for number in (1, 2, 3))
        first = await world.blobs.get(one, "alpha", "a")
        await world.blobs.get(one, "alpha", "b")
        world.link.gate = asyncio.Event()
        hanging = asyncio.ensure_future(world.refusal(one, "c"))
        while world.blobs.bytes < 3 * MIB:
            await asyncio.sleep(0)
        world.link.gate.set()
        world.link.gate = asyncio.Event()
        others = [asyncio.ensure_future(world.blobs.get(two, "alpha", "d"))]
        while first.fd >= 0:
            await asyncio.sleep(0)
        assert one.counters["pulled-evicted"] == 1
        world.link.gate.set()
        await asyncio.gather(*others)
        hanging.cancel()
        assert (await world.refusal(two, "e")).cause is Cause.QUOTA_PULLED
        world.link.data = bytes(4 * MIB)
        assert "max_pulled of this host" in (await world.refusal(three, "f")).reason

    run_with(test, max_bytes=3 * MIB)


def test_a_pull_that_is_evicted_is_refused() -> None:
    async def test(world: World) -> None:
        world.link.data = bytes(2 * MIB)
        world.link.gate = asyncio.Event()
        hanging = asyncio.ensure_future(world.refusal(world.users.of(1), "a"))
        while world.blobs.bytes < 2 * MIB:
            await asyncio.sleep(0)
        world.link.data = bytes(MIB)
        other = asyncio.ensure_future(world.blobs.get(world.users.of(2), "alpha", "b"))
        refusal = await hanging
        assert (refusal.cause, "other users needed the room" in refusal.reason) == (Cause.QUOTA_PULLED, True)
        world.link.gate.set()
        assert content(await other) == bytes(MIB)

    run_with(test, max_bytes=2 * MIB)


def test_a_caller_that_leaves_does_not_end_the_pull() -> None:
    async def test(world: World) -> None:
        leaving = asyncio.ensure_future(world.blobs.get(world.users.of(1), "alpha", "t"))
        while not world.link.asked:
            await asyncio.sleep(0)
        leaving.cancel()
        assert content(await world.blobs.get(world.users.of(2), "alpha", "t")) == DATA
        assert [ask for ask, _ in world.link.asked].count("open") == 1

    run_with(test)


def test_a_blob_ends_when_it_expires() -> None:
    async def test(world: World) -> None:
        world.link.data = b"x"
        seconds, blob = 0.05, None
        while blob is None:  # on a busy machine, it expires before it is pulled
            world.link.changes = {"expire": seconds}
            with contextlib.suppress(Refusal):
                blob = await world.blobs.get(world.users.of(1), "alpha", "t")
            seconds *= 2
        while blob.fd >= 0:
            await asyncio.sleep(0.01)
        assert (len(world.blobs), world.users.of(1).bytes, world.blobs.bytes) == (0, 0, 0)

    run_with(test)
