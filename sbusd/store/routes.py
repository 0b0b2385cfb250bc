"""Which stream stores a key, and which streams a pattern can find."""

from __future__ import annotations

from functools import lru_cache

from sbusd.config.store import QueueSettings, StoreSettings, StreamSettings
from sbusd.protocol.printable import printable
from sbusd.store.calls.call_errors import CallError
from sbusd.store.engine.key_map import KeyMap

_CACHED_KEYS = 65_536


class Routes:
    """The streams and queues of *settings*. No key belongs to two streams."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self._streams = {each.name: each for each in settings.streams}
        self._queues = {each.name: each for each in settings.queues}
        self._queue_of = {each.stream: each for each in settings.queues}
        self._keys = KeyMap(settings.streams)
        self.stream_of = lru_cache(_CACHED_KEYS)(self._stream_of)
        """Returns the stream that stores a key, or None."""

    def stream(self, name: str) -> StreamSettings:
        """Return a stream. Raises CallError (ENOENT)."""
        if name not in self._streams:
            raise CallError("ENOENT", f"unknown stream {printable(name, 64)!r}")
        return self._streams[name]

    def queue(self, name: str) -> QueueSettings:
        """Return a queue. Raises CallError (ENOENT)."""
        if name not in self._queues:
            raise CallError("ENOENT", f"unknown queue {printable(name, 64)!r}")
        return self._queues[name]

    def queue_of(self, stream: str) -> QueueSettings | None:
        """Return the queue whose jobs are the messages of *stream*, or None."""
        return self._queue_of.get(stream)

    def with_last_values(self, pattern: bytes) -> list[StreamSettings]:
        """Return the streams with last values whose keys *pattern* can match."""
        return [each for name in self._keys.streams_of(pattern) if (each := self._streams[name]).last]

    def _stream_of(self, key: bytes) -> StreamSettings | None:
        name = self._keys.stream_of(key)
        return None if name is None else self._streams[name]
