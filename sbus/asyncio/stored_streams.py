"""Streams of a store that a program reads: those of this host, and of others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from sbus.arguments import check_count
from sbus.asyncio.calls import AsyncCallMethods
from sbus.asyncio.put_gathering import pause_for
from sbus.errors import AnswerLost, Disconnected, NoRecipient, PeerDisconnected, RemoteError, SbusError, TimedOut
from sbus.rpc.calls import Answer
from sbus.store.errors import RESTARTING, StoreError, StoreNotRunning, store_error
from sbus.store.items import (
    Page,
    StoredMessage,
    StoreItem,
    heads_and_frames,
    item_of,
    malformed,
    message_of,
    parse_response,
)
from sbus.store.requests import ANSWER_SECONDS, COMMIT_SECONDS, WAIT_SECONDS, Pauses, key_text, request_data


class AsyncStoredStreams:
    """Reads the streams of one store, with durable readers."""

    def __init__(self, bus: AsyncCallMethods, twin: int | None = None) -> None:
        """*twin* is the number of the host with the store, for its relay; None is this host."""
        self._bus = bus
        self._twin = twin
        self._is_known = False

    @property
    def _address(self) -> str:
        """The address of the bus, for advice in errors."""
        return self._bus._link.target.text

    def __repr__(self) -> str:
        host = "" if self._twin is None else f"twin {self._twin} by "
        return f"<{type(self).__name__} of {host}{self._bus!r}>"

    async def last(self, *patterns: str | bytes) -> AsyncGenerator[StoredMessage]:
        """Yield the last values of all keys that match *patterns*, ordered by key. Raises StoreError: ``EACCES``, ``ENOENT``."""
        names = [key_text(each, "pattern") for each in patterns]
        if not names:
            raise ValueError("cannot list last values: give at least one pattern")
        after: str | None = None
        while True:
            head, found = heads_and_frames(await self._call("last", request_data(patterns=names, after=after)), "messages")
            for each, frame in found:
                yield message_of(each, frame)
            if (after := head.get("next")) is None:
                return

    async def read(
        self,
        stream: str,
        *,
        reader: str | None = None,
        start: int | Literal["first", "last", "new"] | None = None,
        since: float | None = None,
        pattern: str | bytes = b"",
        follow: bool = True,
    ) -> AsyncGenerator[StoreItem]:
        """Yield the messages of *stream* in order, and a ``StoreGap`` where some are missing; then wait for new ones.

        Begins with number *start*, the first message by default, or at *since*, in seconds since 1970. With *reader*, the store keeps the
        position of the reader with that name of this user, and later loops continue there; *start* and *since* are then for a new reader.
        The position is stored when the loop asks for more than the messages of one response, at most 256; once a second; and when the
        loop ends. A message is done when the loop asks for the next one. So each is yielded at least once, and after a crash those of
        the last second come again. With *pattern*, only messages that match it are yielded. Without *follow*, the loop ends with the
        newest message. With ``AsyncBus`` use ``contextlib.aclosing``.
        """
        key_pattern = key_text(pattern, "pattern")
        committed = run = 0
        if reader is not None and (start is not None or since is not None) and (known := await self.position(stream, reader)) is not None:
            start, since = known, None
        done = 0
        due = time.monotonic() + COMMIT_SECONDS
        try:
            while True:
                begin: dict[str, object] = {"time": since, "reader": None if since is not None else reader}
                if start is not None:
                    begin = {"from": start, "run": run or None}
                page = await self._page(stream, key_pattern, WAIT_SECONDS if follow else 0, **begin)
                run = page.run
                for item in page.items:
                    yield item
                    done = item.seq + 1
                    if reader is not None and time.monotonic() >= due:
                        await self._commit(stream, reader, done, run)
                        committed, due = done, time.monotonic() + COMMIT_SECONDS
                start, since, done = page.next_seq, None, page.next_seq
                if reader is not None and done != committed:
                    await self._commit(stream, reader, done, run)
                    committed, due = done, time.monotonic() + COMMIT_SECONDS
                if not follow and page.next_seq > page.last_seq:
                    return
        finally:
            if reader is not None and done > committed:
                with contextlib.suppress(SbusError):  # those messages come again
                    await self._commit(stream, reader, done, run)

    async def position(self, stream: str, reader: str) -> int | None:
        """Return the number at which *reader* continues; None if this user has no such reader."""
        try:
            return await self._seq(stream=stream, reader=reader)
        except StoreError as error:
            if error.code != "ENOENT" or "reader" not in error.words:
                raise
            return None

    async def set_position(self, stream: str, reader: str, seq: int) -> None:
        """Let *reader* continue with number *seq*; a reader that does not exist is created. On return that is on disk."""
        check_count(seq, "seq", 1)
        await self._seq(stream=stream, reader=reader, seq=seq)

    async def drop_reader(self, stream: str, reader: str) -> None:
        """Remove *reader* of this user."""
        await self._seq(stream=stream, reader=reader, drop=True)

    async def streams(self) -> dict[str, Any]:
        """Return the streams and queues that this user may see, with settings and figures. Spec: sbus-store(8), "CALLS"."""
        head, _ = parse_response(await self._call("streams", request_data()))
        if not all(isinstance(head.get(name), list) for name in ("streams", "queues")):
            raise malformed("streams and queues are missing")
        return dict(head)

    async def _commit(self, stream: str, reader: str, seq: int, run: int) -> None:
        """Store the position of a loop, unless its messages are of another file of the store: then the next page says so."""
        try:
            await self._seq(stream=stream, reader=reader, seq=seq, run=run or None)
        except StoreError as error:
            if error.code != "ESTALE":
                raise

    async def _page(self, stream: str, pattern: str, wait: float, **start: object) -> Page:
        """Return the next items of a stream."""
        data = request_data(stream=stream, pattern=pattern or None, wait=wait or None, **start)
        head, found = heads_and_frames(await self._call("read", data, wait=wait, is_endless=wait > 0), "messages")
        items = [item_of(each, frame) for each, frame in found]
        try:
            return Page(items, int(head["next"]), int(head["last"]), int(head.get("run", 0)))
        except (KeyError, TypeError, ValueError) as error:
            raise malformed(f"a page: {error!r}") from error

    async def _seq(self, **members: object) -> int:
        """Perform ``store/position``."""
        head, _ = parse_response(await self._call("position", request_data(**members)))
        if not isinstance(seq := head.get("seq"), int):
            raise malformed("seq is missing")
        return seq

    async def _call(self, name: str, data: bytes, *, wait: float = 0.0, is_repeatable: bool = True, is_endless: bool = False) -> Answer:
        """Perform the call *name*, again while the store restarts, and after a reconnection. If *is_endless*, wait for the bus too."""
        pauses: Pauses | None = None
        while True:
            try:
                answer = await self._bus.call(f"store/{name}", data, timeout=wait + ANSWER_SECONDS, twin=self._twin)
            except SbusError as error:
                problem = self._passing(error, is_repeatable=is_repeatable, is_endless=is_endless)
            else:
                self._is_known = True
                return answer
            if problem is None:
                pauses = None
                continue
            pauses = pauses or Pauses(time.monotonic())
            pause = pauses.next(time.monotonic())
            if pause is None:
                raise problem
            await pause_for(pause)

    def _passing(self, error: SbusError, *, is_repeatable: bool, is_endless: bool) -> SbusError | None:
        """Return the error to raise if the call fails for too long, None if that has no limit. Raises it if the call cannot be repeated."""
        if isinstance(error, RemoteError):
            problem = store_error(error, self._twin, self._address)
            if problem.code != RESTARTING:
                raise problem from None
            self._is_known = True
            return problem
        if isinstance(error, NoRecipient) and self._twin is None:
            if self._is_known:
                return StoreNotRunning(error.command, self._address)
            raise StoreNotRunning(error.command, self._address) from None
        if is_repeatable and isinstance(error, PeerDisconnected | AnswerLost):
            self._is_known = True
            return error
        if is_repeatable and isinstance(error, Disconnected) and self._bus._link.state != "closed":
            return error
        if is_endless and isinstance(error, TimedOut) and self._bus._link.state == "reconnecting":
            return None
        raise error


class AsyncRemoteStore(AsyncStoredStreams):
    """The streams of the store of another host, from :meth:`Store.on`; sbus-relay(8) carries the calls.

    Each method is that of :class:`Store`. The other host decides which streams this host can read, ``twins`` in store.toml(5), and its
    readers belong to this host, not to a user of it. Methods may raise StoreError, with ``EHOSTDOWN`` if a relay says why the call failed,
    and what ``Bus.call`` with *twin* raises except RemoteError.
    """

    @property
    def twin(self) -> int:
        """The number of the other host."""
        return self._twin or 0
