"""The outbox: messages on disk from before the first is published until after the last. Spec: sbus-spark(7).

::

    OUTBOX/
      .lock               held by the publishing process
      SERIES.N.arrow      the messages of one batch, complete and synced before the first is published
      SERIES.N.json       progress note, messages published, and messages tried: {"published": P, "trying": T}
      done.json           number of the last published batch of each series

A series is a query, or a token. A batch that Spark repeats is in ``done.json``, and is not published again. An interrupted batch is
published from its file, starting after the last note, whatever rows Spark has computed the second time. Only messages between two notes are
in doubt: the bus may have received them or not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from sbus_archive.pipeline.errors import DamagedOutboxError, SourceError
from sbus_archive.pipeline.source.options import InDoubt
from sbus_archive.storage.files import LockHeldError, lock_file, publish_draft, publish_file, sync_folder, temporary

MESSAGES = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("payload", pa.binary(), nullable=False)])
"""One row per message."""

_DONE = "done.json"
_LOCK = ".lock"

Publish = Callable[[list[tuple[bytes, bytes]]], None]
"""Publishes messages in order, and returns when the bus has routed all of them."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch: published messages, and messages in doubt that were published again or skipped."""

    published: int
    repeated: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Outbox:
    """The outbox in the directory ``root``, of one query or one program."""

    root: Path
    chunk_rows: int
    in_doubt: InDoubt

    def deliver(self, series: str, number: int, batches: Iterable[pa.RecordBatch], publish: Publish) -> BatchResult:
        """Publish *batches* as batch *number* of *series*, unless it or a later one was published before. Numbers increase.

        Raises:
            SourceError: another process uses the outbox, or a file in it is damaged.
            OSError: it cannot be written; at most one chunk was published without a note.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        token = f"{series}.{number}"
        with self._locked():
            done = self._done()
            last = done.get(series, -1)
            if isinstance(last, int) and number <= last:
                self._remove(token)
                return BatchResult(0)
            content = self.root / f"{token}.arrow"
            if not content.exists():
                self._write(content, batches)
            delivery = self._publish(self.root / f"{token}.json", content, publish)
            publish_file(self.root / _DONE, json.dumps({**done, series: number}).encode())
            self._remove(token)
            return delivery

    def discard(self, series: str, number: int) -> None:
        """Give up batch *number* of *series*: what was not published of it is dropped. Raises SourceError, OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            publish_file(self.root / _DONE, json.dumps({**self._done(), series: number}).encode())
            self._remove(f"{series}.{number}")

    def _publish(self, note: Path, content: Path, publish: Publish) -> BatchResult:
        """Publish the messages in *content*, from the last note on."""
        noted, tried = self._note(note)
        begin = tried if self.in_doubt == "skip" else noted
        position = 0
        with _reading(content) as batches:
            for batch in batches:
                ahead = min(max(begin - position, 0), batch.num_rows)
                position += ahead
                for first in range(ahead, batch.num_rows, self.chunk_rows):
                    chunk = batch.slice(first, min(self.chunk_rows, batch.num_rows - first))
                    publish_file(note, json.dumps({"published": position, "trying": position + chunk.num_rows}).encode())
                    publish(pairs(chunk))
                    position += chunk.num_rows
        doubtful = tried - noted
        return BatchResult(position - min(begin, position), *((0, doubtful) if self.in_doubt == "skip" else (doubtful, 0)))

    def _write(self, content: Path, batches: Iterable[pa.RecordBatch]) -> None:
        """Write *batches* to the file *content*; it is durable on return."""
        draft = temporary(content)
        with draft.open("wb") as stream:
            with ipc.new_stream(stream, MESSAGES) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            stream.flush()
            os.fsync(stream.fileno())
        publish_draft(draft, content)

    def _note(self, path: Path) -> tuple[int, int]:
        """Return the number of messages that were published, and the number that were tried."""
        if not path.exists():
            return 0, 0
        value = _read(path)
        published, trying = value.get("published"), value.get("trying")
        if not isinstance(published, int) or not isinstance(trying, int):
            raise DamagedOutboxError(
                f"{path}: damaged file. Remove it and {path.stem}.arrow to give up the unpublished messages of this batch"
            )
        return published, trying

    def _done(self) -> dict[str, object]:
        """Return the last published number of each series."""
        path = self.root / _DONE
        return _read(path) if path.exists() else {}

    def _remove(self, token: str) -> None:
        """Remove the files of a published batch."""
        for suffix in (".arrow", ".json"):
            (self.root / f"{token}{suffix}").unlink(missing_ok=True)
        sync_folder(self.root)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the outbox. The kernel releases it if the process is killed."""
        try:
            fd = lock_file(self.root / _LOCK, 0o600)
        except LockHeldError as error:
            raise SourceError(
                f"{self.root}: outbox is in use by another process, {error.holder}. Use a separate outbox for each query"
            ) from None
        try:
            yield
        finally:
            os.close(fd)


def _read(path: Path) -> dict[str, object]:
    """Return the JSON object in a file. Raises SourceError if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DamagedOutboxError(f"{path}: damaged file: not a JSON object")
    return value


def pairs(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    """Return the rows of a batch of :data:`MESSAGES` as keys and payloads."""
    return list(zip(batch.column("key").to_pylist(), batch.column("payload").to_pylist(), strict=True))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the batches of a file. Raises SourceError if it is damaged."""
    with path.open("rb") as stream:
        try:
            reader = ipc.open_stream(stream)
        except (pa.ArrowException, OSError) as error:
            raise DamagedOutboxError(f"{path}: damaged file: {error}") from None
        yield iter(reader)
