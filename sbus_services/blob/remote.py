"""Blobs of other hosts: pulled through the link in chunks when a user asks for one, and kept for others until they expire.

A user with the ticket may get the blob, as on its own host. The user that asks first pays for it by its quotas. All pulled blobs together
have a limit, because their memory is that of this service; if it is used up, the user with most of it loses the oldest. Spec: sbus-blob(8),
"Other hosts".
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sbus.memory_files import create_memory_file
from sbus.protocol.blobs import CHUNK_BYTES, F_ADD_SEALS, MAX_EXPIRE, SEALS, is_media_type
from sbus_services.blob.bus_calls import AgainError, LinkCalls, NoLinkError
from sbus_services.blob.descriptors import open_again
from sbus_services.blob.registry import User, Users
from sbus_services.blob.requests import Cause, Refusal

WINDOW = 8
"""Chunks of one user that are on their way."""

STALL_SECONDS = 60.0
"""A pull fails after this time without an answer of the other host."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a question is repeated: doubled each time."""


@dataclass(slots=True, eq=False)
class Pulled:
    """A blob of another host. ``fd`` is -1 until it is complete; ``progress`` is when the host has answered last."""

    host: str
    ticket: str
    user: User
    progress: float
    size: int = 0
    type: str = ""
    fd: int = -1
    until: float = 0.0
    is_charged: bool = False
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    ended: str = ""
    """Why it was ended before it was complete."""
    parts: deque[asyncio.Task[bytes]] = field(default_factory=deque)


class RemoteBlobs:
    """The pulled blobs of all users. *drop* closes a descriptor whose memory may be freed; *max_bytes* is for all together."""

    def __init__(
        self, calls: LinkCalls, users: Users, *, max_bytes: int, drop: Callable[[User, int], None], has_room: Callable[[], bool]
    ) -> None:
        self.bytes = 0
        self._calls = calls
        self._users = users
        self._max_bytes = max_bytes
        self._drop = drop
        self._has_room = has_room
        self._blobs: dict[tuple[str, str], Pulled] = {}
        self._windows: dict[int, tuple[asyncio.Semaphore, int]] = {}

    def __len__(self) -> int:
        return len(self._blobs)

    def pulled_bytes(self, user: User) -> int:
        """Return the size of the blobs that *user* has pulled."""
        return sum(blob.size for blob in self._blobs.values() if blob.user is user and blob.is_charged)

    async def get(self, user: User, host: str, ticket: str) -> Pulled:
        """Return the complete blob of *host* with *ticket*; pull it if it is not here, also if the caller is cancelled. Raises Refusal."""
        place = (host, ticket)
        blob = self._blobs.get(place)
        if blob is None:
            # Also before its size is known: pulls go on without those who asked for them.
            self._users.check_blob(user, 0)
            user.blobs += 1
            blob = self._blobs[place] = Pulled(host, ticket, user, asyncio.get_running_loop().time())
            blob.task = asyncio.get_running_loop().create_task(self._pull(blob))
            # Its refusal is for those who wait, and there may be none any more.
            blob.task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        if blob.task is not None:
            await asyncio.wait([blob.task])
            if blob.task.cancelled():
                raise Refusal(Cause.QUOTA_PULLED, f"the pull was ended: {blob.ended}")
            blob.task.result()
        if blob.fd < 0:
            raise Refusal(Cause.GONE, f"the blob is gone: {blob.ended}")
        return blob

    async def close(self) -> None:
        """End all blobs, and the connection to the bus."""
        for blob in list(self._blobs.values()):
            self._end(blob, "the service stops")
        await self._calls.close()

    async def _pull(self, blob: Pulled) -> None:
        """Pull *blob*. Raises Refusal; then nothing of it is left."""
        fd = -1
        loop = asyncio.get_running_loop()
        try:
            opened, _ = await self._asked(blob, "open")
            size, kind, expire = opened.get("size"), opened.get("type"), opened.get("expire")
            if type(size) is not int or size < 0 or not isinstance(kind, str) or not is_media_type(kind):
                raise Refusal(Cause.NOT_PULLED, f"the answer of host {blob.host} does not describe a blob")
            seconds = min(float(expire), MAX_EXPIRE) if isinstance(expire, int | float) else 0.0
            self._charge(blob, size)
            blob.type, blob.until = kind, loop.time() + seconds
            fd = create_memory_file("sbus-blob")
            await self._fill(blob, fd)
            fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
            blob.fd = open_again(fd)
            blob.timer = loop.call_at(blob.until, self._end, blob, "it has expired")
            self._users.count(blob.user, "pulled")
        except OSError as error:
            raise Refusal(Cause.FULL, f"cannot allocate memory for the blob: {error.strerror}") from None
        finally:
            for part in blob.parts:
                part.cancel()
            await asyncio.gather(*blob.parts, return_exceptions=True)
            blob.parts.clear()
            if fd >= 0:
                self._drop(blob.user, fd)
            if blob.fd < 0:
                self._users.count(blob.user, "pull-failed")
                self._end(blob, blob.ended or "it was not pulled")

    async def _fill(self, blob: Pulled, fd: int) -> None:
        """Write all chunks of *blob* in their order, and check the digest. Raises Refusal, OSError."""
        loop = asyncio.get_running_loop()
        digest = hashlib.sha256()
        asked = done = 0
        while done < blob.size:
            while asked < blob.size and len(blob.parts) < WINDOW:
                blob.parts.append(loop.create_task(self._chunk(blob, asked)))
                asked += CHUNK_BYTES
            chunk = await blob.parts[0]
            blob.parts.popleft()
            # Not here: other users wait while this thread works.
            await loop.run_in_executor(None, _write, fd, chunk, digest.update)
            done += len(chunk)
        answer, _ = await self._asked(blob, "digest")
        if answer.get("sha256") != digest.hexdigest():
            raise Refusal(Cause.DIGEST, f"the bytes that host {blob.host} has sent are not those of the blob: their SHA-256 is another one")

    async def _chunk(self, blob: Pulled, offset: int) -> bytes:
        """Return the chunk at *offset*. Raises Refusal."""
        async with self._slot(blob.user):
            _, frames = await self._asked(blob, "read", offset=offset)
        if len(frames) != 1 or len(frames[0]) != min(CHUNK_BYTES, blob.size - offset):
            raise Refusal(Cause.NOT_PULLED, f"host {blob.host} sent a chunk of another size than its blob has at {offset}")
        return frames[0]

    @contextlib.asynccontextmanager
    async def _slot(self, user: User) -> Any:
        """Wait for one of the places of *user* in the window."""
        window, waiting = self._windows.get(user.uid, (asyncio.Semaphore(WINDOW), 0))
        self._windows[user.uid] = (window, waiting + 1)
        try:
            async with window:
                yield
        finally:
            window, waiting = self._windows[user.uid]
            if waiting == 1:
                del self._windows[user.uid]
            else:
                self._windows[user.uid] = (window, waiting - 1)

    async def _asked(self, blob: Pulled, ask: str, **members: object) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer of the other host, which is asked again while it is not reached. Raises Refusal."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await self._calls.ask(blob.host, blob.ticket, ask, **members)
            except AgainError as again:
                if isinstance(again, NoLinkError) and not blob.is_charged:
                    words = f"the blob is on host {blob.host}, and no link of this bus serves blobs; see max_blob in link.toml(5)"
                    raise Refusal(Cause.NO_LINK, words) from None
                if loop.time() - blob.progress > STALL_SECONDS:
                    raise Refusal(Cause.UNREACHABLE, f"host {blob.host} was not reached for {STALL_SECONDS:g} s: {again}") from None
                self._users.count(blob.user, "pull-repeated")
            else:
                blob.progress = loop.time()
                return answer
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _charge(self, blob: Pulled, size: int) -> None:
        """Account *blob* to its user. Raises Refusal."""
        user = blob.user
        self._users.check_bytes(user, size)
        if not self._has_room():
            raise Refusal(Cause.FULL, "the service has no descriptor left; try again later")
        if size > self._max_bytes:
            raise Refusal(Cause.QUOTA_PULLED, f"the blob has {size} bytes, and max_pulled of this host is {self._max_bytes}")
        while self.bytes + size > self._max_bytes:
            self._make_room(user, size)
        blob.size, blob.is_charged = size, True
        self.bytes += size
        user.bytes += size

    def _make_room(self, user: User, size: int) -> None:
        """End the oldest blob of the user that has most, if that is more than *user* would have. Raises Refusal."""
        charged = [blob for blob in self._blobs.values() if blob.is_charged]
        largest = max((blob.user for blob in charged), key=self.pulled_bytes)
        if largest is user or self.pulled_bytes(largest) <= self.pulled_bytes(user) + size:
            words = f"the pulled blobs of all users have {self.bytes} bytes; with {size} more they would be above {self._max_bytes}"
            raise Refusal(Cause.QUOTA_PULLED, f"{words}; wait until some expire")
        self._users.count(largest, "pulled-evicted")
        self._end(next(blob for blob in charged if blob.user is largest), "other users needed the room")

    def _end(self, blob: Pulled, why: str) -> None:
        """Forget *blob*, and close its descriptor. Those who have it keep it."""
        if self._blobs.get((blob.host, blob.ticket)) is not blob:
            return
        del self._blobs[blob.host, blob.ticket]
        blob.ended = why
        if blob.timer is not None:
            blob.timer.cancel()
        if blob.task is not None and blob.task is not asyncio.current_task():
            blob.task.cancel()
        blob.user.blobs -= 1
        if blob.is_charged:
            self.bytes -= blob.size
            blob.user.bytes -= blob.size
            blob.is_charged = False
        if blob.fd >= 0:
            fd, blob.fd = blob.fd, -1
            self._drop(blob.user, fd)


def _write(fd: int, chunk: bytes, update: Callable[[bytes], object]) -> None:
    """Append *chunk* to *fd*, and add it to a digest. Raises OSError."""
    update(chunk)
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(fd, rest) :]
