"""Calls to the bus whose responses need parsing: receipts, members, features, the own address. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable

from sbusd.client.errors import RemoteRefusal, Unanswered
from sbusd.client.pending_replies import Call, Expects
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError, SbusError
from sbusd.protocol.peers import Peer, make_peer

_MOST_DIGITS = 20
"""Digits of a number of 64 bits."""

_WITHHELD = b"-"
"""Replaces a number in a receipt that the bus does not disclose to this client."""


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


class FeaturesCall(Call):
    """``!/bus/features``; *learn* gets their names: none if the bus does not know the question, None if the response was lost."""

    __slots__ = ("_learn",)

    def __init__(self, learn: Callable[[frozenset[bytes] | None], None]) -> None:
        super().__init__(f"CMSG {repr(controls.FEATURES)[1:]}", Expects.ANSWER, controls.FEATURES)
        self._learn = learn

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done."""
        if not self.is_done:
            is_known = error is None or isinstance(error, RemoteRefusal | Unanswered)
            self._learn(frozenset(answer.split(b"\n")) if is_known else None)
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
    """A request to a service: the members just before it, and whether it was undeliverable.

    ``members`` is the first page of the response to ``!/bus/members``, None if that was not asked.
    """

    __slots__ = ("is_undeliverable", "members", "token")

    def __init__(self, request: str, token: bytes) -> None:
        super().__init__(request, Expects.SILENCE)
        self.token = token
        self.members: bytes | None = None
        self.is_undeliverable = False

    def take(self, key: bytes, payload: bytes) -> bool:
        """Handle the members, or the receipt of an undeliverable request."""
        if key == controls.MEMBERS and self.members is None:
            self.members = payload
            return True
        if key != controls.RECEIPT:
            return False
        if receipt_count(self.token, payload) == 0:
            self.is_undeliverable = True
            return True
        return is_withheld(self.token, payload)


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


def receipt_count(token: bytes, payload: bytes) -> int | None:
    """Return the number of recipients in the receipt *payload*, or None if it is not the receipt with *token*."""
    head, _, digits = payload.rpartition(b"\0")
    return int(digits) if head == token and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


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


def _number(value: object) -> int:
    """Return *value* if it is a connection number. Raises ValueError if not."""
    if type(value) is not int or value < 0:
        raise ValueError(f"invalid number of a connection: {value!r}")
    return value
