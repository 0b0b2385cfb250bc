"""Which call an answer, or an error, belongs to. No I/O.

The bus's answers carry no number. What they have is order: the bus handles a connection's packets one after the other, and answers
in that order. So every call is closed by a barrier, a ping with a token of its own, and where something was sent before that
may still draw an error, one is put in front too. The barriers cut what the bus sends into *sections*:

::

    sent       MSG  ping-1  CMSG a  ping-2  SUB p  ping-3
    received   error  pong-1  a's answer  pong-2  error  pong-3
               \\___________/  \\________________/  \\___________/
                nobody's        the call for a      the SUB's

Rules:

1. An answer or error between two pongs belongs to the call of that section, or to nobody. A call that was given up (time-out,
   cancellation) leaves its section in place, so what comes late for it is dropped there and never reaches another call.
2. Tokens grow. A pong that closes a later section says that the pongs before it were lost.
3. ``!/bus/lost`` says that answers or pongs may be missing. From there to the next pong nothing is given to anybody, and the calls
   that this pong passes without an outcome fail with ``AnswerLost``. The ledger asks for a barrier then, so that such a pong comes.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from sbusd.client.errors import AnswerLost, RemoteRefusal, SbusError, Unanswered
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.packets import control_packet

_TOKEN_HEAD = b"sbusd.client/"

_CAUSED_BY_NO_REQUEST = frozenset({ErrorCode.ENOBUFS, ErrorCode.EMFILE})
"""Errors that the bus sends when it ends a connection of itself, whatever is asked at the moment."""


class Expects(enum.Enum):
    """What ends a call well."""

    ANSWER = "a control message under its key"
    SILENCE = "its barrier, with no error before"
    PONG = "its barrier, whatever else was lost"


class Call:
    """One request to the bus, and what became of it: ``is_done``, then ``error`` or else ``answer``.

    ``key`` is that of the answer, or the pattern of a SUB. ``on_done`` are called once, when it is done: several may wait for
    one call, and an abandoned SUB hands its outcome to who takes it back.
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
        """Settle the call, unless it is settled already."""
        if self.is_done:
            return
        self.is_done = True
        self.answer = answer
        self.error = error
        for told in self.on_done:
            told()

    def take(self, key: bytes, payload: bytes) -> bool:
        """Take a control message that came while the call's section was open; return whether it was for this call."""
        if self.expects is not Expects.ANSWER or self.key != key:
            return False
        self.finish(payload)
        return True

    def result(self) -> bytes:
        """Return the answer of a call that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.answer


class Ledger:
    """The sections that are open, oldest first, each with its token and the call it belongs to, if any."""

    __slots__ = ("_in_doubt", "_last_token", "_sections")

    def __init__(self) -> None:
        self._sections: deque[tuple[int, Call | None]] = deque()
        self._last_token = 0
        self._in_doubt = False

    def __len__(self) -> int:
        """Return how many barriers are under way."""
        return len(self._sections)

    def close_section(self, call: Call | None = None) -> bytes:
        """Open a section that ends with the barrier returned here, for all that is sent up to it since the last one."""
        self._last_token += 1
        self._sections.append((self._last_token, call))
        return control_packet(controls.PING, _TOKEN_HEAD + b"%d" % self._last_token)

    @property
    def last_token(self) -> int:
        """Number of the newest barrier."""
        return self._last_token

    def answered(self, key: bytes, payload: bytes) -> bool:
        """Give an answer to the call it belongs to; return whether there is one."""
        call = self._current_call()
        return call is not None and call.take(key, payload)

    def refused(self, refusal: RemoteRefusal) -> bool:
        """Give an error to the call it belongs to; return whether there is one that still waits for its outcome."""
        call = self._current_call()
        if call is None or call.is_done or refusal.code in _CAUSED_BY_NO_REQUEST:
            return False
        if call.expects is Expects.PONG and refusal.code is not None and refusal.code.disconnects:
            return False
        # What a ping draws an error for was sent before it, and is not known.
        request = "" if call.expects is Expects.PONG else call.request
        call.finish(error=RemoteRefusal(refusal.code, refusal.words, request))
        return True

    def passed(self, payload: bytes) -> int | None:
        """Take note of a pong; return its token, or None if it is not one of this ledger's."""
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
        """Take note that packets are missing here; return whether a barrier is needed to clear up what that means."""
        self._in_doubt = bool(self._sections)
        return self._in_doubt

    def fail(self, make_error: Callable[[], SbusError]) -> None:
        """Fail every call that waits: the connection is gone, and its sections with it."""
        sections, self._sections = self._sections, deque()
        self._in_doubt = False
        for _, call in sections:
            if call is not None:
                call.finish(error=make_error())

    def _current_call(self) -> Call | None:
        """Return the call that what arrives now belongs to."""
        return self._sections[0][1] if self._sections and not self._in_doubt else None

    def _close(self, call: Call, *, certain: bool, pong_seen: bool) -> None:
        """Settle a call whose section is over."""
        if call.expects is Expects.PONG and pong_seen:
            call.finish()
        elif not certain:
            call.finish(error=AnswerLost(call.request))
        elif call.expects is Expects.SILENCE:
            call.finish()
        else:
            call.finish(error=Unanswered(call.request))


def _parse_token(payload: bytes) -> int | None:
    """Return the number in a pong of ours, or None for somebody else's."""
    digits = payload.removeprefix(_TOKEN_HEAD)
    if digits is payload or not (digits.isdigit() and len(digits) < 20):
        return None
    return int(digits)
