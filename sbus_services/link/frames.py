"""What links send each other: a head of one line, and a body.

The head is the version, a letter and decimal numbers, separated by ``/``; the last is the serial, see :func:`add_serial`. Bodies: of `Data`
the last numbers of other flows, and the packets as in a batch of the bus; of `Changes` and `Snapshot` lines of interest; of `Heartbeat` an
address, digests of names, and the last numbers of flows, which `Tails` has alone; of `Ask` and `Answer` framed data; the others have none.
Parsing accepts exactly what encoding makes, and raises `FrameError` for all else.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sbus.protocol.credentials import split_sender
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.protocol.printable import printable
from sbus.protocol.vouching import MAX_ORIGIN_BYTES
from sbus_services.link.message_runs import MessageRun, message_runs

VERSION = 2
"""Version of the frames. A link refuses those of another version, and reports that."""

MAX_FRAME_BYTES = 65_536
"""Largest body with more than one packet or line; a single packet can be as long as the bus permits."""

MAX_TAILS = 16
MAX_TAILS_BYTES = 8_192
"""Largest number and size of the last numbers of other flows in a data frame. Those of further ones are in the next heartbeat."""

MAX_BODY_BYTES = MAX_PACKET_BYTES + MAX_TAILS_BYTES + 1_024
"""Largest body that a link accepts."""

MAX_SENDER_BYTES = MAX_ORIGIN_BYTES - len(b"!/host//") - 63
"""Longest sender that crosses the network: after ``!/host/<name>/`` it is an origin on the bus of the receiver."""

MAX_ADDRESS_BYTES = 64
NAME_DIGEST_BYTES = 8

_HEAD = re.compile(rb"([A-Z])((?:/(?:0|[1-9][0-9]{0,19})){1,11})")
_VERSION = re.compile(rb"([1-9][0-9]{0,8})/")
_LINE = struct.Struct("<cBH")
_TAIL = struct.Struct("<QQH")
_FROM = b"CMSG !/from/"
_ORIGINS = re.compile(rb"[A-Za-z0-9_-]{1,63}|[A-Za-z0-9_-]{0,62}\*")


class FrameError(ValueError):
    """A head or body of another host is malformed."""


class VersionError(FrameError):
    """A head of another version of this protocol."""


class Data(NamedTuple):
    """Messages of a flow, numbered from *number* without a gap.

    *forgotten* is as in `Heartbeat`. *tails* is the size of what precedes the messages: last numbers of other flows before this frame.
    """

    epoch: int
    flow: int
    number: int
    messages: int
    forgotten: int = 0
    tails: int = 0


class Changes(NamedTuple):
    """What the sender wants from now on, or no longer; *version* is one more than before."""

    epoch: int
    version: int


class Heartbeat(NamedTuple):
    """The sender is alive. *interval*: until the next one, in ms; *losses*: how many flows ended before it had listed their ends.

    *digest* is that of all lines of its interest. No flow below *floor* will get a further message. *forgotten*: how many hosts it has
    forgotten, since they were silent, and how often its bus lost messages of unknown flows; the body has the digests of the names
    of the last *listed* hosts. *address*: the size of the address of the sender in the body.
    """

    epoch: int
    beat: int
    interval: int
    version: int
    digest: int
    losses: int
    floor: int
    forgotten: int = 0
    listed: int = 0
    address: int = 0


class Tails(NamedTuple):
    """The last numbers of the flows for one host alone, sent with each heartbeat from *first* on."""

    epoch: int
    beat: int
    first: int


class SnapshotRequest(NamedTuple):
    """The sender asks for a snapshot (*rejoin* 0), or asks to be treated as a new receiver (1)."""

    epoch: int
    rejoin: int


class Snapshot(NamedTuple):
    """Part *part* of *parts*, from 0, of what the sender wants of the receiver; *digest* is that of all its lines."""

    epoch: int
    version: int
    digest: int
    part: int
    parts: int


class Applied(NamedTuple):
    """The sender's bus has the subscriptions for *version* of the receiver's interest.

    Flows from *first* on include it. *number* counts such frames; 1 means that earlier flows do not include the receiver. *refused*: lines
    beyond the bounds. *beat* is the last heartbeat before, *forgotten* as in `Heartbeat`.
    """

    epoch: int
    receiver_epoch: int
    version: int
    number: int
    first: int
    refused: int
    beat: int
    forgotten: int = 0


class Ask(NamedTuple):
    """A question, see `sbus_services.link.exchange`; the sender counts them by *number*."""

    epoch: int
    number: int


class Answer(NamedTuple):
    """The answer to the question *number* of the receiver in its run *receiver_epoch*."""

    epoch: int
    receiver_epoch: int
    number: int


Head = Data | Changes | Heartbeat | Tails | SnapshotRequest | Snapshot | Applied | Ask | Answer

_KINDS: dict[bytes, type[Head]] = {
    b"D": Data,
    b"I": Changes,
    b"H": Heartbeat,
    b"T": Tails,
    b"Q": SnapshotRequest,
    b"S": Snapshot,
    b"A": Applied,
    b"B": Ask,
    b"R": Answer,
}
_AT: dict[str, tuple[type[Head], ...]] = {
    "m": (Data,),
    "i": (Changes,),
    "h": (Heartbeat,),
    "x": (Data, Tails, SnapshotRequest, Snapshot, Applied, Ask, Answer),
}
"""The frames at a subject of each kind; see `sbus_services.link.subjects`."""

_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


class Line(NamedTuple):
    """Interest in the keys that *pattern* matches at the hosts whose name the segment *origins* matches."""

    origins: bytes
    pattern: bytes

    def concerns(self, host: str) -> bool:
        """Return whether *host* is one of the origins."""
        before, star, _ = self.origins.partition(b"*")
        name = host.encode("ascii")
        return name.startswith(before) if star else name == before

    def digest(self) -> int:
        """Return a number of 64 bits; the digest of a set is the sum of those of its lines, modulo 2**64."""
        return int.from_bytes(hashlib.sha256(self.origins + b"\0" + self.pattern).digest()[:8], "little")


class Tail(NamedTuple):
    """The last number of a flow, and a key of it; every key of a flow matches the same patterns."""

    flow: int
    last: int
    key: bytes


def is_origins(segment: bytes) -> bool:
    """Return whether *segment* can name the origins of a line: a host, or the beginning of its name and a star."""
    return _ORIGINS.fullmatch(segment) is not None


def encode_head(head: Head) -> bytes:
    """Return *head* as the beginning of a line; :func:`add_serial` completes it."""
    return b"/".join([_LETTERS[type(head)], *(b"%d" % number for number in head)])


def add_serial(head: bytes, serial: int) -> bytes:
    """Return the line of a frame with an encoded *head*.

    All frames of one run are counted by *serial*, from 1 on, in the order in which they are sent, whatever their kind and receivers are.
    A receiver ignores a frame whose serial is not greater than the last one; `sbus_services.link.peers` says why.
    """
    return b"%d/%b/%d" % (VERSION, head, serial)


def parse_head(line: bytes) -> tuple[Head, int]:
    """Return the head in *line*, and the serial. Raises FrameError, VersionError."""
    version = _VERSION.match(line)
    if (int(version[1]) if version is not None else 1) != VERSION and _HEAD.fullmatch(line, version.end() if version is not None else 0):
        raise VersionError(f"frame of another version {line[:64]!r}")
    match = _HEAD.fullmatch(line, version.end()) if version is not None else None
    kind = _KINDS.get(match[1]) if match else None
    if match is None or kind is None:
        raise FrameError(f"malformed head {line[:64]!r}")
    *numbers, serial = [int(digits) for digits in match[2][1:].split(b"/")]
    if len(numbers) != len(kind._fields) or max(*numbers, serial) >> 64 or not serial:
        raise FrameError(f"malformed head {line[:64]!r}")
    return kind(*numbers), serial


def parse_head_of(kind: str, line: bytes) -> tuple[Head, int]:
    """Return the head in *line*, and the serial. Raises FrameError if it is malformed, or does not belong to a subject of *kind*."""
    head, serial = parse_head(line)
    if not isinstance(head, _AT[kind]):
        raise FrameError(f"{type(head).__name__} at a subject of kind {kind}")
    return head, serial


def is_sender(sender: bytes) -> bool:
    """Return whether *sender* can cross: ``<cred>`` of a publisher at its host, or ``<cred>/<origin>`` of one that vouches for others."""
    return len(sender) <= MAX_SENDER_BYTES and split_sender(sender) is not None


def message_head(key: bytes, sender: bytes) -> bytes:
    """Return what precedes the payload of a message in a frame. *sender* is valid; see :func:`is_sender`."""
    return b"%b%b\0MSG %b\0" % (_FROM, sender, key)


def parse_messages(body: bytes, head: Data) -> list[MessageRun]:
    """Return the messages in the body of a data frame. Each has a valid sender. Raises FrameError."""
    _check_size(body)
    if head.tails > MAX_TAILS_BYTES:
        raise FrameError(f"{head.tails} bytes of last numbers, at most {MAX_TAILS_BYTES} are allowed")
    count = head.messages
    if not count or head.tails >= len(body):
        raise FrameError("frame without messages")
    runs: list[MessageRun] = []
    found = 0
    try:
        for run in message_runs(body, head.tails):
            if not isinstance(run, MessageRun):
                raise FrameError(f"malformed message {run[:64]!r}")
            if not is_sender(run.sender):
                raise FrameError(f"malformed sender {run.sender[:64]!r}")
            found += run.messages
            if found > count:
                raise FrameError(f"more than {count} messages in a frame of {count}")
            runs.append(run)
    except ProtocolError as error:
        raise FrameError(str(error)) from None
    if found != count:
        raise FrameError(f"{found} messages in a frame of {count}")
    return runs


def encode_line(line: Line, wanted: bool) -> bytes:
    """Return the bytes of one line of interest."""
    return _LINE.pack(b"+" if wanted else b"-", len(line.origins), len(line.pattern)) + line.origins + line.pattern


def parse_lines(body: bytes) -> list[tuple[Line, bool]]:
    """Return the lines of interest in *body*, each with whether it is wanted. Raises FrameError."""
    _check_size(body)
    lines: list[tuple[Line, bool]] = []
    place = 0
    while place < len(body):
        sign, origins_size, pattern_size = _unpack(_LINE, body, place)
        place += _LINE.size + origins_size + pattern_size
        origins, pattern = body[place - origins_size - pattern_size : place - pattern_size], body[place - pattern_size : place]
        if place > len(body) or sign not in b"+-" or b"\0" in pattern or pattern_size > MAX_KEY_BYTES or not is_origins(origins):
            raise FrameError(f"malformed line of interest at byte {place}")
        lines.append((Line(origins, pattern), sign == b"+"))
    return lines


def name_digest(host: str) -> bytes:
    """Return NAME_DIGEST_BYTES for the name of a host."""
    return hashlib.sha256(host.encode("ascii")).digest()[:NAME_DIGEST_BYTES]


def heartbeat_body(address: bytes, forgotten: Iterable[str], tails: bytes) -> bytes:
    """Return the body of a heartbeat of the host at *address*, which has just forgotten the hosts *forgotten*."""
    return b"".join([address, *map(name_digest, forgotten), tails])


def parse_heartbeat(head: Heartbeat, body: bytes) -> tuple[str, set[bytes], bytes]:
    """Return the address, the digests of forgotten hosts, and the tails in the body of a heartbeat. Raises FrameError."""
    _check_size(body)
    end = head.address + head.listed * NAME_DIGEST_BYTES
    if end > len(body) or head.address > MAX_ADDRESS_BYTES:
        raise FrameError("truncated heartbeat")
    places = range(head.address, end, NAME_DIGEST_BYTES)
    address = printable(body[: head.address].decode("ascii", "replace"))
    return address, {body[place : place + NAME_DIGEST_BYTES] for place in places}, body[end:]


def encode_tail(tail: Tail) -> bytes:
    """Return the bytes of one tail."""
    return _TAIL.pack(tail.flow, tail.last, len(tail.key)) + tail.key


def parse_tails(body: bytes, most: int = MAX_FRAME_BYTES // _TAIL.size) -> list[Tail]:
    """Return the tails in *body*: at most *most*, and 64 KiB. Raises FrameError."""
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{len(body)} bytes of last numbers, at most {MAX_FRAME_BYTES} are allowed")
    tails: list[Tail] = []
    place = 0
    while place < len(body):
        flow, last, size = _unpack(_TAIL, body, place)
        place += _TAIL.size + size
        key = body[place - size : place]
        if place > len(body) or b"\0" in key:
            raise FrameError(f"malformed flow at byte {place}")
        if len(tails) == most:
            raise FrameError(f"more than {most} last numbers of flows")
        tails.append(Tail(flow, last, key))
    return tails


def chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bodies of whole *parts*, each at most 64 KiB unless a single part is longer."""
    body: list[bytes] = []
    size = 0
    for part in parts:
        if body and size + len(part) > MAX_FRAME_BYTES:
            yield b"".join(body)
            body, size = [], 0
        body.append(part)
        size += len(part)
    if body:
        yield b"".join(body)


def _check_size(body: bytes) -> None:
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"body too long: {len(body)} bytes, at most {MAX_BODY_BYTES} are allowed")


def _unpack(form: struct.Struct, body: bytes, place: int) -> tuple[Any, ...]:
    if place + form.size > len(body):
        raise FrameError(f"truncated at byte {place}")
    return form.unpack_from(body, place)
