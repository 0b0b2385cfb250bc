"""Calls to the bus, and the replies to them: each response or error is assigned to its call, and parsed. No I/O.

Replies of the bus have no number, but they have an order: the bus handles a connection's packets one after another, and replies in that
order. So every call ends with a barrier, a ping with a unique token. If an earlier packet may still cause an error, a barrier precedes
the call too. The barriers divide the replies into *sections*:

::

    sent       MSG  ping-1  CMSG a  ping-2  SUB p  ping-3
    received   error  pong-1  a's answer  pong-2  error  pong-3
               \\___________/  \\________________/  \\___________/
                no call's       the call for a      the SUB's

Rules:

1. A reply between two pongs belongs to the call of that section, or to no call. A call that was abandoned (timeout, cancellation)
   leaves its section in place, so a late reply is dropped there and never reaches another call.
2. Tokens increase. A pong that closes a later section means that the pongs before it were lost.
3. ``!/bus/lost`` means that replies or pongs may be missing. From there to the next pong, no reply is assigned to a call, and calls
   without an outcome up to that pong fail with ``AnswerLost``. A new barrier is sent then, so that such a pong arrives.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from collections.abc import Callable

from sbus.errors import AnswerLost, RemoteRefusal, Unanswered
from sbus.protocol import controls
from sbus.protocol.credentials import Peer, make_peer
from sbus.protocol.errors import ErrorCode, ProtocolError, SbusError
from sbus.protocol.packets import control_packet

_TOKEN_HEAD = b"sbus/"

_CAUSED_BY_NO_REQUEST = frozenset({ErrorCode.ENOBUFS, ErrorCode.EMFILE})
"""Errors that the bus sends when it closes a connection for a reason of its own; they are not replies to a request."""

_MOST_DIGITS = 20
"""Digits of a number of 64 bits."""

_WITHHELD = b"-"
"""Replaces a number in a receipt that the bus does not disclose to this client."""


_SHOWN_BYTES = 128
"""Longest key or pattern that errors show whole."""


class Expects(enum.Enum):
    """The event that ends a call successfully."""

    ANSWER = "a control message under its key"
    SILENCE = "its barrier, with no error before"
    PONG = "its barrier, whatever else was lost"


class Call:
    """One request to the bus, and its outcome: ``is_done``, then ``error`` or else ``answer``.

    ``key`` is the key of the response, or the pattern of a SUB. The functions in ``on_done`` are called once, when it is done: several
    waits may share a call, and an abandoned SUB is undone when its outcome is known.
    """

    __slots__ = ("answer", "error", "expects", "is_done", "key", "on_done", "request")

    def __init__(self, request: str, expects: Expects, key: bytes = b"") -> None:
        self.request = request
        self.expects = expects
        self.key = key
        self.answer = b""
        self.error: SbusError | None = None
        self.is_done = False
        self.on_done: list[Callable[[], None]] = []

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done."""
        if self.is_done:
            return
        self.is_done = True
        self.answer = answer
        self.error = error
        for notify in self.on_done:
            notify()

    def take(self, key: bytes, payload: bytes) -> bool:
        """Handle a control message that arrived in the call's section; return whether it was for this call."""
        if self.expects is not Expects.ANSWER or self.key != key:
            return False
        self.finish(payload)
        return True

    def result(self) -> bytes:
        """Return the response of a call that is done. Raises its error."""
        if self.error is not None:
            raise self.error
        return self.answer


class AddressCall(Call):
    """``!/conn/whoami``; *learn* gets the address at once, before the functions in ``on_done`` are called."""

    __slots__ = ("_learn",)

    def __init__(self, learn: Callable[[bytes], None]) -> None:
        super().__init__(f"CMSG {repr(controls.ADDRESS)[1:]}", Expects.ANSWER, controls.ADDRESS)
        self._learn = learn

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done. Raises ProtocolError if the response is not an address."""
        if error is None and not self.is_done:
            self._learn(answer)
        super().finish(answer, error)


class ReceiptCall(Call):
    """A publication with a receipt: ``recipients`` is the number of connections that have it or will get it, None if withheld."""

    __slots__ = ("recipients", "token")

    def __init__(self, token: bytes) -> None:
        super().__init__("a message with a receipt", Expects.ANSWER, controls.RECEIPT)
        self.token = token
        self.recipients: int | None = 0

    def take(self, key: bytes, payload: bytes) -> bool:
        """Handle the receipt."""
        if key != controls.RECEIPT:
            return False
        count = receipt_count(self.token, payload)
        if count is None and not is_withheld(self.token, payload):
            return False
        self.recipients = count
        self.finish(payload)
        return True


class RequestCall(Call):
    """A request to a service: the members just before it, the recipients, and whether it was undeliverable.

    ``members`` is the first page of the response to ``!/bus/members``, None if that was not asked. ``recipients`` are the numbers of the
    connections that the bus has sent it to, None if it did not list them.
    """

    __slots__ = ("is_undeliverable", "members", "recipients", "token")

    def __init__(self, request: str, token: bytes) -> None:
        super().__init__(request, Expects.SILENCE)
        self.token = token
        self.members: bytes | None = None
        self.recipients: tuple[int, ...] | None = None
        self.is_undeliverable = False

    def take(self, key: bytes, payload: bytes) -> bool:
        """Handle the members or the receipt."""
        if key == controls.MEMBERS and self.members is None:
            self.members = payload
            return True
        if key != controls.RECEIPT:
            return False
        if receipt_count(self.token, payload) == 0:
            self.is_undeliverable = True
            return True
        receipt, _, listed = payload.rpartition(b"\0")
        if receipt_count(self.token, receipt) is None:
            return is_withheld(self.token, payload) or receipt_count(self.token, payload) is not None
        self.recipients = parse_recipients(listed)
        return True


class PresenceCall(Call):
    """``!/bus/members`` of a key at one connection's address; *gone* is called if it has no members."""

    __slots__ = ("_gone",)

    def __init__(self, gone: Callable[[], None]) -> None:
        super().__init__(f"CMSG {repr(controls.MEMBERS)[1:]}", Expects.ANSWER, controls.MEMBERS)
        self._gone = gone

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done."""
        if error is None and not self.is_done and not parse_members(answer)[0]:
            self._gone()
        super().finish(answer, error)


class PendingReplies:
    """The open sections, oldest first, each with its token and its call, if any."""

    __slots__ = ("_in_doubt", "_last_token", "_sections")

    def __init__(self) -> None:
        self._sections: deque[tuple[int, Call | None]] = deque()
        self._last_token = 0
        self._in_doubt = False

    def __len__(self) -> int:
        """Return the number of barriers that have not returned."""
        return len(self._sections)

    def close_section(self, call: Call | None = None) -> bytes:
        """Return the barrier that ends the section of all packets since the last barrier; *call* is the call of this section."""
        self._last_token += 1
        self._sections.append((self._last_token, call))
        return control_packet(controls.PING, _TOKEN_HEAD + b"%d" % self._last_token)

    @property
    def last_token(self) -> int:
        """The number of the newest barrier."""
        return self._last_token

    def answered(self, key: bytes, payload: bytes) -> bool:
        """Give a response to its call; return whether there is one."""
        call = self._current_call()
        return call is not None and call.take(key, payload)

    def refused(self, refusal: RemoteRefusal) -> bool:
        """Give an error to its call; return whether there is one that still waits for it."""
        call = self._current_call()
        if call is None or call.is_done or refusal.code in _CAUSED_BY_NO_REQUEST:
            return False
        if call.expects is Expects.PONG and refusal.code is not None and refusal.code.disconnects:
            return False
        # The packet that caused the error was sent before the ping, and is unknown.
        request = "" if call.expects is Expects.PONG else call.request
        call.finish(error=RemoteRefusal(refusal.code, refusal.words, request, refusal.key))
        return True

    def passed(self, payload: bytes) -> int | None:
        """Handle a pong; return its token, or None if it is not of a barrier of this session."""
        token = _parse_token(payload)
        if token is None or not self._sections or not self._sections[0][0] <= token <= self._last_token:
            return None
        while self._sections and self._sections[0][0] <= token:
            closed, call = self._sections.popleft()
            if call is not None:
                self._close(call, certain=closed == token and not self._in_doubt, pong_seen=closed == token)
        self._in_doubt = False
        return token

    def lost(self) -> bool:
        """Note that packets are missing here; return whether a barrier is needed, to know which calls are affected."""
        self._in_doubt = bool(self._sections)
        return self._in_doubt

    def fail(self, make_error: Callable[[], SbusError]) -> None:
        """Fail every pending call: the connection has ended, and its sections with it."""
        sections, self._sections = self._sections, deque()
        self._in_doubt = False
        for _, call in sections:
            if call is not None:
                call.finish(error=make_error())

    def _current_call(self) -> Call | None:
        """Return the call of a reply that arrives now."""
        return self._sections[0][1] if self._sections and not self._in_doubt else None

    def _close(self, call: Call, *, certain: bool, pong_seen: bool) -> None:
        """Finish a call whose section has ended."""
        if call.expects is Expects.PONG and pong_seen:
            call.finish()
        elif not certain:
            call.finish(error=AnswerLost(call.request))
        elif call.expects is Expects.SILENCE:
            call.finish()
        else:
            call.finish(error=Unanswered(call.request))


def receipt_count(token: bytes, payload: bytes) -> int | None:
    """Return the number of recipients in the receipt *payload*, or None if it is not the receipt with *token*."""
    head, _, digits = payload.rpartition(b"\0")
    return int(digits) if head == token and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def parse_recipients(listed: bytes) -> tuple[int, ...]:
    """Return the numbers of the connections that a receipt lists.

    Raises:
        ProtocolError: EPROTO if the list is malformed.
    """
    numbers = listed.split(b",")
    if not all(each.isdigit() and len(each) <= _MOST_DIGITS for each in numbers):
        raise ProtocolError(ErrorCode.EPROTO, f"invalid list of recipients in a receipt: {listed[:64]!r}")
    return tuple(map(int, numbers))


def is_withheld(token: bytes, payload: bytes) -> bool:
    """Return whether *payload* is the receipt with *token*, and the bus withheld the number of recipients."""
    return payload == b"%b\0%b" % (token, _WITHHELD)


def parse_members(payload: bytes) -> tuple[tuple[Peer, ...], int | None]:
    """Return a page of ``!/bus/members``: its members, and the connection number to continue after, None on the last page.

    Raises:
        ProtocolError: EPROTO if it is malformed.
    """
    try:
        page = json.loads(payload)
        peers = tuple(make_peer(_number(each["id"]), each["cred"].encode("ascii")) for each in page["members"])
        following = page["next"]
        return peers, None if following is None else _number(following)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid response to {controls.MEMBERS.decode()}: {payload[:64]!r}") from error


def members_question(key: bytes, after: int | None = None) -> bytes:
    """Return the payload of ``!/bus/members`` for the page after the connection number *after*."""
    return key if after is None else b"%b\0%d" % (key, after)


def request_words(verb: str, key: bytes) -> str:
    """Return how errors name the request of *verb* with *key*; the middle of a long one is left out."""
    return f"{verb} {repr(key if len(key) <= _SHOWN_BYTES else key[:100] + b'...' + key[-24:])[1:]}"


def parse_count(key: bytes, payload: bytes) -> int:
    """Return the count in a notice of the bus with *key*. Raises ProtocolError (EPROTO) if it is malformed."""
    if not (payload.isdigit() and len(payload) < 20):
        raise ProtocolError(ErrorCode.EPROTO, f"the bus sent {key.decode()} with an invalid count: {payload[:24]!r}")
    return int(payload)


def _parse_token(payload: bytes) -> int | None:
    """Return the token in a pong, or None if this session did not send the ping."""
    digits = payload.removeprefix(_TOKEN_HEAD)
    if digits is payload or not (digits.isdigit() and len(digits) < 20):
        return None
    return int(digits)


def _number(value: object) -> int:
    """Return *value* if it is a connection number. Raises ValueError if not."""
    if type(value) is not int or value < 0:
        raise ValueError(f"invalid number of a connection: {value!r}")
    return value
