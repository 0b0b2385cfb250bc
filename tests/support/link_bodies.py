"""Bodies of frames with messages, and runs of messages, for tests of the link."""

from __future__ import annotations

from collections.abc import Iterable

from sbus.protocol.packets import LENGTH_BYTES
from sbus_services.link.frames import message_head
from sbus_services.link.message_runs import MessageRun, message_runs


def join_body(packets: Iterable[bytes]) -> bytes:
    """Return the body of a frame with *packets*."""
    return b"".join(len(packet).to_bytes(LENGTH_BYTES, "little") + packet for packet in packets)


SENDER = b"!/cred/1/2/3"


def sent(key: bytes, payload: bytes = b"", sender: bytes = SENDER) -> bytes:
    """Return a message in a frame of the network."""
    return message_head(key, sender) + payload


def run_of(key: bytes, *payloads: bytes, credentials: bytes = SENDER) -> MessageRun:
    """Return the run of messages with *payloads*."""
    head = message_head(key, credentials)
    (run,) = message_runs(join_body(head + payload for payload in payloads), 0)
    assert isinstance(run, MessageRun)
    return run
