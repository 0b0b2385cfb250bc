"""Responses of calls: heads of messages, what fits into one, and errors. Spec: sbus-store(8), "CALLS" and "ERROR CODES"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sbus.errors import ServiceError
from sbus.protocol.framed_data import MAX_DATA_BYTES, MAX_MESSAGES, framed_data, message_frame
from sbus.protocol.keys import text_of
from sbus_services.store.engine.messages import EngineError, Gap, JobInfo, LeasedJob, Stored

RESTARTING = "restarting, try again"
"""The words of EAGAIN, by which a client knows that it may send the call again."""


class CallError(ServiceError):
    """A call that fails with *code* and *words*; both are sent to the caller."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code} {words}")
        self.code = code
        self.words = words


def restarting() -> CallError:
    """Return the error of calls that wait while the store stops."""
    return CallError("EAGAIN", RESTARTING)


def code_and_words(error: object) -> tuple[str, str]:
    """Return the code and the words of an error of a message or a lease."""
    if isinstance(error, CallError):
        return error.code, error.words
    if isinstance(error, EngineError):
        return error.code, error.reason
    return "EIO", "internal error"


RESPONSE_BYTES = 128 << 10
"""Size of the messages of one response, unless it has only one; further ones come with the next call."""

MAX_HEADS_BYTES = MAX_DATA_BYTES - RESPONSE_BYTES - 16_384
"""Size of the heads of several messages."""

MAX_HEAD_BYTES = 1_024
"""Longest head of a job, with the longest origin."""


def head_of(stream: str, stored: Stored) -> dict[str, object]:
    """Return the head of a message: times are in seconds."""
    sender = stored.sender
    head: dict[str, object] = {
        "stream": stream,
        "seq": stored.seq,
        "time": stored.time_ms / 1000,
        "uid": sender.uid,
        "gid": sender.gid,
        "pid": sender.pid,
    }
    if sender.origin:
        head["origin"] = sender.origin
    if stored.expires_ms:
        head["expires"] = stored.expires_ms / 1000
    return head


def gap_head(gap: Gap) -> dict[str, object]:
    """Return the head of a gap. Its frame is empty."""
    return {"gap": gap.count, "pattern": text_of(gap.pattern), "reason": gap.reason, "seq": gap.seq, "time": gap.time_ms / 1000}


def job_head(stream: str, job: LeasedJob) -> dict[str, object]:
    """Return the head of a job."""
    return head_of(stream, job.stored) | {
        "lease": job.lease,
        "tries": job.tries,
        "until": job.until_ms / 1000,
        "length": job.lease_ms / 1000,
    }


def info_head(stream: str, info: JobInfo) -> dict[str, object]:
    """Return the head of a job in a list. The holder of a lease is shown without its connection, which is its own affair."""
    head = head_of(stream, info.stored) | {"state": info.state, "tries": info.tries}
    if info.at_ms:
        head["at"] = info.at_ms / 1000
    if info.reason:
        head["reason"] = info.reason
    if info.holder is not None:
        head["holder"] = info.holder.uid
    return head


def frame_of(stored: Stored) -> bytes:
    """Return the frame of a message."""
    return message_frame(stored.key, stored.payload)


def item_of(stream: str, item: Stored | Gap) -> tuple[dict[str, object], bytes]:
    """Return the head and the frame of an item of a stream."""
    return (gap_head(item), b"") if isinstance(item, Gap) else (head_of(stream, item), frame_of(item))


def fitting(items: Iterable[tuple[dict[str, object], bytes]]) -> list[tuple[dict[str, object], bytes]]:
    """Return the first of *items* that fit into a response together, at least one if there is one."""
    found: list[tuple[dict[str, object], bytes]] = []
    heads = frames = 0
    for head, frame in items:
        heads += len(framed_data(head)) + 1
        frames += len(frame) + 4
        if found and (heads > MAX_HEADS_BYTES or frames > RESPONSE_BYTES or len(found) >= MAX_MESSAGES):
            break
        found.append((head, frame))
    return found


def response(name: str, items: Sequence[tuple[dict[str, object], bytes]], run: int, **members: object) -> bytes:
    """Return the data of a response with the heads under *name*, whose numbers are of *run*; without members whose value is None."""
    head: dict[str, object] = {name: [each for each, _ in items], "run": run}
    head |= {key: value for key, value in members.items() if value is not None}
    return framed_data(head, [frame for _, frame in items])
