"""``store/put``: messages that are on disk when the call is answered. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sbus.protocol.framed_data import (
    LATEST_SECONDS,
    MAX_DELAY_SECONDS,
    MAX_EXPIRE_SECONDS,
    MIN_EXPIRE_SECONDS,
    framed_data,
    split_message,
)
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.printable import printable
from sbus.rpc.requests import Request
from sbus_services.store.calls.fields import Fields
from sbus_services.store.calls.responses import CallError, code_and_words
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, NewMessage, PutResult, Sender
from sbus_services.store.ordinary_messages import MAX_MESSAGE_BYTES, sender_of

MAX_ID_BYTES = 128
"""Longest ``id`` of a message."""

_NO_OPTIONS: dict[str, Any] = {}
_OPTIONS = ("id", "delay", "at", "expire")

Outcome = PutResult | EngineError | CallError


class PutCall:
    """Serves ``store/put``."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    async def __call__(self, request: Request, head: dict[str, Any], frames: list[bytes]) -> bytes:
        """Return the response."""
        context, uid = self._context, request.caller.uid
        options = Fields(head, ("messages",)).raw("messages")
        options = [] if options is None else options
        if not frames:
            raise CallError("EINVAL", "the request has no message: after the JSON object and a NUL there must be a frame for each")
        if not isinstance(options, list) or len(options) > len(frames) or not all(isinstance(each, dict) for each in options):
            raise CallError("EINVAL", f"messages must be a list of at most {len(frames)} objects, one for each frame")
        with context.pending.held(uid, sum(map(len, frames))):
            outcomes: list[Outcome | None] = [None] * len(frames)
            messages = self._messages(request, frames, options, outcomes)
            reasons = await context.access.may_publish(request.caller, [message.key for _, message in messages.values()])
            groups: dict[str, list[int]] = defaultdict(list)
            for (index, (stream, _)), reason in zip(messages.items(), reasons, strict=True):
                if problem := reason or await self._publish_problem(stream):
                    outcomes[index] = CallError("EACCES", problem)
                else:
                    groups[stream].append(index)
            if groups:
                await self._put(
                    uid, {stream: {each: messages[each][1] for each in indices} for stream, indices in groups.items()}, outcomes
                )
        return self._response(outcomes)

    async def _publish_problem(self, stream: str) -> str:
        """Return why the store could not publish a message of *stream*, empty if it could or need not."""
        return await self._context.vouch_right.problem() if self._context.routes.stream(stream).publish else ""

    def _messages(
        self, request: Request, frames: Sequence[bytes], options: Sequence[dict[str, Any]], outcomes: list[Outcome | None]
    ) -> dict[int, tuple[str, NewMessage]]:
        """Return stream and message of each of *frames*, by its place; errors are *outcomes*."""
        sender = sender_of(request.caller)
        found: dict[int, tuple[str, NewMessage]] = {}
        for index, frame in enumerate(frames):
            given = options[index] if index < len(options) else _NO_OPTIONS
            try:
                found[index] = self._message(sender, frame, index, given)
            except CallError as error:
                outcomes[index] = error
        return found

    def _message(self, sender: Sender, frame: bytes, index: int, options: dict[str, Any]) -> tuple[str, NewMessage]:
        """Return the stream and the message in *frame*. Raises CallError."""
        context = self._context
        try:
            key, payload = split_message(frame)
        except ValueError as error:
            raise CallError("EINVAL", str(error)) from None
        if not key or len(key) > MAX_KEY_BYTES:
            raise CallError("EMSGSIZE" if key else "EINVAL", f"the key has {len(key)} bytes, 1 to {MAX_KEY_BYTES} are valid")
        if len(frame) > MAX_MESSAGE_BYTES:
            raise CallError("EMSGSIZE", f"key and payload have {len(frame) - 1} bytes, at most {MAX_MESSAGE_BYTES} are valid")
        stream = context.routes.stream_of(key)
        if stream is None:
            raise CallError("ENOENT", f"no stream stores the key {printable(key, 128)}; see [[stream]] in store.toml(5)")
        if not options:
            return stream.name, NewMessage(key, payload, sender)
        fields = Fields(options, _OPTIONS, f"messages[{index}]: ")
        delay, at = fields.milliseconds("delay", MAX_DELAY_SECONDS), fields.milliseconds("at", LATEST_SECONDS)
        expire = fields.milliseconds("expire", MAX_EXPIRE_SECONDS, MIN_EXPIRE_SECONDS)
        if delay is not None and at is not None:
            raise CallError("EINVAL", f"messages[{index}]: delay and at are both set; remove one of them")
        now, date = context.clock.now(), context.clock.date()
        at = at if at and at > date else 0
        if (delay or at) and context.routes.queue_of(stream.name) is None:
            raise CallError("EINVAL", f"messages[{index}]: stream {stream.name!r} has no queue, and only jobs can be delayed")
        ident = fields.text("id", MAX_ID_BYTES).encode("utf-8", "surrogatepass")
        if "id" in fields and not ident:
            raise fields.error("id", f"a text of 1 to {MAX_ID_BYTES} bytes")
        return stream.name, NewMessage(key, payload, sender, ident, now + delay if delay else 0, now + expire if expire else 0, at)

    async def _put(self, uid: int, groups: dict[str, dict[int, NewMessage]], outcomes: list[Outcome | None]) -> None:
        """Put the messages of each stream, in order, and note the *outcomes* by their places. Raises EngineError, CallError."""

        def put(engine: Engine) -> dict[str, list[PutResult | EngineError]]:
            engine.note_taken(taken)
            return {
                stream: (engine.put_unpublished if stream in publishing else engine.put_many)(stream, list(messages.values()))
                for stream, messages in groups.items()
            }

        def committed(found: dict[str, list[PutResult | EngineError]]) -> None:
            self._context.published.noted(taken)
            for stream, messages in groups.items():
                new = _new(messages.values(), found[stream])
                if stream in publishing:
                    self._context.publications.committed(
                        stream, [(seq, message) for seq, message in new if not message.due_ms and not message.at_ms]
                    )
                self._stored(stream, [message for _, message in new])

        publishing = {stream for stream in groups if self._context.routes.stream(stream).publish}
        taken = self._context.published.of_streams(publishing)

        found = await self._context.operations.run(uid, put, sum(map(len, groups.values())), committed)
        for stream, messages in groups.items():
            for index, outcome in zip(messages, found[stream], strict=True):
                outcomes[index] = outcome

    def _stored(self, stream: str, messages: Sequence[NewMessage]) -> None:
        """Wake those that wait for messages that are on disk."""
        context = self._context
        if not messages:
            return
        context.counts["put"] += len(messages)
        context.stored(stream, [message.key for message in messages])
        if any(message.due_ms or message.at_ms for message in messages):
            context.schedule_sweep(0)
        if expiring := [message.expires_ms for message in messages if message.expires_ms]:
            context.schedule_sweep(min(expiring))

    def _response(self, outcomes: Sequence[Outcome | None]) -> bytes:
        """Return the response for *outcomes*."""
        errors: dict[str, tuple[str, str]] = {}
        codes: Counter[str] = Counter()
        for index, outcome in enumerate(outcomes):
            if not isinstance(outcome, PutResult):
                code, words = code_and_words(outcome)
                errors[str(index)] = (code, words)
                codes[code] += 1
        for code, number in codes.items():
            self._context.counts[f"put_{code.lower()}"] += number
        head: dict[str, object] = {"seqs": [each.seq if isinstance(each, PutResult) else 0 for each in outcomes], "run": self._context.run}
        if duplicates := [index for index, each in enumerate(outcomes) if isinstance(each, PutResult) and each.is_duplicate]:
            head["duplicates"] = duplicates
        if errors:
            head["errors"] = errors
        return framed_data(head)


def _new(messages: Iterable[NewMessage], outcomes: Sequence[PutResult | EngineError]) -> list[tuple[int, NewMessage]]:
    """Return the messages that were stored now, with their numbers."""
    return [
        (outcome.seq, message)
        for message, outcome in zip(messages, outcomes, strict=True)
        if isinstance(outcome, PutResult) and not outcome.is_duplicate
    ]
