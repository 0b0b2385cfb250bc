"""What the store returns: messages, gaps between them, and jobs. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbus.items import Message
from sbus.protocol.credentials import Peer
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.framed_data import parse_framed_data, split_message
from sbus.protocol.keys import text_of


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a stream. Its ``seq`` is greater than that of every earlier message of the stream; there can be gaps.

    ``time`` and ``expires`` are in seconds since 1970, by the clock of the store; ``expires`` is 0 for a message without an end. ``uid``,
    ``gid`` and ``pid`` are the publisher, as verified by the bus; ``origin`` is where a message of another host comes from.
    """

    stream: str
    seq: int
    time: float
    key_bytes: bytes
    payload: bytes
    uid: int
    gid: int
    pid: int
    origin: str = ""
    expires: float = 0.0

    @property
    def key(self) -> str:
        """The key as text. Bytes that are not UTF-8 are surrogates, as in os.fsdecode()."""
        return text_of(self.key_bytes)

    @property
    def text(self) -> str:
        """The payload as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return self.payload.decode()

    def json(self) -> Any:
        """Return the value that the payload has as JSON. Raises ValueError if it is not JSON."""
        return json.loads(self.payload)

    def as_message(self) -> Message:
        """Return it as a subscription yields it. Its sender has the connection 0, because that of the publisher may have ended."""
        credentials = b"!/cred/%d/%d/%d" % (self.gid, self.uid, self.pid)
        return Message(self.key_bytes, self.payload, Peer(0, self.uid, self.gid, self.pid, credentials, self.origin.encode()))


@dataclass(frozen=True, slots=True)
class StoreGap:
    """Here ``count`` messages with ``pattern`` are missing from a stream, for ``reason``; 0 means an unknown number."""

    seq: int
    time: float
    pattern: str
    count: int
    reason: str


StoreItem = StoredMessage | StoreGap
"""The items of a stream."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as ``peek`` shows it, without a lease.

    ``state`` is ``ready``, ``leased``, ``delayed`` or ``dead``. ``tries`` is the number of tries that have begun. ``at`` is the end of
    the lease or of the delay, 0 if there is none; ``holder`` is the user of the worker, None if there is none; ``reason`` says why a job
    failed.
    """

    message: StoredMessage
    state: str
    tries: int
    at: float = 0.0
    holder: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A job with a lease, as ``take`` returns it: ``number`` is that of the lease, ``until`` its end in seconds since 1970.

    ``length`` is its length in seconds, which does not depend on the date.
    """

    number: int
    message: StoredMessage
    tries: int
    until: float
    length: float


@dataclass(frozen=True, slots=True)
class Put:
    """A message that is on disk: its number in the stream, and whether it is the one that was put before with the same ``id``."""

    seq: int
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Items of a stream, where to read on, the newest number of the stream, and the run of the store that these numbers are of."""

    items: list[StoreItem]
    next_seq: int
    last_seq: int
    run: int


def parse_response(data: bytes) -> tuple[Mapping[str, Any], list[bytes]]:
    """Return the object and the frames of a response. Raises ProtocolError (EPROTO) if it is malformed."""
    try:
        return parse_framed_data(data)
    except ProtocolError as error:
        raise malformed(str(error)) from error


def malformed(words: str) -> ProtocolError:
    """Return the error of a response that is not one of a store."""
    return ProtocolError(ErrorCode.EPROTO, f"the store sent an invalid response: {words}")


def heads_and_frames(data: bytes, name: str) -> tuple[Mapping[str, Any], list[tuple[Mapping[str, Any], bytes]]]:
    """Return the object in a response, and the heads under *name* with their frames. Raises ProtocolError."""
    head, frames = parse_response(data)
    heads = head.get(name)
    if not isinstance(heads, list) or len(heads) != len(frames) or not all(isinstance(each, dict) for each in heads):
        raise malformed(f"{name} and the frames do not belong together")
    return head, list(zip(heads, frames, strict=True))


def item_of(head: Mapping[str, Any], frame: bytes) -> StoreItem:
    """Return the item of a stream with *head* and *frame*. Raises ProtocolError."""
    if "gap" not in head:
        return message_of(head, frame)
    try:
        return StoreGap(int(head["seq"]), float(head["time"]), str(head["pattern"]), int(head["gap"]), str(head["reason"]))
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(f"a gap: {error!r}") from error


def message_of(head: Mapping[str, Any], frame: bytes) -> StoredMessage:
    """Return the message with *head* and *frame*. Raises ProtocolError."""
    try:
        key, payload = split_message(frame)
        numbers = (int(head["uid"]), int(head["gid"]), int(head["pid"]))
        place = (str(head["stream"]), int(head["seq"]), float(head["time"]))
        return StoredMessage(*place, key, payload, *numbers, str(head.get("origin", "")), float(head.get("expires", 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(f"a message: {error!r}") from error


def lease_of(head: Mapping[str, Any], frame: bytes) -> Lease:
    """Return the job with *head* and *frame*. Raises ProtocolError."""
    message = message_of(head, frame)
    try:
        return Lease(int(head["lease"]), message, int(head["tries"]), float(head["until"]), float(head["length"]))
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(f"a job: {error!r}") from error


def queued_job_of(head: Mapping[str, Any], frame: bytes) -> QueuedJob:
    """Return the job with *head* and *frame* of a list. Raises ProtocolError."""
    message = message_of(head, frame)
    try:
        holder = head.get("holder")
        where = (str(head["state"]), int(head["tries"]), float(head.get("at", 0)))
        return QueuedJob(message, *where, None if holder is None else int(holder), str(head.get("reason", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(f"a job: {error!r}") from error


def puts_of(data: bytes, count: int) -> tuple[list[Put], dict[int, tuple[str, str]]]:
    """Return the outcomes of *count* messages, and the errors by index. Raises ProtocolError."""
    head, _ = parse_response(data)
    try:
        seqs, duplicates = [int(seq) for seq in head["seqs"]], {int(index) for index in head.get("duplicates", ())}
        errors = {int(index): (str(code), str(words)) for index, (code, words) in head.get("errors", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise malformed(f"a put: {error!r}") from error
    if len(seqs) != count or not all(0 <= index < count for index in (*duplicates, *errors)):
        raise malformed(f"{len(seqs)} outcomes of {count} messages")
    return [Put(seq, index in duplicates) for index, seq in enumerate(seqs)], errors


def lease_errors(data: bytes) -> dict[int, tuple[str, str]]:
    """Return the errors of leases, by their numbers. Raises ProtocolError."""
    head, _ = parse_response(data)
    try:
        return {int(lease): (str(code), str(words)) for lease, (code, words) in head.get("errors", {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise malformed(f"errors of leases: {error!r}") from error
